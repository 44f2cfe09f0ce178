"""The codecs of record batches: none, gzip, snappy, lz4 (frame), zstd. What comes out of a decoder is bounded.

A few hostile bytes can unpack to gigabytes, so each decoder first learns an upper bound of its output from the
framing (zstd and lz4: block count and block size; snappy: the length in front; gzip: it stops by itself) and never
allocates more than ``max_bytes``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Literal

import cramjam

from odradek.core.errors import CorruptRecord

Buffer = bytes | bytearray | memoryview

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
CODES = {name: code for code, name in enumerate(NAMES)}

DEFAULT_MAX_BYTES = 256 << 20
"""Largest output of one batch unless the caller says otherwise."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_ZSTD_BLOCK_BYTES = 128 * 1024
_ZSTD_MAGIC = 0xFD2FB528
_LZ4_MAGIC = 0x184D2204
# Version 1, independent blocks of 64 KiB, no checksums; the last byte is the descriptor's own hash. Kafka's Java reader
# refuses frames with linked blocks, which is what the codec's own frame writer makes.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 1 << 31
_LZ4_PLAIN_HEADS = {
    _LZ4_HEAD: 64 << 10,
    bytes.fromhex("04224d186050fb"): 256 << 10,
    bytes.fromhex("04224d18606051"): 1 << 20,
    bytes.fromhex("04224d18607073"): 4 << 20,
}
"""How frames begin whose blocks stand alone, without checksums or sizes, and how large a block is at most."""


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """``data`` in the form Kafka's own producer writes. ``level=None``: the codec's default."""
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


def decompress(codec: int, data: Buffer, max_bytes: int = DEFAULT_MAX_BYTES) -> Buffer:
    """The bytes behind ``data``. Raises CorruptRecord for a broken stream and for more than ``max_bytes``."""
    if codec == NONE:
        return data
    decoder = _DECODERS.get(codec)
    if decoder is None:
        raise CorruptRecord(f"unknown compression {codec}")
    try:
        return decoder(memoryview(data), max_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error, IndexError, ValueError, OSError) as error:
        raise CorruptRecord(f"{NAMES[codec]} data cannot be unpacked: {error}") from error


def decompress_into(codec: int, data: Buffer, out: memoryview) -> int:
    """Unpacks into ``out`` and returns how many bytes came, or -1: ``decompress`` has to see to it, since the codec or
    the frame is an unusual one, there is no room, or the bytes are faulty. What then stands in ``out`` is undefined.
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
    """One frame of blocks that stand alone, without checksums: what Kafka's clients write. Block by block, which
    takes a third of the time that the decoder of frames takes."""
    block_bytes = _LZ4_PLAIN_HEADS.get(bytes(data[:7]), 0)
    if not block_bytes:
        return -1
    pos, at = 7, 0
    while True:
        (size,) = struct.unpack_from("<I", data, pos)
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
    return CorruptRecord(f"{codec} data unpacks to more than {max_bytes} bytes")


def _decompress_gzip(data: memoryview, max_bytes: int) -> Buffer:
    out: list[bytes] = []
    total = 0
    rest: Buffer = data
    while len(rest):
        unpacker = zlib.decompressobj(31)
        part = unpacker.decompress(rest, max_bytes - total + 1)
        total += len(part)
        if total > max_bytes:
            raise _too_large("gzip", max_bytes)
        if not unpacker.eof:
            raise CorruptRecord("gzip data ends early")
        out.append(part)
        rest = unpacker.unused_data
    return out[0] if len(out) == 1 else b"".join(out)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_bytes: int) -> Buffer:
    """Java's producer frames snappy blocks the xerial way, librdkafka writes one raw block."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(data, max_bytes)
    out: list[Buffer] = []
    total = 0
    pos = len(_XERIAL_HEADER)
    if len(data) < pos:
        raise CorruptRecord("snappy head is cut off")
    while pos < len(data):
        size = int.from_bytes(data[pos : pos + 4], "big")
        pos += 4
        if size > len(data) - pos:
            raise CorruptRecord("snappy block ends early")
        block = _decompress_snappy_block(data[pos : pos + size], max_bytes - total)
        total += len(block)
        out.append(block)
        pos += size
    return b"".join(out)


def _decompress_snappy_block(data: memoryview, max_bytes: int) -> Buffer:
    size = cramjam.snappy.decompress_raw_len(data)
    if size > max_bytes:
        raise _too_large("snappy", max_bytes)
    out = bytearray(size)
    written = cramjam.snappy.decompress_raw_into(data, out)
    if written != size:
        raise CorruptRecord(f"snappy block of {written} bytes says it has {size}")
    return out


def _unpack(codec: Any, data: memoryview, bound: int, max_bytes: int) -> Buffer:
    """The decoder itself allocates where the bound allows it: clearing a buffer as large as the bound (4 MiB for a
    small lz4 batch) takes ten times as long as unpacking."""
    if bound <= max_bytes:
        return memoryview(codec.decompress(data))
    out = bytearray(max_bytes)
    try:
        written: int = codec.decompress_into(data, out)
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise _too_large("compressed", max_bytes) from error
        raise
    return memoryview(out)[:written]


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


def _decompress_lz4(data: memoryview, max_bytes: int) -> Buffer:
    bound = 0
    pos = 0
    while pos < len(data):
        magic, flags, descriptor = struct.unpack_from("<IBB", data, pos)
        if magic != _LZ4_MAGIC:
            raise CorruptRecord("no lz4 frame")
        block_bytes = 1 << (8 + 2 * (descriptor >> 4 & 7))
        pos += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        while True:
            (size,) = struct.unpack_from("<I", data, pos)
            pos += 4
            if not size:
                break
            bound += block_bytes
            pos += (size & 0x7FFFFFFF) + (4 if flags & 0x10 else 0)
        pos += 4 if flags & 0x04 else 0
    return _unpack(cramjam.lz4, data, bound, max_bytes)


def _decompress_zstd(data: memoryview, max_bytes: int) -> Buffer:
    bound = 0
    pos = 0
    while pos < len(data):
        (magic,) = struct.unpack_from("<I", data, pos)
        if magic & 0xFFFFFFF0 == 0x184D2A50:
            pos += 8 + struct.unpack_from("<I", data, pos + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise CorruptRecord("no zstd frame")
        descriptor = data[pos + 4]
        single = descriptor >> 5 & 1
        size_bytes = (1 if single else 0, 2, 4, 8)[descriptor >> 6]
        pos += 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
        last = 0
        while not last:
            block = int.from_bytes(data[pos : pos + 3], "little")
            if pos + 3 > len(data):
                raise CorruptRecord("zstd block ends early")
            last, kind, size = block & 1, block >> 1 & 3, block >> 3
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else size
            pos += 3 + (1 if kind == 1 else size)
        pos += 4 if descriptor & 4 else 0
    return _unpack(cramjam.zstd, data, bound, max_bytes)


_DECODERS: dict[int, Callable[[memoryview, int], Buffer]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
