"""The interfaces (``typing.Protocol``) of a kind of coordinator and of its broker. Imported for type checks only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from odradek.broker.controller.write_events import TopicSpec
    from odradek.broker.coordinators.group_runtime import GroupRuntime
    from odradek.broker.coordinators.remote_calls import LocalPartitions, WriteMarkers
    from odradek.broker.coordinators.transaction_markers import OverdueMarkers
    from odradek.broker.loop.clock import Clock
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.coordinator_runtime.runtime import Environment, Runtime
    from odradek.coordinator_runtime.shard_log import ShardLog

R = TypeVar("R", bound="Runtime[Any]")


class AcrossBrokers(Protocol):
    """How transactions reach other brokers."""

    def markers(self, local: WriteMarkers) -> WriteMarkers:
        """Returns what writes markers at all leaders. ``local`` writes those for the logs of this broker."""

    def partitions(self, local: LocalPartitions) -> PartitionsOfTransactions:
        """Returns what asks all coordinators. ``local`` asks that of this broker."""

    def log(self, log: ShardLog) -> ShardLog:
        """Returns a partition of ``__transaction_state`` as its coordinator writes it."""

    def on_metadata_update(self, delta: Delta) -> None:
        """Follows the leaders of changed partitions. The image shows them already."""


class CoordinatorRole(Protocol):
    """What coordinators do differently in a cluster."""

    def overdue_markers(self) -> OverdueMarkers | None:
        """Returns the rules for markers that a partition refuses for too long; None if they wait on."""

    def across_brokers(self) -> AcrossBrokers | None:
        """Returns how transactions reach other brokers; None if this broker leads all partitions."""


class CoordinatorBroker(Protocol):
    """The parts of a broker that coordinators may use. A coordinator that needs another part adds it here first."""

    config: BrokerConfig
    clock: Clock
    producer_ids: ProducerIds

    @property
    def role(self) -> CoordinatorRole: ...

    @property
    def node_id(self) -> int: ...

    @property
    def brokers(self) -> Brokers: ...

    @property
    def catalog(self) -> CatalogView: ...

    @property
    def groups(self) -> GroupRuntime: ...

    @property
    def coordinator_environment(self) -> Environment: ...

    def partition(self, topic: str, index: int) -> Partition | None: ...


class CoordinatorType(Protocol[R]):
    """A kind of coordinator. Its module is loaded at every start, so it imports the state machine late."""

    @property
    def key_type(self) -> int:
        """FindCoordinator's type of keys: 0 group, 1 transaction, 2 share."""

    @property
    def name(self) -> str:
        """What the coordinator serves, for log lines: ``groups``, ``transactional ids``."""

    @property
    def topic(self) -> str:
        """The internal topic with the coordinator's records."""

    @property
    def partitions_setting(self) -> str:
        """The name of the broker's setting with the topic's number of partitions."""

    @property
    def is_frequent(self) -> bool:
        """Whether the broker loads the state machine soon after each start, even if its topic does not exist."""

    def topic_spec(self, config: BrokerConfig) -> TopicSpec:
        """Returns the topic as the broker creates it at the first use."""

    def new_runtime(self, broker: CoordinatorBroker) -> R:
        """Imports the state machine and returns its runtime."""

    def on_metadata_update(self, runtime: R, delta: Delta) -> None:
        """Informs the runtime of changes of the catalogue. The image shows them already."""
