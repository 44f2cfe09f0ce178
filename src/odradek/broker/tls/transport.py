"""TLS between a socket's transport and a connection: it passes decrypted bytes on and encrypts what is written.

The handshake works in shares of the event loop (``broker/loop/scheduler``), one step of it in a share, so that many
handshakes do not keep requests waiting. A connection counts before its handshake costs anything. It has ``HANDSHAKE_S``
seconds for the handshake, and for a login by SASL that follows it.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, cast

from odradek.broker.front_end.transport import REFUSALS, takes_spare
from odradek.broker.limits.admissions import HANDSHAKE_S
from odradek.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from odradek.broker.front_end.bound_sockets import AcceptedFactory, AcceptedProtocol
    from odradek.broker.loop.scheduler import Scheduler

log = logging.getLogger("odradek.broker")

_READ_BYTES = 256 << 10
_WRITE_BYTES = 256 << 10
"""Bytes that are encrypted at once: encryption of more would keep others waiting."""


_HANDSHAKE = 22
"""The first byte of every client that speaks TLS."""
_NO_TLS = b"\x15\x03\x03\x00\x02\x02\x0a"
"""The alert unexpected_message, by which a client without TLS knows the listener. Java sends it, OpenSSL does not."""


class Gate(Protocol):
    """The part of a broker that admits connections, before their handshake."""

    @property
    def scheduler(self) -> Scheduler: ...

    def enter(self, host: str, listener: str) -> bool:
        """Counts a new connection from an address. Returns False if a limit is reached or the broker stops."""

    def leave(self, host: str) -> None:
        """Removes a connection that ``enter`` has counted."""

    def hold_ms(self, host: str) -> int:
        """Counts towards the quota of new connections. Returns for how many ms a connection above it is held."""


class TlsSide(Protocol):
    """The TLS of a listener. ``handshakes`` has the transports before the end of their handshake."""

    listener: str
    handshakes: set[TlsTransport]

    def context(self) -> ssl.SSLContext:
        """Returns the newest context."""

    def identify(self, certificate: bytes) -> Principal:
        """Returns the principal of a client's certificate. Raises ValueError for a certificate without one."""


class TlsTransport(asyncio.Protocol):
    """The protocol of an accepted socket, and the transport of its connection.

    ``make(accepted_s)`` returns the connection, which gets ``connection_made`` after the handshake.
    """

    def __init__(self, gate: Gate, side: TlsSide, make: AcceptedFactory) -> None:
        self._gate = gate
        self._side = side
        self._listener = side.listener
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._raw = cast(asyncio.Transport, None)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = cast(ssl.SSLObject, None)
        self.connection: AcceptedProtocol | None = None
        self._host = ""
        self._is_queued = self._is_counted = self._is_closing = self._is_lost = False
        self._accepted_s = 0.0
        self._first_byte: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- the protocol of the socket -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = raw = cast(asyncio.Transport, transport)
        peer = raw.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        if takes_spare(raw):
            REFUSALS.note(f"/{self._host}")
            self._refuse()
            return
        if not self._gate.enter(self._host, self._listener):
            self._refuse()
            return
        self._is_counted = True
        self._side.handshakes.add(self)
        if hold_ms := self._gate.hold_ms(self._host):
            log.info("refused a connection from /%s: the quota connection_creation_rate is exceeded", self._host)
            self._is_closing = True
            raw.pause_reading()
            self._timer = self._loop.call_later(hold_ms / 1000, raw.abort)
            return
        self._accepted_s = self._loop.time()
        self._timer = self._loop.call_later(HANDSHAKE_S, self._expire)
        self._tls = self._side.context().wrap_bio(self._incoming, self._outgoing, server_side=True)

    def _refuse(self) -> None:
        self._is_closing = True
        self._raw.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._incoming.write(data)
        if self._first_byte is None and data:
            self._first_byte = data[0]
        if self.connection is not None:
            self._read()
        elif not self._is_queued:
            self._is_queued = True
            self._raw.pause_reading()
            self._gate.scheduler.add(self)

    def eof_received(self) -> bool | None:
        return False

    def pause_writing(self) -> None:
        if self.connection is not None:
            self.connection.pause_writing()

    def resume_writing(self) -> None:
        if self.connection is not None:
            self.connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self.connection is None and not self._is_closing:
            log.info(
                "the connection from /%s ended within the TLS handshake at the listener %s", self._host, self._listener
            )
        self._is_lost = self._is_closing = True
        self._cancel_timer()
        self._side.handshakes.discard(self)
        if self.connection is not None:
            self.connection.connection_lost(error)
        elif self._is_counted:
            self._gate.leave(self._host)

    # --- the handshake ------------------------------------------------------------------------------------------

    def run_share(self, until_s: float) -> bool:
        """Takes one step of the handshake."""
        self._is_queued = False
        if self._is_closing:
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            self._raw.resume_reading()
        except (ssl.SSLError, ValueError, OSError) as error:
            self._fail(_reason(error))
        else:
            self._open()
        return False

    def _open(self) -> None:
        """Begins the connection, after the handshake."""
        self._send()
        try:
            certificate = self._tls.getpeercert(binary_form=True)
            principal = ANONYMOUS if certificate is None else self._side.identify(certificate)
        except (ValueError, ssl.SSLError) as error:
            self._fail(str(error))
            return
        self._cancel_timer()
        self._side.handshakes.discard(self)
        self.connection = connection = self._make(self._accepted_s)
        connection.principal = principal
        self._raw.resume_reading()
        connection.connection_made(cast(asyncio.Transport, self))
        self._read()

    def _fail(self, reason: str) -> None:
        log.info(
            "closing the connection from /%s: the TLS handshake at the listener %s failed: %s",
            self._host, self._listener, reason,
        )  # fmt: skip
        self._is_closing = True
        self._send()
        if self._first_byte not in (None, _HANDSHAKE):
            self._raw.write(_NO_TLS)
        self._raw.close()

    def _expire(self) -> None:
        log.info(
            "closing the connection from /%s: the TLS handshake at the listener %s has not ended within %.0f s",
            self._host, self._listener, HANDSHAKE_S,
        )  # fmt: skip
        self._is_closing = True
        self._raw.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- bytes --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Decrypts what has arrived and passes it on."""
        connection = cast("AcceptedProtocol", self.connection)
        parts: list[bytes] = []
        is_over = False
        try:
            while part := self._tls.read(_READ_BYTES):
                parts.append(part)
            is_over = True
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLError, OSError) as error:
            if not isinstance(error, ssl.SSLZeroReturnError):
                log.info("closing the connection from /%s: TLS at the listener %s: %s", self._host, self._listener,
                         _reason(error))  # fmt: skip
            is_over = True
        if parts and not self._is_closing:
            connection.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if not self._is_lost:
            self._send()
            if is_over:
                self.close()

    def _send(self) -> None:
        if self._outgoing.pending and not self._is_lost:
            self._raw.write(self._outgoing.read())

    # --- the transport of the connection ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        view = memoryview(data)
        try:
            for start in range(0, len(view), _WRITE_BYTES):
                part = view[start : start + _WRITE_BYTES]
                while len(part):
                    part = part[self._tls.write(part) :]
                self._send()
        except (ssl.SSLError, OSError) as error:
            log.info("closing the connection from /%s: TLS at the listener %s: %s", self._host, self._listener,
                     _reason(error))  # fmt: skip
            self.abort()

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            self.write(part)

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if not self._is_closing:
            self._raw.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: object = None) -> object:
        if name == "sslcontext":
            return self._tls.context
        if name == "is_admitted":
            return True
        return self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closing or self._raw.is_closing()

    def close(self) -> None:
        """Says the end to the client, as TLS wants it, and closes the socket when all bytes are sent."""
        if not self._is_closing:
            self._is_closing = True
            try:
                self._tls.unwrap()
            except (ssl.SSLError, OSError, ValueError):
                pass  # the client's own end of TLS is not awaited
            self._send()
            self._raw.close()

    def abort(self) -> None:
        self._is_closing = True
        self._raw.abort()


def _reason(error: Exception) -> str:
    """Returns OpenSSL's words: ``certificate verify failed: self-signed certificate``."""
    reason = str(getattr(error, "reason", "") or error).replace("_", " ").lower()
    detail = getattr(error, "verify_message", "")
    return f"{reason}: {detail}" if detail else reason
