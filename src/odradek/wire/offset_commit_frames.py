"""A fast reader of OffsetCommit requests that differ only in their offsets.

A member commits the same partitions repeatedly. Its requests differ only in the correlation id, the offsets and
sometimes the leader epochs. A ``Layout`` has the positions of these fields for frames of one length. The bytes between
these fields are the ``ConstantBytes`` of a commit. A caller parses them once, and uses the parsed data again for later
commits with equal ``ConstantBytes``.

An unusual frame (tagged fields, wrong lengths, no partition, more than ``MAX_FRAME_BYTES``) has no layout. The general
codec in ``wire.schemas`` reads such a frame and raises the errors for it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from odradek.core.varints import read_uvarint

OFFSET_COMMIT = b"\0\x08"
NEWEST = 10
MAX_FRAME_BYTES = 64 << 10
"""The size of a frame with about 3,600 partitions. The scan of a longer frame takes longer than a share of the loop."""
_HEAD_END = 8  # api key, version, correlation id
_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from

ConstantBytes = tuple[bytes, ...]


class CommitOffsets(NamedTuple):
    """The fields that differ between commits. Offsets and epochs are in the order of the request."""

    correlation_id: bytes  # 4 bytes
    offsets: tuple[int, ...]
    leader_epochs: tuple[int, ...] | None  # None: the version has no leader epochs


class Layout:
    """The positions of correlation id, offsets and leader epochs in requests of one version and length."""

    __slots__ = ("_stride", "_struct", "head", "positions", "size")

    def __init__(self, frame: bytes, positions: array[int]) -> None:
        self.head = frame[:4]
        self.positions = positions
        self.size = len(frame)
        has_epochs = int.from_bytes(frame[2:4], "big") >= 6
        self._stride = 3 if has_epochs else 2
        taken, field = (12, "qi") if has_epochs else (8, "q")
        code, at = [">4s4s"], _HEAD_END
        for position in positions:
            code.append(f"{position - at}s{field}")
            at = position + taken
        code.append(f"{len(frame) - at}s")
        self._struct = struct.Struct("".join(code))

    @property
    def bytes_kept(self) -> int:
        """The approximate memory of the layout, mostly that of its struct."""
        return 1000 + 130 * len(self.positions)

    def read(self, frame: bytes) -> tuple[ConstantBytes, CommitOffsets] | None:
        """Reads a frame of the layout's length. Returns None if the frame has another API or version."""
        fields = self._struct.unpack(frame)
        if fields[0] != self.head:
            return None
        if self._stride == 3:
            return fields[2::3], CommitOffsets(fields[1], fields[3::3], fields[4::3])
        return fields[2::2], CommitOffsets(fields[1], fields[3::2], None)

    def pack(
        self, constant: ConstantBytes, correlation_id: bytes, offsets: Sequence[int], leader_epochs: Sequence[int]
    ) -> bytes:
        """Returns a frame, the inverse of ``read``. Leader epochs are left out if the version has none."""
        fields: list[object] = []
        for number, offset in enumerate(offsets):
            fields += (constant[number], offset, leader_epochs[number])[: self._stride]
        return self._struct.pack(self.head, correlation_id, *fields, constant[-1])


class CommitTemplate:
    """Packs the requests of a member that commits the same partitions again."""

    __slots__ = ("_constant", "_layout", "_prefix")

    def __init__(self, request: bytes) -> None:
        """``request``: one of these requests, with its length prefix. Raises ValueError for an unusual one."""
        layout = layout_of(request[4:])
        read = None if layout is None else layout.read(request[4:])
        if layout is None or read is None:
            raise ValueError("the request has no layout")
        self._prefix, self._layout, self._constant = request[:4], layout, read[0]

    def pack(self, correlation_id: int, offsets: Sequence[int], leader_epochs: Sequence[int]) -> bytes:
        """Returns a request with its length prefix. Offsets and epochs are in the order of the first request."""
        packed = correlation_id.to_bytes(4, "big", signed=True)
        return self._prefix + self._layout.pack(self._constant, packed, offsets, leader_epochs)


def layout_of(frame: bytes) -> Layout | None:
    """Returns the layout of an OffsetCommit request (a frame without its length), or None for an unusual frame."""
    positions = positions_in(frame)
    return None if positions is None else Layout(frame, positions)


def positions_in(frame: bytes) -> array[int] | None:
    """Returns the positions of the committed offsets in an OffsetCommit request, or None for an unusual frame."""
    if len(frame) > MAX_FRAME_BYTES:
        return None
    try:
        version = _INT16(frame, 2)[0]
        if not 2 <= version <= NEWEST or frame[:2] != OFFSET_COMMIT:
            return None
        positions, end = _walk(frame, version)
    except (IndexError, ValueError, struct.error):
        return None
    return positions if end == len(frame) and positions else None


def _walk(frame: bytes, version: int) -> tuple[array[int], int]:
    """Returns the positions of all committed offsets, and the end of the message: -1 if it has tagged fields.

    Raises IndexError, ValueError or struct.error for wrong lengths.
    """
    flexible = version >= 8
    positions = array("I")
    at = _HEAD_END + 2 + max(_INT16(frame, _HEAD_END)[0], 0)  # the client id is never compact
    if flexible:
        if frame[at]:
            return positions, -1
        at += 1
    at = _skip(frame, at, flexible) + 4  # group id, generation
    at = _skip(frame, at, flexible)  # member id
    if version >= 7:
        at = _skip(frame, at, flexible)  # group instance id
    if version <= 4:
        at += 8  # retention time
    fixed = 16 if version >= 6 else 12  # index, offset, leader epoch
    topics, at = _length(frame, at, flexible)
    for _ in range(topics):
        at = at + 16 if version >= 10 else _skip(frame, at, flexible)
        count, at = _length(frame, at, flexible)
        for _ in range(count):
            positions.append(at + 4)
            at = _skip(frame, at + fixed, flexible)  # metadata
            if flexible:
                if frame[at]:
                    return positions, -1
                at += 1
        if flexible:
            if frame[at]:
                return positions, -1
            at += 1
    if flexible:
        if frame[at]:
            return positions, -1
        at += 1
    return positions, at


def _length(frame: bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Returns an array's length and the position after it. Raises IndexError for an impossible length."""
    count, at = read_uvarint(frame, at) if flexible else (_INT32(frame, at)[0] + 1, at + 4)
    if count < 1 or count > len(frame) - at + 1:
        raise IndexError(count)
    return count - 1, at


def _skip(frame: bytes, at: int, flexible: bool) -> int:
    """Returns the position after a nullable string."""
    if flexible:
        size, at = read_uvarint(frame, at)
        return at + size - 1 if size else at
    size = int(_INT16(frame, at)[0])
    return at + 2 + max(size, 0)
