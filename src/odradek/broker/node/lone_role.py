"""The role of a lone broker: the only node of its cluster, which is broker and controller in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from odradek.broker.front_end.router import Router, served_apis
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.node.writer_role import WriterRole, metadata_log_errors
from odradek.broker.publishers.order import in_order

if TYPE_CHECKING:
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.lone_broker import LocalOverdueMarkers


class LoneRole(WriterRole):
    """``NodeRole``: the node leads every partition for ever, and serves the whole catalogue."""

    def new_router(self) -> Router:
        return Router(self.node, served_apis())

    def new_loader(self) -> MetadataLoader:
        return MetadataLoader(self.node.catalog, in_order(self.node, self._begin_epochs))

    def follow_catalog(self) -> None:
        """Publishes the catalogue: this opens the logs and loads the coordinators."""
        node = self.node
        node.loader.load()
        lost = node.directory.opener.lost_epochs()
        if lost:
            with metadata_log_errors(node):
                node.finish(self.controller.raise_epochs(lost.items()))

    def _begin_epochs(self) -> None:
        """Begins a new leader epoch for every partition, after an unclean stop. Raises StorageError."""
        from odradek.broker.metadata.lone_broker import BeginEpochs

        with metadata_log_errors(self.node):
            self.stored.apply(BeginEpochs())

    def new_brokers(self) -> Brokers:
        from odradek.broker.metadata.lone_broker import LoneBroker

        return LoneBroker(self.node)

    def loads_later(self) -> Iterator[Callable[[], object]]:
        return self.node.loaders()

    def check_broker_name(self, name: str) -> None:
        self.node.check_own_name(name)

    def across_brokers(self) -> None:
        """Returns None: the node is the coordinator of all transactional ids, and leads all partitions."""
        return

    def overdue_markers(self) -> LocalOverdueMarkers:
        from odradek.broker.metadata.lone_broker import LocalOverdueMarkers

        return LocalOverdueMarkers(self.node.partition)
