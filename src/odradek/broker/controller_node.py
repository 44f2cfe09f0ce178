"""The node of a controller: the metadata log, the catalogue and the registered brokers, without partitions."""

from __future__ import annotations

import random
from uuid import UUID

from odradek.broker.controller.idle_records import IdleRecords
from odradek.broker.controller.observer_reads import ObserverReads
from odradek.broker.controller.registered_brokers import RegisteredBrokers
from odradek.broker.front_end.router import Api, served_apis
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.node import BrokerNode
from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.publishers import BrokerSettings
from odradek.catalog.state import CatalogState
from odradek.cluster.catalog import MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION, ClusterCatalog
from odradek.core.errors import StorageError

SESSION_TIMEOUT, MAX_IDLE = "broker.session.timeout.ms", "metadata.max.idle.interval.ms"


class ControllerNode(BrokerNode):
    """The only controller of a cluster. Its listeners serve the requests of brokers and of administrators.

    Its directory has the file ``quorum-state``: other nodes follow its log, so each start begins a leader epoch.
    """

    is_lone = False

    def _apis(self) -> dict[int, Api]:
        return served_apis("controller")

    def _new_shard(self) -> CatalogState:
        settings = {name: self.config.text(name) or "" for name in (MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION)}
        return ClusterCatalog(lambda data: UUID(bytes=data), random.Random(self.new_uuid().int), settings)

    def _follow_catalog(self) -> None:
        """Publishes the catalogue, and begins the sessions of brokers. Raises StorageError, ConfigError."""
        if self.stored_catalog.voter is None:
            raise StorageError(
                f"{self.directory.path} is the directory of a lone broker, and this node is a controller: choose "
                "another directory"
            )
        state = self.catalog.state
        assert isinstance(state, ClusterCatalog)
        reads = ObserverReads(self)
        self.cluster = RegisteredBrokers(self, state, int(self.config.text(SESSION_TIMEOUT) or 0), reads)
        self._idle_records = IdleRecords(self, int(self.config.text(MAX_IDLE) or 0))
        own = BrokerSettings(self.config, self.node_id, self.host_limits)
        modes = PrivateDirectory(self.directory, self.in_thread)
        access = [part for part in (self.authorizer, self.tokens) if part is not None]
        self.loader = MetadataLoader(
            self.catalog, [own, modes, self.quotas, *access, self.catalog, self.cluster, reads]
        )
        self.directory.begin_recovery(self.catalog)
        self.loader.load()
        self.cluster.begin()
        self._idle_records.begin()

    def steady_ms(self) -> int:
        """Returns the time of a clock that no test moves and that never jumps."""
        return int(self.loop.time() * 1000)

    def _load_rest(self) -> None:
        """A controller needs no module of producers and consumers."""

    async def end(self) -> None:
        self._end_sessions()
        await super().end()

    async def abandon(self) -> None:
        self._end_sessions()
        await super().abandon()

    def _end_sessions(self) -> None:
        if self.cluster is not None:
            self.cluster.end()
            self._idle_records.end()
