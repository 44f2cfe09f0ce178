"""What clients have used of their quotas, by bucket: bounded in entries, and in steps per new entry.

An entry is forgotten when nothing of it counts any more. A heap holds one place for each entry, by the time at which
that was so when the place was taken; an entry that was used since takes a later place when it comes up. A new entry
looks at ``STEPS`` places at most. Where ``MOST_ENTRIES`` are kept already, the one whose place is first is dropped,
although some of it still counts: its client begins from nothing, as after Kafka's hour without use.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, Protocol, TypeVar

MOST_ENTRIES = 10_000
STEPS = 4
LONGEST_NAME = 256
"""Characters of a client id. Of a longer one only a digest is kept."""

Name = str | bytes | None


class Bucket(NamedTuple):
    """Whose use is counted together, and of which quota."""

    key: str
    user: Name
    client_id: Name


class Used(Protocol):
    @property
    def ends_at_ms(self) -> int:
        """From when on nothing of it counts."""


V = TypeVar("V", bound=Used)


def short_name(name: str | None) -> Name:
    """The name itself, or the digest of a long one: a client may send 32 KiB with each request."""
    if name is None or len(name) <= LONGEST_NAME:
        return name
    from hashlib import blake2b  # few clients have so long a name

    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class UseTable(Generic[V]):
    """See the module's docstring."""

    def __init__(self, most: int = MOST_ENTRIES) -> None:
        self._most = most
        self._entries: dict[Bucket, V] = {}
        self._places: list[tuple[int, int, Bucket]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, bucket: Bucket) -> V | None:
        return self._entries.get(bucket)

    def add(self, bucket: Bucket, value: V, now_ms: int) -> V:
        """Keeps a value for a bucket that has none."""
        self._forget(now_ms)
        self._entries[bucket] = value
        self._sequence += 1
        heappush(self._places, (value.ends_at_ms, self._sequence, bucket))
        return value

    def _forget(self, now_ms: int) -> None:
        places, entries = self._places, self._entries
        for _ in range(STEPS):
            if not places or (places[0][0] > now_ms and len(entries) < self._most):
                return
            at_ms, sequence, bucket = places[0]
            ends_at_ms = entries[bucket].ends_at_ms
            if ends_at_ms > max(at_ms, now_ms):
                heapreplace(places, (ends_at_ms, sequence, bucket))
            else:
                self._drop_first()
        if len(entries) >= self._most:
            self._drop_first()

    def _drop_first(self) -> None:
        del self._entries[heappop(self._places)[2]]
