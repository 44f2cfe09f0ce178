"""Hand-written encoders of OffsetCommit and OffsetFetch replies.

A property test compares the results with ``wire.schemas.encode`` for every version.

Versions of OffsetCommit: 3 adds the throttle time, 8 is flexible, 10 has topic ids. Versions of OffsetFetch: 6 is the
oldest version here and flexible, 8 can have several groups, 10 has topic ids.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from odradek.core.ids import USUAL_NAME_CHARS
from odradek.core.varints import compact_string, uvarint
from odradek.wire.elements import Pieces


class CommittedTopic(NamedTuple):
    """A topic of an OffsetCommit reply. ``codes``: each partition followed by its error code.

    For example, ``[0, 0, 1, 12]``: no error in partition 0, error code 12 in partition 1.
    """

    name: str
    topic_id: UUID | None
    codes: Sequence[int]


_NO_THROTTLE = b"\0\0\0\0"
_NO_ID = bytes(16)


ROWS_AT_ONCE = 256


@lru_cache(maxsize=128)
def packed_rows(count: int, flexible: bool) -> struct.Struct:
    """Returns the struct of ``count`` rows, at most ``ROWS_AT_ONCE``. It takes about 100 bytes of memory per row."""
    return struct.Struct(">" + ("ihx" if flexible else "ih") * count)


def _name(name: str, flexible: bool) -> bytes:
    return usual_name(name, flexible) if len(name) <= USUAL_NAME_CHARS else _any_name(name, flexible)


@lru_cache(maxsize=4096)
def usual_name(name: str, flexible: bool) -> bytes:
    return _any_name(name, flexible)


def _any_name(name: str, flexible: bool) -> bytes:
    if flexible:
        return compact_string(name)
    packed = name.encode()
    return len(packed).to_bytes(2, "big") + packed


def offset_commit_reply(version: int, topics: Iterable[CommittedTopic]) -> bytes:
    """Returns the message without its header."""
    steps = offset_commit_reply_in_steps(version, list(topics))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return b"".join(end.value)


def offset_commit_reply_in_steps(version: int, topics: Sequence[CommittedTopic]) -> Generator[None, None, list[bytes]]:
    """Packs the message in steps of at most ``ROWS_AT_ONCE`` rows and returns its pieces."""
    out = Pieces()
    flexible = version >= 8
    if version >= 3:
        out.append(_NO_THROTTLE)
    if flexible:
        out.append(uvarint(len(topics) + 1))
    else:
        out.append(len(topics).to_bytes(4, "big"))
    for name, topic_id, codes in topics:
        if version >= 10:
            out.append(_NO_ID if topic_id is None else topic_id.bytes)
        else:
            out.append(_name(name, flexible))
        count = len(codes) // 2
        out.append(uvarint(count + 1) if flexible else count.to_bytes(4, "big"))
        for first in range(0, len(codes), 2 * ROWS_AT_ONCE):
            some = codes[first : first + 2 * ROWS_AT_ONCE]
            out.append(packed_rows(len(some) // 2, flexible).pack(*some))
            yield
        if flexible:
            out.append(b"\0")
    if flexible:
        out.append(b"\0")
    return out.chunks()


class FetchedTopic(NamedTuple):
    """A topic of an OffsetFetch reply. ``rows`` has the packed rows of ``row_count`` partitions."""

    name: str
    topic_id: UUID | None
    row_count: int
    rows: bytes


class FetchedGroup(NamedTuple):
    group_id: str
    error_code: int
    topics: Sequence[FetchedTopic]


_ROW = struct.Struct(">iqi4s")
_ROW_HEAD = struct.Struct(">iqi")
_CODE = struct.Struct(">h")
_END_OF_ROW = b"\1\0\0\0"  # no metadata, no error, no tagged fields


def offset_fetch_rows(
    partitions: Iterable[int], values: Iterable[Sequence[object]], refused: Collection[int] = (), error_code: int = 0
) -> bytes:
    """Packs partitions of a topic. Each of ``values`` starts with offset, leader epoch and metadata.

    A partition in ``refused`` gets ``error_code`` in place of its value.
    """
    if refused:
        rows = zip(partitions, values, strict=True)
        return b"".join(
            [
                refused_fetch_rows([partition], error_code)
                if partition in refused
                else offset_fetch_rows([partition], [value])
                for partition, value in rows
            ]
        )
    pack = _ROW.pack
    return b"".join(
        [
            _row_with_metadata(partition, value) if value[2] else pack(partition, value[0], value[1], _END_OF_ROW)
            for partition, value in zip(partitions, values, strict=True)
        ]
    )


def _row_with_metadata(partition: int, value: Sequence[Any]) -> bytes:
    metadata = value[2].encode()
    out: list[bytes] = [_ROW_HEAD.pack(partition, value[0], value[1])]
    out.append(uvarint(len(metadata) + 1))
    return b"".join((*out, metadata, _END_OF_ROW[1:]))


def refused_fetch_rows(partitions: Iterable[int], error_code: int) -> bytes:
    """Packs partitions of a topic, each with the same error."""
    end = b"\1" + _CODE.pack(error_code) + b"\0"
    return b"".join([_ROW.pack(partition, -1, -1, end) for partition in partitions])


def offset_fetch_reply(version: int, groups: Sequence[FetchedGroup]) -> bytes:
    """Returns the message without its header. Before version 8 there is exactly one group."""
    out = [offset_fetch_start(version, len(groups))]
    for group_id, error_code, topics in groups:
        out.append(fetched_group_start(version, group_id, len(topics)))
        for name, topic_id, count, rows in topics:
            out += (fetched_topic_start(version, name, topic_id, count), rows, FETCHED_TOPIC_END)
        out.append(fetched_group_end(error_code))
    out.append(offset_fetch_end(version))
    return b"".join(out)


FETCHED_TOPIC_END = b"\0"


def offset_fetch_start(version: int, groups: int) -> bytes:
    """Returns the part of the message before its first group."""
    return _NO_THROTTLE + uvarint(groups + 1) if version >= 8 else _NO_THROTTLE


def fetched_group_start(version: int, group_id: str, topics: int) -> bytes:
    """Returns the part of a group before its first topic."""
    count = uvarint(topics + 1)
    return _name(group_id, True) + count if version >= 8 else count


def fetched_topic_start(version: int, name: str, topic_id: UUID | None, rows: int) -> bytes:
    """Returns the part of a topic before its first partition."""
    if version >= 10:
        return (_NO_ID if topic_id is None else topic_id.bytes) + uvarint(rows + 1)
    return _name(name, True) + uvarint(rows + 1)


def fetched_group_end(error_code: int) -> bytes:
    """Returns the part of a group after its topics. Before version 8 it is the end of the message."""
    return _CODE.pack(error_code) + b"\0"


def offset_fetch_end(version: int) -> bytes:
    """Returns the part of the message after the last group."""
    return b"\0" if version >= 8 else b""
