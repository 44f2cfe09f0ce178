"""Table of the use of quotas, by bucket. Its number of entries and its work for each new entry are bounded.

An entry is removed when its use has expired. A heap orders the entries by expiry time. A use does not update the heap:
an entry that is at the top and has been used is put back with its new expiry time. Each new entry checks at most
``STEPS`` entries of the heap. A table of ``MOST_ENTRIES`` drops the entry at the top, even if the entry's use still
counts. The use of that client then starts at zero, as in Kafka after an hour without use.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, Protocol, TypeVar

MOST_ENTRIES = 10_000
STEPS = 4
LONGEST_NAME = 256
"""Length in characters above which a user or client id is replaced by a digest."""

Name = str | bytes | None


class Bucket(NamedTuple):
    """The clients whose use of one quota is counted together."""

    key: str
    user: Name
    client_id: Name


class QuotaUse(Protocol):
    @property
    def ends_at_ms(self) -> int:
        """The time at which the use has expired."""


V = TypeVar("V", bound=QuotaUse)


def short_name(name: str | None) -> Name:
    """Returns the name, or the digest of a long one: a client may send 32 KiB with each request."""
    if name is None or len(name) <= LONGEST_NAME:
        return name
    from hashlib import blake2b  # imported here because long names are rare

    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class UseTable(Generic[V]):
    """Values by bucket, with expiry (see the module's docstring)."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._entries: dict[Bucket, V] = {}
        self._heap: list[tuple[int, int, Bucket]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, bucket: Bucket) -> V | None:
        return self._entries.get(bucket)

    def add(self, bucket: Bucket, value: V, now_ms: int) -> V:
        """Adds a value for a bucket that has none, and removes expired entries."""
        self._forget(now_ms)
        self._entries[bucket] = value
        self._sequence += 1
        heappush(self._heap, (value.ends_at_ms, self._sequence, bucket))
        return value

    def _forget(self, now_ms: int) -> None:
        heap, entries = self._heap, self._entries
        for _ in range(STEPS):
            if not heap or (heap[0][0] > now_ms and len(entries) < self._most):
                return
            at_ms, sequence, bucket = heap[0]
            ends_at_ms = entries[bucket].ends_at_ms
            if ends_at_ms > max(at_ms, now_ms):
                heapreplace(heap, (ends_at_ms, sequence, bucket))
            else:
                self._drop_first()
        if len(entries) >= self._most:
            self._drop_first()

    def _drop_first(self) -> None:
        del self._entries[heappop(self._heap)[2]]
