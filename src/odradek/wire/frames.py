"""Frames, and headers of requests and replies. No I/O."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.varints import read_uvarint, skip_tagged_fields
from odradek.wire import schemas
from odradek.wire.request_limits import MAX_TAGGED_FIELDS
from odradek.wire.schemas import Kind


class FrameError(ValueError):
    """Bytes that are not a Kafka frame. The receiver closes the connection."""


class FrameReader:
    """Splits a byte stream into frames: a big-endian length of 4 bytes, and this number of bytes.

    It keeps at most one incomplete frame, of at most ``max_frame_bytes``.
    """

    LONG_FRAME_BYTES: ClassVar[int] = 1 << 20
    """A longer frame is collected in a ``BytesIO`` and returned without a copy: a copy of 100 MB takes 60 ms."""
    __slots__ = ("_buffer", "_long", "_long_left", "buffered", "most_bytes")

    def __init__(self, max_frame_bytes: int = 104_857_600) -> None:
        self._buffer = bytearray()
        self._long: io.BytesIO | None = None  # a long frame without its length prefix; then ``_buffer`` is empty
        self._long_left = 0
        self.most_bytes = max_frame_bytes
        """The size of the longest frame."""
        self.buffered = 0
        """The number of bytes of the incomplete frame. It is valid after the iterator of ``feed`` has ended."""

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Returns an iterator of the frames that ``data`` completes, without length prefixes. It raises FrameError."""
        buffer = self._buffer
        if (
            not buffer
            and self._long is None
            and len(data) >= 4
            and 4 + int.from_bytes(data[:4], "big") == len(data) <= self.most_bytes
        ):
            return iter((bytes(data[4:]),))  # the usual case: one whole request
        return self._cut(data)

    def _cut(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        if self._long is not None:
            missing = self._long_left
            frame = self._lengthened(data[:missing])
            if frame is None:
                return
            yield frame
            data = data[missing:]
        buffer = self._buffer
        buffer += data
        start, end = 0, len(buffer)
        while end - start >= 4:
            size = int.from_bytes(buffer[start : start + 4], "big", signed=True)
            if size < 0 or size > self.most_bytes:
                raise FrameError(f"a frame of {size} bytes; the limit is {self.most_bytes} bytes")
            if end - start - 4 < size:
                if size > self.LONG_FRAME_BYTES:
                    self._long, self._long_left = io.BytesIO(), size
                    self._lengthened(buffer[start + 4 :])
                    buffer.clear()
                    return
                break
            yield bytes(memoryview(buffer)[start + 4 : start + 4 + size])
            start += 4 + size
        if start:
            del buffer[:start]
        self.buffered = end - start

    def _lengthened(self, data: bytes | bytearray | memoryview) -> bytes | None:
        """Adds bytes to the long frame and returns it if it is complete. ``getvalue`` returns it without a copy."""
        long = self._long
        assert long is not None
        self._long_left -= len(data)
        long.write(data)
        if self._long_left:
            self.buffered = 4 + long.tell()
            return None
        self._long, self.buffered = None, 0
        return long.getvalue()


class RequestHead(NamedTuple):
    """A request's header; ``body`` is the position of the message in its frame."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int


_LEAST_TOO_LONG = MAX_STRING_BYTES // 3  # an invalid byte becomes a character of three bytes
_HEAD = struct.Struct(">hhih")
_API = struct.Struct(">hh")


def read_api(frame: bytes) -> tuple[int, int]:
    """Reads the API key and the version, with which each request begins. Raises FrameError."""
    try:
        api_key, version = _API.unpack_from(frame)
    except struct.error as error:
        raise FrameError(f"malformed request header: {error}") from error
    return api_key, version


def read_request_head(frame: bytes) -> RequestHead:
    """Reads a request's header, v1 or v2; for an unknown API version only up to the client id. Raises FrameError."""
    try:
        api_key, version, correlation_id, length = _HEAD.unpack_from(frame)
        at = _HEAD.size
        client_id = None
        if length >= 0:
            client_id = frame[at : at + length].decode(errors="replace")
            if len(frame) < at + length:
                raise FrameError("the client id is longer than the frame")
            at += length
            if length > _LEAST_TOO_LONG and len(client_id.encode()) > MAX_STRING_BYTES:
                raise FrameError("the client id is too long after the replacement of its invalid characters")
        try:
            flexible = schemas.is_flexible(api_key, version)
        except schemas.UnknownMessage:
            return RequestHead(api_key, version, correlation_id, client_id, at)
        if flexible:
            at = _skip_tags(frame, at) if frame[at] else at + 1
    except (struct.error, IndexError, ValueError) as error:
        raise FrameError(f"malformed request header: {error}") from error
    return RequestHead(api_key, version, correlation_id, client_id, at)


def _skip_tags(frame: bytes | memoryview, at: int) -> int:
    count, at = read_uvarint(frame, at)
    if count > MAX_TAGGED_FIELDS:
        raise FrameError(f"{count:,} tagged fields in the header; the limit is {MAX_TAGGED_FIELDS:,}")
    at = skip_tagged_fields(frame, at, count)
    if at > len(frame):
        raise FrameError("a tagged field is longer than the frame")
    return at


def _message_start(data: bytes | memoryview) -> int:
    """Returns the position of the message in a reply with tagged fields in its header, e.g. of a newer broker."""
    try:
        return _skip_tags(data, 4)
    except (IndexError, ValueError) as error:
        raise FrameError(f"malformed reply header: {error}") from error


def reply_head(api_key: int, version: int, correlation_id: int) -> bytes:
    """Returns the header of a reply, without tagged fields."""
    packed = correlation_id.to_bytes(4, "big", signed=True)
    return packed + b"\0" if schemas.has_flexible_reply_header(api_key, version) else packed


def frame(*chunks: bytes) -> bytes:
    """Returns the chunks with their total length as a prefix."""
    return b"".join((sum(map(len, chunks)).to_bytes(4, "big"), *chunks))


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, message: Mapping[str, object] | bytes
) -> bytes:
    """Returns a whole request with its length prefix. ``message`` is a mapping or packed bytes."""
    name = b"" if client_id is None else client_id.encode()
    head = _HEAD.pack(api_key, version, correlation_id, -1 if client_id is None else len(name)) + name
    if schemas.is_flexible(api_key, version):
        head += b"\0"
    body = message if isinstance(message, bytes) else schemas.encode(api_key, version, Kind.REQUEST, message)
    return frame(head, body)


def decode_reply(api_key: int, version: int, data: bytes | memoryview) -> tuple[int, Any]:
    """Returns a reply's correlation id and message from a frame without its length prefix. Raises ValueError."""
    if len(data) < 4:
        raise FrameError("the reply is shorter than a correlation id")
    at = len(reply_head(api_key, version, 0))
    if at > 4 and data[4:5] != b"\0":
        at = _message_start(data)
    message, _ = schemas.decode(api_key, version, Kind.RESPONSE, data, at)
    return int.from_bytes(data[:4], "big", signed=True), message
