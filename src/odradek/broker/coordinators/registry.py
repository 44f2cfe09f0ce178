"""The broker's coordinators: the tenants of ``coordinator_runtime/``, each with its internal topic.

The server, the publishers, the controller and FindCoordinator know coordinators only through this registry. A new
coordinator is a ``CoordinatorType`` in a module of its own, like ``group_coordinator``, and an entry in ``TYPES``. Its
topic is in ``core/ids.INTERNAL_TOPICS``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from odradek.broker.coordinators.group_coordinator import GROUPS
from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.partitions.partition_roles import PartitionRole
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from odradek.broker.controller.write_events import TopicSpec
    from odradek.broker.coordinators.group_runtime import GroupRuntime
    from odradek.broker.coordinators.kinds import CoordinatorBroker, CoordinatorType
    from odradek.broker.partitions.partition import Partition
    from odradek.catalog.delta import Delta
    from odradek.coordinator_runtime.runtime import Runtime

R = TypeVar("R", bound="Runtime[Any]")

TYPES: tuple[CoordinatorType[Any], ...] = (GROUPS, TRANSACTIONS)


class Coordinator(Generic[R]):
    """A coordinator of a broker. Its runtime is made at the first use, because not every broker needs it."""

    __slots__ = ("_broker", "made_runtime", "type")

    def __init__(self, kind: CoordinatorType[R], broker: CoordinatorBroker) -> None:
        self.type = kind
        self.made_runtime: R | None = None
        """The runtime, or None before its first use."""
        self._broker = broker

    @property
    def runtime(self) -> R:
        if self.made_runtime is None:
            runtime = self.made_runtime = self.type.new_runtime(self._broker)
            self._broker.clock.on_moved.append(runtime.on_clock_moved)
        return self.made_runtime

    @property
    def topic(self) -> str:
        return self.type.topic

    @property
    def topic_spec(self) -> TopicSpec:
        """The topic as the broker creates it at the first use."""
        return self.type.topic_spec(self._broker.config)

    @property
    def has_topic(self) -> bool:
        return self._broker.catalog.topic(self.topic) is not None

    def leader_of(self, key: str) -> int:
        """Returns the broker that leads the key's partition of the topic. −1 without a leader, and if this broker leads
        the partition and cannot serve it."""
        runtime = self.runtime
        index = runtime.partition_of(key)
        if index in runtime.partitions():
            return self._broker.node_id
        topic = self._broker.catalog.topic(self.topic)
        if topic is None or not 0 <= index < topic.partition_count:
            return NO_NODE
        leader = topic.partitions[index].leader
        return NO_NODE if leader == self._broker.node_id else leader

    def on_metadata_update(self, delta: Delta) -> None:
        """Informs the coordinator, if it was used before, of changes of the catalogue."""
        if self.made_runtime is not None:
            self.type.on_metadata_update(self.made_runtime, delta)


AnyCoordinator = Coordinator[Any]
"""A coordinator whose runtime is of any type."""


class Coordinators:
    """The coordinators of one broker. All are registered before the start of the broker."""

    __slots__ = ("_broker", "_by_key_type", "_by_topic")

    def __init__(self, broker: CoordinatorBroker) -> None:
        self._broker = broker
        self._by_key_type: dict[int, AnyCoordinator] = {}
        self._by_topic: dict[str, AnyCoordinator] = {}

    def register(self, kind: CoordinatorType[R]) -> Coordinator[R]:
        """Adds a coordinator. Raises ValueError if another one has its key type or topic."""
        if kind.key_type in self._by_key_type or kind.topic in self._by_topic:
            raise ValueError(f"another coordinator has the key type {kind.key_type} or the topic {kind.topic}")
        coordinator = Coordinator(kind, self._broker)
        self._by_key_type[kind.key_type] = self._by_topic[kind.topic] = coordinator
        return coordinator

    def __iter__(self) -> Iterator[AnyCoordinator]:
        return iter(self._by_key_type.values())

    def of_key_type(self, key_type: int) -> AnyCoordinator | None:
        return self._by_key_type.get(key_type)

    @property
    def topics(self) -> Collection[str]:
        """The internal topics of all coordinators."""
        return self._by_topic.keys()

    def topic_spec(self, name: str) -> TopicSpec | None:
        """Returns the internal topic of this name as the broker creates it; None if no coordinator has the topic."""
        coordinator = self._by_topic.get(name)
        return None if coordinator is None else coordinator.topic_spec

    def runtime(self, kind: CoordinatorType[R]) -> R:
        """Returns the runtime of a registered coordinator, for handlers. It is made at the first use."""
        return cast(R, self._by_key_type[kind.key_type].runtime)

    @property
    def groups(self) -> GroupRuntime:
        """The runtime of groups."""
        return self.runtime(GROUPS)

    def loaders(self) -> Iterator[Callable[[], object]]:
        """Yields functions that make the runtimes that will soon be used, and so import their state machines."""
        return (partial(self.runtime, each.type) for each in self if each.type.is_frequent or each.has_topic)

    def load_opened(self, partition: Partition) -> None:
        """Loads a partition of an internal topic whose log could not be opened at first, and now is open."""
        coordinator = self._by_topic.get(partition.topic)
        is_led = partition.role is PartitionRole.LEADER
        runtime = coordinator.made_runtime if coordinator is not None and is_led else None
        if runtime is not None and runtime.partition_count is not None:
            partition.on_high_watermark = runtime.on_high_watermark
            runtime.load(partition.index, partition, partition.leader_epoch)

    def stop(self) -> None:
        """Appends the waiting records of all coordinators and unloads them."""
        for coordinator in self:
            if coordinator.made_runtime is not None:
                coordinator.made_runtime.stop()
