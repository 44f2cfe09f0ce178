"""The role of a controller: the metadata log, the catalogue and the registered brokers, without partitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.controller.idle_records import IdleRecords
from odradek.broker.controller.observer_reads import ObserverReads
from odradek.broker.controller.periodic_elections import PeriodicElections
from odradek.broker.controller.registered_brokers import RegisteredBrokers
from odradek.broker.front_end.router import Router, served_apis
from odradek.broker.metadata.image_brokers import ImageBrokers
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata_log import bootstrap, quorum_state
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log.check import has_content
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.broker.node.writer_role import WriterRole
from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.publishers.broker_settings import BrokerSettings
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.control import ClusterControl
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from odradek.broker.coordinators.kinds import AcrossBrokers
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.catalog_view import Publisher
    from odradek.broker.node.node import Node
    from odradek.broker.node.node_role import OpenCatalog
    from odradek.catalog.state import CatalogState


class ControllerRole(WriterRole):
    """``NodeRole``: the only controller of a cluster. Its listeners serve the requests of brokers and of
    administrators. ``registered_brokers``: the brokers of the cluster, from ``new_loader`` on.

    Its directory has the file ``quorum-state``: other nodes follow its log, so each start begins a leader epoch.
    """

    envelope_bytes = 1 << 17
    """An envelope has the principal of the client, whose type and name have up to 32,767 bytes each."""
    has_broker_settings = False
    registered_brokers: RegisteredBrokers
    _idle_records: IdleRecords | None = None
    _elections: tuple[PeriodicElections, ...] = ()

    def new_router(self) -> Router:
        return Router(self.node, served_apis("controller"))

    def new_catalog(self) -> CatalogState:
        node = self.node
        dice = random.Random(node.new_uuid().int)
        catalog = ClusterCatalog(lambda data: UUID(bytes=data), dice, node.config.text)
        catalog.node_name = str(node.node_id)
        return catalog

    def open_catalog(self) -> OpenCatalog:
        _make_voter(self.node)
        return super().open_catalog()

    def new_loader(self) -> MetadataLoader:
        """Returns the loader, whose publishers include ``registered_brokers``."""
        node = self.node
        if self.stored.voter is None:
            raise StorageError(
                f"{node.directory.path} is the directory of a lone broker, and this node is a controller: choose "
                "another directory"
            )
        state = node.catalog.state
        assert isinstance(state, ClusterCatalog)
        reads = ObserverReads(node)
        self.registered_brokers = RegisteredBrokers(node, state, node.config.broker_session_timeout_ms, reads)
        return self.loader_with([self.registered_brokers, reads])

    def follow_catalog(self) -> None:
        """Publishes the catalogue, and begins the sessions of brokers."""
        node, brokers = self.node, self.registered_brokers
        idle_records = IdleRecords(node, node.config.metadata_max_idle_interval_ms)
        self.begin_recovery()
        node.loader.load()
        brokers.begin()
        self._idle_records = idle_records
        idle_records.begin()
        self._elections = tuple(self._periodic_elections(brokers))
        for elections in self._elections:
            elections.begin()

    def _periodic_elections(self, brokers: RegisteredBrokers) -> Iterator[PeriodicElections]:
        loop, config = self.node.loop, self.node.config
        if config.auto_leader_rebalance_enable:
            balance_s = config.leader_imbalance_check_interval_seconds
            yield PeriodicElections(brokers, loop, balance_s, ClusterControl.balance_leaders)
        unclean_s = config.unclean_leader_election_interval_ms / 1000
        yield PeriodicElections(brokers, loop, unclean_s, ClusterControl.elect_unclean_leaders)

    def loader_with(self, own: list[Publisher]) -> MetadataLoader:
        """Returns the loader. ``own``: the publishers of the controller."""
        node = self.node
        settings = BrokerSettings(node.config, node.node_id, node.host_limits, node.admissions)
        modes = PrivateDirectory(node.directory, node.in_thread)
        access = [part for part in (node.authorizer, node.tokens) if part is not None]
        return MetadataLoader(node.catalog, [settings, modes, node.quotas, *access, node.catalog, *own])

    def begin_recovery(self) -> None:
        """Removes the mark of a clean stop."""
        self.node.directory.begin_recovery(self.node.catalog)

    def new_brokers(self) -> Brokers:
        node = self.node
        return ImageBrokers(node.catalog, node.listeners, node.new_uuid)

    def loads_later(self) -> Iterator[Callable[[], object]]:
        """Yields nothing: a controller needs no module of producers and consumers."""
        yield from ()

    def check_broker_name(self, name: str) -> None:
        """Raises KafkaError if a name is neither empty nor the id of a registered broker or of this controller:
        INVALID_REQUEST if it is no number, BROKER_ID_NOT_REGISTERED otherwise."""
        if not name:
            return
        if not (name.isascii() and name.removeprefix("-").isdigit()):
            raise KafkaError(ErrorCode.invalid_request, f"Invalid broker name {name}")
        if int(name) != self.node.node_id and int(name) not in self.node.catalog.registered_brokers():
            raise KafkaError(ErrorCode.broker_id_not_registered, f"No node with id {name} found.")

    def overdue_markers(self) -> None:
        return None

    def across_brokers(self) -> AcrossBrokers | None:
        """Returns None: a controller serves no transactions."""
        return None

    def close(self) -> None:
        """Ends the sessions of brokers, and the elections from time to time."""
        for elections in self._elections:
            elections.end()
        if self._idle_records is not None:
            self.registered_brokers.end()
            self._idle_records.end()


def _make_voter(node: Node) -> None:
    """Makes a formatted directory without a metadata log that of the voter. Raises StorageError.

    A lone broker's directory is not formatted: it has no ``bootstrap.checkpoint``."""
    files, path = node.directory.files, node.directory.path / DIRECTORY
    try:
        mark = metadata_mark.read(node.directory.path, files)
        if (mark is not None and mark.end_offset) or has_content(path, files) or quorum_state.read(path, files):
            return
        if not bootstrap.check(node.directory.path, files):
            return
        files.make_dirs(path)
        quorum_state.write(path, files, QuorumState(NO_NODE, 0, voters=(node.node_id,)))
        files.sync_dir(node.directory.path)
    except OSError as error:
        raise StorageError(f"{path} cannot be used: {error.strerror or error}") from error
