"""Our wrapper of PySpark's ``format``, which makes the frame's session active, accepts the same arguments."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.readwriter import DataFrameWriter
from pyspark.sql.streaming.readwriter import DataStreamWriter

from odradek.spark import session_activation


@pytest.mark.parametrize("writer", [DataFrameWriter, DataStreamWriter])
def test_format_accepts_its_source_as_a_keyword(monkeypatch: pytest.MonkeyPatch, writer: Any) -> None:
    activated: list[Any] = []
    sessions = SimpleNamespace(setActiveSession=activated.append)
    monkeypatch.setattr(session_activation, "_sessions", lambda spark: sessions)
    (name,) = list(inspect.signature(inspect.unwrap(writer.format)).parameters)[1:]

    def choose(self: Any, source: str) -> str:
        return source

    chosen = session_activation._with_activation(choose, "odradek")
    frame = SimpleNamespace(_spark=SimpleNamespace(_jsparkSession="its session"))
    assert chosen(frame, **{name: "parquet"}) == "parquet"
    assert activated == []
    assert chosen(frame, **{name: "Odradek"}) == "Odradek"
    assert chosen(frame, "odradek") == "odradek"
    assert activated == ["its session"] * 2
