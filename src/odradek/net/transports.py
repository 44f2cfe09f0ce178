"""The addresses of brokers, and how a client opens the transport of a connection: over a socket, or over what a program
passes in place of it, such as a simulator with its own network, so that a client runs in virtual time.
"""

from __future__ import annotations

import asyncio
import ssl as tls
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)

if TYPE_CHECKING:
    from typing import Protocol

    class Connect(Protocol):
        """Opens a transport to a host and a port, calls ``make_protocol`` once for it, and returns both."""

        async def __call__(
            self,
            make_protocol: Callable[[], ProtocolT],
            host: str,
            port: int,
            /,
            *,
            ssl: tls.SSLContext | None,
            server_hostname: str | None,
        ) -> tuple[asyncio.BaseTransport, ProtocolT]:
            """Raises OSError."""


async def connect(
    make_protocol: Callable[[], ProtocolT],
    host: str,
    port: int,
    /,
    *,
    ssl: tls.SSLContext | None = None,
    server_hostname: str | None = None,
) -> tuple[asyncio.BaseTransport, ProtocolT]:
    """Opens a connection over TCP, with TLS if there is a context. Raises OSError."""
    loop = asyncio.get_running_loop()
    return await loop.create_connection(make_protocol, host, port, ssl=ssl, server_hostname=server_hostname)


RECEIVE_BYTES = 100_000_000
"""The default maximum size of one reply."""


class Address(NamedTuple):
    """The host and port of a listener; prints as ``host:port``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
