"""A client's connection: it reads frames and writes the replies in the order of the requests.

In each tick of the event loop, a connection serves its requests for one share (broker/loop/scheduler). If requests
remain, the connection waits in the scheduler's queue, and meanwhile reads little from its socket.

Memory is bounded. A connection does not read while too many requests, or too many bytes of requests, wait for replies.
It does not read while too many bytes of replies wait for an earlier reply, or while the client does not read them. An
error closes only this connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from odradek.broker.front_end.transport import REFUSALS, LostTransport, PartSender, can_send, make_sender, takes_spare
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.limits.request_memory import SMALL_REQUEST_BYTES
from odradek.core.deferred import Deferred
from odradek.security.principal import ANONYMOUS
from odradek.storage.segments.slice import Slice
from odradek.wire.chunks import FILE_FROM_BYTES, Chunk, joined
from odradek.wire.frames import FrameError, FrameReader

if TYPE_CHECKING:
    from odradek.broker.front_end.request_times import RequestStatistics
    from odradek.broker.handlers.api import Abandonable, AbandonableTask, Client
    from odradek.broker.limits.quotas import Quotas
    from odradek.broker.limits.reply_memory import ReplyMemory
    from odradek.broker.limits.request_memory import RequestMemory
    from odradek.broker.loop.scheduler import Scheduler
    from odradek.broker.settings.config import BrokerConfig
    from odradek.broker.settings.listener import Listener

log = logging.getLogger("odradek.broker")

MAX_PARKED_PARTITIONS = 10_000
"""The limit for partitions in the waiting requests of one connection (broker/partitions/purgatory)."""
MAX_WAITING_BYTES = 64 << 10
"""The limit for received requests that wait for a share. Above it, reading stops."""
SHARE_BYTES = 1 << 20
"""The limit for bytes that one connection receives in a tick of the event loop."""
FULL_READ_BYTES = 256_000
"""The size of a full read: uvloop's read buffer, slightly less than asyncio's. After a full read, libuv reads again at
once."""
WRITE_BUFFER_BYTES = 1 << 20
REPLY_DELAY_S = 0.005
"""The longest time in seconds that replies wait for later replies, to be written together. They wait only while the
connection has requests that wait for another share."""
_JOIN_BELOW = FILE_FROM_BYTES


class ReplySlot:
    """The place of one or several replies. ``chunks`` is ``None`` until they are ready."""

    __slots__ = ("chunks", "request_bytes", "requests")

    def __init__(self, request_bytes: int, requests: int = 1) -> None:
        self.chunks: Sequence[Chunk] | None = None
        self.request_bytes = request_bytes
        self.requests = requests


class FastPath(Protocol):
    """Serves several requests at the head of a backlog together."""

    def take(self, backlog: deque[bytes], room: int, until_s: float, client: Client) -> tuple[Any, list[Any]] | None:
        """Returns a plan for the requests at the head, at most ``room``, and their contents. ``submit`` takes both.

        Returns None if each request has to be served alone.
        """

    def submit(self, planned: Any, requests: list[Any], send: Callable[[list[bytes]], None]) -> None:
        """Serves the requests that ``take`` has returned. ``send`` gets their replies, now or later."""


class ConnectionOwner(Protocol):
    """The parts of a broker that its connections use."""

    config: BrokerConfig
    scheduler: Scheduler
    quotas: Quotas
    request_memory: RequestMemory
    reply_memory: ReplyMemory
    request_times: RequestStatistics | None
    """Counts the requests by API; None at a broker without a page of metrics."""

    @property
    def most_request_bytes(self) -> int:
        """The size of the longest request of a new connection."""

    def admit(self, connection: Connection, host: str, *, is_counted: bool = False) -> bool:
        """Registers a new connection. Returns False if a limit is reached or the broker stops.

        ``is_counted``: the connection was counted when it was accepted, before its TLS handshake."""

    def remove(self, connection: Connection) -> None:
        """Removes a closed connection."""

    def fast_path(self, frame: bytes) -> FastPath | None:
        """Returns the fast path for requests of the frame's API, or None."""

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        """Serves a request. Raises ValueError (FrameError is one), Hangup."""


class Connection(asyncio.Protocol):
    """The asyncio protocol of a client. When the connection closes, it abandons the waiting requests in ``parked``."""

    MAX_IN_FLIGHT: ClassVar[int] = 1000
    MAX_IN_FLIGHT_BYTES: ClassVar[int] = 64 << 20
    MAX_READY_BYTES: ClassVar[int] = 64 << 20
    # With more than thirty attributes and without slots, CPython makes an unshared dictionary for each connection.
    __slots__ = (
        "_closing", "_delayed_until_s", "_files", "_flush_due", "_has_long_reply", "_holds_memory", "_idle_timer",
        "_in_flight", "_in_flight_bytes", "_is_gone", "_is_lost", "_is_read_on", "_loop", "_may_receive",
        "_mute_timer", "_muted_until_s", "_owner", "_queued", "_reading", "_ready_bytes", "_share_bytes",
        "_share_ends_s", "_task", "_times", "_unsent_bytes", "_waiting_bytes", "_writable", "backlog", "client_host",
        "last_active_s", "listener", "local_host", "parked", "parked_partitions", "principal", "reader", "sends_files",
        "slots", "transport",
    )  # fmt: skip

    def __init__(
        self, owner: ConnectionOwner, listener: Listener | None = None, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """``loop``: the node's loop; the running one by default."""
        self._owner = owner
        self.listener = listener
        self._times = None if owner.request_times is None else owner.request_times.of_key
        self._loop = loop or asyncio.get_running_loop()
        self.reader = FrameReader(owner.most_request_bytes)
        self.backlog: deque[bytes] = deque()
        self.slots: deque[ReplySlot] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._ready_bytes = 0
        self._unsent_bytes = 0
        self._writable = True
        self._reading = True
        self._delayed_until_s = 0.0  # when the waiting replies are written; 0: no reply waits
        self._holds_memory = False
        self._may_receive = True  # set by broker/limits/request_memory
        self._queued = False  # in the scheduler's queue
        self._is_read_on = False  # whether the next received bytes belong to the same tick as the last ones
        self._share_ends_s = 0.0
        self._share_bytes = 0
        self._waiting_bytes = 0
        self._task: AbandonableTask | None = None
        self._has_long_reply = False
        self._closing = False
        self._is_gone = False  # the client has left, and its last requests are served
        self._is_lost = False
        self._flush_due = False
        self.last_active_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._muted_until_s = 0.0
        self._mute_timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._files: PartSender | None = None  # made for the first reply that contains a file part
        self.sends_files = False
        self.parked: set[Abandonable] = set()
        self.parked_partitions = 0
        self.client_host = ""
        self.local_host = ""
        self.principal = ANONYMOUS

    # --- callbacks of asyncio -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        peer_host = str(peer[0]) if peer else ""
        self.client_host = f"/{peer_host}"
        self.local_host = str(local[0]) if local else ""
        is_counted = bool(transport.get_extra_info("is_admitted"))
        is_one_too_many = not is_counted and takes_spare(transport)
        if is_one_too_many:
            REFUSALS.note(self.client_host)
        if is_one_too_many or not self._owner.admit(self, peer_host, is_counted=is_counted):
            self._closing = True
            transport.abort() if isinstance(transport, asyncio.WriteTransport) else transport.close()
            return
        if not is_counted and (hold_ms := self._owner.quotas.count_connection(peer_host)):
            log.info("refused a connection from %s: the quota connection_creation_rate is exceeded", self.client_host)
            self._closing = True
            self.transport.pause_reading()
            self._mute_timer = self._loop.call_later(hold_ms / 1000, self.transport.abort)
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.sends_files = can_send(transport)
        self.last_active_s = self._loop.time()
        self.watch_idleness()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self.last_active_s = self._loop.time()
        scheduler = self._owner.scheduler
        share_ends_s = scheduler.begin_share()
        size = len(data)
        if self._is_read_on:
            share_ends_s = self._share_ends_s
            self._share_bytes += size
        else:
            self._share_ends_s = share_ends_s
            self._share_bytes = size
        self._is_read_on = size >= FULL_READ_BYTES
        self._waiting_bytes = self._waiting_bytes + size if self.backlog else size
        reader = self.reader
        try:
            self.backlog.extend(reader.feed(data))
        except FrameError as error:
            # The frames before the invalid bytes are still served.
            log.info("closing the connection from %s: %s", self.client_host, error)
            self._closing = True
        unfinished = reader.buffered
        if unfinished > SMALL_REQUEST_BYTES or self._holds_memory:
            self._holds_memory = unfinished > SMALL_REQUEST_BYTES
            self._may_receive = self._owner.request_memory.update(self, unfinished)
        if not self._queued and (
            self._serve_backlog(share_ends_s) or (self._share_bytes >= SHARE_BYTES and not self._closing)
        ):
            self._queue()
        self._read_or_pause()
        scheduler.end_share()

    def eof_received(self) -> bool | None:
        return False

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self.last_active_s = self._loop.time()
        if self._files is not None:
            self.transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            self._files.transport_drained()
        self.serve_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        """Serves the requests that have not begun, as Kafka does, without replies. Then, or without any, ends."""
        if self._files is not None:
            self._files.close()
        if self.backlog and not self._closing:
            self._closing = self._is_gone = self._writable = True
            if self._task is not None:
                self._task.abandon()
                self._task = self._task if self._task.runs_on else None
            self.transport = cast(asyncio.Transport, LostTransport(lambda: self.connection_lost(None)))
            self._drop_replies()
            self.serve_waiting()
            return
        self._is_lost = self._closing = True
        for timer in (self._idle_timer, self._mute_timer):
            if timer is not None:
                timer.cancel()
        if self._holds_memory:
            self._owner.request_memory.release(self)
        if self._has_long_reply:
            self._owner.reply_memory.release(self)
        self.backlog.clear()
        self._task = None
        self._drop_replies()
        self._owner.remove(self)

    def _drop_replies(self) -> None:
        """Drops the replies to a client that has left, and abandons what only waits for them."""
        self.slots.clear()
        self._in_flight = self._in_flight_bytes = self._ready_bytes = 0
        while self.parked and self._task is None:  # a task may wait for one of them, such as the controller's event
            self.parked.pop().abandon()

    @property
    def is_closing(self) -> bool:
        return self._closing

    # --- serving ------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a request waits for its reply, or a reply is not fully sent."""
        return bool(self.slots or self.backlog or self._sending or self.transport.get_write_buffer_size())

    @property
    def _sending(self) -> bool:
        """Whether a file part, or a chunk after it, waits for the client."""
        return self._files is not None and self._files.busy

    def serve_waiting(self) -> None:
        """Serves the waiting requests, now or in a share of a later tick."""
        if not self._queued and not self._is_lost:
            scheduler = self._owner.scheduler
            if self._serve_backlog(scheduler.begin_share()):
                self._queue()
            self._read_or_pause()
            scheduler.end_share()

    def _queue(self) -> None:
        self._queued = True
        self._owner.scheduler.add(self)

    def run_share(self, until_s: float) -> bool:
        if self._is_lost:
            return False
        self._is_read_on = False
        self._queued = self._serve_backlog(until_s)
        self._read_or_pause()
        return self._queued

    def _serve_backlog(self, until_s: float) -> bool:
        """Serves requests until the share ends or there is no room for their replies.

        Returns whether only the share's time ran out. If room is missing, the event that makes room calls
        ``serve_waiting``.
        """
        backlog, clock, fast_path = self.backlog, self._owner.scheduler.clock, self._owner.fast_path
        while True:
            while backlog and self.has_room() and (now_s := clock()) < until_s:
                path = fast_path(backlog[0])
                if path is None or not self._serve_together(path, now_s, until_s):
                    self._serve(backlog.popleft(), now_s, clock)
                if self._ready_bytes > _JOIN_BELOW:
                    self._flush()
            if backlog and self.has_room() and self._may_delay_replies(clock()):
                return True
            self._delayed_until_s = 0.0
            self._flush()
            # A written reply may have made room.
            if not backlog or not self.has_room():
                return False
            if clock() >= until_s:
                return True

    def _may_delay_replies(self, now_s: float) -> bool:
        """Returns whether replies may wait for those of the next share. One write of many replies costs less."""
        if not self._delayed_until_s:
            self._delayed_until_s = now_s + REPLY_DELAY_S
        return now_s < self._delayed_until_s

    def has_room(self) -> bool:
        return (
            self._writable
            and (self._files is None or not self._files.busy)
            and self._in_flight < self.MAX_IN_FLIGHT
            and self._in_flight_bytes < self.MAX_IN_FLIGHT_BYTES
            and self._ready_bytes < self.MAX_READY_BYTES
            and not self._is_lost
            and self._mute_timer is None
            and self._task is None
            and self.parked_partitions < MAX_PARKED_PARTITIONS
        )

    def pause_for(self, task: AbandonableTask) -> None:
        """Serves no later request until ``release``, because ``task`` needs several shares for its request."""
        self._task = task
        self.parked.add(task)

    def release(self, task: Abandonable) -> None:
        if self._task is task:  # a middleware may have started another task instead
            self._task = None
        self.parked.discard(task)

    def _serve_together(self, fast_path: FastPath, now_s: float, until_s: float) -> bool:
        """Serves requests at the head of the backlog together. Returns False if the fast path cannot serve them.

        Requests for which this share has no time are served together in the next share.
        """
        backlog = self.backlog
        run = fast_path.take(backlog, self.MAX_IN_FLIGHT - self._in_flight, until_s, self)
        if run is None:
            return False
        planned, requests = run
        count, frame = len(requests), backlog[0]
        slot = ReplySlot(count * len(frame), count)
        for _ in range(count):
            backlog.popleft()
        self.slots.append(slot)
        self._in_flight += count
        self._in_flight_bytes += slot.request_bytes
        if self._times is None:
            fast_path.submit(planned, requests, lambda chunks: self._reply_later(slot, chunks))
            return True
        note = self._times[frame[1]].counting(count, slot.request_bytes, now_s, self._owner.scheduler.clock)

        def send(chunks: list[bytes]) -> None:
            note(chunks)
            self._reply_later(slot, chunks)

        fast_path.submit(planned, requests, send)
        return True

    def _serve(self, frame: bytes, now_s: float, clock: Callable[[], float]) -> None:
        """Serves a request that begins at ``now_s`` by the scheduler's clock."""
        try:
            reply = self._owner.dispatch(frame, self)
        except (FrameError, Hangup, ValueError) as error:
            self.hang_up(str(error))
            return
        except Exception:
            log.exception("a request from %s could not be served", self.client_host)
            self.hang_up("a request failed with the unexpected error above")
            return
        size = 0
        if type(reply) is list:
            size = sum(map(len, reply))
            all_times = self._times
            if all_times is not None:  # without a call, which would cost a fifth more
                times = all_times[frame[1]]
                times.requests += 1
                times.request_bytes += len(frame)
                times.reply_bytes += size
                times.seconds += clock() - now_s
            if size < _JOIN_BELOW and not (self.slots or self.backlog or self._sending):
                if size:
                    packed: list[Any] = reply  # such a short reply contains no file part
                    self.transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
                return
        slot = ReplySlot(len(frame))
        self.slots.append(slot)
        self._in_flight += 1
        self._in_flight_bytes += slot.request_bytes
        if not isinstance(reply, Deferred):
            self._reply(slot, reply, size)
            return
        if self._times is not None:
            reply.then(self._times[frame[1]].counting(1, len(frame), now_s, clock))
        reply.then(lambda chunks: self._reply_later(slot, chunks))

    def _reply(self, slot: ReplySlot, chunks: Sequence[Chunk], size: int) -> None:
        slot.chunks = chunks
        self._ready_bytes += size

    def _reply_later(self, slot: ReplySlot, chunks: Sequence[Chunk] | None) -> None:
        if self._is_lost:
            return
        if chunks is None:
            self.abort()
            return
        self._reply(slot, chunks, sum(map(len, chunks)))
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_and_serve)

    def _flush_and_serve(self) -> None:
        self._flush_due = False
        if not self._is_lost:
            self._flush()
            if self.backlog or not self._reading:
                self.serve_waiting()

    def _flush(self) -> None:
        """Writes the replies that are ready, up to the first one that is not."""
        slots = self.slots
        if not slots and not self._closing:
            return
        if self._is_gone:
            self._drop_replies()
        out: list[Chunk] = []
        while slots and slots[0].chunks is not None:
            slot = slots.popleft()
            self._in_flight -= slot.requests
            self._in_flight_bytes -= slot.request_bytes
            out.extend(slot.chunks or ())
        if out:
            size = sum(map(len, out))
            self._ready_bytes -= size
            self.last_active_s = self._loop.time()
            if self._sending:
                self._send_files(out)
            elif size < _JOIN_BELOW:
                self.transport.write(b"".join(cast(list[bytes], out)))  # such a short reply contains no file part
            elif any(isinstance(chunk, Slice) for chunk in out):
                self._send_files(out)
            else:
                self.transport.writelines(cast(list[bytes], out))
        if self._closing and not (
            slots or self.backlog or self._is_lost or self._sending or (self._is_gone and self._task)
        ):
            self.transport.close()

    def _send_files(self, out: list[Chunk]) -> None:
        if self._files is None:
            try:
                self._files = make_sender(self._loop, self.transport, self.serve_waiting, self._note_activity)
            except OSError:  # no file descriptor is left: the records are read and copied instead
                self.sends_files = False
                self.transport.write(joined(out))
                return
        self._files.send(out)

    def _note_activity(self) -> None:
        self.last_active_s = self._loop.time()

    def _read_or_pause(self) -> None:
        backlog, queued = self.backlog, self._queued
        has_space = self._waiting_bytes < MAX_WAITING_BYTES if queued and backlog else not backlog and not queued
        should_read = has_space and self._may_receive and not self._closing and self.has_room()
        if should_read != self._reading and not self._is_lost:
            self._reading = should_read
            if should_read:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    # --- long replies (broker/limits/reply_memory) --------------------------------------------------------------------

    def begin_long_reply(self) -> None:
        self._has_long_reply = True
        self._owner.reply_memory.begin(self)

    def count_reply(self, size: int) -> None:
        self._has_long_reply = True
        self._owner.reply_memory.add(self, size)

    def grow_reply(self, size: int) -> None:
        self._owner.reply_memory.grow(self, size)

    @property
    def is_making_reply(self) -> bool:
        return self._task is not None

    @property
    def unsent_bytes(self) -> int:
        files = 0 if self._files is None else self._files.unsent_bytes
        return self._ready_bytes + self.transport.get_write_buffer_size() + files

    def mute(self, duration_ms: int) -> None:
        """Reads and serves no request for ``duration_ms``, as Kafka does with a throttled client. Earlier requests get
        their replies."""
        until_s = self._loop.time() + duration_ms / 1000
        if until_s <= self._muted_until_s or self._is_lost:
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._muted_until_s = until_s
        self._mute_timer = self._loop.call_at(until_s, self._unmute)
        if not self.backlog:
            self._read_or_pause()

    def _unmute(self) -> None:
        self._mute_timer = None
        self.last_active_s = self._loop.time()
        self.serve_waiting()

    def allow_requests(self, most_bytes: int) -> None:
        """Sets the size of the longest request."""
        self.reader.most_bytes = most_bytes

    def receive_more(self) -> None:
        """Continues to read a request for which there is memory again (broker/limits/request_memory)."""
        self._may_receive = True
        self._read_or_pause()

    # --- ending -------------------------------------------------------------------------------------------------

    def hang_up(self, reason: str, logger: logging.Logger = log) -> None:
        """Stops reading. The connection closes when all earlier requests have their replies."""
        logger.info("closing the connection from %s: %s", self.client_host, reason)
        self._closing = True
        self.backlog.clear()

    def close(self) -> None:
        """Closes the connection when the requests that it has begun have their replies.

        The broker calls this when it stops."""
        self._closing = True
        self.backlog.clear()
        for request in tuple(self.parked):
            wake = getattr(request, "wake", None)
            if wake is not None:
                wake()
        self._flush()

    def abort(self) -> None:
        """Ends the connection at once. Its waiting requests are not served."""
        if not self._is_lost:
            self.backlog.clear()
            self._closing = True
            self.transport.abort()

    def watch_idleness(self) -> None:
        """Closes an idle connection, even while one of its requests waits for the reply, as Kafka does."""
        limit_s = self._owner.config.connections_max_idle_ms / 1000
        if limit_s <= 0:
            return
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:  # the client has received a part of a long reply since the last check
            self._unsent_bytes = unsent
            self._note_activity()
        idle_s = self._loop.time() - self.last_active_s
        if idle_s >= limit_s:
            log.info("closing the connection from %s: it was idle for %.0f s", self.client_host, idle_s)
            self.abort()
            return
        self._idle_timer = self._loop.call_later(max(limit_s - idle_s, 1.0), self.watch_idleness)
