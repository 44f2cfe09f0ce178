"""Connections of one purpose, one to each broker."""

from __future__ import annotations

import asyncio

from odradek.client.cluster import Cluster
from odradek.client.config import Address
from odradek.client.connection import Connection
from odradek.core.errors import ErrorCode, KafkaError


class NodeConnections:
    """Connections of one purpose: a broker answers a connection's requests in order, so whatever waits there long (a
    fetch, a join) has one of its own. Raises BrokerUnreachable, ConnectionLost."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: dict[int, Connection] = {}
        self._locks: dict[int, asyncio.Lock] = {}

    def known(self, node_id: int) -> Connection | None:
        """One that is open."""
        known = self._open.get(node_id)
        return None if known is None or known.closed else known

    async def get(self, node_id: int) -> Connection:
        async with self._locks.setdefault(node_id, asyncio.Lock()):  # a silent broker holds up no other
            if (known := self.known(node_id)) is not None:
                return known
            node = self._cluster.node(node_id)
            if node is None:
                raise KafkaError(ErrorCode.leader_not_available, f"broker {node_id} is not in the cluster now")
            config = self._cluster.config
            self._open[node_id] = await Connection.open(
                Address(node.host, node.port),
                client_id=config.client_id,
                request_timeout_ms=config.request_timeout_ms,
                setup_timeout_ms=config.socket_connection_setup_timeout_ms,
                max_reply_bytes=config.max_reply_bytes,
            )
            return self._open[node_id]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()
