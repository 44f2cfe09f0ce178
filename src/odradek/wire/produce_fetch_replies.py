"""Hand-written encoders of Produce and Fetch replies.

``fetch_reply`` returns chunks, which are written one after another. Its chunks of records are the given slices of the
log, without a copy. A property test compares all replies with those of ``wire.schemas.encode`` for every version.

Versions of Produce: 5 adds the log start offset, 8 adds record errors and a message, 9 is flexible, 10 can name
leaders and their endpoints, 13 has topic ids. Versions of Fetch: 5 adds the log start offset, 7 adds sessions, 11 adds
the preferred replica, 12 is flexible and can name leaders, 13 has topic ids, 16 can name endpoints. The caller passes
leaders and endpoints only to versions that have them.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

from odradek.core.varints import compact_string, uvarint
from odradek.wire.chunks import Chunk


class ProducedPartition(NamedTuple):
    """The result of Produce for one partition. ``append_time_ms`` is −1 with CreateTime. ``leader``: the id of another
    leader, and its leader epoch."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: tuple[tuple[int, str | None], ...] = ()
    error_message: str | None = None
    leader: tuple[int, int] | None = None


class FetchedPartition(NamedTuple):
    """The result of Fetch for one partition. ``records`` are slices of its log, ``size`` is their total size.

    ``aborted`` has (producer id, first offset) pairs; it is ``None`` for read_uncommitted. ``diverging`` is an (epoch,
    end offset) pair if the reader's log has diverged from this log. ``leader``: the id of another leader, and its
    leader epoch.
    """

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Sequence[Chunk] = ()
    size: int = 0
    diverging: tuple[int, int] | None = None
    leader: tuple[int, int] | None = None


class NodeEndpoint(Protocol):
    """The address of a leader."""

    @property
    def broker_id(self) -> int: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def rack(self) -> str | None: ...


Endpoints = Mapping[int, NodeEndpoint]
"""The addresses of leaders, by id. They may grow while a reply is packed in steps."""
NO_ENDPOINTS: Endpoints = MappingProxyType({})
_I32 = struct.Struct(">i").pack
_I64 = struct.Struct(">q").pack
_PRODUCED_LEGACY = struct.Struct(">ihqq").pack
_FETCHED_4 = struct.Struct(">ihqq").pack
_FETCHED_5 = struct.Struct(">ihqqq").pack
_STEP_PARTITIONS = 500
_BYTES_LIKE_A_PARTITION = 512
"""A topic name of this many bytes takes as long to pack as one partition."""
_ABORTED = struct.Struct(">qq").pack
_DIVERGING = struct.Struct(">iq").pack
_LEADER = struct.Struct(">ii").pack


def _short_text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    packed = value.encode()
    return len(packed).to_bytes(2, "big") + packed


def _end_tags(endpoints: Endpoints) -> bytes:
    """Returns the tagged fields at the end of a reply."""
    if not endpoints:
        return b"\0"
    rows = (
        _I32(each.broker_id) + compact_string(each.host) + _I32(each.port) + compact_string(each.rack) + b"\0"
        for each in endpoints.values()
    )
    field = uvarint(len(endpoints) + 1) + b"".join(rows)
    return b"\x01\0" + uvarint(len(field)) + field


# --- Produce ----------------------------------------------------------------------------------------------------

ProducedTopics = Sequence[tuple[str | bytes, Sequence[ProducedPartition]]]


def produce_reply(version: int, topics: ProducedTopics, throttle_ms: int = 0) -> bytes:
    """Returns a Produce reply of version 3 to 13 without its header.

    The first element of each topic is its name, or from version 13 on the 16 bytes of its id.
    """
    if version >= 9:
        if len(topics) == 1 and len(topics[0][1]) == 1:
            single = _single_produced(topics[0][0], topics[0][1][0], throttle_ms)
            if single is not None:
                return single
        out = [uvarint(len(topics) + 1)]
        for topic, partitions in topics:
            name = topic if type(topic) is bytes else compact_string(topic)  # type: ignore[arg-type]  # a str
            out += (name, uvarint(len(partitions) + 1))
            for partition in partitions:
                _pack_produced_flexible(out, partition)
            out.append(b"\0")
        out.append(_I32(throttle_ms) + b"\0")
        return b"".join(out)
    out = [_I32(len(topics))]
    for topic, partitions in topics:
        out += (_short_text(topic), _I32(len(partitions)))  # type: ignore[arg-type]  # a str: ids come with version 13
        for partition in partitions:
            _pack_produced(out, version, partition)
    out.append(_I32(throttle_ms))
    return b"".join(out)


_SINGLE_END = b"\1\0\0\0"
"""No record errors, no message, no tagged fields of the partition and of the topic."""


@lru_cache(1_000)
def _single_begin(topic: str | bytes) -> bytes:
    """Returns the begin of a reply with one partition of a topic."""
    return b"\2" + (topic if isinstance(topic, bytes) else compact_string(topic)) + b"\2"


def _single_produced(topic: str | bytes, partition: ProducedPartition, throttle_ms: int) -> bytes | None:
    """Returns a flexible reply with one partition, as a producer gets it for each single batch. None with an error,
    a message or another leader."""
    index, error_code, base_offset, append_time_ms, log_start_offset, record_errors, message, leader = partition
    if record_errors or message is not None or leader is not None:
        return None
    row = _FETCHED_5(index, error_code, base_offset, append_time_ms, log_start_offset)
    return b"".join((_single_begin(topic), row, _SINGLE_END, _I32(throttle_ms), b"\0"))


def produce_reply_in_steps(
    version: int,
    topics: ProducedTopics,
    endpoints: Endpoints = NO_ENDPOINTS,
    *,
    step_partitions: int = _STEP_PARTITIONS,
) -> Generator[None, None, list[Chunk]]:
    """Returns the chunks of the same reply with throttle time 0, which the last chunk begins with. Works in steps of
    some hundred partitions."""
    pieces: list[Chunk] = []
    packed = [_count(version >= 9, len(topics))]
    left = step_partitions
    for topic, partitions in topics:
        packed.append(_produced_topic(version, topic, len(partitions)))
        left -= 1 + len(topic) // _BYTES_LIKE_A_PARTITION
        for first in range(0, len(partitions), step_partitions):
            some = partitions[first : first + step_partitions]
            _pack_all_produced(packed, version, some)
            left -= sum([1 + len(partition.record_errors) for partition in some])
            if left <= 0:
                pieces.append(b"".join(packed))
                packed, left = [], step_partitions
                yield
        if version >= 9:
            packed.append(b"\0")
    pieces += (b"".join(packed), _I32(0) + (_end_tags(endpoints) if version >= 9 else b""))
    return pieces


def _count(flexible: bool, count: int) -> bytes:
    return uvarint(count + 1) if flexible else _I32(count)


def _produced_topic(version: int, topic: str | bytes, partition_count: int) -> bytes:
    """Returns the part of a topic before its first partition."""
    flexible = version >= 9
    name = topic if isinstance(topic, bytes) else compact_string(topic) if flexible else _short_text(topic)
    return name + _count(flexible, partition_count)


def _pack_all_produced(out: list[bytes], version: int, partitions: Sequence[ProducedPartition]) -> None:
    if version >= 9:
        for partition in partitions:
            _pack_produced_flexible(out, partition)
    else:
        for partition in partitions:
            _pack_produced(out, version, partition)


def _pack_produced(out: list[bytes], version: int, partition: ProducedPartition) -> None:
    index, error_code, base_offset, append_time_ms, log_start_offset, record_errors, message, _ = partition
    out.append(_PRODUCED_LEGACY(index, error_code, base_offset, append_time_ms))
    if version >= 5:
        out.append(_I64(log_start_offset))
    if version >= 8:
        out.append(_I32(len(record_errors)))
        for batch_index, text in record_errors:
            out.append(_I32(batch_index) + _short_text(text))
        out.append(_short_text(message))


def _pack_produced_flexible(out: list[bytes], partition: ProducedPartition) -> None:
    index, error_code, base_offset, append_time_ms, log_start_offset, record_errors, message, leader = partition
    out.append(_FETCHED_5(index, error_code, base_offset, append_time_ms, log_start_offset))
    out.append(uvarint(len(record_errors) + 1))
    for batch_index, text in record_errors:
        out.append(_I32(batch_index) + compact_string(text) + b"\0")
    tags = b"\0" if leader is None else b"\x01\0\x09" + _LEADER(*leader) + b"\0"
    out.append(compact_string(message) + tags)


# --- Fetch ------------------------------------------------------------------------------------------------------

FetchedTopics = Iterable[tuple[str | bytes, Sequence[FetchedPartition]]]


def fetch_reply(
    version: int,
    topics: FetchedTopics,
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_ms: int = 0,
    endpoints: Endpoints = NO_ENDPOINTS,
) -> list[Chunk]:
    """Returns the chunks of a Fetch reply of version 4 to 18 without its header.

    A chunk is either packed fields or a slice of a partition's records.
    """
    topics = list(topics)
    out: list[Chunk] = []
    packed = [_fetch_head(version, len(topics), error_code, session_id, throttle_ms)]
    for topic, partitions in topics:
        packed.append(_fetched_topic(version, topic, len(partitions)))
        packed = _pack_fetched(version, partitions, packed, out)
        if version >= 12:
            packed.append(b"\0")
    if version >= 12:
        packed.append(_end_tags(endpoints))
    if packed:
        out.append(b"".join(packed))
    return out


def fetch_reply_in_steps(
    version: int,
    count: int,
    topics: FetchedTopics,
    *,
    session_id: int = 0,
    endpoints: Endpoints = NO_ENDPOINTS,
    step_partitions: int = _STEP_PARTITIONS,
) -> Generator[None, None, list[Chunk]]:
    """Does the same as ``fetch_reply`` without error and throttle time, in steps of some hundred partitions.

    ``count`` is the number of topics.
    """
    out: list[Chunk] = []
    packed = [_fetch_head(version, count, 0, session_id, 0)]
    left = step_partitions
    for topic, partitions in topics:
        packed.append(_fetched_topic(version, topic, len(partitions)))
        left -= 1 + len(topic) // _BYTES_LIKE_A_PARTITION
        for first in range(0, len(partitions), step_partitions):
            some = partitions[first : first + step_partitions]
            packed = _pack_fetched(version, some, packed, out)
            left -= len(some)
            if left <= 0:
                out.append(b"".join(packed))
                packed, left = [], step_partitions
                yield
        if version >= 12:
            packed.append(b"\0")
    if version >= 12:
        packed.append(_end_tags(endpoints))
    out.append(b"".join(packed))
    return out


def _fetch_head(version: int, topic_count: int, error_code: int, session_id: int, throttle_ms: int) -> bytes:
    head = _I32(throttle_ms)
    if version >= 7:
        head += error_code.to_bytes(2, "big", signed=True) + _I32(session_id)
    return head + (uvarint(topic_count + 1) if version >= 12 else _I32(topic_count))


def _fetched_topic(version: int, topic: str | bytes, partition_count: int) -> bytes:
    """Returns the part of a topic before its first partition."""
    flexible = version >= 12
    name = topic if isinstance(topic, bytes) else compact_string(topic) if flexible else _short_text(topic)
    return name + (uvarint(partition_count + 1) if flexible else _I32(partition_count))


def _pack_fetched(
    version: int, partitions: Sequence[FetchedPartition], packed: list[bytes], out: list[Chunk]
) -> list[bytes]:
    """Packs partitions after the fields in ``packed``. Adds the chunks up to the last records to ``out``.

    Returns the packed fields after the last records.
    """
    flexible = version >= 12
    for partition in partitions:
        packed.append(_fetched_head(version, partition))
        if partition.size:
            out.append(b"".join(packed))
            out.extend(partition.records)
            packed = []
        if flexible:
            packed.append(_fetched_tags(partition))
    return packed


def _fetched_head(version: int, partition: FetchedPartition) -> bytes:
    """Returns the fields of a partition before its records. The last one is the length of the records."""
    index, error_code, high_watermark, last_stable, log_start, aborted, preferred, _, size, _, _ = partition
    if version >= 5:
        head = _FETCHED_5(index, error_code, high_watermark, last_stable, log_start)
    else:
        head = _FETCHED_4(index, error_code, high_watermark, last_stable)
    flexible = version >= 12
    if aborted is None:
        head += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        head += uvarint(len(aborted) + 1) if flexible else _I32(len(aborted))
        for producer_id, first_offset in aborted:
            head += _ABORTED(producer_id, first_offset) + (b"\0" if flexible else b"")
    if version >= 11:
        head += _I32(preferred)
    return head + (uvarint(size + 1) if flexible else _I32(size))


def _fetched_tags(partition: FetchedPartition) -> bytes:
    diverging, leader = partition.diverging, partition.leader
    if diverging is None and leader is None:
        return b"\0"
    tags = b"" if diverging is None else b"\0\x0d" + _DIVERGING(*diverging) + b"\0"
    if leader is not None:
        tags += b"\x01\x09" + _LEADER(*leader) + b"\0"
    return uvarint((diverging is not None) + (leader is not None)) + tags
