"""The reply of OffsetCommit packed by hand: a broker under commits writes little else.

Held against ``wire.schemas.encode`` for every version by a property test.

Versions: 3 added the throttle time, 8 is flexible, 10 names topics by id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from odradek.wire.schemas import write_uvarint


class CommittedTopic(NamedTuple):
    """``codes`` alternates partition and error code: 0, 0, 1, 12 for partition 1 refused."""

    name: str
    topic_id: UUID | None
    codes: Sequence[int]


_NO_THROTTLE = b"\0\0\0\0"
_NO_ID = bytes(16)


@lru_cache(maxsize=1024)
def _rows(count: int, flexible: bool) -> struct.Struct:
    return struct.Struct(">" + ("ihx" if flexible else "ih") * count)


@lru_cache(maxsize=4096)
def _name(name: str, flexible: bool) -> bytes:
    packed = name.encode()
    if not flexible:
        return len(packed).to_bytes(2, "big") + packed
    out: list[bytes] = []
    write_uvarint(out, len(packed) + 1)
    out.append(packed)
    return b"".join(out)


def offset_commit_response(version: int, topics: Iterable[CommittedTopic]) -> bytes:
    """The message, without its header."""
    topics = list(topics)
    out: list[bytes] = []
    flexible = version >= 8
    if version >= 3:
        out.append(_NO_THROTTLE)
    if flexible:
        write_uvarint(out, len(topics) + 1)
    else:
        out.append(len(topics).to_bytes(4, "big"))
    for name, topic_id, codes in topics:
        if version >= 10:
            out.append(_NO_ID if topic_id is None else topic_id.bytes)
        else:
            out.append(_name(name, flexible))
        count = len(codes) // 2
        if flexible:
            write_uvarint(out, count + 1)
            out.append(_rows(count, True).pack(*codes))
            out.append(b"\0")
        else:
            out.append(count.to_bytes(4, "big"))
            out.append(_rows(count, False).pack(*codes))
    if flexible:
        out.append(b"\0")
    return b"".join(out)
