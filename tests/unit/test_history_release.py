"""What Spark keeps of an analysis that fails, without a Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.pipelines import history


class Frame:
    """The records: kept when asked, and of no further use."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.is_kept = False

    def persist(self) -> Frame:
        self.is_kept = True
        return self

    def unpersist(self) -> None:
        self.is_kept = False

    def collect(self) -> list[Any]:
        if self.failing == "collect":
            raise KeyboardInterrupt
        return []

    def __getattr__(self, name: str) -> Any:
        """Every other step leads to a frame that is as this one."""
        return lambda *given: self


@pytest.mark.parametrize("failing", ["collect", "_logs", "_coverage", "_analyser", "HistoryFrames"])
def test_an_analysis_that_fails_keeps_nothing(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    records = Frame(failing)

    @contextlib.contextmanager
    def progress_options(*given: Any) -> Iterator[dict[str, str]]:
        yield {}

    def step(name: str) -> Any:
        def run(*given: Any, **named: Any) -> Any:
            assert records.is_kept
            if name == failing:
                raise KeyboardInterrupt
            return {}

        return run

    monkeypatch.setattr(history, "progress_options", progress_options)
    monkeypatch.setattr(history, "_planned", lambda *given: history._Read([], "read_committed", {}))
    monkeypatch.setattr(history, "offset_history", lambda *given, **named: records)
    for name in ("_logs", "_coverage", "_analyser", "HistoryFrames"):
        monkeypatch.setattr(history, name, step(name))
    with pytest.raises(KeyboardInterrupt):
        history.analyse_on_spark(None, "127.0.0.1:9")  # type: ignore[arg-type]
    assert not records.is_kept
