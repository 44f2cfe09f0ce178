"""Registration of the data sources in a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from odradek.spark.offsets_source import OffsetsDataSource
from odradek.spark.session_activation import activate_when_writing, active, defines_pipeline, is_connect
from odradek.spark.source import OdradekDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_THERE_ALREADY = "DATA_SOURCE_ALREADY_EXISTS"


def register(spark: SparkSession) -> None:
    """Registers ``format("odradek")`` and ``format("odradek-offsets")`` in a session, for all threads of this process.

    It also adds the listener that commits each micro-batch of the session's streams when it is finished (not with Spark
    Connect). It changes no setting of the session.

    In the definition of a Declarative Pipeline it does nothing: PySpark 4.3 fails a pipeline in which anything
    registers a data source (``UNKNOWN_RESPONSE … __python_accumulator__``, after the run), and Spark finds these
    sources without registration.
    """
    if is_connect(spark) and defines_pipeline():
        return
    with active(spark):
        for source in (OdradekDataSource, OffsetsDataSource):
            try:
                spark.dataSource.register(source)
            except PySparkException as error:
                # Spark has found the package `pyspark_odradek…`, and does not allow replacing such a source.
                if error.getCondition() != _THERE_ALREADY:
                    raise
    activate_when_writing(OdradekDataSource.name())
    if not is_connect(spark):  # with Spark Connect, listeners run in another process and see no plans
        from odradek.spark.driver.micro_batch_commits import commit_finished_batches

        commit_finished_batches(spark)
