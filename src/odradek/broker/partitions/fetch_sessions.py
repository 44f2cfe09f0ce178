"""Incremental fetch sessions (KIP-227): requests and replies contain only the partitions that changed.

A session keeps the ordered list of partitions that a client reads, their fetch offsets, and the offsets of the last
reply. A reply then contains only partitions with records, an error or a diverging epoch, or with a changed high
watermark or log start offset. Partitions whose records were sent move to the end of the list, so that each partition
gets its share.

| session id | epoch | meaning |
|---|---|---|
| any | −1 | close this session if it exists; reply with all partitions; keep no session |
| any | 0 | close this session if it exists; begin a new session; reply with all partitions |
| known | the expected one | change the session; reply with the changed partitions |

Sessions are limited in number (``max.incremental.fetch.session.cache.slots``) and in their total bytes. A new session
may need room. The broker then evicts sessions that were idle for two minutes, and after them sessions without a
connection: their connection has closed, or it has begun another session. Sessions of followers stay, as in Kafka, and
for the session of a follower the broker also evicts the oldest one of a consumer. If there is still no room, the client
is served without a session. A session that outgrows the limit is evicted, too, and its client begins a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from uuid import UUID, uuid4

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INITIAL_EPOCH

FINAL_EPOCH = -1
EVICTION_MS = 120_000
MAX_BYTES = 20 << 20
STEP_PARTITIONS = 500
_ENTRY_BYTES = 320
_ID_BYTES = 60
_MAX_INT = 0x7FFFFFFF

TopicKey = str | UUID
Key = tuple[TopicKey, int]


@dataclass(slots=True)
class RequestedPartition:
    """A partition that a client reads. In a session, it also has the offsets of the last reply.

    ``follower_log_start``: where the log of a follower begins; −1 for a consumer."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    follower_log_start: int = -1
    high_watermark: int = field(default=-1, compare=False)
    log_start_offset: int = field(default=-1, compare=False)


def bytes_of(topic: TopicKey) -> int:
    """Returns the estimated memory of an entry. The topic's name counts for each of its partitions."""
    return _ENTRY_BYTES + (len(topic) if isinstance(topic, str) else _ID_BYTES)


class Session:
    """The partitions of one client. The next request must have ``epoch``. ``owner``: the connection that uses it."""

    def __init__(self, session_id: int, by_id: bool, now_ms: int, *, is_follower: bool = False) -> None:
        self.id = session_id
        self.by_id = by_id
        self.is_follower = is_follower
        self.epoch = 1
        self.last_used_ms = now_ms
        self.bytes = 0
        self.owner: Hashable = None
        self._partitions: dict[Key, RequestedPartition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def add(self, wanted: Iterable[RequestedPartition]) -> None:
        partitions = self._partitions
        for item in wanted:
            key = (item.topic, item.partition)
            known = partitions.get(key)
            if known is None:
                self.bytes += bytes_of(item.topic)
            else:
                item.high_watermark, item.log_start_offset = known.high_watermark, known.log_start_offset
            partitions[key] = item

    def remove(self, forgotten: Iterable[Key]) -> None:
        for key in forgotten:
            if self._partitions.pop(key, None) is not None:
                self.bytes -= bytes_of(key[0])

    @property
    def wanted(self) -> list[RequestedPartition]:
        return list(self._partitions.values())

    def note(
        self, key: Key, *, error_code: int, size: int, high_watermark: int, log_start_offset: int,
        names_other: bool, full: bool,
    ) -> bool:  # fmt: skip
        """Returns whether the reply contains this partition, and stores the offsets of the reply.

        ``names_other``: the reader should read at another offset or replica. ``full``: the reply contains every
        partition, as the first reply of a session does.
        """
        known = self._partitions.get(key)
        if known is None:
            return True
        changed = (
            size > 0
            or error_code != 0
            or names_other
            or known.high_watermark != high_watermark
            or known.log_start_offset != log_start_offset
        )
        if error_code:
            # The next reply contains the partition in any case, so that the client sees the end of the error.
            known.high_watermark = known.log_start_offset = -1
        else:
            known.high_watermark, known.log_start_offset = high_watermark, log_start_offset
        if size:
            del self._partitions[key]
            self._partitions[key] = known
        return full or changed


class FetchContext(NamedTuple):
    """The partitions and session of one request. Without a session, ``wanted`` are the partitions of the request."""

    wanted: list[RequestedPartition]
    session: Session | None
    full: bool

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else 0


class FetchSessions:
    """All sessions: at most ``slots`` of them, with at most ``max_bytes``. ``new_id`` returns random ids of 31 bits."""

    def __init__(self, slots: int, max_bytes: int = MAX_BYTES, new_uuid: Callable[[], UUID] = uuid4) -> None:
        self.new_id: Callable[[], int] = lambda: new_uuid().int >> 97
        self._slots = slots
        self._max_bytes = max_bytes
        self.sessions: OrderedDict[int, Session] = OrderedDict()
        self.unused: OrderedDict[int, Session] = OrderedDict()  # without a connection
        self.by_owner: dict[Hashable, Session] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.sessions)

    def find(self, session_id: int) -> Session | None:
        """Returns the session with this id, or None. This does not count as a use of the session."""
        return self.sessions.get(session_id)

    def forget(self, session_id: int) -> None:
        """Removes a session, if it exists."""
        session = self.sessions.pop(session_id, None)
        if session is not None:
            self.bytes -= session.bytes
            self.unused.pop(session_id, None)
            self._disown(session)

    def owner_gone(self, owner: Hashable) -> None:
        """Handles the close of a connection. Its session stays, because the client may use it on another connection."""
        session = self.by_owner.get(owner)
        if session is not None:
            self._disown(session)
            self.unused[session.id] = session

    def begin(
        self,
        now_ms: int,
        session_id: int,
        epoch: int,
        wanted: list[RequestedPartition],
        forgotten: Iterable[Key],
        *,
        by_id: bool,
        owner: Hashable = None,
        is_follower: bool = False,
    ) -> FetchContext:
        """Finds or makes the session of a request. Raises KafkaError for an unknown session id or an unexpected epoch.

        ``owner`` is the connection. If a connection uses several sessions, only the last one counts as used.
        ``is_follower``: the request is that of a broker.
        """
        session = self._of_request(now_ms, session_id, epoch, by_id=by_id, owner=owner, is_follower=is_follower)
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
        wanted: list[RequestedPartition],
        forgotten: list[Key],
        *,
        by_id: bool,
        owner: Hashable = None,
        is_follower: bool = False,
    ) -> Generator[None, None, FetchContext]:
        """Does the same as ``begin`` in steps, for many partitions."""
        session = self._of_request(now_ms, session_id, epoch, by_id=by_id, owner=owner, is_follower=is_follower)
        if session is None:
            return FetchContext(wanted, None, True)
        full = epoch == INITIAL_EPOCH
        to_add, to_remove = iter(wanted), iter(forgotten)
        is_known = not full  # whether the client knows the session's id
        try:
            while part := list(islice(to_add, STEP_PARTITIONS)):
                if not self._add(session, part, now_ms, full=full):
                    return FetchContext(wanted, None, True)
                yield
            while keys := list(islice(to_remove, STEP_PARTITIONS)):
                self._remove(session, keys)
                yield
            is_known = True
        finally:
            if not is_known:  # the session does not fit, or its client has disconnected
                self.forget(session.id)
        return self._context(session, full=full)

    def _of_request(
        self,
        now_ms: int,
        session_id: int,
        epoch: int,
        *,
        by_id: bool,
        owner: Hashable,
        is_follower: bool,
    ) -> Session | None:
        if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self.forget(session_id)
            if epoch == FINAL_EPOCH or not self._make_room(now_ms, is_follower=is_follower):
                return None
            new = self._open(now_ms, by_id, is_follower=is_follower)
            self._own(new, owner)
            return new
        session = self.sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found, f"no fetch session {session_id}")
        if session.epoch != epoch:
            raise KafkaError(
                ErrorCode.invalid_fetch_session_epoch,
                f"fetch session {session_id} expects epoch {session.epoch}, not {epoch}",
            )
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error, "a session has topic names or ids, not both")
        session.epoch = session.epoch + 1 if session.epoch < _MAX_INT else 1
        session.last_used_ms = now_ms
        self.sessions.move_to_end(session_id)
        self._own(session, owner)
        return session

    def _add(self, session: Session, wanted: list[RequestedPartition], now_ms: int, *, full: bool) -> bool:
        """Adds partitions to a session and returns True. If they do not fit, removes the session.

        Then it returns False if the session is new (``full``); for an older session it raises KafkaError.
        """
        if self.sessions.get(session.id) is session:  # another connection may have closed it between two steps
            old_bytes = session.bytes
            session.add(wanted)
            self.bytes += session.bytes - old_bytes
            if self.bytes <= self._max_bytes or self._make_room(now_ms, session, is_follower=session.is_follower):
                return True
            self.forget(session.id)
        if full:
            return False
        reason = f"fetch session {session.id} was removed: it does not fit into the cache, or its client disconnected"
        raise KafkaError(ErrorCode.fetch_session_id_not_found, reason)

    def _remove(self, session: Session, forgotten: Iterable[Key]) -> None:
        old_bytes = session.bytes
        session.remove(forgotten)
        if self.sessions.get(session.id) is session:
            self.bytes += session.bytes - old_bytes

    def _context(self, session: Session, *, full: bool) -> FetchContext:
        if not full and not len(session):
            self.forget(session.id)
            return FetchContext([], None, True)
        return FetchContext(session.wanted, session, full)

    # --- room ---------------------------------------------------------------------------------------------------

    def _make_room(self, now_ms: int, growing: Session | None = None, *, is_follower: bool) -> bool:
        """Evicts sessions for one more session or for the growth of ``growing``. Returns whether there is room."""
        if growing is not None and growing.bytes > self._max_bytes:
            return False
        while len(self.sessions) >= self._slots if growing is None else self.bytes > self._max_bytes:
            evicted = self._evicted(now_ms, is_follower=is_follower)
            if evicted is None:
                return False
            self.forget(evicted.id)
        return True

    def _evicted(self, now_ms: int, *, is_follower: bool) -> Session | None:
        """Returns the session that goes next, None if all have to stay."""
        if not self.sessions:
            return None
        oldest = next(iter(self.sessions.values()))
        if now_ms - oldest.last_used_ms >= EVICTION_MS:
            return oldest
        unused = next((one for one in self.unused.values() if is_follower or not one.is_follower), None)
        if unused is not None or not is_follower:
            return unused
        return next((one for one in self.sessions.values() if not one.is_follower), None)

    def _open(self, now_ms: int, by_id: bool, *, is_follower: bool) -> Session:
        session_id = self.new_id()
        while session_id in self.sessions or session_id <= 0:
            session_id = self.new_id()
        session = self.sessions[session_id] = Session(session_id, by_id, now_ms, is_follower=is_follower)
        return session

    def _own(self, session: Session, owner: Hashable) -> None:
        """Stores which connection uses a session. The connection's former session then counts as unused."""
        if owner is None or session.owner == owner:
            return
        former = self.by_owner.get(owner)
        if former is not None:
            former.owner = None
            self.unused[former.id] = former
        self._disown(session)
        self.unused.pop(session.id, None)
        session.owner = owner
        self.by_owner[owner] = session

    def _disown(self, session: Session) -> None:
        if session.owner is not None:
            del self.by_owner[session.owner]
            session.owner = None
