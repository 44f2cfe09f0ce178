"""Replies that contain file parts: ``sendfile`` copies the records from the page cache to the socket.

``FileSender`` writes to a duplicate of the transport's socket. To keep the order of the bytes, it writes only while the
transport has no bytes to write. Unsent chunks wait. A waiting file part needs no memory, whatever its size. For the
choice of ``sendfile`` over mapped files, see docs/benchmarks/mechanisms.md.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import cast

from odradek.storage.disk.descriptors import SHARED, Descriptors
from odradek.storage.segments.slice import Slice
from odradek.wire.chunks import Chunk

log = logging.getLogger("odradek.broker")

COPY_BYTES = 256 << 10
"""Bytes that are read and encrypted at once, and the limit of a transport's unsent bytes meanwhile."""
COPY_TICK_BYTES = 1 << 20
"""As ``TICK_BYTES``, for bytes that are encrypted."""
TICK_BYTES = 4 << 20
"""The limit for the bytes to one client before other clients are served."""

_MORE = getattr(socket, "MSG_MORE", 0)
_FILE_ERRORS = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EBADF", "ENODEV", "ENXIO", "EUCLEAN", "ESTALE")
    if hasattr(errno, name)  # macOS has no EUCLEAN, Windows no ESTALE
)


class Refusals:
    """Warns of refused connections, at most once in a minute."""

    def __init__(self) -> None:
        self._count = 0
        self._next_s = 0.0

    def note(self, host: str) -> None:
        """Counts a connection for which no descriptor is left."""
        self._count += 1
        now_s = time.monotonic()
        if now_s >= self._next_s:
            log.warning(
                "no file descriptor is left for connections: %d refused since the last such line, now one from %s; "
                "raise the limit of open files (ulimit -n)", self._count, host,
            )  # fmt: skip
            self._count, self._next_s = 0, now_s + REFUSALS_S


REFUSALS_S = 60.0
REFUSALS = Refusals()
"""The refusals of this process: its connections share the descriptors."""


def takes_spare(transport: asyncio.BaseTransport, descriptors: Descriptors = SHARED) -> bool:
    """Returns whether a new connection uses one of the last file descriptors, and no log file could be closed."""
    own = transport.get_extra_info("socket")
    return hasattr(own, "fileno") and descriptors.is_spare(own.fileno()) and not descriptors.make_room()


class LostTransport:
    """The transport of a connection whose client has left, while its last requests are served: it drops replies.

    ``on_close()`` ends the connection."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.close = self.abort = on_close

    def write(self, data: bytes) -> None:
        pass

    writelines = write

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class PartSender(ABC):
    """Writes replies that contain file parts. It is ``busy`` until all chunks are written.

    Chunks that do not fit during ``send`` are written later. Then the sender calls ``on_progress()`` whenever the
    client has accepted some bytes, and ``on_room()`` when all chunks are written. On an error the sender aborts the
    transport. The owner calls ``close`` in ``connection_lost``, and ``transport_drained`` in ``resume_writing``.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        on_room: Callable[[], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._on_room = on_room
        self._on_progress = on_progress
        self._waiting: deque[Chunk] = deque()
        self._sent = 0  # bytes of the first waiting chunk
        self._is_closed = False

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    @property
    def unsent_bytes(self) -> int:
        return sum(map(len, self._waiting)) - self._sent

    @abstractmethod
    def send(self, chunks: list[Chunk]) -> None:
        """Writes the chunks after all earlier ones, now or later."""

    @abstractmethod
    def transport_drained(self) -> None:
        """Continues after the transport has written its buffer."""

    def close(self) -> None:
        """Drops the waiting chunks."""
        self._is_closed = True
        self._waiting.clear()

    def _fail(self, chunk: Chunk, error: OSError | None) -> None:
        if isinstance(chunk, Slice) and error is not None and error.errno in _FILE_ERRORS:
            chunk.report_failure(error)
        self._abort()

    def _abort(self) -> None:
        self.close()
        self._transport.abort()


def can_send(transport: asyncio.BaseTransport) -> bool:
    """Returns whether file parts are sent to this client without reading them whole before."""
    return transport.get_extra_info("sslcontext") is not None or FileSender.possible(transport)


def make_sender(
    loop: asyncio.AbstractEventLoop,
    transport: asyncio.Transport,
    on_room: Callable[[], None],
    on_progress: Callable[[], None],
) -> PartSender:
    """Returns the sender for a connection. Raises OSError if there is no file descriptor for it."""
    if transport.get_extra_info("sslcontext") is not None:
        return CopySender(loop, transport, on_room=on_room, on_progress=on_progress)
    return FileSender(loop, transport, on_room=on_room, on_progress=on_progress)


class CopySender(PartSender):
    """The sender of file parts where the bytes have to be encrypted: it reads ``COPY_BYTES`` at a time, whenever the
    transport has written the bytes before them. So a reply of any size needs little memory, and other clients are
    served between."""

    _will_continue = False

    def send(self, chunks: list[Chunk]) -> None:
        """Writes the chunks after all earlier ones, now or when the transport has room."""
        if self._is_closed:
            return
        was_busy = self.busy
        self._waiting.extend([chunk for chunk in chunks if len(chunk)])
        if not was_busy:
            self._write()

    def transport_drained(self) -> None:
        """Continues after the transport has written its buffer."""
        self._transport.set_write_buffer_limits(high=COPY_BYTES)
        self._continue()

    def _continue(self) -> None:
        self._will_continue = False
        if self._waiting and not self._is_closed:
            self._on_progress()
            self._write()
            if not self._waiting:
                self._on_room()

    def _write(self) -> None:
        """Writes until the transport's buffer is full, at most about ``COPY_TICK_BYTES``."""
        left = COPY_TICK_BYTES
        self._transport.set_write_buffer_limits(high=COPY_BYTES)
        while self._waiting and left > 0 and self._transport.get_write_buffer_size() < COPY_BYTES:
            chunk = self._waiting[0]
            size = min(len(chunk) - self._sent, COPY_BYTES)
            try:
                data = chunk.part(self._sent, size) if isinstance(chunk, Slice) else _view(chunk, self._sent, size)
            except OSError as error:
                self._fail(chunk, error)
                return
            if not len(data):
                log.warning("closing a connection: a log segment was truncated while a reply with its records was sent")
                self._fail(chunk, None)
                return
            self._transport.write(data)
            left -= len(data)
            self._sent += len(data)
            if self._sent == len(chunk):
                self._waiting.popleft()
                self._sent = 0
        if self._waiting and not self._will_continue and self._transport.get_write_buffer_size() < COPY_BYTES:
            self._will_continue = True
            self._loop.call_soon(self._continue)


def _view(chunk: Chunk, start: int, size: int) -> memoryview:
    return memoryview(cast(bytes, chunk))[start : start + size]


class FileSender(PartSender):
    """The sender of file parts to a plain socket.

    The constructor raises OSError if there is no file descriptor for the duplicate socket.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        on_room: Callable[[], None],
        on_progress: Callable[[], None],
    ) -> None:
        super().__init__(loop, transport, on_room=on_room, on_progress=on_progress)
        # A duplicate, because asyncio allows no second writer on the transport's own descriptor.
        self._socket = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        if SHARED.is_spare(self._socket.fileno()) and not SHARED.make_room():
            self._socket.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._socket.setblocking(False)
        self._watching = False
        self._behind_transport = False

    @staticmethod
    def possible(transport: asyncio.BaseTransport) -> bool:
        """Returns whether file parts can be sent to this client: a plain socket, and a system with ``sendfile``."""
        return (
            hasattr(os, "sendfile")
            and transport.get_extra_info("sslcontext") is None
            and hasattr(transport.get_extra_info("socket"), "fileno")
        )

    def send(self, chunks: list[Chunk]) -> None:
        """Writes the chunks after all earlier ones, now or when the socket accepts them."""
        if self._is_closed:
            return
        was_busy = self.busy
        self._waiting.extend([chunk for chunk in chunks if len(chunk)])
        if was_busy or not self._waiting:
            return
        if self._transport.get_write_buffer_size():
            # The chunks follow when the transport's buffer is empty. With this limit, the transport reports that.
            self._behind_transport = True
            self._transport.set_write_buffer_limits(high=0)
        else:
            self._write()

    def transport_drained(self) -> None:
        """Continues after the transport has written its buffer."""
        if self._behind_transport:
            self._behind_transport = False
            self._on_writable()

    def close(self) -> None:
        """Drops the waiting chunks and closes the duplicate socket."""
        self._stop()
        self._socket.close()

    def _stop(self) -> None:
        self._watch(False)
        super().close()

    def _on_writable(self) -> None:
        before = len(self._waiting), self._sent
        self._write()
        if self._is_closed:
            return
        if before != (len(self._waiting), self._sent):
            self._on_progress()
        if not self._waiting:
            self._on_room()

    def _write(self) -> None:
        """Writes until the socket is full, at most about ``TICK_BYTES``. Watches the socket if chunks remain."""
        left = TICK_BYTES
        waiting = self._waiting
        while waiting and left > 0 and not self._is_closed:
            chunk = waiting[0]
            try:
                size = self._write_file(chunk) if isinstance(chunk, Slice) else self._write_bytes(cast(bytes, chunk))
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._fail(chunk, error)
                return
            left -= size
            self._sent += size
            if self._sent == len(chunk):
                waiting.popleft()
                self._sent = 0
        self._watch(bool(waiting) and not self._is_closed)

    def _write_bytes(self, chunk: bytes | bytearray | memoryview) -> int:
        more = _MORE if len(self._waiting) > 1 else 0
        return self._socket.send(memoryview(chunk)[self._sent :], more)

    def _write_file(self, part: Slice) -> int:
        size = part.send(self._socket.fileno(), self._sent)
        if not size:
            # The segment was truncated, and the reply's length is already sent.
            log.warning("closing a connection: a log segment was truncated while a reply with its records was sent")
            self._abort()
        return size

    def _abort(self) -> None:
        self._stop()
        self._transport.abort()

    def _watch(self, is_needed: bool) -> None:
        if is_needed != self._watching:
            self._watching = is_needed
            if is_needed:
                self._loop.add_writer(self._socket.fileno(), self._on_writable)
            else:
                self._loop.remove_writer(self._socket.fileno())
