"""The node of a controller: the metadata log, the catalogue and the registered brokers, without partitions."""

from __future__ import annotations

import random
from uuid import UUID

from odradek.broker.controller.idle_records import IdleRecords
from odradek.broker.controller.observer_reads import ObserverReads
from odradek.broker.controller.registered_brokers import RegisteredBrokers
from odradek.broker.front_end.router import Api, served_apis
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata_log import bootstrap, quorum_state
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log.check import has_content
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.node import BrokerNode
from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.publishers import BrokerSettings
from odradek.catalog.state import CatalogState
from odradek.cluster.catalog import MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION, ClusterCatalog
from odradek.core.errors import StorageError
from odradek.core.ids import NO_NODE


class ControllerNode(BrokerNode):
    """The only controller of a cluster. Its listeners serve the requests of brokers and of administrators.

    Its directory has the file ``quorum-state``: other nodes follow its log, so each start begins a leader epoch.
    """

    is_lone = False
    most_replicas: int | None = 1
    """The most replicas of a partition. None sets no limit; no broker follows a leader's log yet."""

    def _apis(self) -> dict[int, Api]:
        return served_apis("controller")

    def _new_shard(self) -> CatalogState:
        settings = {name: self.config.text(name) or "" for name in (MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION)}
        catalog = ClusterCatalog(lambda data: UUID(bytes=data), random.Random(self.new_uuid().int), settings)
        catalog.most_replicas = self.most_replicas
        return catalog

    def _open_catalog(self) -> None:
        self._make_voter()
        super()._open_catalog()

    def _make_voter(self) -> None:
        """Makes a formatted directory without a metadata log that of the voter. Raises StorageError.

        A lone broker's directory is not formatted: it has no ``bootstrap.checkpoint``."""
        files, path = self.directory.files, self.directory.path / DIRECTORY
        try:
            mark = metadata_mark.read(self.directory.path, files)
            if (mark is not None and mark.end_offset) or has_content(path, files) or quorum_state.read(path, files):
                return
            if not bootstrap.check(self.directory.path, files):
                return
            files.make_dirs(path)
            quorum_state.write(path, files, QuorumState(NO_NODE, 0, voters=(self.node_id,)))
            files.sync_dir(self.directory.path)
        except OSError as error:
            raise StorageError(f"{path} cannot be used: {error.strerror or error}") from error

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
        self.cluster = RegisteredBrokers(self, state, self.config.broker_session_timeout_ms, reads)
        self._idle_records = IdleRecords(self, self.config.metadata_max_idle_interval_ms)
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
