"""Damaged requests at a controller, in a simulated world: those of brokers, of observers of its log, of administrators.

The controller replies, refuses, or closes the connection. It meets no error that its code does not expect, it serves
a broker all the time, and a restart finds the catalogue as it was.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

import pytest
from support.controlled_cluster import state_of
from support.fuzzing import Mutator, watched
from support.simulated_controller import SimulatedController
from test_damaged_requests import LoggedErrors, Plausible, damaged_stream, plausible_requests

from odradek.broker.handlers import handler_files
from odradek.catalog.features import AT_FIRST
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.wire import frames

REGISTER, BEAT, FETCH, DESCRIBE_QUORUM = 62, 63, 1, 55
OF_A_CONTROLLER = sorted(
    {api.key for api in handler_files("controller")} - {api.key for api in handler_files("client")}
)
CLUSTER = "fuzzed-cluster-0000000"
FUZZED = (*OF_A_CONTROLLER, FETCH, DESCRIBE_QUORUM)
"""The others are fuzzed at a lone broker."""


class PlausibleAtController(Plausible):
    """Messages of brokers and observers with known ids and epochs."""

    USUAL: ClassVar[dict[str, tuple[Any, ...]]] = Plausible.USUAL | {
        "broker_id": (1, 2, 3),
        "broker_epoch": (1, 2, 3, 10, 12),
        "controller_id": (100, 101),
        "cluster_id": (CLUSTER,),
        "incarnation_id": (UUID(int=1), UUID(int=2)),
        "current_metadata_offset": (1 << 60, 0),
        "want_fence": (False,),
        "want_shut_down": (False, True),
        "is_migrating_zk_broker": (False,),
        "previous_broker_epoch": (-1, 10),
        "host": ("h",),
        "port": (9092,),
        "security_protocol": (0,),
        "topic_id": (UUID(int=1),),
        "current_leader_epoch": (1,),
        "fetch_offset": (0, 1, 2, 5),
        "last_fetched_epoch": (0, 1),
        "max_bytes": (1 << 20, 100),
        "replica_id": (-1, 7),
        "end_offset": (0, 1, 5),
        "epoch": (0, 1),
        "position": (0, 10),
        "topic_name": ("__cluster_metadata",),
        "log_dirs": (UUID(int=1 << 64),),
    }
    KINDS: ClassVar[dict[str, Any]] = Plausible.KINDS | {"uuid": UUID, "bool": bool, "int32": int, "int64": int}


@pytest.fixture
def findings() -> Iterator[list[str]]:
    """The errors that are logged with a traceback."""
    handler, log = LoggedErrors(), logging.getLogger("odradek")
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    log.propagate = False
    yield handler.found
    log.removeHandler(handler)
    log.setLevel(level)
    log.propagate = propagates


def sound_requests(controller: SimulatedController, per_version: int) -> list[bytes]:
    """Requests to the controller, among them valid registrations."""
    cluster_id = controller.broker.cluster_id
    assert len(cluster_id) == len(CLUSTER)
    made = plausible_requests(per_version, "controller", PlausibleAtController, apis=FUZZED)
    registrations = [
        frames.encode_request(REGISTER, 4, 1, "fuzz", registration(cluster_id, broker, incarnation))
        for broker in range(1, 5)
        for incarnation in range(5)
    ]
    return [data.replace(CLUSTER.encode(), cluster_id.encode()) for data in made] + registrations * 2


def registration(cluster_id: str, broker_id: int, incarnation: int) -> dict[str, Any]:
    return {
        "broker_id": broker_id,
        "cluster_id": cluster_id,
        "incarnation_id": UUID(int=(broker_id << 8) + incarnation),
        "listeners": [],
        "features": [{"name": name, "min_supported_version": 0, "max_supported_version": 40} for name in AT_FIRST],
        "rack": None,
        "is_migrating_zk_broker": False,
        "log_dirs": [UUID(int=broker_id << 64)],
        "previous_broker_epoch": -1,
    }


def serves(controller: SimulatedController, incarnation: int) -> None:
    """A broker registers, is heard, and reads the log."""
    wire = controller.connect()
    reply = wire.call(REGISTER, 4, registration(controller.broker.cluster_id, 9, incarnation))
    assert reply.error_code == 0, reply
    part = {"partition": 0, "current_leader_epoch": 1, "fetch_offset": reply.broker_epoch, "last_fetched_epoch": 1,
            "log_start_offset": -1, "partition_max_bytes": 0, "replica_directory_id": None,
            "high_watermark": -1}  # fmt: skip
    fetch = {"cluster_id": None, "replica_state": {"replica_id": 9, "replica_epoch": -1}, "max_wait": 0,
             "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0, "session_epoch": -1,
             "topics": [{"topic_id": UUID(int=1), "partitions": [part]}], "forgotten_topics_data": [],
             "rack_id": ""}  # fmt: skip
    (topic,) = wire.call(FETCH, 18, fetch).responses
    assert topic.partitions[0].error_code == 0
    assert topic.partitions[0].records or topic.partitions[0].snapshot_id.epoch > 0
    wire.close()
    controller.world.advance(10_000)  # the session of this incarnation ends


def fuzz(count: int, seed: int) -> Counter[int]:
    """Sends damaged and sound requests. Returns the number of replies of each API."""
    controller = SimulatedController({"metadata.log.max.snapshot.interval.ms": "60000"})
    mutator, sound = Mutator(seed), sound_requests(controller, 3)
    incarnations = itertools.count(1)
    answered: Counter[int] = Counter()
    with watched() as watch:
        replies = _Client(controller)
        for number in range(count):
            is_sound = mutator.dice.random() < 0.3
            data = mutator.dice.choice(sound) if is_sound else damaged_stream(mutator, sound)
            watch.begin(data)
            replies.send(data, answered)
            watch.end()
            if not replies.wire.is_open or replies.waits or mutator.dice.random() < 0.05:
                replies = _Client(controller)
            if number % 500 == 0:
                watch.begin(b"")
                serves(controller, next(incarnations))
    serves(controller, next(incarnations))
    shard = controller.broker.catalog.state
    assert isinstance(shard, ClusterCatalog)
    assert len(shard.nodes.brokers) > 1
    before, offset = state_of(shard), controller.broker.catalog.log_end_offset
    controller.restart()
    again = controller.broker.catalog.state
    assert isinstance(again, ClusterCatalog)
    assert state_of(again) == before, f"a restart at offset {offset} finds another catalogue"
    controller.node.kill()
    return answered


class _Client:
    """A connection that counts the replies."""

    def __init__(self, controller: SimulatedController) -> None:
        self._controller = controller
        self._replies: list[bytes] = []
        self.wire = controller.node.connect(self._replies.append)

    @property
    def waits(self) -> bool:
        """Whether the connection waits for the rest of a frame."""
        return bool(self.wire.connection.reader.buffered)

    def send(self, data: bytes, answered: Counter[int]) -> None:
        before = len(self._replies)
        self.wire.send(data)
        self._controller.world.advance(3)
        if len(self._replies) > before:
            answered[int.from_bytes(data[4:6], "big")] += 1


def test_a_controller_survives_damaged_requests(findings: Sequence[str]) -> None:
    answered = fuzz(1000, seed=1)
    assert not findings, findings[0]
    assert answered.keys() >= set(FUZZED), answered
    assert sum(answered.values()) > 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_controller_survives_a_hundred_thousand_damaged_requests(findings: Sequence[str], seed: int) -> None:
    fuzz(25_000, seed)
    assert not findings, findings[0]


def test_the_apis_of_a_controller_are_those_of_brokers_and_observers() -> None:
    # AlterPartition, Envelope, FetchSnapshot, BrokerRegistration, BrokerHeartbeat, AllocateProducerIds,
    # ControllerRegistration, AssignReplicasToDirs, UpdateRaftVoter
    assert OF_A_CONTROLLER == [56, 58, 59, 62, 63, 67, 70, 73, 82]
