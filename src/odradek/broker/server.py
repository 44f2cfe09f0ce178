"""The server: a node and its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.broker.listeners import BrokerListeners
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.node.node import Node
from odradek.broker.settings.config import BrokerConfig

if TYPE_CHECKING:
    from odradek.broker.node.node_role import NodeRole


class BrokerServer(Node):
    """A node with sockets. ``start`` opens the data directory and the port, ``stop`` is a clean shutdown.

    ``listen`` is the (host, port) of the only listener; None if the setting ``listeners`` has the addresses. Port 0
    selects a free port, which ``address``, that of the first listener, has after ``start``.
    ``world``: without it, that of this process. ``new_role``: without it, the node is a lone broker. ``loop``: without
    it, the running one.
    """

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: Path,
        listen: tuple[str, int] | None,
        world: NodeWorld | None = None,
        new_role: Callable[[Node], NodeRole] = LoneRole,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        own, loop = world or NodeWorld.of_process(), loop or asyncio.get_running_loop()
        super().__init__(config, data_dir, config.listeners_at(listen), own, new_role, loop=loop)
        self.listening = BrokerListeners(self)

    async def start(self) -> None:
        """Binds the port, locks the directory, reads the logs, and begins to serve.

        A broker of a cluster serves when the controller has lifted its fence. Raises ListenError, StorageError,
        ConfigError, MembershipEnded.
        """
        self.listening.bind()
        try:
            self.begin()
            await self.listening.open_others()
            await self._join()
        except BaseException:
            self.listening.release()
            await self.give_up()
            raise
        await self.listening.open()
        self.begin_upkeep()

    async def _join(self) -> None:
        """Waits until the node may serve clients. Raises the reason why it may not."""
        joined = self.role.joined
        if joined is None:
            return
        ended: asyncio.Future[Exception | None] = self.loop.create_future()
        joined.then(lambda failure: None if ended.done() else ended.set_result(failure))
        failure = await ended
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """Accepts no more requests, completes the present ones, syncs and closes the logs, releases the directory."""
        await self.role.leave()
        self.listening.close()
        await self.end()

    async def abandon(self) -> None:
        self.listening.close()
        await super().abandon()
