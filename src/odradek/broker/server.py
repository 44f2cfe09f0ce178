"""The broker: a node and its listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.broker.listeners import BrokerListeners
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node import BrokerNode
from odradek.broker.settings.config import BrokerConfig

if TYPE_CHECKING:
    from odradek.broker.logins.first_users import FirstUsers


class BrokerServer(BrokerNode):
    """A broker. ``start`` opens the data directory and the port, ``stop`` is a clean shutdown.

    ``listen`` is the (host, port) of the only listener; None if the setting ``listeners`` has the addresses. Port 0
    selects a free port, which ``address``, that of the first listener, has after ``start``.
    ``world``: without it, that of this process. ``delete_configs``, ``first_users``: as in ``BrokerNode``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: Path,
        listen: tuple[str, int] | None,
        world: NodeWorld | None = None,
        delete_configs: Sequence[str] = (),
        *,
        first_users: FirstUsers | None = None,
    ) -> None:
        listeners, own = config.listeners_at(listen), world or NodeWorld.of_process()
        super().__init__(config, data_dir, listeners, own, delete_configs, first_users=first_users)
        self.listening = BrokerListeners(self)

    async def start(self) -> None:
        """Binds the port, locks the directory, reads the logs, and begins to serve.

        Raises ListenError, StorageError, ConfigError.
        """
        self.listening.bind()
        try:
            self.begin(asyncio.get_running_loop())
            await self._join()
        except BaseException:
            self.listening.release()
            await self.give_up()
            raise
        await self.listening.open()
        self.begin_upkeep()

    async def _join(self) -> None:
        """Waits until the node may serve clients. A lone broker may at once."""

    async def stop(self) -> None:
        """Accepts no more requests, completes the present ones, syncs and closes the logs, releases the directory."""
        self.listening.close()
        await self.end()

    async def abandon(self) -> None:
        self.listening.close()
        await super().abandon()
