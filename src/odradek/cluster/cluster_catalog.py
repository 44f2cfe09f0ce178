"""The catalogue of a cluster: that of a lone broker, with registered nodes and replicas on several brokers.

Every node has one and applies the committed records to it. The controller also generates records: new topics with their
replicas here, changes of brokers and of leaders in ``cluster/control``, as operations with a ``ControlResult``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from odradek.catalog.features import ELIGIBLE_LEADERS
from odradek.catalog.records import ConfigRecord, Id16, IdFactory, MetadataRecord, NodeRecord, PartitionRecord
from odradek.catalog.state import BROKER, TOPIC, CatalogRequest, CatalogState, OwnRecords, RecordSteps, Topic
from odradek.cluster import records
from odradek.cluster.nodes.registrations import BrokerRegistration, Registrations
from odradek.cluster.partitions.placement import Dice, UsableBroker, place
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION = "min.insync.replicas", "unclean.leader.election.enable"
_DEFAULTS = {MIN_IN_SYNC_REPLICAS: "1", UNCLEAN_ELECTION: "false"}


class Moment(NamedTuple):
    """When an operation begins. ``next_offset``: the offset of its first record."""

    now_ms: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class ControlResult(Generic[R_co]):
    """The records of an operation, and its response, which is valid when the records are committed.

    ``on_committed``: called then, with the offset of the newest record."""

    records: list[MetadataRecord]
    response: R_co
    on_committed: Callable[[int], None] | None = None


ControlSteps: TypeAlias = Generator[None, None, ControlResult[R]]
"""The steps of an operation. They raise KafkaError for a refused request."""


class SteppedRecords(OwnRecords):
    """A request that makes its records in steps."""

    def __init__(self, steps: Callable[[], RecordSteps]) -> None:
        self.steps = steps

    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        raise AssertionError("the catalogue of a cluster calls steps")


def _no_setting(name: str) -> None:
    return None


class ClusterCatalog(CatalogState):
    """The catalogue of a cluster. ``dice``: the chance in the placement of replicas. ``setting``: the text of a setting
    of this node, which has an effect on topics without an own value.
    """

    node_name = ""
    """The id of this node, by which dynamic settings name it. Empty: no dynamic setting is only for this node."""

    def __init__(self, make_id: IdFactory, dice: Dice, setting: Callable[[str], str | None] = _no_setting) -> None:
        super().__init__(make_id, (), make_id(bytes(16)))
        self.nodes = Registrations()
        self._dice = dice
        self._settings = {name: setting(name) or default for name, default in _DEFAULTS.items()}

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of the registered brokers."""
        return tuple(self.nodes.brokers)

    @property
    def registered_brokers(self) -> Mapping[int, BrokerRegistration]:
        """The registrations of brokers by id."""
        return self.nodes.brokers

    def generate(self, request: CatalogRequest) -> RecordSteps:
        if isinstance(request, SteppedRecords):
            return request.steps()
        return super().generate(request)

    # --- settings of topics -------------------------------------------------------------------------------------

    def setting(self, topic: str, name: str) -> str:
        """Returns the value of a topic's setting: its own, the dynamic one of this node or of all brokers, or that of
        this node's start."""
        own = self.topic_configs(topic).get(name)
        for node in (self.node_name, "") if own is None else ():
            own = own or self.configs.get((BROKER, node), {}).get(name)
        return own or self._settings[name]

    def min_isr(self, topic: str) -> int:
        """Returns ``min.insync.replicas`` of a topic, at most the number of its replicas."""
        return self.topics[topic].partitions[0].least_isr(int(self.setting(topic, MIN_IN_SYNC_REPLICAS)))

    def elects_unclean(self, topic: str) -> bool:
        return self.setting(topic, UNCLEAN_ELECTION) == "true"

    @property
    def has_eligible_leaders(self) -> bool:
        return self.features.get(ELIGIBLE_LEADERS, 0) > 0

    def _alter_configs(
        self, resource_type: int, resource_name: str, changes: Mapping[str, str | None]
    ) -> list[MetadataRecord]:
        generated = super()._alter_configs(resource_type, resource_name, changes)
        names = {record.name for record in generated if isinstance(record, ConfigRecord)}
        if MIN_IN_SYNC_REPLICAS in names and self.has_eligible_leaders:
            generated.append(records.ClearElrRecord(resource_name if resource_type == TOPIC else ""))
        return generated

    # --- new partitions -----------------------------------------------------------------------------------------

    def usable_brokers(self) -> Iterable[UsableBroker]:
        """Yields the brokers that may get replicas."""
        for broker in self.nodes.brokers.values():
            if not broker.is_shutting_down and broker.takes_replicas:
                yield UsableBroker(broker.broker_id, broker.rack, broker.is_fenced)

    def _placed(self, first: int, count: int, factor: int) -> Iterable[tuple[int, ...]]:
        return place(count, factor, self.usable_brokers(), self._dice)

    def _check_assignment(self, index: int, replicas: tuple[int, ...], factor: int) -> None:
        super()._check_assignment(index, replicas, factor)
        if not any(map(self.nodes.is_active, replicas)):
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown.",
            )

    def partition_record(self, topic_id: Id16, index: int, replicas: tuple[int, ...]) -> PartitionRecord:
        """Returns the record of a new partition. Raises KafkaError (INVALID_REPLICATION_FACTOR) if no broker of it may
        lead."""
        isr = tuple(filter(self.nodes.is_active, replicas))
        if not isr:
            raise KafkaError(
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {len(replicas)} time(s): All brokers are currently fenced or in "
                "controlled shutdown.",
            )
        directories = tuple(self._make_id(self.nodes.default_directory(broker)) for broker in replicas)
        return PartitionRecord(index, topic_id, replicas, isr, isr[0], directories=directories)

    # --- the log ------------------------------------------------------------------------------------------------

    def replay(self, offset: int, value: bytes) -> None:
        self.apply(offset, records.decode(value, self._make_id))

    def apply(self, offset: int, record: MetadataRecord) -> None:
        if isinstance(record, NodeRecord):
            for change in record.partition_changes(self.topics):
                super().apply(offset, change)
            self.nodes.apply(offset, record)
        else:
            super().apply(offset, record)

    def hide(self, topic: Topic) -> None:
        """Takes a topic out of the catalogue until ``publish``. Its settings stay."""
        del self.topics_by_id[topic.id], self.topics[topic.name]
        self._forget_name(topic.name)

    def node_records(self) -> tuple[NodeRecord, ...]:
        brokers = (self.nodes.brokers[broker_id].record() for broker_id in sorted(self.nodes.brokers))
        controllers = (self.nodes.controllers[node] for node in sorted(self.nodes.controllers))
        return (*brokers, *controllers)

    @property
    def producer_ids_owner(self) -> int:
        return NO_NODE
