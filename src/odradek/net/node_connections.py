"""Connections of one purpose, one to each broker."""

from __future__ import annotations

import asyncio
from typing import Protocol

from odradek.net.connection import BrokerConnection


class ConnectionOpener(Protocol):
    """The part of a client that opens connections: it has each broker's address and the connection settings."""

    async def open_connection(self, node_id: int) -> BrokerConnection:
        """Opens a connection. Raises BrokerUnreachable, and KafkaError for a broker that is not in the cluster."""


class NodeConnections:
    """Connections of one purpose, one to each broker.

    A broker replies to the requests of one connection in order. Requests with long waits (fetch, join) therefore have
    their own connections."""

    def __init__(self, opener: ConnectionOpener) -> None:
        self._opener = opener
        self._open: dict[int, BrokerConnection] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def known(self, node_id: int) -> BrokerConnection | None:
        """Returns the open connection to the broker, or None."""
        known = self._open.get(node_id)
        return None if known is None or known.closed else known

    async def get(self, node_id: int) -> BrokerConnection:
        """Returns the open connection to the broker, or opens one. Raises what ``open_connection`` raises."""
        async with self._locks.setdefault(node_id, asyncio.Lock()):  # per broker: a silent broker delays no others
            if (known := self.known(node_id)) is not None:
                return known
            self._open[node_id] = await self._opener.open_connection(node_id)
            return self._open[node_id]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()
