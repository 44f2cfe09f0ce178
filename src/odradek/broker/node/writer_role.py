"""What a lone broker and a controller have in common: they write the metadata log themselves."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from odradek.broker.controller.write_events import QuorumController
from odradek.broker.metadata.producer_ids import ProducerIds
from odradek.broker.metadata.quorum import Quorums
from odradek.broker.metadata.stored_catalog import metadata_config
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.catalog.features import AT_FIRST, TRANSACTION
from odradek.catalog.state import BROKER
from odradek.core.errors import KafkaError, StorageError

if TYPE_CHECKING:
    from odradek.broker.front_end.connection import ConnectionOwner
    from odradek.broker.logins.first_users import FirstUsers
    from odradek.broker.metadata.stored_catalog import StoredCatalog
    from odradek.broker.node.node import Node
    from odradek.broker.node.node_role import OpenCatalog
    from odradek.broker.node.upkeep import Upkeep
    from odradek.catalog.state import CatalogState
    from odradek.core.deferred import Deferred

log = logging.getLogger("odradek.broker")


class StartChanges(NamedTuple):
    """What a start changes in the stored catalogue. ``delete_configs``: broker settings whose dynamic values it
    deletes. ``first_users``: users that it adds if they do not exist."""

    delete_configs: Sequence[str] = ()
    first_users: FirstUsers | None = None


NO_CHANGES = StartChanges()


class WriterRole:
    """The part of the role of a node that writes the metadata log. ``stored``: the catalogue with its log."""

    envelope_bytes = 0
    has_broker_settings = True

    quorums: ClassVar[Quorums] = Quorums()
    """The maker of the quorums of this process. The process of a test may have another one."""
    joined: Deferred[Exception | None] | None = None
    side: ConnectionOwner | None = None
    stored: StoredCatalog
    controller: QuorumController

    def __init__(self, node: Node, changes: StartChanges = NO_CHANGES) -> None:
        self.node = node
        self._changes = changes

    def new_controller(self) -> QuorumController:
        self.controller = QuorumController(self.node)
        return self.controller

    def new_producer_ids(self) -> ProducerIds:
        return ProducerIds(self.node.node_id, self.controller)

    def new_catalog(self) -> CatalogState | None:
        """Returns an empty catalogue; None for that of a lone broker."""
        return None

    def open_catalog(self) -> OpenCatalog:
        """Reads the catalogue and checks the broker's settings in it. Raises StorageError, ConfigError."""
        node = self.node
        directory, node_id = node.directory, node.node_id
        self.quorums.prepare(directory.path, node_id, directory.files)
        stored = self.stored = directory.open_catalog(metadata_config(node.config), self.new_catalog())
        catalog, quorum = stored.catalog, self.quorums.quorum_of(stored, node_id, node.in_thread)
        if not directory.is_new:  # a directory without a level, from an earlier release, has level 0
            _log_transaction_version(catalog.features().get(TRANSACTION, 0))
        changes = self._changes
        if changes.first_users is not None:
            changes.first_users.add(stored)
        if changes.delete_configs or catalog.configs(BROKER, str(node_id)) or catalog.configs(BROKER, ""):
            from odradek.broker.metadata import stored_settings

            stored_settings.delete(stored, node_id, changes.delete_configs)
            stored_settings.check(catalog, node_id, node.config)
        stored.lead()
        return catalog, stored.log, quorum

    def begin_upkeep(self, upkeep: Upkeep) -> None:
        node = self.node
        if (tokens := node.tokens) is not None:
            upkeep.every(tokens.check_interval_ms, lambda: tokens.remove_ended(node))

    def hold_fetches(self, is_held: bool) -> None:
        """Does nothing: the node has no replicas that fetch."""

    async def leave(self) -> None:
        """Does nothing: no other node can write the log."""

    def has_loaded(self) -> bool:
        return True

    def close(self) -> None:
        """Does nothing: a lone broker has no connections and timers of its role."""


@contextmanager
def metadata_log_errors(node: Node) -> Iterator[None]:
    """Raises StorageError for KafkaError."""
    try:
        yield
    except KafkaError as error:
        path = node.directory.path / DIRECTORY
        raise StorageError(f"{path} cannot be written: {error.message}") from error


def _log_transaction_version(level: int) -> None:
    """Logs the level of ``transaction.version``, as a warning below 2.

    Such a level allows the fault of KAFKA-17754: a delayed EndTxn ends a later transaction."""
    initial = AT_FIRST[TRANSACTION]
    if level >= initial:
        log.info("the level of %s is %d", TRANSACTION, level)
        return
    log.warning(
        "the level of %s is %d: an EndTxn that the network delays may end a later transaction of its producer. "
        "Raise the level: kafka-features --bootstrap-server HOST:PORT upgrade --feature %s=%d",
        TRANSACTION, level, TRANSACTION, initial,
    )  # fmt: skip
