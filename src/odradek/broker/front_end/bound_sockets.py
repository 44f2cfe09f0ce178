"""The bound sockets of a running broker, at which it accepts connections."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from odradek.broker.front_end.connection import ConnectionOwner
from odradek.broker.limits.host_limits import is_loopback
from odradek.broker.settings.listener import Listener
from odradek.core.errors import OdradekError

log = logging.getLogger("odradek.broker")

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.security.principal import Principal

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class AcceptedProtocol(Protocol):
        """What serves an accepted connection, behind TLS or without it: a connection of Kafka's protocol, or a page.

        It admits itself at the broker, unless the transport's extra info ``is_admitted`` is true, and leaves in
        ``connection_lost``. ``principal``: that of the client's certificate is set before ``connection_made``.
        """

        principal: Principal

        def connection_made(self, transport: asyncio.Transport, /) -> None: ...

        def data_received(self, data: bytes, /) -> None: ...

        def connection_lost(self, error: Exception | None, /) -> None: ...

        def pause_writing(self) -> None: ...

        def resume_writing(self) -> None: ...


AcceptedFactory = Callable[[float | None], "AcceptedProtocol"]
"""Makes what serves an accepted connection. It gets the time of the acceptance by the loop's clock, or None for now."""
OwnerFactory = Callable[[float | None], ConnectionOwner]
"""Makes the owner of a connection. It gets the time of the acceptance by the loop's clock, or None for now."""
ProtocolFactory = Callable[[], asyncio.BaseProtocol]
"""Makes the protocol of an accepted socket: a connection, or TLS in front of one."""


class ListenError(OdradekError):
    """The broker cannot listen on an address. The message has the reason."""


class BoundSockets:
    """The bound listeners of a broker. ``bind``, then ``open`` when the broker can serve, then ``close``."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog
        self._bound: list[tuple[Listener, socket.socket]] = []
        self._servers: list[asyncio.Server] = []

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners, with the ports that the system has chosen in place of port 0."""
        return tuple(listener for listener, _ in self._bound)

    def bind(self, listeners: Sequence[Listener]) -> None:
        """Binds the addresses of all listeners. Raises ListenError."""
        try:
            for listener in listeners:
                self._bound.append(self._bind(listener))
        except ListenError:
            self.release()
            raise

    def _bind(self, listener: Listener) -> tuple[Listener, socket.socket]:
        host, port = listener.host, listener.port
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((bare, port))
            # If another socket listens on the port, this raises before the broker reads any data.
            listening.listen(self._backlog)
        except (OSError, OverflowError) as error:
            listening.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ListenError(f"cannot listen on {host}:{port}: {reason}: choose another address") from error
        listening.setblocking(False)
        if not is_loopback(bound := str(listening.getsockname()[0])):
            _warn(listener, bound)
        return listener._replace(port=int(listening.getsockname()[1])), listening

    async def open(self, protocols: Callable[[Listener], ProtocolFactory], listeners: Collection[Listener]) -> None:
        """Accepts connections at these listeners. ``protocols(listener)`` returns the factory of the protocols of its
        sockets."""
        loop = asyncio.get_running_loop()
        for listener, listening in self._bound:
            if listener in listeners:
                make = protocols(listener)
                self._servers.append(await loop.create_server(make, sock=listening, backlog=self._backlog))

    def release(self) -> None:
        """Closes the sockets of all listeners, after a start that has failed."""
        self.close()
        for _, listening in self._bound:
            listening.close()

    def close(self) -> None:
        """Accepts no more connections."""
        for server in self._servers:
            server.close()


def _warn(listener: Listener, bound: str) -> None:
    """Warns of a listener that other hosts reach and that does not protect itself from them."""
    if listener.is_page:
        log.warning(
            "listening on %s: every host that can reach the port can read the pages of the listener %s, with names of "
            "topics; allow only trusted hosts, or listen on 127.0.0.1",
            bound, listener.name,
        )  # fmt: skip
        return
    if listener.has_sasl and listener.has_tls:
        return
    if listener.has_sasl:
        log.warning(
            "listening on %s: connections of the listener %s are not encrypted, so others on the network can read "
            "passwords of PLAIN, tokens and all data; allow only a trusted network, or make it SASL_SSL",
            bound, listener.name,
        )  # fmt: skip
    elif not listener.has_tls:
        log.warning(
            "listening on %s: the broker does not authenticate clients, so every host that can reach the port can "
            "read, write and delete all data; allow only trusted hosts, or listen on 127.0.0.1",
            bound,
        )
