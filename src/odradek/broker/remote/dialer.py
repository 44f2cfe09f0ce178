"""How a node opens a connection to another node. TLS and logins between nodes get dialers of their own here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.loop.world import Connect

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class Dialer(Protocol):
        """Opens connections to one address."""

        def dial(
            self, make_protocol: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]
        ) -> Callable[[], object]:
            """Begins to connect. The protocol gets ``connection_made``, or ``on_failure`` the reason.

            Returns a function that gives up: then neither of both is called."""

    class NamedDialer(Dialer, Protocol):
        """A dialer of one node. ``name``: the subject of log lines about the node."""

        @property
        def name(self) -> str: ...


class TcpDialer:
    """Connects over TCP, without TLS. ``connect``: how this node's world opens connections."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connect: Connect, host: str, port: int) -> None:
        self._loop = loop
        self._connect = connect
        self._address = host, port

    def dial(
        self, make_protocol: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]
    ) -> Callable[[], object]:
        return self._loop.create_task(self._dial(make_protocol, on_failure)).cancel

    async def _dial(self, make_protocol: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]) -> None:
        try:
            await self._connect(make_protocol, *self._address)
        except OSError as error:
            on_failure(error.strerror or str(error))
