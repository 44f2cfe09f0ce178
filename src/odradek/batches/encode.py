"""A writer of record batches in pure Python, fast for many small records. The coordinators use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from odradek.batches.compression import CODES, compress, decompress
from odradek.batches.header import (
    CHECKED,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    seal,
)
from odradek.core.ids import ProducerIdentity
from odradek.core.varints import varint


class KeyValue(Protocol):
    """The interface of a record, e.g. of ``SimpleRecord``. ``timestamp_ms=None`` means the writer's ``now_ms``."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def timestamp_ms(self) -> int | None: ...


Headers = Sequence[tuple[str, bytes | None]]

_SMALL = [varint(number) for number in range(64)]
"""The encoded offset deltas of one byte. A look-up is faster than a call."""


def _encode_headers(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += (varint(len(encoded)), encoded, b"\x01" if value is None else varint(len(value)), value or b"")
    return b"".join(parts)


def encode_batch(
    records: Iterable[KeyValue],
    *,
    now_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: str = "none",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    compression_level: int | None = None,
) -> bytes:
    """Returns one batch of format v2 with ``records`` in order.

    A record may have ``headers``, pairs of (str, bytes | None). ``now_ms`` is the timestamp of records without one.
    Raises ValueError if there is no record or the codec's name is unknown.
    """
    items = list(records)
    if not items:
        raise ValueError("a batch needs at least one record")
    if compression not in CODES:
        raise ValueError(f"unknown compression {compression!r}: one of {', '.join(CODES)}")
    first = items[0].timestamp_ms
    base_timestamp = max_timestamp = now_ms if first is None else first
    body: list[bytes] = []
    small = _SMALL
    for delta, item in enumerate(items):
        timestamp = item.timestamp_ms
        if timestamp is None:
            timestamp = now_ms
        if timestamp > max_timestamp:  # noqa: PLR1730  twice as fast as max()
            max_timestamp = timestamp
        key, value = item.key, item.value
        headers: Headers = getattr(item, "headers", ())
        parts = (
            b"\x00",
            varint(timestamp - base_timestamp),
            small[delta] if delta < 64 else varint(delta),
            b"\x01" if key is None else varint(len(key)),
            key or b"",
            b"\x01" if value is None else varint(len(value)),
            value or b"",
            _encode_headers(headers) if headers else b"\x00",
        )
        record = b"".join(parts)
        body.append(varint(len(record)))
        body.append(record)
    codec = CODES[compression]
    payload = b"".join(body)
    if codec:
        payload = compress(codec, payload, compression_level)
    attributes = codec | (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    checked = CHECKED.pack(
        attributes,
        len(items) - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(items),
    )
    return seal(checked, payload, base_offset, leader_epoch)


def seal_batch(packed: Iterable[bytes], count: int, *, now_ms: int) -> bytes:
    """Returns an uncompressed batch of ``count`` packed records, which all have the time of the batch."""
    return seal(CHECKED.pack(0, count - 1, now_ms, now_ms, -1, -1, -1, count), b"".join(packed), 0, -1)


def seal_transactional_batch(packed: Iterable[bytes], count: int, producer: ProducerIdentity, *, now_ms: int) -> bytes:
    """Returns a coordinator's transactional batch of ``count`` packed records.

    Its sequence is 0, as in Kafka: logs do not check the sequences of coordinators.
    """
    checked = CHECKED.pack(TRANSACTIONAL_BIT, count - 1, now_ms, now_ms, *producer, 0, count)
    return seal(checked, b"".join(packed), 0, -1)


def seal_records(
    body: Buffer,
    count: int,
    times: tuple[int, int],
    codec: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    attributes: int = 0,
) -> bytes:
    """Returns a batch of ``count`` packed records.

    ``times``: the base timestamp and the largest timestamp. ``producer``: id, epoch and sequence. ``attributes``: the
    bits besides the codec.
    """
    payload = compress(codec, body) if codec else bytes(body)
    return seal(CHECKED.pack(codec | attributes, count - 1, *times, *producer, count), payload, 0, -1)


def pack_record(item: KeyValue, delta: int) -> list[bytes]:
    """Returns the parts of a record for ``seal_batch``: no headers, timestamp delta 0, offset delta ``delta``."""
    key, value = item.key, item.value
    body = (
        b"\0\0",
        varint(delta),
        b"\1" if key is None else varint(len(key)),
        key or b"",
        b"\1" if value is None else varint(len(value)),
        value or b"",
        b"\0",
    )
    return [varint(sum(map(len, body))), *body]


def with_max_timestamp(data: Buffer, header: BatchHeader, max_timestamp: int) -> bytes:
    """Returns the single batch in ``data`` with another largest timestamp (ms) in its header."""
    payload = bytes(memoryview(data)[HEADER_BYTES : header.size_in_bytes])
    checked = CHECKED.pack(
        header.attributes, header.last_offset_delta, header.base_timestamp, max_timestamp, *header[9:]
    )
    return seal(checked, payload, header.base_offset, header.leader_epoch)


def recompress(data: Buffer, header: BatchHeader, codec: int, level: int | None = None) -> bytes:
    """Returns the single batch in ``data`` with its records compressed by another codec and no other change.

    ``level`` is the compression level, ``None`` for the codec's default. Raises CorruptRecord if the records cannot be
    decompressed.
    """
    plain = decompress(header.compression, memoryview(data)[HEADER_BYTES : header.size_in_bytes])
    return repacked(header, codec, compress(codec, plain, level))


def repacked(header: BatchHeader, codec: int, payload: bytes) -> bytes:
    """Returns the batch with ``payload``, its records compressed by ``codec``, and no other change."""
    checked = CHECKED.pack(header.attributes & ~COMPRESSION_MASK | codec, header.last_offset_delta, *header[7:])
    return seal(checked, payload, header.base_offset, header.leader_epoch)
