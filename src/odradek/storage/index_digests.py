"""The digests of a log's indexes of aborted transactions, at the end of a snapshot of the log's producers.

Kafka's format of these indexes has no checksum. With the digests, a start finds out that an index is lost, damaged or
an older copy. Kafka's reader of snapshots ignores bytes after the producers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

_DIGESTS_MAGIC = b"odt1"
_DIGEST = struct.Struct(">qiI")
_DIGEST_COUNT = struct.Struct(">i4s")


class IndexDigest(NamedTuple):
    """The size in entries and the CRC of the index of aborted transactions of the segment at ``base_offset``."""

    base_offset: int
    entries: int
    crc: int


def encode_digests(digests: Sequence[IndexDigest]) -> bytes:
    """Encodes digests for the end of a snapshot."""
    if not digests:
        return b""
    return b"".join(_DIGEST.pack(*one) for one in digests) + _DIGEST_COUNT.pack(len(digests), _DIGESTS_MAGIC)


def decode_digests(data: bytes) -> list[IndexDigest]:
    """Returns the digests at the end of a valid snapshot."""
    if not data.endswith(_DIGESTS_MAGIC):
        return []
    end = len(data) - _DIGEST_COUNT.size
    start = end - _DIGEST_COUNT.unpack_from(data, end)[0] * _DIGEST.size
    if not 0 < start < end:
        return []
    return [IndexDigest(*fields) for fields in _DIGEST.iter_unpack(data[start:end])]
