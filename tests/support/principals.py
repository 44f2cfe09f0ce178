"""A broker in a thread of this process whose connections get any principal, as if their clients had logged in."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from odradek.broker.settings.protection import AUTHORIZER, STANDARD_AUTHORIZER
from odradek.security.principal import USER, Principal
from odradek.testing.thread import BrokerThread
from support.brokers import Wire

AUTHORIZED = {
    AUTHORIZER: STANDARD_AUTHORIZER,
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "4",
}
"""An authorizer for which clients without a login are super users."""


class BrokerWithPrincipals(BrokerThread):
    """A ``BrokerThread`` for whose connections a test chooses the principals."""

    def __init__(self, data_dir: Path, config: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, config={**AUTHORIZED, **(config or {})})

    def wire(self, user: str = "", client_id: str = "wire-test") -> Wire:
        """Opens a connection of a user; "" is a client without a login."""
        wire = Wire(self.bootstrap_servers, client_id=client_id)
        if user:
            asyncio.run_coroutine_threadsafe(self._log_in(wire.socket.getsockname(), user), self._loop).result(10)
        return wire

    async def _log_in(self, peer: tuple[str, int], user: str) -> None:
        while True:
            for connection in self.server.connections:
                if connection.transport.get_extra_info("peername") == peer:
                    connection.principal = Principal(USER, user)
                    return
            await asyncio.sleep(0)
