"""The end of a process whose session has the listener of finished micro-batches. No Spark starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from odradek.spark.driver.micro_batch_commits import GroupCommits


class Manager:
    """Spark's manager of queries, in Java."""

    def __init__(self, error: Exception | None = None) -> None:
        self.removed: list[Any] = []
        self.error = error

    def removeListener(self, listener: Any) -> None:
        self.removed.append(listener)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, Py4JError("Java has ended"), OSError()])
def test_spark_calls_no_listener_after_the_end_of_python(error: Exception | None) -> None:
    """Java would print a stack trace for an event that no Python process takes."""
    manager = Manager(error)
    listener = GroupCommits(SimpleNamespace(streams=SimpleNamespace(_jsqm=manager)))
    listener.wrapper = "the Java object"
    listener.finish()
    assert manager.removed == ["the Java object"]
