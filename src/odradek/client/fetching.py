"""Which fetches to send, and what fetched is kept for whom. Sessions, budgets and buffers without a socket.

A session (KIP-227) lives between this consumer and one broker: the first request names all partitions, later ones only
what changed, and the broker leaves out what has nothing new. ``FetchSession`` knows what the broker knows.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from odradek.batches.aborted import AbortedTransaction
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition

NO_SESSION = 0
INITIAL_EPOCH = 0


class Wanted(NamedTuple):
    """One partition of a fetch."""

    topic_id: UUID | None
    offset: int
    leader_epoch: int
    max_bytes: int


@dataclass(slots=True)
class FetchSession:
    session_id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    _known: dict[TopicPartition, Wanted] = field(default_factory=dict)

    def request(
        self, wanted: Mapping[TopicPartition, Wanted], *, by_id: bool = True
    ) -> tuple[dict[str, Any], dict[TopicPartition, Wanted]]:
        """The request's fields that sessions rule, and what the reply will be about. ``by_id``: it names topics so."""
        if self.epoch == INITIAL_EPOCH:
            changed: Mapping[TopicPartition, Wanted] = wanted
            forgotten: list[tuple[TopicPartition, UUID | None]] = []
        else:
            changed = {tp: one for tp, one in wanted.items() if self._known.get(tp) != one}
            # A broker forgets after it has taken what is new: by its name, a topic made anew would be forgotten, too.
            forgotten = [
                (tp, known.topic_id)
                for tp, known in self._known.items()
                if tp not in wanted or (by_id and wanted[tp].topic_id != known.topic_id)
            ]
        self._known = dict(wanted)
        fields = {
            "session_id": self.session_id,
            "session_epoch": self.epoch,
            "topics": _grouped((tp, one.topic_id, _row(tp, one)) for tp, one in changed.items()),
            "forgotten_topics_data": _grouped((tp, topic_id, tp.partition) for tp, topic_id in forgotten),
        }
        return fields, dict(wanted)

    def on_reply(self, error_code: ErrorCode, session_id: int) -> bool:
        """Whether the reply counts; after a refusal the next request begins a session anew."""
        if error_code is not ErrorCode.none:
            self.reset()
            return False
        if session_id == NO_SESSION:
            self.reset()  # the broker keeps none: full requests
        elif self.session_id not in (NO_SESSION, session_id):
            self.reset()
        else:
            self.session_id = session_id
            self.epoch = self.epoch + 1 if self.epoch < 0x7FFFFFFF else 1
        return True

    def reset(self) -> None:
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._known = {}


def _row(tp: TopicPartition, one: Wanted) -> dict[str, Any]:
    return {
        "partition": tp.partition,
        "current_leader_epoch": one.leader_epoch,
        "fetch_offset": one.offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": one.max_bytes,
    }


def _grouped(rows: Iterable[tuple[TopicPartition, UUID | None, Any]]) -> list[dict[str, Any]]:
    topics: dict[tuple[str, UUID | None], list[Any]] = {}
    for tp, topic_id, row in rows:
        topics.setdefault((tp.topic, topic_id), []).append(row)
    return [{"topic": name, "topic_id": topic_id, "partitions": found} for (name, topic_id), found in topics.items()]


# --- what came ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chunk:
    """One partition's part of one reply, waiting to be returned. ``start`` is the offset that was asked for."""

    tp: TopicPartition
    version: int
    start: int
    next_offset: int
    leader_epoch: int
    aborted: tuple[AbortedTransaction, ...]
    records: Any
    """A ``batches.arrow.RecordSet``."""
    size: int
    checked: bool = False
    """Whether its checksums were found right."""
    decoded: Iterator[Any] | None = None
    """RecordBatches that are left, once somebody has begun to take them."""
    columns: tuple[str, ...] = ()
    """Which those have: an iteration wants all of them, a poll perhaps fewer."""
    rest: Any = None
    """What is left of a RecordBatch that was returned in part."""


class FetchBuffer:
    """What was fetched and not returned yet, partition by partition in turn. ``size`` never passes the budget by more
    than one reply, since a fetch is planned only for the room that is left. The loop puts, the caller's thread takes.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.size = 0
        self.reserved = 0
        self._chunks: dict[TopicPartition, deque[Chunk]] = {}
        self._lock = threading.Lock()

    def held(self, tp: TopicPartition) -> int:
        with self._lock:
            return sum(chunk.size for chunk in self._chunks.get(tp, ()))

    def is_little(self, most_bytes: int) -> bool:
        """Whether all of it is no more than so many bytes, and not compressed."""
        with self._lock:
            return self.size <= most_bytes and not any(
                chunk.records.is_compressed for chunks in self._chunks.values() for chunk in chunks
            )

    def room(self) -> int:
        return max(0, self.budget_bytes - self.size - self.reserved)

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.setdefault(chunk.tp, deque()).append(chunk)
            self.size += chunk.size

    def drop(self, tp: TopicPartition) -> None:
        with self._lock:
            for chunk in self._chunks.pop(tp, ()):
                self.size -= chunk.size

    def holders(self) -> list[TopicPartition]:
        """The partitions of which something is held."""
        with self._lock:
            return list(self._chunks)

    def front(self, paused: Iterable[TopicPartition] = ()) -> Chunk | None:
        skip = set(paused)
        with self._lock:
            return next((chunks[0] for tp, chunks in self._chunks.items() if tp not in skip), None)

    def done(self, chunk: Chunk) -> None:
        """``chunk`` has been returned whole: the next partition has its turn."""
        with self._lock:
            chunks = self._chunks.get(chunk.tp)
            if not chunks or chunks[0] is not chunk:
                return
            del self._chunks[chunk.tp]
            chunks.popleft()
            self.size -= chunk.size
            if chunks:
                self._chunks[chunk.tp] = chunks
