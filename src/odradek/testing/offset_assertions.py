"""Assertions about committed offsets and lag, for the tests of applications that consume from Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound
from odradek.core.counts import counted
from odradek.core.ids import EARLIEST, LATEST

_POLL_S = 0.02
_SLOWEST_POLL_S = 0.25


class OffsetAssertions:
    """What groups have committed on one cluster, as assertions::

        with OffsetAssertions(broker.bootstrap_servers) as offsets:
            offsets.wait_for_lag("billing", "orders")
            offsets.assert_committed("billing", "orders", {0: 5, 1: 3})

    The pytest fixture ``odradek_offsets`` is one for the test session's broker. It works with any Kafka cluster.
    Methods raise AssertionError with the offsets that were found, and the errors of ``Admin``.
    """

    def __init__(self, bootstrap_servers: str | Mapping[str, str]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._opened: Admin | None = None

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Returns the committed offset of each partition that has one. Empty if the group does not exist."""
        try:
            commits = self._admin.list_group_offsets(group)
        except GroupIdNotFound:
            return {}
        return {
            tp.partition: one.offset for tp, one in sorted(commits.items()) if tp.topic == topic and one.offset >= 0
        }

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """Returns the number of offsets that the group has not committed yet, for each partition of the topic.

        A partition without a committed offset counts from its log start, as for a new group that begins at the start.
        A committed offset below the log start counts from the log start, too, because the records before are deleted.
        """
        committed = self.committed(group, topic)
        partitions = self._admin.partitions(topic)
        starts = self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = self._admin.list_offsets(dict.fromkeys(partitions, LATEST))
        return {
            tp.partition: ends[tp].offset - max(starts[tp].offset, committed.get(tp.partition, 0)) for tp in partitions
        }

    def assert_committed(
        self, group: str, topic: str, expected: int | Mapping[int, int], *, timeout_s: float = 0.0
    ) -> None:
        """Asserts that the group has committed these offsets, and none of another partition of the topic.

        ``expected``: the offset of each partition, or the one offset of a topic with one partition. A committed offset
        is the offset after the last processed record. With ``timeout_s`` the offsets may still change for that time.
        Raises ValueError for a single offset if the topic has several partitions.
        """
        __tracebackhide__ = True  # pytest shows the line of the test
        if isinstance(expected, int):
            count = len(self._admin.partitions(topic))
            if count != 1:
                raise ValueError(
                    f"{topic} has {counted(count, 'partition')}: give the offset of each, such as {{0: {expected}}}"
                )
            expected = {0: expected}
        wanted = dict(sorted(expected.items()))
        committed: dict[int, int] = {}

        def agrees() -> bool:
            nonlocal committed
            committed = self.committed(group, topic)
            return committed == wanted

        if not _becomes_true(agrees, timeout_s):
            other = [number for number in sorted({*committed, *wanted}) if committed.get(number) != wanted.get(number)]
            lines = [
                f"  {topic}-{number}: committed {committed.get(number, '-')}, expected {wanted.get(number, '-')}"
                for number in other
            ]
            raise AssertionError("\n".join([f"group {group!r} has committed other offsets:", *lines]))

    def wait_for_lag(self, group: str, topic: str, at_most: int = 0, *, timeout_s: float = 10.0) -> None:
        """Waits until the group's lag on the topic, summed over the partitions, is at most this number of offsets.

        Raises AssertionError after ``timeout_s``, with the lag of each partition."""
        __tracebackhide__ = True
        lag: dict[int, int] = {}

        def is_reached() -> bool:
            nonlocal lag
            lag = self.lag(group, topic)
            return sum(lag.values()) <= at_most

        if not _becomes_true(is_reached, timeout_s):
            committed = self.committed(group, topic)
            lines = [
                f"  {topic}-{number}: lag {behind}, committed {committed.get(number, '-')}"
                for number, behind in lag.items()
                if behind
            ]
            text = f"group {group!r} has a lag of {sum(lag.values())} on {topic} after {timeout_s:g} s, not {at_most}:"
            raise AssertionError("\n".join([text, *lines]))

    @property
    def _admin(self) -> Admin:
        if self._opened is None:
            self._opened = Admin(self._bootstrap_servers)
        return self._opened

    def close(self) -> None:
        """Closes the connections. The next call opens them again."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _becomes_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition is true now, or at a later look within the time. There is a look at the end of the time."""
    deadline = time.monotonic() + timeout_s
    pause_s, pause = _POLL_S, threading.Event()
    while not condition():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        pause.wait(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _SLOWEST_POLL_S)
    return True
