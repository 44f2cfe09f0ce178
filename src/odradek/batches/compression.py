"""The codecs of record batches: none, gzip, snappy, lz4 (frame), zstd. The output of a decoder is limited.

A few malicious bytes can decompress to gigabytes, so no decoder allocates more than ``max_bytes``. For zstd and lz4 the
number and size of the blocks give an upper bound before the decompression, and for snappy the length field gives it.
The gzip decoder stops at the limit.

``decompress`` does all work in one call. ``decompress_small`` returns None for data that can take longer than a step of
the broker's event loop. ``decompress_in_steps`` (see batches/steps) decompresses such data in steps.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from odradek.batches.steps import BatchSteps, Call, Map, Reserve, finish, map_memory
from odradek.core.errors import CorruptRecord
from odradek.core.lazy_import import LazyModule

if TYPE_CHECKING:
    import cramjam
else:
    cramjam = LazyModule("cramjam")  # a broker without compressed batches saves 1.5 MB

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODES = {name: code for code, name in enumerate(NAMES)}

DEFAULT_MAX_BYTES = 256 << 20
"""The default limit of the output of one batch."""
SMALL_BYTES = 256 << 10
"""The largest input and output of a decompression without steps and without a reservation of memory."""
STEP_BYTES = 1 << 20
"""The largest output of a decompression in one step, except gzip. A thread decompresses a larger output."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_BLOCK_COST = 1024
"""The constant cost of each block, in bytes that decompress in the same time."""
_BLOCKS_PER_STEP = 1000
_GZIP_PIECE_BYTES = 512
_GZIP_MEMBER_COST = 1024
"""The constant cost of each gzip member, in bytes that decompress in the same time."""
_GZIP_STEP_BYTES = 128 << 10
_GZIP_CALL_BYTES = 1 << 20
_GZIP_FIRST_BYTES = 16 << 20
_GZIP_RATIO = 1032
"""The largest number of bytes that one compressed byte can become."""
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_LZ4_MAGIC = 0x184D2204
_LZ4_FRAME = struct.Struct("<IBB").unpack_from
_UINT32 = struct.Struct("<I").unpack_from
# Version 1, independent blocks of 64 KiB, no checksums; the last byte is the hash of the descriptor. The frame writer
# of cramjam is not used, because it links blocks, and Kafka's Java reader refuses such frames.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31
_LZ4_RATIO = 255
LZ4_PLAIN_HEADS = {
    _LZ4_HEAD: 64 << 10,
    bytes.fromhex("04224d186050fb"): 256 << 10,
    bytes.fromhex("04224d18606051"): 1 << 20,
    bytes.fromhex("04224d18607073"): 4 << 20,
}
"""The heads of frames with independent blocks and without checksums or sizes, and their largest block sizes."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """Returns ``data`` compressed in the format of Kafka's producer. ``level=None``: the codec's default."""
    if codec == NONE:
        return bytes(data)
    if codec == GZIP:
        packer = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return _compress_xerial(data)
    if codec == LZ4:
        return _compress_lz4(data, level)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3 if level is None else level))
    raise CorruptRecord(f"unknown compression {codec}")


_ERRORS = (zlib.error, struct.error, IndexError, ValueError, OSError)
"""The errors of decoders besides cramjam's own error."""


def decompress(codec: int, data: Buffer, max_bytes: int = DEFAULT_MAX_BYTES) -> Buffer:
    """Returns the decompressed bytes. Raises CorruptRecord for invalid data and for more than ``max_bytes``."""
    if codec == NONE:
        return data
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise CorruptRecord(f"unknown compression {codec}")
    try:
        return decoder(memoryview(data), max_bytes)
    except (cramjam.DecompressionError, *_ERRORS) as error:
        raise CorruptRecord(f"{NAMES[codec]} data cannot be decompressed: {error}") from error


class Plain(NamedTuple):
    """Decompressed bytes: the first ``size`` bytes of ``data``. A slice of ``data`` is bytes."""

    data: bytes | mmap
    size: int


def decompress_small(codec: int, data: memoryview) -> bytes | None:
    """Returns the decompressed bytes, or None if this can take longer than a step. ``codec`` must not be NONE.

    Raises CorruptRecord.
    """
    if len(data) > SMALL_BYTES:
        return None
    try:
        if codec == LZ4:
            bound, pos, frame = _lz4_bounds(data)
            if bound <= SMALL_BYTES and not frame and pos >= len(data):
                return bytes(cramjam.lz4.decompress(data))
            return None if frame or pos < len(data) else _lz4_small(data)
        if codec == ZSTD:
            bound, pos, frame = _zstd_bounds(data)
            if bound <= SMALL_BYTES and not frame and pos >= len(data):
                return bytes(cramjam.zstd.decompress(data))
            return None
        if codec == GZIP:
            return _gzip_small(data)
        if codec == SNAPPY:
            return _snappy_small(data)
    except (cramjam.DecompressionError, *_ERRORS) as error:
        raise CorruptRecord(f"{NAMES[codec]} data cannot be decompressed: {error}") from error
    raise CorruptRecord(f"unknown compression {codec}")


def decompress_in_steps(codec: int, data: Buffer, max_bytes: int = DEFAULT_MAX_BYTES) -> BatchSteps[Plain]:
    """Does the same as ``decompress`` in steps. ``codec`` must not be NONE."""
    unpack = _STEP_DECODERS.get(codec)
    if unpack is None:
        raise CorruptRecord(f"unknown compression {codec}")
    try:
        return (yield from unpack(memoryview(data), max_bytes))
    except (cramjam.DecompressionError, *_ERRORS) as error:
        raise CorruptRecord(f"{NAMES[codec]} data cannot be decompressed: {error}") from error


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int:
    """Decompresses into ``out`` and returns the number of bytes, or -1: then the caller must call ``decompress``.

    The reason for -1 is a codec other than lz4 and zstd, an unusual frame, too little room, or invalid data. Then the
    content of ``out`` is undefined.
    """
    try:
        if codec == LZ4:
            return _lz4_blocks_into(memoryview(data), out)
        if codec == ZSTD and len(out):
            return int(cramjam.zstd.decompress_into(data, out))
    except (cramjam.DecompressionError, struct.error):
        return -1
    return -1


def _lz4_blocks_into(data: memoryview, out: memoryview) -> int:
    """Decompresses one frame of independent blocks without checksums, the form of Kafka's clients, block by block.

    This takes a third of the time of the frame decoder.
    """
    block_bytes = LZ4_PLAIN_HEADS.get(bytes(data[:7]), 0)
    if not block_bytes:
        return -1
    pos, at = 7, 0
    while True:
        (size,) = _UINT32(data, pos)
        pos += 4
        if not size:
            return at if pos == len(data) else -1
        block = data[pos : pos + (size & ~_LZ4_STORED)]
        pos += len(block)
        room = out[at : at + block_bytes]
        if not room or not block or len(block) != size & ~_LZ4_STORED or len(block) > block_bytes:
            return -1
        if size & _LZ4_STORED:
            if len(block) > len(room):
                return -1
            room[: len(block)] = block
            at += len(block)
        else:
            came = cramjam.lz4.decompress_block_into(block, room)
            if not came:
                return -1
            at += came


def _too_large(codec: str, max_bytes: int) -> CorruptRecord:
    return CorruptRecord(f"{codec} data decompresses to more than {max_bytes} bytes")


def _decompress_gzip(data: memoryview, max_bytes: int) -> Buffer:
    unpacker = zlib.decompressobj(31)
    part = unpacker.decompress(data, max_bytes + 1)
    if len(part) > max_bytes:
        raise _too_large("gzip", max_bytes)
    if unpacker.eof and not unpacker.unused_data:
        return part
    return _contents(finish(_gzip_in_steps(data, max_bytes)))


def _gzip_small(data: memoryview) -> bytes | None:
    unpacker = zlib.decompressobj(31)
    part = unpacker.decompress(data, SMALL_BYTES + 1)
    if len(part) > SMALL_BYTES or unpacker.unused_data:
        return None
    if not unpacker.eof and len(data):
        raise CorruptRecord("gzip data ends early")
    return part


def _gzip_in_steps(data: memoryview, max_bytes: int) -> BatchSteps[Plain]:
    """Decompresses member by member. The input is in pieces, small ones at first, because the decoder copies the unused
    rest of each piece."""
    most = min(max_bytes, _GZIP_RATIO * len(data))
    memory = yield from _more_room(None, 0, min(most, _GZIP_FIRST_BYTES))
    at = pos = since = 0
    piece: Buffer = b""
    unpacker, piece_bytes, room = zlib.decompressobj(31), _GZIP_PIECE_BYTES, _GZIP_STEP_BYTES
    is_open = False
    while True:
        if not piece and room == _GZIP_STEP_BYTES:
            piece = data[pos : pos + piece_bytes]
            pos += len(piece)
            piece_bytes = min(4 * piece_bytes, _GZIP_STEP_BYTES)
            if not piece:
                break
        unpack = partial(unpacker.decompress, piece, room)
        part: bytes = unpack() if room == _GZIP_STEP_BYTES else (yield Call(unpack))
        if at + len(part) > max_bytes:
            raise _too_large("gzip", max_bytes)
        if at + len(part) > len(memory):
            memory = yield from _more_room(memory, at, most)
        memory[at : at + len(part)] = part
        at += len(part)
        is_open = not unpacker.eof
        piece = unpacker.unconsumed_tail if is_open else unpacker.unused_data
        room = _GZIP_CALL_BYTES if is_open and len(part) == room else _GZIP_STEP_BYTES
        if not is_open:
            unpacker, piece_bytes = zlib.decompressobj(31), _GZIP_PIECE_BYTES
        since += _GZIP_MEMBER_COST + len(part)
        if since >= _GZIP_STEP_BYTES:
            since = 0
            yield None
    if is_open:
        raise CorruptRecord("gzip data ends early")
    return Plain(memory, at)


def _more_room(memory: mmap | None, used: int, size: int) -> BatchSteps[mmap]:
    larger: mmap = yield Map(max(size, 1))
    if memory is not None:
        for start in range(0, used, STEP_BYTES):
            end = min(start + STEP_BYTES, used)
            larger[start:end] = memory[start:end]
            yield None
    return larger


def _contents(plain: Plain) -> Buffer:
    return plain.data if isinstance(plain.data, bytes) else memoryview(plain.data)[: plain.size]


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Buffer:
    """Decompresses xerial frames of snappy blocks (Java's producer) or one raw block (librdkafka)."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_bytes)
    return b"".join(_decompress_snappy_block(block, max_bytes - total) for block, total in _xerial_blocks(data))


def _xerial_blocks(data: memoryview) -> Generator[tuple[memoryview, int], None, None]:
    """Yields each compressed block with the number of decompressed bytes before it."""
    total = 0
    pos = len(_XERIAL_HEADER)
    if len(data) < pos:
        raise CorruptRecord("snappy head is cut off")
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if size > len(data) - pos:
            raise CorruptRecord("snappy block ends early")
        block = data[pos : pos + size]
        yield block, total
        total += cramjam.snappy.decompress_raw_len(block)
        pos += size


def _decompress_snappy_block(data: memoryview, max_bytes: int) -> Buffer:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > max_bytes:
        raise _too_large("snappy", max_bytes)
    out = bytearray(size)
    _snappy_into(data, out)
    return out


def _snappy_into(data: memoryview, out: bytearray | memoryview) -> None:
    written = cramjam.snappy.decompress_raw_into(data, out)
    if written != len(out):
        raise CorruptRecord(f"snappy block has {written} bytes, but its length field is {len(out)}")


def _snappy_small(data: memoryview) -> bytes | None:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        size = cramjam.snappy.decompress_raw_len(data)
        return bytes(_decompress_snappy_block(data, SMALL_BYTES)) if size <= SMALL_BYTES else None
    parts: list[Buffer] = []
    for block, total in _xerial_blocks(data):
        if total + cramjam.snappy.decompress_raw_len(block) > SMALL_BYTES or len(parts) == _BLOCKS_PER_STEP:
            return None
        parts.append(_decompress_snappy_block(block, SMALL_BYTES))
    return b"".join(parts)


def _snappy_in_steps(data: memoryview, max_bytes: int) -> BatchSteps[Plain]:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > max_bytes:
            raise _too_large("snappy", max_bytes)
        memory: mmap = yield Map(max(size, 1))
        yield Call(partial(_snappy_into_map, data, memory, 0, size))
        return Plain(memory, size)
    size = 0
    for number, (block, total) in enumerate(_xerial_blocks(data)):
        size = total + cramjam.snappy.decompress_raw_len(block)
        if size > max_bytes:
            raise _too_large("snappy", max_bytes)
        if number % _BLOCKS_PER_STEP == _BLOCKS_PER_STEP - 1:
            yield None
    memory = yield Map(max(size, 1))
    since = 0
    for block, total in _xerial_blocks(data):
        block_bytes = cramjam.snappy.decompress_raw_len(block)
        if block_bytes > STEP_BYTES:
            yield Call(partial(_snappy_into_map, block, memory, total, block_bytes))
        else:
            _snappy_into_map(block, memory, total, block_bytes)
        since += _XERIAL_BLOCK_COST + block_bytes
        if since >= STEP_BYTES:
            since = 0
            yield None
    return Plain(memory, size)


def _snappy_into_map(data: memoryview, memory: mmap, at: int, size: int) -> None:
    with memoryview(memory) as whole, whole[at : at + size] as out:
        _snappy_into(data, out)


def _unpack(codec: Any, data: memoryview, bound: int, max_bytes: int) -> Buffer:
    """Decompresses with the decoder's own allocation if ``bound`` is within the limit, else into mapped memory.

    It never allocates a buffer with the size of the bound (4 MiB for a small lz4 batch): to clear this buffer would
    take ten times as long as the decompression.
    """
    if bound <= max_bytes:
        return memoryview(codec.decompress(data))
    memory = map_memory(max_bytes)
    return memoryview(memory)[: _unpack_into(codec, data, memory, max_bytes)]


def _unpack_into(codec: Any, data: memoryview, memory: mmap, max_bytes: int) -> int:
    """Decompresses into ``memory`` and returns the number of bytes. Raises CorruptRecord if ``memory`` is too small."""
    try:
        with memoryview(memory) as out:
            return int(codec.decompress_into(data, out))
    except cramjam.DecompressionError as error:
        if _LACKS_ROOM in str(error):
            raise _too_large("compressed", max_bytes) from error
        raise


def _lz4_small(data: memoryview) -> bytes | None:
    """Decompresses frames with a large bound. Their blocks may have up to 4 MiB, but are often small.

    Returns None if the output has more than ``SMALL_BYTES``."""
    out = bytearray(SMALL_BYTES)
    try:
        return bytes(memoryview(out)[: cramjam.lz4.decompress_into(data, out)])
    except cramjam.DecompressionError as error:
        if _LACKS_ROOM in str(error):
            return None
        raise


def _unpack_in_steps(codec: Any, count: Bounds, data: memoryview, max_bytes: int) -> BatchSteps[Plain]:
    total = pos = frame = 0
    while frame or pos < len(data):
        bound, pos, frame = count(data, pos, frame)
        total += bound
        yield None
    if total <= min(STEP_BYTES, max_bytes):
        yield Reserve(total)
        plain = bytes(codec.decompress(data))
        return Plain(plain, len(plain))
    memory: mmap = yield Map(min(total, max_bytes))
    size: int = yield Call(partial(_unpack_into, codec, data, memory, max_bytes))
    return Plain(memory, size)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    mode: Literal["default", "high_compression"] = "default" if level is None else "high_compression"
    parts: list[Buffer] = [_LZ4_HEAD]
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        plain = view[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, mode=mode, compression=level, store_size=False))
        if len(block) < len(plain):
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((len(plain) | _LZ4_STORED).to_bytes(4, "little"), plain)
    parts.append(bytes(4))
    return b"".join(parts)


Bounds = Callable[..., tuple[int, int, int]]
"""``(data, pos=0, frame=0)``: returns the largest output of up to ``_BLOCKS_PER_STEP`` blocks from ``pos`` on, the
position after them, and the state of the current frame, 0 between two frames."""


def _lz4_bounds(data: memoryview, pos: int = 0, frame: int = 0) -> tuple[int, int, int]:
    bound, blocks = 0, _BLOCKS_PER_STEP
    while frame or pos < len(data):
        if not frame:
            magic, flags, descriptor = _LZ4_FRAME(data, pos)
            if magic != _LZ4_MAGIC:
                raise CorruptRecord("no lz4 frame")
            pos += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
            frame = 1 << 16 | descriptor << 8 | flags
        block_bytes = 1 << (8 + 2 * (frame >> 12 & 7))
        while blocks:
            blocks -= 1
            (size,) = _UINT32(data, pos)
            pos += 4
            if not size:
                break
            if size & _LZ4_STORED:
                size &= ~_LZ4_STORED
                bound += size
            elif size < block_bytes // _LZ4_RATIO:
                bound += _LZ4_RATIO * size
            else:
                bound += block_bytes
            pos += size + (4 if frame & 0x10 else 0)
        else:
            return bound, pos, frame
        pos += 4 if frame & 0x04 else 0
        frame = 0
    return bound, pos, 0


def _zstd_bounds(data: memoryview, pos: int = 0, frame: int = 0) -> tuple[int, int, int]:
    bound, blocks = 0, _BLOCKS_PER_STEP
    while frame or pos < len(data):
        if not blocks:
            return bound, pos, frame
        if not frame:
            blocks -= 1
            (magic,) = _UINT32(data, pos)
            if magic & 0xFFFFFFF0 == 0x184D2A50:
                pos += 8 + _UINT32(data, pos + 4)[0]
                continue
            if magic != _ZSTD_MAGIC:
                raise CorruptRecord("no zstd frame")
            descriptor = data[pos + 4]
            single = descriptor >> 5 & 1
            size_bytes = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
            pos += 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
            frame = 1 << 8 | descriptor
        while blocks:
            blocks -= 1
            block = int.from_bytes(data[pos : pos + 3], "little")
            if pos + 3 > len(data):
                raise CorruptRecord("zstd block ends early")
            kind, size = block >> 1 & 3, block >> 3
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
            pos += 3 + (1 if kind == 1 else size)
            if block & 1:
                pos += 4 if frame & 4 else 0
                frame = 0
                break
    return bound, pos, frame


def _bound(count: Bounds, data: memoryview) -> int:
    total = pos = frame = 0
    while frame or pos < len(data):
        bound, pos, frame = count(data, pos, frame)
        total += bound
    return total


_LACKS_ROOM = "whole buffer"

_DECODERS: dict[int, Callable[[memoryview, int], Buffer]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: lambda data, most: _unpack(cramjam.lz4, data, _bound(_lz4_bounds, data), most),
    ZSTD: lambda data, most: _unpack(cramjam.zstd, data, _bound(_zstd_bounds, data), most),
}
_STEP_DECODERS: dict[int, Callable[[memoryview, int], BatchSteps[Plain]]] = {
    GZIP: _gzip_in_steps,
    SNAPPY: _snappy_in_steps,
    LZ4: lambda data, most: _unpack_in_steps(cramjam.lz4, _lz4_bounds, data, most),
    ZSTD: lambda data, most: _unpack_in_steps(cramjam.zstd, _zstd_bounds, data, most),
}
