"""How a node opens a connection to another node: the contract, and connections without TLS and logins.

``remote/access`` has the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.loop.world import Connect

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class NodeProtocol(asyncio.Protocol, Protocol):  # type: ignore[misc]  # asyncio's class is no typing.Protocol
        """What uses a connection."""

        def limit_session(self, ends_s: float) -> None:
            """Notes, before ``connection_made``, when the login has to be repeated, by the loop's clock."""

    class Dialer(Protocol):
        """Opens connections to one address."""

        def dial(
            self, make_protocol: Callable[[], NodeProtocol], on_failure: Callable[[str], None]
        ) -> Callable[[], object]:
            """Begins to connect. The protocol gets ``connection_made``, or ``on_failure`` the reason.

            Returns a function that gives up: then neither of both is called."""

        def reason(self, error: Exception | None) -> str:
            """Returns why a connection has ended that had no reply, or ended with an error; with the remedy."""

    class NamedDialer(Dialer, Protocol):
        """A dialer of one node. ``name``: the subject of log lines about the node."""

        @property
        def name(self) -> str: ...


OTHER_PROTOCOL = "perhaps its listener has another protocol: check listener.security.protocol.map of both nodes"


def reason_of(error: Exception | None) -> str:
    """Returns why a connection over TCP could not be opened, or has ended."""
    if error is None:
        return f"it has closed the connection without a reply: {OTHER_PROTOCOL}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class TcpDialer:
    """Connects over TCP, without TLS and without a login. ``connect``: how this node's world opens connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: Connect, host: str, port: int) -> None:
        self._loop = loop
        self._connect = connect
        self._address = host, port

    def dial(
        self, make_protocol: Callable[[], NodeProtocol], on_failure: Callable[[str], None]
    ) -> Callable[[], object]:
        return self._loop.create_task(self._dial(make_protocol, on_failure)).cancel

    async def _dial(self, make_protocol: Callable[[], NodeProtocol], on_failure: Callable[[str], None]) -> None:
        try:
            await self._connect(make_protocol, *self._address, None)
        except OSError as error:
            on_failure(reason_of(error))

    def reason(self, error: Exception | None) -> str:
        return reason_of(error)
