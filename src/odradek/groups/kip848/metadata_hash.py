"""The hash of the metadata of a group's subscribed topics: their ids, names, numbers of partitions and racks.

Apache Kafka stores this hash with a group's epoch and starts a new epoch when the hash changes. Each topic has a hash:
XXH3 (64 bits) over its fields in the stream format of the Java library hash4j. Numbers are little-endian; a string is
UTF-16 followed by its length. The group's hash is XXH3 over the hashes of its topics.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple

from odradek.core.effects import result_of
from odradek.core.pace import Pace

_MASK = (1 << 64) - 1
_MASK32 = (1 << 32) - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE, _BLOCK = 64, 1024
_UPPER_MIDDLE_BYTES = 240
_TOPIC_WORK, _BLOCK_WORK = 10, 100


class TopicFacts(NamedTuple):
    """The metadata of a topic for groups. ``racks`` has the racks of each partition's replicas; () without racks."""

    name: str
    topic_id: bytes
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()


@lru_cache(maxsize=10_000)
def topic_hash(topic: TopicFacts) -> int:
    """Returns the hash of a topic as a signed 64-bit number."""
    high, low = struct.unpack(">QQ", topic.topic_id)
    parts = [b"\0", struct.pack("<QQ", high, low), _text(topic.name), struct.pack("<i", topic.partition_count)]
    for index in range(topic.partition_count):
        parts.append(struct.pack("<i", index))
        for rack in sorted(topic.racks[index]) if topic.racks else ():
            parts += [struct.pack("<i", len(rack.encode("utf-16-le")) // 2), _text(rack)]
    return _signed(xxh3(b"".join(parts)))


def group_hash_in_steps(topics: list[TopicFacts], pace: Pace) -> Generator[None, None, int]:
    """Returns the hash of a group as a signed 64-bit number; 0 without topics. Its steps are a few topics each. Sorts
    ``topics`` in place."""
    if not topics:
        return 0
    are_plain = all(topic.name.isascii() for topic in topics)
    topics.sort(key=(lambda topic: topic.name) if are_plain else (lambda topic: topic.name.encode("utf-16-be")))
    hashes: list[bytes] = []
    for topic in topics:
        hashes.append(struct.pack("<q", topic_hash(topic)))
        if pace.spend(_TOPIC_WORK + topic.partition_count // 4):
            yield
    data = b"".join(hashes)
    if len(data) <= _UPPER_MIDDLE_BYTES:
        return _signed(xxh3(data))
    return _signed((yield from _long_in_steps(data, len(data), pace)))


def _text(value: str) -> bytes:
    encoded = value.encode("utf-16-le")
    return encoded + struct.pack("<i", len(encoded) // 2)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# --- XXH3, 64 bits, no seed -------------------------------------------------------------------------------------


def xxh3(data: bytes) -> int:
    """Returns the XXH3-64 hash of ``data`` as an unsigned number."""
    size = len(data)
    if size <= 16:
        return _short(data, size)
    if size <= 128:
        return _middle(data, size)
    if size <= _UPPER_MIDDLE_BYTES:
        return _upper_middle(data, size)
    return _long(data, size)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _fold(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * 0x165667919E3779F9 & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value ^= value >> 33
    value = value * _P64_2 & _MASK
    value ^= value >> 29
    value = value * _P64_3 & _MASK
    return value ^ value >> 32


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _short(data: bytes, size: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high) & _MASK)
    if size >= 4:
        value = _u32(data, size - 4) + (_u32(data, 0) << 32) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        value ^= _rotated(value, 49) ^ _rotated(value, 24)
        value = value * 0x9FB21C651E98DF25 & _MASK
        value ^= (value >> 35) + size
        value = value * 0x9FB21C651E98DF25 & _MASK
        return value ^ value >> 28
    if size:
        value = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _avalanche_64(value ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))
    return _avalanche_64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _mixed(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _middle(data: bytes, size: int) -> int:
    total = size * _P64_1
    for step in range((size - 1) // 32 + 1):
        total += _mixed(data, 16 * step, 32 * step) + _mixed(data, size - 16 * (step + 1), 32 * step + 16)
    return _avalanche(total & _MASK)


def _upper_middle(data: bytes, size: int) -> int:
    total = size * _P64_1
    for step in range(8):
        total += _mixed(data, 16 * step, 16 * step)
    total = _avalanche(total & _MASK)
    for step in range(8, size // 16):
        total += _mixed(data, 16 * step, 16 * (step - 8) + 3)
    return _avalanche(total + _mixed(data, size - 16, 136 - 17) & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    """Adds 64 bytes of ``data``, beginning at ``at``, to the eight lanes: the numbers of XXH3's state."""
    for lane in range(8):
        value = _u64(data, at + 8 * lane)
        keyed = value ^ _u64(_SECRET, secret_at + 8 * lane)
        lanes[lane ^ 1] = lanes[lane ^ 1] + value & _MASK
        lanes[lane] = lanes[lane] + (keyed & _MASK32) * (keyed >> 32) & _MASK


def _long(data: bytes, size: int) -> int:
    return result_of(_long_in_steps(data, size, Pace()))


def _long_in_steps(data: bytes, size: int, pace: Pace) -> Generator[None, None, int]:
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    blocks = (size - 1) // _BLOCK
    for block in range(blocks + 1):
        stripes = _BLOCK // _STRIPE if block < blocks else (size - 1 - _BLOCK * blocks) // _STRIPE
        for stripe in range(stripes):
            _accumulate(lanes, data, block * _BLOCK + stripe * _STRIPE, 8 * stripe)
        if block < blocks:
            for lane in range(8):
                value = lanes[lane]
                lanes[lane] = (value ^ value >> 47 ^ _u64(_SECRET, 128 + 8 * lane)) * _P32_1 & _MASK
        if pace.spend(_BLOCK_WORK):
            yield
    _accumulate(lanes, data, size - _STRIPE, 192 - _STRIPE - 7)
    total = size * _P64_1
    for pair in range(4):
        left = lanes[2 * pair] ^ _u64(_SECRET, 11 + 16 * pair)
        right = lanes[2 * pair + 1] ^ _u64(_SECRET, 19 + 16 * pair)
        total += _fold(left, right)
    return _avalanche(total & _MASK)
