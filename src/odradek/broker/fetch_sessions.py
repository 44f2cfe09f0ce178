"""Incremental fetch sessions (KIP-227): the client names what changed, the broker answers what changed.

A session remembers, in order, which partitions a client reads, from where, and what it was told last. A reply then
carries only partitions that have records, an error, or a moved high watermark or log start. Those that gave records
go to the end of the order, so that none starves.

| session id | epoch | meaning |
|---|---|---|
| any | −1 | close that session, if it is one; answer everything, keep nothing |
| any | 0 | close that session, if it is one; begin a new one; answer everything |
| known | the expected | change the session; answer what changed |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from odradek.core.errors import ErrorCode, KafkaError

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTION_MS = 120_000
_MAX_INT = 0x7FFFFFFF

TopicKey = str | UUID


class Wanted(NamedTuple):
    """One partition a client wants read."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class _Cached:
    __slots__ = ("high_watermark", "log_start_offset", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.high_watermark = -1
        self.log_start_offset = -1


class Session:
    """What one client reads. ``epoch`` is the one its next request must carry."""

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.last_used_ms = now_ms
        self._partitions: OrderedDict[tuple[TopicKey, int], _Cached] = OrderedDict()

    def __len__(self) -> int:
        return len(self._partitions)

    def change(self, wanted: Iterable[Wanted], forgotten: Iterable[tuple[TopicKey, int]]) -> None:
        for item in wanted:
            key = (item.topic, item.partition)
            cached = self._partitions.get(key)
            if cached is None:
                self._partitions[key] = _Cached(item)
            else:
                cached.wanted = item
        for key in forgotten:
            self._partitions.pop(key, None)

    @property
    def wanted(self) -> list[Wanted]:
        return [cached.wanted for cached in self._partitions.values()]

    def note(
        self, key: tuple[TopicKey, int], *, error_code: int, size: int, high_watermark: int, log_start_offset: int,
        diverging: bool, full: bool,
    ) -> bool:  # fmt: skip
        """Whether this partition's answer belongs into the reply; remembers what the client is told then.

        ``full``: the reply has every partition, as the first of a session has.
        """
        cached = self._partitions.get(key)
        if cached is None:
            return True
        changed = (
            size > 0
            or error_code != 0
            or diverging
            or cached.high_watermark != high_watermark
            or cached.log_start_offset != log_start_offset
        )
        if error_code:
            # Told again next time, whatever it says then: the client waits to hear that the trouble is over.
            cached.high_watermark = cached.log_start_offset = -1
        else:
            cached.high_watermark, cached.log_start_offset = high_watermark, log_start_offset
        if size:
            self._partitions.move_to_end(key)
        return full or changed


class FetchContext(NamedTuple):
    """How one request is answered. ``session`` is ``None`` where nothing is remembered; then ``wanted`` is all."""

    wanted: list[Wanted]
    session: Session | None
    full: bool

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else 0


class FetchSessions:
    """All sessions, at most ``slots``. When they are taken, one idle for two minutes makes room, or none is made."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> Session | None:
        """The session of this id, if there is one; it is not used by that."""
        return self._sessions.get(session_id)

    def forget(self, session_id: int) -> None:
        """Ends a session its client will never hear of."""
        self._sessions.pop(session_id, None)

    def begin(
        self,
        now_ms: int,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[tuple[TopicKey, int]],
        *,
        by_id: bool,
        new_id: Callable[[], int],
    ) -> FetchContext:
        """Finds or makes the session of a request. Raises KafkaError where client and broker have lost each other."""
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH or not self._make_room(now_ms):
                return FetchContext(wanted, None, True)
            return FetchContext(wanted, self._open(now_ms, wanted, by_id, new_id), True)
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}",
            )
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error, "a session speaks topic names or ids, not both")
        session.change(wanted, forgotten)
        if not len(session):
            del self._sessions[session_id]
            return FetchContext([], None, True)
        session.epoch = session.epoch + 1 if session.epoch < _MAX_INT else 1
        session.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        return FetchContext(session.wanted, session, False)

    def _make_room(self, now_ms: int) -> bool:
        if len(self._sessions) < self._slots:
            return True
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < EVICTION_MS:
            return False
        del self._sessions[oldest.id]
        return True

    def _open(self, now_ms: int, wanted: list[Wanted], by_id: bool, new_id: Callable[[], int]) -> Session:
        session_id = new_id()
        while session_id in self._sessions or session_id <= 0:
            session_id = new_id()
        session = self._sessions[session_id] = Session(session_id, by_id, now_ms)
        session.change(wanted, ())
        return session
