"""One exchange at a time with a broker on the thread of a caller, without the event loop.

The event loop owns the I/O of a connection: it alone reads and writes. While no request is in flight, it may lend the
I/O. Then a thread that has to wait for a reply writes the request and reads the reply itself, which saves two switches
between threads and the loop's work for them. A lock guards the owner, so that two threads never read or write at once:

| owner | who reads and writes | what the loop does with a request of its own |
|---|---|---|
| LOOP | the event loop | sends it |
| LENT | no thread | takes the I/O back and sends it |
| CALLER | the thread in ``exchange`` | keeps it until the exchange has ended |
| RETURNING | no thread: the loop is the owner after one of its next ticks | keeps it until then |

Whatever is unusual goes back to the loop, with the bytes that were received and those that could not be written: no
reply within ``PATIENCE_S``, a lost connection, a reply that the caller does not accept, and Ctrl-C. Then the loop reads
the rest and answers as for a request of its own, so timeouts and errors are its work alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

PATIENCE_S = 0.025
"""The longest wait of a caller for bytes. Afterwards the loop waits, which a wakeup or a timeout can end."""
_UNUSED_S = 1.0
"""Lent I/O that was not used for this time goes back: the loop notices a lost connection at once, a caller only with
its next request."""
_BUFFER_BYTES = 16_384
FIRST_DIRECT_ID = 1 << 30
"""The correlation ids of exchanges begin here. Those of the loop are smaller."""
_NO_BYTE = 0xFF
"""No reply begins with this byte: its length would be negative."""


class IoOwner(Enum):
    LOOP = auto()
    LENT = auto()
    CALLER = auto()
    RETURNING = auto()


@dataclass(slots=True)
class Sent:
    """A request that a caller has sent and whose reply the loop has to read."""

    api_key: int
    correlation_id: int
    reply: asyncio.Future[memoryview]


class _Step(Enum):
    """The system call that an exchange is in, for exceptions of signals. They may come before it or after it."""

    NONE = auto()
    SEND = auto()
    RECEIVE = auto()


class LentConnection(Protocol):
    """The connection, on the loop."""

    def adopt(self, request: Sent | None, data: Sequence[bytes], received: bytes) -> None:
        """Continues as the owner after an exchange."""

    def end(self, reason: str) -> None:
        """Closes the connection."""


Unanswered = Callable[["asyncio.Future[memoryview]"], None]


class DirectExchange:
    """The owner of the I/O of one connection. ``exchange`` runs on any thread, all other methods run on the loop."""

    def __init__(self, connection: LentConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._lock = threading.Lock()
        self._owner = IoOwner.LOOP
        self._claim: object = None  # of the exchange that owns the I/O, or owned it until it returned
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._used: socket.socket | None = None  # by the last exchange
        self._view = memoryview(bytearray(_BUFFER_BYTES))
        self._got = 0
        self._step = _Step.NONE
        self._held: list[bytes] = []
        self._uses = self._seen_uses = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def owner(self) -> IoOwner:
        """The owner at this moment."""
        return self._owner

    # --- on the loop ------------------------------------------------------------------------------------------

    def lend(self, transport: asyncio.Transport) -> None:
        """Lends the I/O. No request is in flight, and nothing is left to write."""
        if self._owner is not IoOwner.LOOP:
            return
        self._socket = self._socket or _second_socket(transport)
        if self._socket is None:
            return
        self._transport = transport
        transport.pause_reading()
        with self._lock:
            self._owner = IoOwner.LENT
        if self._timer is None:
            self._seen_uses = self._uses
            self._timer = self._loop.call_later(_UNUSED_S, self._end_unused)

    def take_back(self) -> bool:
        """Makes the loop the owner. Returns False if a caller's exchange has to end first."""
        with self._lock:
            if self._owner is IoOwner.LENT:
                self._owner = IoOwner.LOOP
                assert self._transport is not None
                self._transport.resume_reading()
            return self._owner is IoOwner.LOOP

    def hold(self, data: bytes) -> bool:
        """Takes the I/O back. If a caller's exchange has to end first, keeps a request until then and returns True."""
        if self.take_back():
            return False
        with self._lock:
            if self._owner is not IoOwner.LENT:
                self._held.append(data)
                return True
        return self.hold(data)  # the exchange has ended between the two locks

    def on_lost(self) -> None:
        """Ends the exchange of a caller, since the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            ended, self._socket = self._socket, None
            if ended is not None and self._owner in (IoOwner.CALLER, IoOwner.RETURNING):
                with contextlib.suppress(OSError):
                    ended.shutdown(socket.SHUT_RDWR)  # ends the wait of the caller; ``_return`` closes the socket
                return
            self._owner = IoOwner.LOOP
        if ended is not None:
            ended.close()

    def _end_unused(self) -> None:
        self._timer = None
        if self._owner is IoOwner.LOOP:
            return
        if self._seen_uses != self._uses or self._owner is not IoOwner.LENT:
            self._seen_uses = self._uses
            self._timer = self._loop.call_later(_UNUSED_S, self._end_unused)
        else:
            self.take_back()

    def _return(
        self, claim: object, sent: tuple[int, int] | None, data: tuple[bytes, bytes | None], unanswered: Unanswered
    ) -> None:
        """Makes the loop the owner after an exchange. ``data``: the bytes that were not sent, and the received ones;
        None if it is unknown what was sent or received."""
        with self._lock:
            if self._claim is not claim:
                return  # the second call for one exchange, after a second signal
            self._claim, self._owner = None, IoOwner.LOOP
            used, self._used = self._used, None
            if self._socket is None and used is not None:
                used.close()
            held, self._held = self._held, []
        unsent, received = data
        if received is None:
            self._connection.end("was closed, because a signal interrupted a request")
        request = None if sent is None else Sent(*sent, self._loop.create_future())
        self._connection.adopt(request, (unsent, *held), received or b"")
        if request is not None:
            unanswered(request.reply)

    # --- on the thread of a caller ----------------------------------------------------------------------------

    def exchange(
        self,
        api_key: int,
        pack: Callable[[int], bytes],
        accept: Callable[[memoryview], bool],
        unanswered: Unanswered,
    ) -> bool | None:
        """Sends a request and reads its reply on this thread.

        ``pack`` gets the correlation id and returns the whole request. ``accept`` gets the reply, correlation id first,
        and returns whether the exchange is complete; the memory is valid during the call only. Returns True then.

        Returns None if the I/O is not lent: nothing was sent. Returns False if the loop has to read the reply. Then
        ``unanswered`` runs on the loop, with a future of the reply. It does so, too, if this call raises an exception
        after the request was packed, such as Ctrl-C.
        """
        claim = object()
        sent: tuple[int, int] | None = None
        data, written, is_done = b"", 0, False
        try:
            used = self._take(claim)
            if used is None:
                return None
            correlation_id = FIRST_DIRECT_ID | (self._uses & (FIRST_DIRECT_ID - 1))
            data = pack(correlation_id)
            sent = (api_key, correlation_id)
            try:
                self._step = _Step.SEND
                written = os.write(used.fileno(), data)  # ``send`` would wait for room first
                self._step = _Step.NONE
                if written == len(data) and self._receive(used, correlation_id):
                    is_done = accept(self._view[4 : self._got])
            except OSError:  # a lost connection, or no reply in time: the loop finds out which
                self._step = _Step.NONE
            return is_done
        finally:
            if self._claim is claim:
                unread, unsent = (None, b"") if is_done else (sent, data[written:])
                try:
                    self._give_back(claim, unread, unsent, unanswered)
                except BaseException:  # another signal
                    self._give_back(claim, unread, unsent, unanswered)
                    raise

    def _take(self, claim: object) -> socket.socket | None:
        with self._lock:
            if self._owner is not IoOwner.LENT:
                return None
            self._owner, self._claim = IoOwner.CALLER, claim
            self._got, self._step, self._used = 0, _Step.NONE, self._socket
            self._uses += 1
            return self._socket

    def _receive(self, used: socket.socket, correlation_id: int) -> bool:
        """Receives the reply into ``_view``. Returns False for any other bytes, and at the end of the connection."""
        view, most = self._view, 4
        while True:
            at = self._got
            view[at] = _NO_BYTE
            self._step = _Step.RECEIVE
            taken = used.recv_into(view[at:])
            self._got = got = at + taken
            self._step = _Step.NONE
            if got >= 4:
                most = 4 + int.from_bytes(view[:4], "big")
            if got == most:
                return got >= 8 and int.from_bytes(view[4:8], "big") == correlation_id
            if not taken or got > most or most > _BUFFER_BYTES:
                return False

    def _give_back(self, claim: object, sent: tuple[int, int] | None, unsent: bytes, unanswered: Unanswered) -> None:
        """Ends an exchange. A second call for it changes nothing."""
        received: bytes | None = b"" if sent is None else bytes(self._view[: self._got])
        is_nothing_read = self._got == 0 and self._view[0] == _NO_BYTE
        if self._step is _Step.SEND or (self._step is _Step.RECEIVE and not is_nothing_read):
            received = None
        with self._lock:
            if self._claim is not claim:
                return
            if sent is None and received is not None and not self._held and self._socket is not None:
                self._owner, self._claim = IoOwner.LENT, None
                return
            self._owner = IoOwner.RETURNING
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._return, claim, sent, (unsent, received), unanswered)


def _second_socket(transport: asyncio.Transport) -> socket.socket | None:
    """Returns a socket for the transport's connection, with a descriptor of its own. So the transport may close its
    descriptor while a caller uses this one. None if the transport has no socket whose I/O other threads can do."""
    first = transport.get_extra_info("socket")
    if first is None or os.name != "posix":
        return None
    try:
        made = socket.socket(fileno=os.dup(first.fileno()))
    except OSError:  # no descriptor is left
        return None
    made.settimeout(PATIENCE_S)
    return made
