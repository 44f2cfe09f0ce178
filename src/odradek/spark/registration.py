"""Making the data sources known to a Spark session."""

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
    """Makes ``format("odradek")`` and ``format("odradek-offsets")`` known to a session, for all threads of this
    process, and has its streams commit each batch when it is finished. It changes no setting of the session.

    In the definition of a Declarative Pipeline it does nothing: PySpark 4.3 ends a pipeline in which anything registers
    a data source (``UNKNOWN_RESPONSE … __python_accumulator__``, after the run), and Spark finds these by itself.
    """
    if is_connect(spark) and defines_pipeline():
        return
    with active(spark):
        for source in (OdradekDataSource, OffsetsDataSource):
            try:
                spark.dataSource.register(source)
            except PySparkException as error:
                # Spark found the package `pyspark_odradek…` by itself, and lets nothing replace what it found.
                if error.getCondition() != _THERE_ALREADY:
                    raise
    activate_when_writing(OdradekDataSource.name())
    if not is_connect(spark):  # there listeners run elsewhere, and see no plans
        from odradek.spark.batch_commits import commit_finished_batches

        commit_finished_batches(spark)
