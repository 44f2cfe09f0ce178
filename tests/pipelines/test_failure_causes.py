"""A failure in Java is reported in one line with its cause, not as an error of the bridge between Java and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.pipelines import ingest
from odradek.pipelines.queries import QueryFailed


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
