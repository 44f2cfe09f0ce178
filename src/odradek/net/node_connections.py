"""Connections of one purpose, one to each broker."""

from __future__ import annotations

import asyncio
from typing import Protocol

from odradek.net.connection import BrokerConnection


class ConnectionOpener(Protocol):
    """The cluster: it knows the address of each broker, and how its connections are set."""

    async def open_connection(self, node_id: int) -> BrokerConnection:
        """A new connection. Raises BrokerUnreachable, and KafkaError for a broker that is not in the cluster."""


class NodeConnections:
    """Connections of one purpose: a broker answers a connection's requests in order, so whatever waits there long (a
    fetch, a join) has one of its own. Raises BrokerUnreachable, ConnectionLost."""

    def __init__(self, opener: ConnectionOpener) -> None:
        self._opener = opener
        self._open: dict[int, BrokerConnection] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def known(self, node_id: int) -> BrokerConnection | None:
        """One that is open."""
        known = self._open.get(node_id)
        return None if known is None or known.closed else known

    async def get(self, node_id: int) -> BrokerConnection:
        async with self._locks.setdefault(node_id, asyncio.Lock()):  # a silent broker holds up no other
            if (known := self.known(node_id)) is not None:
                return known
            self._open[node_id] = await self._opener.open_connection(node_id)
            return self._open[node_id]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()
