"""The replies of a shard that wait for the high watermark, each for a limited time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from odradek.coordinator_runtime.append_errors import append_error
from odradek.coordinator_runtime.jobs import WriteMarker
from odradek.coordinator_runtime.replies import PendingReply, ReplyQueue, error_replies, is_announcement
from odradek.coordinator_runtime.shard import CoordinatorShard, SnapshotShard
from odradek.coordinator_runtime.shard_log import ShardLog
from odradek.core.effects import LogEntry, Request
from odradek.core.errors import ErrorCode, KafkaError

TIMED_OUT = append_error(KafkaError(ErrorCode.request_timed_out))
"""The error of a request whose records were not replicated in time, as in Kafka's coordinators."""


class UnreplicatedWrite:
    """Records above the high watermark, and the replies that wait for them.

    ``entries`` are the records and blocks, None if they are unknown: the write may concern every request. ``former``:
    what they have replaced (``shard.SnapshotShard``), None if that is unknown.
    """

    __slots__ = ("_changes", "end_offset", "entries", "former", "replies")

    def __init__(
        self,
        end_offset: int,
        entries: Sequence[LogEntry] | None,
        replies: list[PendingReply],
        former: object = None,
    ) -> None:
        self.end_offset = end_offset
        self.entries = entries
        self.replies = replies
        self.former = former
        self._changes: frozenset[Hashable] | None = None

    def concerns(self, shard: CoordinatorShard, read: Collection[Hashable] | None) -> bool:
        """Returns whether the records change something that a reply shows."""
        if read is not None and not read:
            return False
        if self.entries is None or read is None:
            return True
        if self._changes is None:
            self._changes = frozenset(change for entry in self.entries for change in shard.changes_of(entry))
        return not self._changes.isdisjoint(read)


class _Deadline(NamedTuple):
    """The end of the time that some replies to a write wait. ``number`` orders deadlines at the same time."""

    at_ms: int
    number: int
    write: UnreplicatedWrite
    replies: list[PendingReply]


class UnreplicatedWrites:
    """The writes of one shard above the high watermark, in the order of the log.

    ``limit_ms`` returns how long a reply to a request waits; None: without limit. ``steady`` is a clock that does not
    jump (ms). A timeout only sends an error. The records stay in the log, and other replies wait for them.
    ``set_alarm`` gets the steady time (ms) of the next call of ``time_out``.
    """

    __slots__ = ("_deadlines", "_limit_ms", "_log", "_numbers", "_outgoing", "_set_alarm", "_steady", "writes")

    def __init__(
        self,
        log: ShardLog,
        outgoing: ReplyQueue,
        steady: Callable[[], int],
        limit_ms: Callable[[Request[object]], int | None],
        set_alarm: Callable[[int], None],
    ) -> None:
        self._log = log
        self._outgoing = outgoing
        self._steady = steady
        self._limit_ms = limit_ms
        self._set_alarm = set_alarm
        self.writes: deque[UnreplicatedWrite] = deque()
        self._deadlines: list[_Deadline] = []  # a heap
        self._numbers = count()

    def send(
        self,
        end_offset: int,
        entries: Sequence[LogEntry] | None,
        replies: list[PendingReply],
        former: object = None,
    ) -> None:
        """Sends the replies to a write now or when the high watermark is at ``end_offset``.

        Raises KafkaError or StorageError if the high watermark cannot be read.
        """
        high_watermark = self._log.high_watermark
        if self.writes:
            self._release(high_watermark)
        if end_offset <= high_watermark:
            self._outgoing.send(replies)
        else:
            write = UnreplicatedWrite(end_offset, entries, replies, former)
            self.writes.append(write)
            self._limit(write, replies[:])

    def add_read(self, shard: CoordinatorShard, reply: PendingReply) -> None:
        """Sends a reply without records now, or when the last earlier write that it shows is replicated.

        A shard that knows what was there before such writes replies with that at once.
        """
        request, promise, _ = reply
        read = None if is_announcement(reply) else shard.shown_to(request)
        shown = [write for write in reversed(self.writes) if write.concerns(shard, read)]
        if shown and isinstance(shard, SnapshotShard) and all(write.former is not None for write in shown):
            committed = shard.handle_committed(request, [write.former for write in shown])
            if committed is not None:
                shown, reply = [], (request, promise, committed)
        if shown:
            shown[0].replies.append(reply)
            self._limit(shown[0], [reply])
        else:
            self._outgoing.send([reply])

    def _limit(self, write: UnreplicatedWrite, replies: list[PendingReply]) -> None:
        limited: dict[int, list[PendingReply]] = {}
        for reply in replies:
            if is_announcement(reply) or isinstance(reply[0], WriteMarker):
                continue
            limit_ms = self._limit_ms(reply[0])
            if limit_ms is not None:
                limited.setdefault(limit_ms, []).append(reply)
        for limit_ms, some in limited.items():
            deadline = _Deadline(self._steady() + limit_ms, next(self._numbers), write, some)
            heappush(self._deadlines, deadline)
            if self._deadlines[0] is deadline:
                self._set_alarm(deadline.at_ms)

    def release(self) -> None:
        """Sends the replies whose records are below the high watermark. Raises KafkaError or StorageError."""
        if self.writes:
            self._release(self._log.high_watermark)

    def _release(self, high_watermark: int) -> None:
        writes = self.writes
        while writes and writes[0].end_offset <= high_watermark:
            write = writes.popleft()
            replies, write.replies = write.replies, []
            self._outgoing.send(replies)

    def time_out(self) -> None:
        """Sends an error in place of each reply that has waited too long."""
        now_ms = self._steady()
        while self._deadlines and self._deadlines[0].at_ms <= now_ms:
            _, _, write, limited = heappop(self._deadlines)
            promises = {id(reply[1]) for reply in limited}
            late = [reply for reply in write.replies if id(reply[1]) in promises]
            write.replies = [reply for reply in write.replies if id(reply[1]) not in promises]
            self._outgoing.send(error_replies(late, TIMED_OUT))
        while self._deadlines and not self._deadlines[0].write.replies:
            heappop(self._deadlines)  # these replies were sent in time
        if self._deadlines:
            self._set_alarm(self._deadlines[0].at_ms)

    def take_all(self) -> list[PendingReply]:
        """Forgets all writes and returns their replies."""
        replies = [reply for write in self.writes for reply in write.replies]
        self.writes.clear()
        self._deadlines.clear()
        return replies
