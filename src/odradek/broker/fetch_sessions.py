"""Incremental fetch sessions (KIP-227): the client names what changed, the broker answers what changed.

A session remembers, in order, which partitions a client reads, from where, and what it was told last. A reply then
carries only partitions that have records, an error, or a moved high watermark or log start. Those that gave records
go to the end of the order, so that none starves.

| session id | epoch | meaning |
|---|---|---|
| any | −1 | close that session, if it is one; answer everything, keep nothing |
| any | 0 | close that session, if it is one; begin a new one; answer everything |
| known | the expected | change the session; answer what changed |

Sessions are bounded in number (``max.incremental.fetch.session.cache.slots``) and in bytes, all of them together. Room
for another one is made by those idle for two minutes, then by those that no connection uses any more: its connection
has gone, or has begun another session. Where there is no room, a client is served without a session. A client whose
session outgrows the bound has to begin a new one, as if the session had been evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from odradek.core.errors import ErrorCode, KafkaError

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EVICTION_MS = 120_000
MAX_BYTES = 20 << 20
STEP_PARTITIONS = 500
_ENTRY_BYTES = 320
_ID_BYTES = 60
_MAX_INT = 0x7FFFFFFF

TopicKey = str | UUID
Key = tuple[TopicKey, int]


@dataclass(slots=True)
class Wanted:
    """One partition a client wants read, and, in a session, what the client was told of it last."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    high_watermark: int = field(default=-1, compare=False)
    log_start_offset: int = field(default=-1, compare=False)


def _bytes_of(topic: TopicKey) -> int:
    """What an entry takes, more or less; the name counts with each of its partitions."""
    return _ENTRY_BYTES + (len(topic) if isinstance(topic, str) else _ID_BYTES)


class Session:
    """What one client reads. ``epoch`` is the one its next request must carry. ``owner`` is who used it last."""

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = 1
        self.last_used_ms = now_ms
        self.bytes = 0
        self.owner: Hashable = None
        self._partitions: dict[Key, Wanted] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, wanted: Iterable[Wanted]) -> None:
        partitions = self._partitions
        for item in wanted:
            key = (item.topic, item.partition)
            known = partitions.get(key)
            if known is None:
                self.bytes += _bytes_of(item.topic)
            else:
                item.high_watermark, item.log_start_offset = known.high_watermark, known.log_start_offset
            partitions[key] = item

    def remove(self, forgotten: Iterable[Key]) -> None:
        for key in forgotten:
            if self._partitions.pop(key, None) is not None:
                self.bytes -= _bytes_of(key[0])

    @property
    def wanted(self) -> list[Wanted]:
        return list(self._partitions.values())

    def note(
        self, key: Key, *, error_code: int, size: int, high_watermark: int, log_start_offset: int,
        diverging: bool, full: bool,
    ) -> bool:  # fmt: skip
        """Whether this partition's answer belongs into the reply; remembers what the client is told then.

        ``full``: the reply has every partition, as the first of a session has.
        """
        known = self._partitions.get(key)
        if known is None:
            return True
        changed = (
            size > 0
            or error_code != 0
            or diverging
            or known.high_watermark != high_watermark
            or known.log_start_offset != log_start_offset
        )
        if error_code:
            # Told again next time, whatever it says then: the client waits to hear that the trouble is over.
            known.high_watermark = known.log_start_offset = -1
        else:
            known.high_watermark, known.log_start_offset = high_watermark, log_start_offset
        if size:
            del self._partitions[key]
            self._partitions[key] = known
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
    """All sessions, at most ``slots`` and ``max_bytes``."""

    def __init__(self, slots: int, max_bytes: int = MAX_BYTES) -> None:
        self._slots = slots
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self._unused: OrderedDict[int, Session] = OrderedDict()  # no connection's
        self._by_owner: dict[Hashable, Session] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session_id: int) -> Session | None:
        """The session of this id, if there is one; it is not used by that."""
        return self._sessions.get(session_id)

    def forget(self, session_id: int) -> None:
        """Ends a session its client will never hear of."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.bytes -= session.bytes
            self._unused.pop(session_id, None)
            self._disown(session)

    def owner_gone(self, owner: Hashable) -> None:
        """The connection has closed. Its session stays, as its client may go on with it on another connection."""
        session = self._by_owner.get(owner)
        if session is not None:
            self._disown(session)
            self._unused[session.id] = session

    def begin(
        self,
        now_ms: int,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: Iterable[Key],
        *,
        by_id: bool,
        new_id: Callable[[], int],
        owner: Hashable = None,
    ) -> FetchContext:
        """Finds or makes the session of a request. Raises KafkaError where client and broker have lost each other.

        ``owner`` is the connection. Of the sessions of one connection, the last one counts as used.
        """
        session = self._of_request(now_ms, session_id, epoch, by_id=by_id, new_id=new_id, owner=owner)
        if session is None:
            return FetchContext(wanted, None, True)
        full = epoch == INITIAL_EPOCH
        if not self._add(session, wanted, now_ms, full=full):
            return FetchContext(wanted, None, True)
        if forgotten:
            self._remove(session, forgotten)
        return self._context(session, full=full)

    def begin_in_steps(
        self,
        now_ms: int,
        session_id: int,
        epoch: int,
        wanted: list[Wanted],
        forgotten: list[Key],
        *,
        by_id: bool,
        new_id: Callable[[], int],
        owner: Hashable = None,
    ) -> Generator[None, None, FetchContext]:
        """The same for many partitions, a few at a time."""
        session = self._of_request(now_ms, session_id, epoch, by_id=by_id, new_id=new_id, owner=owner)
        if session is None:
            return FetchContext(wanted, None, True)
        full = epoch == INITIAL_EPOCH
        to_add, to_remove = iter(wanted), iter(forgotten)
        known = not full  # to its client
        try:
            while some := list(islice(to_add, STEP_PARTITIONS)):
                if not self._add(session, some, now_ms, full=full):
                    return FetchContext(wanted, None, True)
                yield
            while gone := list(islice(to_remove, STEP_PARTITIONS)):
                self._remove(session, gone)
                yield
            known = True
        finally:
            if not known:  # it does not fit, or its client has disconnected
                self.forget(session.id)
        return self._context(session, full=full)

    def _of_request(
        self, now_ms: int, session_id: int, epoch: int, *, by_id: bool, new_id: Callable[[], int], owner: Hashable
    ) -> Session | None:
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self.forget(session_id)
            if epoch == FINAL_EPOCH or not self._make_room(now_ms):
                return None
            session = self._open(now_ms, by_id, new_id)
            self._own(session, owner)
            return session
        found = self._sessions.get(session_id)
        if found is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"no fetch session {session_id}")
        if found.epoch != epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"fetch session {session_id} is at epoch {found.epoch}, not {epoch}",
            )
        if found.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error, "a session speaks topic names or ids, not both")
        found.epoch = found.epoch + 1 if found.epoch < _MAX_INT else 1
        found.last_used_ms = now_ms
        self._sessions.move_to_end(session_id)
        self._own(found, owner)
        return found

    def _add(self, session: Session, wanted: list[Wanted], now_ms: int, *, full: bool) -> bool:
        """Adds to a session. False: they do not fit. Raises KafkaError where the client goes on with the session."""
        if self._sessions.get(session.id) is session:  # another connection may have closed it between two steps
            before = session.bytes
            session.add(wanted)
            self.bytes += session.bytes - before
            if self.bytes <= self._max_bytes or self._make_room(now_ms, session):
                return True
            self.forget(session.id)
        if full:
            return False
        raise KafkaError(ErrorCode.fetch_session_id_not_found, f"fetch session {session.id} does not fit any more")

    def _remove(self, session: Session, forgotten: Iterable[Key]) -> None:
        before = session.bytes
        session.remove(forgotten)
        if self._sessions.get(session.id) is session:
            self.bytes += session.bytes - before

    def _context(self, session: Session, *, full: bool) -> FetchContext:
        if not full and not len(session):
            self.forget(session.id)
            return FetchContext([], None, True)
        return FetchContext(session.wanted, session, full)

    # --- room ---------------------------------------------------------------------------------------------------

    def _make_room(self, now_ms: int, growing: Session | None = None) -> bool:
        """For one more session, or for what ``growing`` has grown by."""
        if growing is not None and growing.bytes > self._max_bytes:
            return False
        while len(self._sessions) >= self._slots if growing is None else self.bytes > self._max_bytes:
            if not self._evict_one(now_ms):
                return False
        return True

    def _evict_one(self, now_ms: int) -> bool:
        if not self._sessions:
            return False
        oldest = next(iter(self._sessions.values()))
        if now_ms - oldest.last_used_ms < EVICTION_MS:
            if not self._unused:
                return False
            oldest = next(iter(self._unused.values()))
        self.forget(oldest.id)
        return True

    def _open(self, now_ms: int, by_id: bool, new_id: Callable[[], int]) -> Session:
        session_id = new_id()
        while session_id in self._sessions or session_id <= 0:
            session_id = new_id()
        session = self._sessions[session_id] = Session(session_id, by_id, now_ms)
        return session

    def _own(self, session: Session, owner: Hashable) -> None:
        """Notes which connection has used a session; the one that it used before is left unused."""
        if owner is None or session.owner == owner:
            return
        before = self._by_owner.get(owner)
        if before is not None:
            before.owner = None
            self._unused[before.id] = before
        self._disown(session)
        self._unused.pop(session.id, None)
        session.owner = owner
        self._by_owner[owner] = session

    def _disown(self, session: Session) -> None:
        if session.owner is not None:
            del self._by_owner[session.owner]
            session.owner = None
