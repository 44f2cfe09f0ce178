"""Fast encoder of fetch requests and parser of fetch replies; the records stay a view of the received bytes.

The versions of the request add these fields: 5 log start offset, 7 sessions, 9 leader epoch, 11 rack, 12 compact
lengths, tagged fields and last fetched epoch, 13 topic ids instead of names. Version 15 replaces the replica id by a
tagged field with the replica's id and broker epoch. The versions of the reply add these fields: 5 log start offset, 7
session and top-level error, 11 preferred read replica, 12 compact lengths and tagged fields (0: diverging epoch, 1:
current leader), 13 topic ids instead of names, 16 a tagged field with the addresses of current leaders.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica, TopicPartition
from odradek.core.varints import compact_string, read_uvarint, uvarint
from odradek.wire.request_limits import MAX_TAGGED_FIELDS, TooManyElements

IDS_FROM = 13
LEADER_NODES_FROM = 16
MORE_ROWS = 1_000
"""A reply may have at most 2 * (number of requested partitions) + MORE_ROWS partitions."""
MAX_ABORTED = 1_000_000
"""The maximum number of aborted transactions of one partition in a reply. Each has a marker of 78 bytes in the log."""

_EMPTY = memoryview(b"")
_NO_TAGS = b"\0"
_NO_ID = bytes(16)


class FetchPartition(NamedTuple):
    """One partition of a fetch request. ``last_epoch``: the leader epoch of the last record that the fetcher has, and
    ``log_start``: its log start offset. A consumer says neither."""

    topic_id: UUID | None
    offset: int
    leader_epoch: int
    max_bytes: int
    last_epoch: int = -1
    log_start: int = -1


class FetchRequestData(NamedTuple):
    """A fetch in a session: ``changed`` has new and changed partitions, ``forgotten`` removed ones with topic ids.

    The defaults make a fetch without a session."""

    changed: Mapping[TopicPartition, FetchPartition]
    forgotten: Sequence[tuple[TopicPartition, UUID | None]] = ()
    session_id: int = 0
    session_epoch: int = -1


class Limits(NamedTuple):
    """The fields of a request that do not depend on its partitions. ``replica``: None for a consumer."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    rack: str = ""
    replica: FetchingReplica | None = None


class FetchReplyPartition(NamedTuple):
    """One partition of a reply. ``aborted`` has (producer id, first offset); None under read_uncommitted.

    ``diverging_epoch`` is (epoch, end offset) if the fetcher's log diverges from the leader's log. ``current_leader``
    is (broker id, leader epoch) if another broker leads the partition, or in another leader epoch.
    """

    topic: str | UUID
    partition: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    preferred_read_replica: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None


class FetchReply(NamedTuple):
    """A whole reply. ``throttle_ms`` above 0: the broker delayed the reply or left data out because of a quota.

    ``leader_nodes``: id, host, port and rack of the current leaders that the partitions name."""

    throttle_ms: int
    error_code: ErrorCode
    session_id: int
    partitions: tuple[FetchReplyPartition, ...]
    leader_nodes: tuple[tuple[int, str, int, str | None], ...] = ()


# --- requests -------------------------------------------------------------------------------------------------------

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ROW_V4 = struct.Struct(">iqi")
_ROW_V5 = struct.Struct(">iqqi")
_ROW_V9 = struct.Struct(">iiqqi")
_ROW = struct.Struct(">iiqiqix")  # x: a zero byte, the number of tagged fields
_REPLICA = struct.Struct(">iq")
_NO_REPLICA = b"\xff\xff\xff\xff"


def pack(version: int, limits: Limits, request: FetchRequestData) -> bytes:
    """Encodes a request's body, version 4 or newer. ``schemas.encode`` takes ten times as long."""
    flexible = version >= 12
    head = _LIMITS.pack(limits.max_wait_ms, limits.min_bytes, limits.max_bytes, limits.isolation_level)
    replica = limits.replica
    if version < 15:
        head = (_NO_REPLICA if replica is None else _INT32.pack(replica.broker_id)) + head
    out = [head]
    if version >= 7:
        out.append(_SESSION.pack(request.session_id, request.session_epoch))
    topics: dict[bytes, list[bytes]] = {}
    for (name, partition), one in request.changed.items():
        if flexible:
            row = _ROW.pack(partition, one.leader_epoch, one.offset, one.last_epoch, one.log_start, one.max_bytes)
        elif version >= 9:
            row = _ROW_V9.pack(partition, one.leader_epoch, one.offset, one.log_start, one.max_bytes)
        elif version >= 5:
            row = _ROW_V5.pack(partition, one.offset, one.log_start, one.max_bytes)
        else:
            row = _ROW_V4.pack(partition, one.offset, one.max_bytes)
        topics.setdefault(_packed_topic(version, name, one.topic_id), []).append(row)
    _add_topics(out, topics, flexible)
    if version >= 7:
        topics = {}
        for (name, partition), topic_id in request.forgotten:
            topics.setdefault(_packed_topic(version, name, topic_id), []).append(_INT32.pack(partition))
        _add_topics(out, topics, flexible)
    if version >= 11:
        out.append(_packed_text(limits.rack, flexible))
    if flexible:
        if version >= 15 and replica is not None:
            out.append(b"\x01\x01\x0d" + _REPLICA.pack(*replica))
        out.append(_NO_TAGS)
    return b"".join(out)


def _add_topics(out: list[bytes], topics: dict[bytes, list[bytes]], flexible: bool) -> None:
    out.append(_packed_count(len(topics), flexible))
    for topic, rows in topics.items():
        out += (topic, _packed_count(len(rows), flexible))
        out += rows
        if flexible:
            out.append(_NO_TAGS)


def _packed_topic(version: int, name: str, topic_id: UUID | None) -> bytes:
    if version >= IDS_FROM:
        return _NO_ID if topic_id is None else topic_id.bytes
    return _packed_text(name, version >= 12)


@lru_cache(maxsize=1024)
def _packed_text(text: str, flexible: bool) -> bytes:
    if flexible:
        return compact_string(text)
    packed = text.encode()
    return len(packed).to_bytes(2, "big") + packed


def _packed_count(count: int, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else count.to_bytes(4, "big")


# --- replies --------------------------------------------------------------------------------------------------------


_TOP = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")
_LEADER = struct.Struct(">ii")
_NOTHING: dict[int, memoryview] = {}


def parse_reply(version: int, data: memoryview, requested_count: int) -> FetchReply:
    """Reads a reply, correlation id first, version 4 or newer. Raises ValueError.

    ``requested_count``: the number of requested partitions, including those of the session."""
    try:
        return _reply(version, data, 2 * requested_count + MORE_ROWS)
    except (struct.error, IndexError) as error:
        raise ValueError(f"fetch reply ends early: {error}") from error


# Most of these functions read one element at the position ``at``. They return the element and the position after it.


def _reply(version: int, data: memoryview, most: int) -> FetchReply:
    flexible = version >= 12
    code = session_id = 0
    at = _tags(data, 4)[1] if flexible else 4
    if version >= 7:
        throttle_ms, code, session_id = _TOP.unpack_from(data, at)
        at += 10
    else:
        (throttle_ms,) = _INT32.unpack_from(data, at)
        at += 4
    partitions: list[FetchReplyPartition] = []
    topics, at = _count(data, at, flexible, 4, most)
    for _ in range(topics):
        topic, at = _topic(data, at, version)
        count, at = _count(data, at, flexible, 20, most - len(partitions))
        for _ in range(count):
            row, at = _partition(data, at, version, topic)
            partitions.append(row)
        if flexible:
            at = _tags(data, at)[1]
    nodes = _leader_nodes(data, at, most) if version >= LEADER_NODES_FROM else ()
    return FetchReply(throttle_ms, _error_code(code), session_id, tuple(partitions), nodes)


def _leader_nodes(data: memoryview, at: int, most: int) -> tuple[tuple[int, str, int, str | None], ...]:
    """Reads the tagged fields of the whole reply."""
    if (tag := _tags(data, at)[0].get(0)) is None:
        return ()
    nodes = []
    count, at = _count(tag, 0, flexible=True, smallest=11, most=most)
    for _ in range(count):
        (node_id,) = _INT32.unpack_from(tag, at)
        host, at = _text(tag, at + 4)
        (port,) = _INT32.unpack_from(tag, at)
        rack, at = _text(tag, at + 4)
        at = _tags(tag, at)[1]
        if host is None:
            raise ValueError("fetch reply: a broker without a host")
        nodes.append((node_id, host, port, rack))
    return tuple(nodes)


def _text(data: memoryview, at: int) -> tuple[str | None, int]:
    size, at = _length(data, at, flexible=True)
    if size < 0:
        return None, at
    packed, at = _view(data, at, size)
    return bytes(packed).decode(), at


def _partition(data: memoryview, at: int, version: int, topic: str | UUID) -> tuple[FetchReplyPartition, int]:
    flexible = version >= 12
    if version >= 5:
        index, code, high_watermark, last_stable, log_start = _PARTITION.unpack_from(data, at)
        at += 30
    else:
        index, code, high_watermark, last_stable = _PARTITION_V4.unpack_from(data, at)
        log_start, at = -1, at + 22
    count, at = _length(data, at, flexible)
    aborted: tuple[tuple[int, int], ...] | None = None
    if count >= 0:
        if count > min((len(data) - at) // 16, MAX_ABORTED):
            raise ValueError(f"fetch reply: {count} aborted transactions cannot fit, or are more than {MAX_ABORTED}")
        rows = []
        for _ in range(count):
            rows.append(_ABORTED.unpack_from(data, at))
            at += 16
            if flexible:
                at = _tags(data, at)[1]
        aborted = tuple(rows)
    preferred = -1
    if version >= 11:
        (preferred,) = _INT32.unpack_from(data, at)
        at += 4
    size, at = _length(data, at, flexible)
    records = _EMPTY
    if size > 0:
        records, at = _view(data, at, size)
    diverging = leader = None
    if flexible:
        tags, at = _tags(data, at)
        if (tag := tags.get(0)) is not None and len(tag) >= _DIVERGING.size:
            epoch, end = _DIVERGING.unpack_from(tag)
            diverging = (epoch, end) if epoch >= 0 or end >= 0 else None
        if (tag := tags.get(1)) is not None and len(tag) >= _LEADER.size:
            broker_id, epoch = _LEADER.unpack_from(tag)
            leader = (broker_id, epoch) if broker_id >= 0 or epoch >= 0 else None
    row = FetchReplyPartition(
        topic, index, _error_code(code), high_watermark, last_stable, log_start, aborted, preferred, records, diverging,
        leader,
    )  # fmt: skip
    return row, at


def _topic(data: memoryview, at: int, version: int) -> tuple[str | UUID, int]:
    if version >= IDS_FROM:
        packed, at = _view(data, at, 16)
        return _topic_id(bytes(packed)), at
    size, at = _length(data, at, flexible=version >= 12, legacy=_INT16)
    packed, at = _view(data, at, size)
    return bytes(packed).decode(), at


@lru_cache(maxsize=1024)
def _topic_id(packed: bytes) -> UUID:
    return UUID(bytes=packed)


_CODES: dict[int, ErrorCode] = {int(code.value): code for code in ErrorCode}


def _error_code(code: int) -> ErrorCode:
    return _CODES.get(code, ErrorCode.unknown_server_error)  # newer brokers have codes that ErrorCode lacks


def _view(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    end = at + size
    if size < 0 or end > len(data):
        raise ValueError("fetch reply: a field runs past its end")
    return data[at:end], end


def _length(data: memoryview, at: int, flexible: bool, legacy: struct.Struct = _INT32) -> tuple[int, int]:
    """Reads a length; -1 for null."""
    if not flexible:
        return int(legacy.unpack_from(data, at)[0]), at + legacy.size
    byte = data[at]
    if byte < 0x80:
        return byte - 1, at + 1
    value, at = read_uvarint(data, at)
    return value - 1, at


def _count(data: memoryview, at: int, flexible: bool, smallest: int, most: int) -> tuple[int, int]:
    """Reads the length of an array whose elements have at least ``smallest`` bytes each.

    Raises ValueError if the rest of the reply is too short for the array, TooManyElements if the length is above
    ``most``."""
    count, at = _length(data, at, flexible)
    if count > (len(data) - at) // smallest:
        raise ValueError(f"fetch reply: {count} elements cannot fit")
    if count > most:
        raise TooManyElements(f"fetch reply: {count} elements, but at most {most} are expected")
    return count, at


def _tags(data: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    if not data[at]:
        return _NOTHING, at + 1
    found: dict[int, memoryview] = {}
    count, at = read_uvarint(data, at)
    if count > MAX_TAGGED_FIELDS:
        raise TooManyElements(f"fetch reply: {count} tagged fields (the limit is {MAX_TAGGED_FIELDS})")
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        found[tag], at = _view(data, at, size)
    return found, at
