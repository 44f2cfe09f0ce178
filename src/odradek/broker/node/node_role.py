"""What differs between a lone broker, a broker of a cluster and a controller, as the node asks for it.

For type checks only: at run time the Protocol would occupy kilobytes of each broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from odradek.broker.controller.write_events import Controller
    from odradek.broker.coordinators.kinds import AcrossBrokers
    from odradek.broker.coordinators.transaction_markers import OverdueMarkers
    from odradek.broker.front_end.connection import ConnectionOwner
    from odradek.broker.front_end.router import Router
    from odradek.broker.handlers.api import RoleServices
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.metadata.loader import MetadataLoader
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.node.upkeep import Upkeep
    from odradek.core.deferred import Deferred

    OpenCatalog = tuple[CommittedCatalog, MetadataLog, MetadataQuorum]

    class NodeRole(RoleServices, Protocol):
        """What a node is in its cluster, besides what handlers ask. The methods are in the order of their calls."""

        @property
        def joined(self) -> Deferred[Exception | None] | None:
            """Has None when the node may serve clients, or the exception that ends the start. None instead of a promise
            if the node waits for no other node."""

        @property
        def side(self) -> ConnectionOwner | None:
            """The owner of the connections of other listeners, from ``new_router`` on; None without them."""

        def open_catalog(self) -> OpenCatalog:
            """Opens the metadata log and reads the catalogue. Raises StorageError, ConfigError."""

        def new_controller(self) -> Controller:
            """Returns what changes the catalogue: this process, or the way to another one."""

        def new_router(self) -> Router:
            """Returns the router of the node's requests, with its APIs."""

        def new_producer_ids(self) -> ProducerIds:
            """Returns the producer ids for this node. A controller uses none."""

        def new_loader(self) -> MetadataLoader:
            """Returns the loader with its publishers. Raises StorageError, ConfigError."""

        def follow_catalog(self) -> None:
            """Begins to publish the catalogue. Raises StorageError, ConfigError."""

        def new_brokers(self) -> Brokers:
            """Returns the brokers that replies name."""

        def begin_upkeep(self, upkeep: Upkeep) -> None:
            """Adds periodic work of the role's own."""

        def loads_later(self) -> Iterator[Callable[[], object]]:
            """Yields functions that import modules which the node uses soon after its start."""

        envelope_bytes: int
        """How much longer a request of another node may be, because it has a client's request in it."""

        def overdue_markers(self) -> OverdueMarkers | None:
            """Returns the rules for markers that a partition refuses for too long; None if they wait on."""

        def across_brokers(self) -> AcrossBrokers | None:
            """Returns how transactions reach other brokers; None if this broker leads all partitions."""

        def hold_fetches(self, is_held: bool) -> None:
            """Lets the node's replicas fetch no more, for a test of what follows then; or lets them fetch again."""

        async def leave(self) -> None:
            """Lets the other nodes take over before a stop."""

        def has_loaded(self) -> bool:
            """Returns whether the node may have opened logs."""

        def close(self) -> None:
            """Ends the role's connections and timers: the node ends, or its start has failed."""
