"""The console sink of Spark is visible in a session of ``odradek.spark.session``."""

from __future__ import annotations

from typing import Any

import pytest
from support.brokers import eventually


def test_the_tables_of_the_console_sink_are_printed(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, they were only in Spark's log, a file that is removed at the end."""
    printed = ""

    def is_printed() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "|  a|" in printed

    spark.range(1).selectExpr("'a' AS col").write.format("console").mode("append").save()
    eventually(is_printed)
    assert "|col|" in printed
