"""A failed analysis releases its cached data in Spark. No Spark runs in this test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.pipelines.history import frames as history


class Frame:
    """A data frame of records that can be cached; it has no data."""

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
        """Every other method returns this frame."""
        return lambda *given: self


@pytest.mark.parametrize("failing", ["collect", "_logs", "_coverage", "_analyser", "HistoryFrames"])
def test_a_failed_analysis_releases_its_cached_frames(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
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
    monkeypatch.setattr(history, "_plan_read", lambda *given: history._OffsetsTopicRead([], "read_committed", {}))
    monkeypatch.setattr(history, "offset_history", lambda *given, **named: records)
    monkeypatch.setattr(history, "apply_in_arrow", lambda *given: records)
    for name in ("_logs", "_coverage", "_analyser", "HistoryFrames"):
        monkeypatch.setattr(history, name, step(name))
    with pytest.raises(KeyboardInterrupt):
        history.analyse_on_spark(None, "127.0.0.1:9")
    assert not records.is_kept
