"""The partitioners of Java's producer."""

from __future__ import annotations

from collections.abc import Callable

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Returns the hash that Kafka's Java producer uses for keys, as an unsigned 32-bit number."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Returns the partition of a record with a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartitioner:
    """The partitioner of records without a key. It chooses a random partition again after every ``batch_size`` bytes.

    ``choose(n)`` returns a random number below n.
    """

    def __init__(self, batch_size: int, choose: Callable[[int], int]) -> None:
        self._batch_size = batch_size
        self._choose = choose
        self._current = -1
        self._sent = 0

    def partition(self, size: int, partition_count: int) -> int:
        """Returns the partition for a record of ``size`` bytes."""
        if not 0 <= self._current < partition_count or self._sent >= self._batch_size:
            self._current = self._choose(partition_count)
            self._sent = 0
        self._sent += size
        return self._current
