"""A controller's state machines on a log in memory, for tests: every change is encoded, committed and applied."""

from __future__ import annotations

import random
from typing import Any, TypeVar
from uuid import UUID

from odradek.catalog.features import AT_FIRST
from odradek.catalog.image import CatalogImage
from odradek.catalog.records import MetadataRecord, encode
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import CatalogRequest, CreateTopic, RecordSteps
from odradek.cluster.cluster_catalog import ClusterCatalog, ControlSteps, Moment
from odradek.cluster.control import ClusterControl, Directories, HeartbeatOutcome
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat, BrokerState
from odradek.cluster.records import Endpoint, FeatureRange, decode
from odradek.core.effects import result_of

R = TypeVar("R")

CLUSTER = "cluster"
SESSION_MS = 9000
NO_CHANGE = Directories()
FEATURES = tuple(FeatureRange(name, 0, level) for name, level in AT_FIRST.items())


def make_id(data: bytes) -> UUID:
    return UUID(bytes=data)


def new_catalog(seed: int = 1, **settings: str) -> ClusterCatalog:
    return ClusterCatalog(
        make_id, random.Random(seed), {name.replace("_", "."): value for name, value in settings.items()}.get
    )


class ControlledCluster:
    """One controller. ``beat`` and the other methods are requests that are committed at once."""

    def __init__(self, **settings: str) -> None:
        self.values: list[bytes] = []
        self.now_ms = 1_000
        self.catalog = new_catalog(**settings)
        self.control = ClusterControl(self.catalog, CLUSTER, SESSION_MS)
        self._topics = 0

    # --- the log ------------------------------------------------------------------------------------------------

    def commit(self, records: list[MetadataRecord]) -> list[MetadataRecord]:
        for record in records:
            value = encode(record)
            assert decode(value, make_id) == record
            self.catalog.apply(len(self.values), record)
            self.control.on_applied(record)
            self.values.append(value)
        return records

    def run(self, steps: RecordSteps) -> list[MetadataRecord]:
        return self.commit(result_of(steps))

    def decide(self, steps: ControlSteps[R]) -> R:
        """Runs an operation of the controller. Returns its response."""
        return self.decided(steps)[1]

    def decided(self, steps: ControlSteps[R]) -> tuple[list[MetadataRecord], R]:
        """Runs an operation of the controller. Returns its records and its response."""
        result = result_of(steps)
        self.commit(result.records)
        if result.on_committed is not None:
            result.on_committed(len(self.values) - 1)
        return result.records, result.response

    def replayed(self) -> ClusterCatalog:
        """Another node's catalogue, from the log."""
        catalog = new_catalog()
        for offset, value in enumerate(self.values):
            catalog.replay(offset, value)
        return catalog

    def restart(self) -> None:
        """Another controller begins, from the log."""
        self.catalog = self.replayed()
        self.control = ClusterControl(self.catalog, CLUSTER, SESSION_MS)
        self.control.activate(self.now_ms)

    # --- requests -----------------------------------------------------------------------------------------------

    def register(self, broker_id: int, incarnation: int = 0, **changes: Any) -> int:
        """Registers a broker and returns its epoch."""
        asked = NewBroker(
            broker_id, CLUSTER, UUID(int=broker_id * 1000 + incarnation),
            (Endpoint("PLAINTEXT", f"h{broker_id}", 9092, 0),), FEATURES, None, (UUID(int=broker_id << 64),),
        )._replace(**changes)  # fmt: skip
        epoch = self.decide(self.control.register_broker(asked, Moment(self.now_ms, len(self.values))))
        assert epoch == self.catalog.nodes.brokers[broker_id].epoch
        return epoch

    def start(self, *broker_ids: int) -> dict[int, int]:
        """Registers brokers and lifts their fences. Returns their epochs."""
        epochs = {broker_id: self.register(broker_id) for broker_id in broker_ids}
        for broker_id in broker_ids:
            assert self.beat(broker_id).after is BrokerState.UNFENCED
        return epochs

    def beat(
        self,
        broker_id: int,
        *,
        epoch: int | None = None,
        offset: int | None = None,
        fence: bool = False,
        shutdown: bool = False,
        directories: Directories = NO_CHANGE,
    ) -> HeartbeatOutcome:
        """A heartbeat, by default of a broker that has all records."""
        if epoch is None:
            epoch = self.catalog.nodes.brokers[broker_id].epoch
        asked = BrokerHeartbeat(broker_id, epoch, len(self.values) - 1 if offset is None else offset, fence, shutdown)
        self.control.hear(broker_id, epoch, self.now_ms)
        return self.decide(self.control.heartbeat(asked, directories))

    def expire(self) -> list[MetadataRecord]:
        """Fences all brokers whose session is over."""
        found: list[MetadataRecord] = []
        while self.control.sessions.next_end_ms() <= self.now_ms:
            found += self.decided(self.control.fence_one(self.now_ms))[0]
        return found

    def request(self, asked: CatalogRequest) -> list[MetadataRecord]:
        return self.run(self.catalog.generate(asked))

    def create(self, name: str, *replicas: tuple[int, ...], count: int = 1, factor: int = 1) -> None:
        self._topics += 1
        assignments = dict(enumerate(replicas))
        self.request(CreateTopic(name, UUID(int=self._topics), count, factor, assignments))

    def partition(self, name: str, index: int = 0) -> PartitionRegistration:
        return self.catalog.topics[name].partitions[index]


def state_of(catalog: ClusterCatalog) -> list[bytes]:
    """The whole catalogue as the values of a snapshot."""
    return list(CatalogImage.of(catalog).values())


def records_of(catalog: ClusterCatalog) -> list[MetadataRecord]:
    """The whole catalogue as the records of a snapshot. Two of them are compared in half the time of values."""
    return list(CatalogImage.of(catalog).records())
