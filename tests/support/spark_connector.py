"""Spark's own Kafka source, added to the session that tests share."""

from __future__ import annotations

from typing import Any

import pytest

from bench.apache import Unavailable, spark_connector


def add_connector(spark: Any) -> None:
    """Adds the connector's jars to a session. Raises Unavailable."""
    for jar in spark_connector():
        spark.sql(f"ADD JAR '{jar}'")


def with_connector(spark: Any) -> Any:
    """Returns the session with the connector, or skips the test with the reason."""
    try:
        add_connector(spark)
    except Unavailable as error:
        pytest.skip(f"Spark's Kafka connector is not available: {error}")
    return spark
