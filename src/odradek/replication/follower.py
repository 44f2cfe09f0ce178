"""What a follower of a partition decides: what it fetches, and what it does with each reply.

As Kafka 4.3's ReplicaFetcherThread. A fetch says the follower's log end, the leader epoch of its last record, and the
leader epoch in which it follows. If the leader's log does not have this record, its reply names the largest epoch up
to it and the end of that epoch (KIP-595). Then the follower truncates by leader epochs, never to its watermark (KIP-101
and 279), and takes nothing else from this reply: the high watermark rises only when the logs are equal (KAFKA-14704).
An offset that the leader does not have at all is settled by its log end and its log start.

A leader knows no leader epochs before its log start, and takes each to end there. So it cannot say whether the records
before it are equal. A follower that has only such records begins again at the leader's log start, unless a reply in
this leader epoch has shown that the logs are equal. In Kafka it keeps the records until its log start has moved, too,
and a crash may move that back: then two readers could see different records at one offset.

The state machine reads its log, and changes it only by effects. While the runtime carries out an ``Append``,
``Truncate`` or ``RestartAt``, which may take many steps, the state machine fetches nothing. A reply counts if it is for
the present leader epoch, log end and last epoch. A late one that says where the log diverged before a truncation must
not cut it again.

In Kafka a new leader's lower watermark makes that of a follower go back. Here it stays: what was committed is.

No clock: times are those of the follower's steady clock, in ms.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from odradek.core.errors import ErrorCode
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, NO_OFFSET
from odradek.replication.effects import (
    Append,
    DeleteBefore,
    FindOffset,
    FollowerEffect,
    MoveWatermark,
    RestartAt,
    Retry,
    Stop,
    Truncate,
)

FIRST_RETRY_MS = 25
"""A follower may hear of an election before its new leader does. So its first retries come soon; the time doubles up to
``replica.fetch.backoff.ms``, which Kafka waits for at once."""
_UNHEARD = (ErrorCode.unknown_leader_epoch, ErrorCode.not_leader_or_follower)


class LatestEpoch(Protocol):
    """The leader epochs of a log (``storage/epochs.LeaderEpochs``)."""

    @property
    def latest(self) -> int:
        """The latest epoch, or −1."""


class FollowerLog(Protocol):
    """What a follower reads of its log (``storage/log.Log``)."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def epochs(self) -> LatestEpoch: ...

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Returns the largest known epoch up to ``epoch`` and its end; (−1, −1) if it is unknown."""


class NextFetch(NamedTuple):
    """What a follower asks its leader for. ``last_epoch``: of its last record; −1 without one."""

    offset: int
    log_start: int
    last_epoch: int
    leader_epoch: int


class FetchedPart(NamedTuple):
    """What the leader says of the partition. ``diverging``: the epoch up to which the logs may be equal, and its end;
    None if they are equal so far. ``has_records``: the reply has bytes."""

    error: ErrorCode
    high_watermark: int = NO_OFFSET
    log_start: int = NO_OFFSET
    diverging: tuple[int, int] | None = None
    has_records: bool = False


class FollowerPhase(Enum):
    """What a follower does now."""

    IDLE = "idle"
    """It follows no leader."""
    FETCHING = "fetching"
    WORKING = "working"
    """Its runtime changes the log."""
    SEARCHING = "searching"
    """It has asked the leader for an offset."""
    STOPPED = "stopped"
    """It waits for another leader epoch."""


_NOTHING: tuple[FollowerEffect, ...] = ()
_PHASE = FollowerPhase


class PartitionFollower:
    """The follower of one partition. ``follow`` comes first. ``backoff_ms``: replica.fetch.backoff.ms."""

    __slots__ = (
        "_due_ms", "_equal_in", "_log", "_news", "_search", "_unheard", "backoff_ms", "leader_epoch", "phase",
    )  # fmt: skip

    def __init__(self, log: FollowerLog, backoff_ms: int) -> None:
        self.leader_epoch = NO_EPOCH
        self.phase = _PHASE.IDLE
        self.backoff_ms = backoff_ms
        self._log = log
        self._due_ms: int | None = None
        self._search: FindOffset | None = None
        self._unheard = 0
        """How many replies since the last election were of a node that does not lead in this epoch."""
        self._equal_in = NO_EPOCH
        """The leader epoch in which a reply has shown that the logs are equal."""
        self._news: tuple[int, int, int] | None = None
        """The leader epoch, high watermark and log start of the reply whose records are being appended."""

    def follow(self, leader_epoch: int) -> tuple[FollowerEffect, ...]:
        """Begins to follow the leader of a later epoch. An earlier or equal epoch changes nothing.

        Work that the runtime has begun is not ended by this: ``on_done`` or ``on_failed`` comes first.
        """
        if leader_epoch <= self.leader_epoch:
            return _NOTHING
        self.leader_epoch, self._due_ms, self._search, self._unheard = leader_epoch, None, None, 0
        if self.phase is _PHASE.WORKING:
            return _NOTHING
        self.phase = _PHASE.FETCHING
        return self._cut_without_epochs()

    def _cut_without_epochs(self) -> tuple[FollowerEffect, ...]:
        """Truncates a log whose records have no leader epochs to its watermark: nothing else is known to be equal."""
        log = self._log
        if log.epochs.latest == NO_EPOCH and log.log_end_offset > log.high_watermark:
            return self._work(Truncate(log.high_watermark))
        return _NOTHING

    def next_fetch(self, now_ms: int) -> NextFetch | None:
        """Returns what to fetch; None while the follower works, waits or is stopped."""
        if self.phase is not _PHASE.FETCHING or not self._is_due(now_ms):
            return None
        log = self._log
        return NextFetch(log.log_end_offset, log.log_start_offset, log.epochs.latest, self.leader_epoch)

    def on_reply(self, asked: NextFetch, reply: FetchedPart, now_ms: int) -> tuple[FollowerEffect, ...]:
        """Takes the leader's reply to a fetch. One that something has overtaken changes nothing."""
        if self.phase is not _PHASE.FETCHING or not self._is_due(now_ms):
            return _NOTHING
        log = self._log
        if asked != (log.log_end_offset, asked.log_start, log.epochs.latest, self.leader_epoch):
            return _NOTHING
        if reply.error is not ErrorCode.none:
            return self._on_error(reply.error, now_ms)
        if reply.diverging is not None:
            return self._on_diverging(*reply.diverging, now_ms)
        if self._equal_in != self.leader_epoch:
            if log.log_start_offset < asked.offset <= reply.log_start:
                return self._work(RestartAt(reply.log_start))
            self._equal_in = self.leader_epoch
        news = self.leader_epoch, reply.high_watermark, reply.log_start
        if reply.has_records:
            self._news = news
            return self._work(Append())
        return self._follow_offsets(*news)

    def on_no_reply(self, now_ms: int) -> tuple[FollowerEffect, ...]:
        """The request in flight gets no answer: the connection broke, or the answer has no such partition."""
        if self.phase in (_PHASE.FETCHING, _PHASE.SEARCHING):
            return self._retry(ErrorCode.none, now_ms)
        return _NOTHING

    def on_done(self) -> tuple[FollowerEffect, ...]:
        """The work is done: an ``Append``, ``Truncate`` or ``RestartAt``."""
        if self.phase is not _PHASE.WORKING:
            return _NOTHING
        news, self._news, self.phase = self._news, None, _PHASE.FETCHING
        if news is None:
            return _NOTHING
        return self._follow_offsets(*news)

    def on_failed(self, code: ErrorCode, now_ms: int) -> tuple[FollowerEffect, ...]:
        """The work has failed. A refused reply is fetched again. A log that is offline is not."""
        if self.phase is not _PHASE.WORKING:
            return _NOTHING
        self._news = None
        if code is ErrorCode.kafka_storage_error:
            return self._stop(code)
        return self._retry(code, now_ms)

    def on_offset(self, asked: FindOffset, answer: int | ErrorCode, now_ms: int) -> tuple[FollowerEffect, ...]:
        """Takes the leader's log end or log start, or an error.

        A log that is longer than that of the leader loses the rest. One that ends before the leader's log start begins
        again there. Otherwise the fetch is tried again: the leader's log has changed meanwhile.
        """
        if self.phase is not _PHASE.SEARCHING or asked is not self._search:
            return _NOTHING
        if isinstance(answer, ErrorCode):
            return self._on_error(answer, now_ms)
        end = self._log.log_end_offset
        if asked.which == LATEST:
            return self._work(Truncate(answer)) if answer < end else self._find(EARLIEST)
        return self._work(RestartAt(answer)) if answer > end else self._retry(ErrorCode.offset_out_of_range, now_ms)

    # --- decisions ----------------------------------------------------------------------------------------------

    def _is_due(self, now_ms: int) -> bool:
        if self._due_ms is None:
            return True
        if now_ms < self._due_ms:
            return False
        self._due_ms = None
        return True

    def _on_error(self, code: ErrorCode, now_ms: int) -> tuple[FollowerEffect, ...]:
        if code is ErrorCode.fenced_leader_epoch:
            return self._stop(code)
        if code is ErrorCode.offset_out_of_range and self.phase is _PHASE.FETCHING:
            return self._find(LATEST)
        return self._retry(code, now_ms)

    def _on_diverging(self, epoch: int, end: int, now_ms: int) -> tuple[FollowerEffect, ...]:
        """Truncates to the end of what both logs may have in common. The next fetch shows whether they are equal."""
        log = self._log
        to = min(end, log.log_end_offset)
        if epoch != NO_EPOCH:
            own_epoch, own_end = log.epoch_end_offset(epoch)
            if own_end != NO_OFFSET:
                # An epoch that this log does not have is cut off to the epoch before it.
                to = min(own_end, log.log_end_offset) if own_epoch != epoch else min(own_end, to)
        if to < 0 or (to == log.log_end_offset and log.epochs.latest <= epoch):
            return self._retry(ErrorCode.corrupt_message, now_ms)  # nothing would change
        return self._work(Truncate(to))

    def _follow_offsets(self, leader_epoch: int, watermark: int, log_start: int) -> tuple[FollowerEffect, ...]:
        """Follows the leader's high watermark and log start, as far as this log goes."""
        if leader_epoch != self.leader_epoch:
            return _NOTHING
        log = self._log
        effects: tuple[FollowerEffect, ...] = _NOTHING
        reached = min(watermark, log.log_end_offset)
        if reached > log.high_watermark:
            effects = (MoveWatermark(reached),)
        else:
            reached = log.high_watermark
        start = min(log_start, reached)
        return (*effects, DeleteBefore(start)) if start > log.log_start_offset else effects

    def _work(self, effect: Append | Truncate | RestartAt) -> tuple[FollowerEffect, ...]:
        self.phase, self._search = _PHASE.WORKING, None
        return (effect,)

    def _find(self, which: int) -> tuple[FollowerEffect, ...]:
        self.phase = _PHASE.SEARCHING
        self._search = FindOffset(which, self.leader_epoch)
        return (self._search,)

    def _retry(self, code: ErrorCode, now_ms: int) -> tuple[FollowerEffect, ...]:
        delay_ms = self.backoff_ms
        if code in _UNHEARD:
            delay_ms = min(delay_ms, FIRST_RETRY_MS << min(self._unheard, 20))
            self._unheard += 1
        self.phase, self._search, self._due_ms = _PHASE.FETCHING, None, now_ms + delay_ms
        return (Retry(delay_ms, code),)

    def _stop(self, code: ErrorCode) -> tuple[FollowerEffect, ...]:
        self.phase, self._search = _PHASE.STOPPED, None
        return (Stop(code),)
