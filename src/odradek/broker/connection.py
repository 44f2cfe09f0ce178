"""One client's connection: frames in, replies out, in the order the requests came.

Memory stays bounded: reading stops while too many requests, or bytes of them, are unanswered, while too many bytes of
replies wait for the one before them, and while the client does not take what was written. What goes wrong here closes
this connection and touches no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from odradek.broker.deferred import Deferred
from odradek.broker.router import Hangup
from odradek.broker.transport import FILE_FROM_BYTES, FileSender, takes_spare
from odradek.storage.segment import Slice
from odradek.wire.frames import FrameError, FrameReader, is_commit
from odradek.wire.hot_log import Chunk, joined

if TYPE_CHECKING:
    from odradek.broker.server import BrokerServer

log = logging.getLogger("odradek.broker")

MAX_IN_FLIGHT = 1000
MAX_IN_FLIGHT_BYTES = 64 << 20
MAX_READY_BYTES = 64 << 20
WRITE_BUFFER_BYTES = 1 << 20
_JOIN_BELOW = FILE_FROM_BYTES


class Abandonable(Protocol):
    def abandon(self) -> None: ...


class _Slot:
    """The place of a reply, or of several, in the order of replies; ``chunks`` is ``None`` until they are there."""

    __slots__ = ("chunks", "request_bytes", "requests")

    def __init__(self, request_bytes: int, requests: int = 1) -> None:
        self.chunks: Sequence[Chunk] | None = None
        self.request_bytes = request_bytes
        self.requests = requests


class Connection(asyncio.Protocol):
    """The protocol asyncio drives. ``parked`` holds what is to be forgotten when the connection goes."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(server.config.socket_request_max_bytes)
        self._backlog: deque[bytes] = deque()
        self._slots: deque[_Slot] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._ready_bytes = 0
        self._writable = True
        self._reading = True
        self._closing = False
        self._gone = False
        self._flush_due = False
        self._last_active_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0
        self._mute_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._files: FileSender | None = None  # made for the first reply with a file in it
        self.sends_files = False
        self.parked: set[Abandonable] = set()
        self.client_host = ""
        self.local_host = ""
        self.session: Any = None

    # --- what asyncio calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        peer_host = str(peer[0]) if peer else ""
        self.client_host = f"/{peer_host}"
        self.local_host = str(local[0]) if local else ""
        is_one_too_many = takes_spare(transport)
        if is_one_too_many:
            log.info("refusing a connection of %s: the last descriptors are for files", self.client_host)
        if is_one_too_many or not self._server.admit(self, peer_host):
            self._closing = True
            transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
            return
        if hold_ms := self._server.quotas.connected(peer_host):
            log.info("refusing a connection of %s: its address makes too many", self.client_host)
            self._closing = True
            self._transport.pause_reading()
            self._mute_timer = self._loop.call_later(hold_ms / 1000, self._transport.abort)
            return
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.sends_files = FileSender.possible(transport)
        self._last_active_s = self._loop.time()
        self._watch_idleness()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._last_active_s = self._loop.time()
        try:
            self._backlog.extend(self._reader.feed(data))
        except FrameError as error:
            # What came before the bad bytes is still served.
            log.info("closing the connection of %s: %s", self.client_host, error)
            self._closing = True
        self._serve_backlog()

    def eof_received(self) -> bool | None:
        return False

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._last_active_s = self._loop.time()
        if self._files is not None:
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            self._files.transport_drained()
        self._serve_backlog()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone = self._closing = True
        for timer in (self._idle_timer, self._mute_timer):
            if timer is not None:
                timer.cancel()
        if self._files is not None:
            self._files.close()
        self._backlog.clear()
        self._slots.clear()
        parked, self.parked = self.parked, set()
        for waiting in parked:
            waiting.abandon()
        self._server.discharge(self)

    # --- serving ------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request awaits its reply, or a reply its way out."""
        return bool(self._slots or self._backlog or self._sending or self._transport.get_write_buffer_size())

    @property
    def _sending(self) -> bool:
        """Whether a part of a file, or what follows it, waits for the client."""
        return self._files is not None and self._files.busy

    def _serve_backlog(self) -> None:
        backlog = self._backlog
        while True:
            while backlog and self._has_room():
                if not (is_commit(backlog[0]) and self._serve_commits()):
                    self._serve(backlog.popleft())
                if self._ready_bytes > _JOIN_BELOW:
                    self._flush()
            self._flush()
            # What was written made room: requests left over now would have nobody to wake them.
            if not backlog or not self._has_room():
                break
        self._read_or_pause()

    def _has_room(self) -> bool:
        return (
            self._writable
            and (self._files is None or not self._files.busy)
            and self._in_flight < MAX_IN_FLIGHT
            and self._in_flight_bytes < MAX_IN_FLIGHT_BYTES
            and self._ready_bytes < MAX_READY_BYTES
            and not self._gone
            and self._mute_timer is None
        )

    def _serve_commits(self) -> bool:
        """Serves the commits at the head of the backlog together, if they are such as were served before."""
        lane, backlog = self._server.commit_lane, self._backlog
        taken = lane.take(backlog, MAX_IN_FLIGHT - self._in_flight)
        if taken is None:
            return False
        planned, commits = taken
        count = len(commits)
        slot = _Slot(count * len(backlog[0]), count)
        for _ in range(count):
            backlog.popleft()
        self._slots.append(slot)
        self._in_flight += count
        self._in_flight_bytes += slot.request_bytes
        lane.submit(planned, commits, lambda chunks: self._answer_later(slot, chunks))
        return True

    def _serve(self, frame: bytes) -> None:
        slot = _Slot(len(frame))
        try:
            reply = self._server.router.dispatch(frame, self)
        except (FrameError, Hangup, ValueError) as error:
            self._hang_up(str(error))
            return
        except Exception:
            log.exception("a request from %s could not be served", self.client_host)
            self._hang_up("see above")
            return
        self._slots.append(slot)
        self._in_flight += 1
        self._in_flight_bytes += slot.request_bytes
        if isinstance(reply, Deferred):
            reply.then(lambda chunks: self._answer_later(slot, chunks))
        else:
            self._answer(slot, reply)

    def _answer(self, slot: _Slot, chunks: Sequence[Chunk]) -> None:
        slot.chunks = chunks
        self._ready_bytes += sum(map(len, chunks))

    def _answer_later(self, slot: _Slot, chunks: Sequence[Chunk] | None) -> None:
        if self._gone:
            return
        if chunks is None:
            self._transport.abort()
            return
        self._answer(slot, chunks)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_and_go_on)

    def _flush_and_go_on(self) -> None:
        self._flush_due = False
        if not self._gone:
            self._flush()
            if self._backlog or not self._reading:
                self._serve_backlog()

    def _flush(self) -> None:
        """Writes every reply whose turn has come."""
        slots = self._slots
        out: list[Chunk] = []
        while slots and slots[0].chunks is not None:
            slot = slots.popleft()
            self._in_flight -= slot.requests
            self._in_flight_bytes -= slot.request_bytes
            out.extend(slot.chunks or ())
        if out:
            size = sum(map(len, out))
            self._ready_bytes -= size
            if self._sending:
                self._send_files(out)
            elif size < _JOIN_BELOW:
                self._transport.write(b"".join(cast(list[bytes], out)))  # so short a reply has no file in it
            elif any(isinstance(chunk, Slice) for chunk in out):
                self._send_files(out)
            else:
                self._transport.writelines(cast(list[bytes], out))
        if self._closing and not slots and not self._backlog and not self._gone and not self._sending:
            self._transport.close()

    def _send_files(self, out: list[Chunk]) -> None:
        if self._files is None:
            try:
                self._files = FileSender(
                    self._loop, self._transport, on_room=self._serve_backlog, on_progress=self._note_activity
                )
            except OSError:  # no descriptor is left for that: the records go through here
                self.sends_files = False
                self._transport.write(joined(out))
                return
        self._files.send(out)

    def _note_activity(self) -> None:
        self._last_active_s = self._loop.time()

    def _read_or_pause(self) -> None:
        wanted = not self._backlog and self._has_room() and not self._closing
        if wanted != self._reading and not self._gone:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def mute(self, duration_ms: int) -> None:
        """Serves nothing from this connection for so long; what was begun is answered (throttling, as in Kafka)."""
        until_s = self._loop.time() + duration_ms / 1000
        if until_s <= self._muted_until_s or self._gone:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._muted_until_s = until_s
        self._mute_timer = self._loop.call_at(until_s, self._unmute)
        if not self._backlog:
            self._read_or_pause()

    def _unmute(self) -> None:
        self._mute_timer = None
        self._last_active_s = self._loop.time()
        self._serve_backlog()

    # --- ending -------------------------------------------------------------------------------------------------

    def _hang_up(self, reason: str) -> None:
        """Reads no more; closes once the requests before the bad one are answered."""
        log.info("closing the connection of %s: %s", self.client_host, reason)
        self._closing = True
        self._backlog.clear()

    def close(self) -> None:
        """Asks the connection to end when what it has begun is answered (the broker is stopping)."""
        self._closing = True
        self._backlog.clear()
        for waiting in tuple(self.parked):
            wake = getattr(waiting, "wake", None)
            if wake is not None:
                wake()
        self._flush()

    def abort(self) -> None:
        if not self._gone:
            self._transport.abort()

    def _watch_idleness(self) -> None:
        limit_s = self._server.config.connections_max_idle_ms / 1000
        if limit_s <= 0:
            return
        idle_s = self._loop.time() - self._last_active_s
        if idle_s >= limit_s and not self._slots:
            log.info("closing the connection of %s: idle for %.0f s", self.client_host, idle_s)
            self._transport.abort()
            return
        self._idle_timer = self._loop.call_later(max(limit_s - idle_s, 1.0), self._watch_idleness)
