"""A broker of a cluster: its node and its listeners."""

from __future__ import annotations

import asyncio

from odradek.broker.cluster_node import ClusterBrokerNode
from odradek.broker.server import BrokerServer


class ClusterBrokerServer(BrokerServer, ClusterBrokerNode):
    """A broker of a cluster. ``start`` ends when the controller has lifted its fence; it raises MembershipEnded, too.

    ``stop`` begins with a controlled shutdown."""

    async def _join(self) -> None:
        ended: asyncio.Future[Exception | None] = self.loop.create_future()
        self.joined.then(lambda failure: None if ended.done() else ended.set_result(failure))
        failure = await ended
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        await self.leave()
        await super().stop()
