"""A failure in Java is reported in one line with its cause, not as an error of the bridge between Java and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.core.errors import StorageError
from odradek.pipelines import ingest
from odradek.pipelines.queries import QueryFailed, spark_failures


def test_a_failure_of_java_is_named(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    topic = unique("codec")
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, numbers(5))
    spark.conf.set("parquet.block.size", "many")
    try:
        with pytest.raises(QueryFailed) as failed:
            ingest(bootstrap, topics=topic, group=unique("g"), output=tmp_path / "t", writer="spark", spark=spark)
    finally:
        spark.conf.unset("parquet.block.size")
    said = str(failed.value)
    assert said.startswith('the Spark query stopped: java.lang.NumberFormatException: For input string: "many"'), said
    assert "\n" not in said


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("Answer from Java side is empty")]
)
def test_the_end_of_java_is_named(error: Exception) -> None:
    """Before, the line was only "Connection refused"."""
    with pytest.raises(QueryFailed) as failed, spark_failures("the query stopped"):
        raise error
    assert str(failed.value) == (
        f"the query stopped: Java does not answer ({error}): it has ended, for example because it was killed or had "
        "too little memory. Run the command again"
    )
    first = StorageError("a newer run has published")
    with pytest.raises(QueryFailed, match="stopped: a newer run has published"), spark_failures("it stopped", [first]):
        raise error
