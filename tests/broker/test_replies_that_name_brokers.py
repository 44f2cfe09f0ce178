"""Replies that name brokers, at a broker whose metadata log has three: two listeners, racks, one of them fenced.

The expected rows are those of Kafka 4.3's KRaftMetadataCache (getAliveBrokerNodes, getBrokerNodes, getTopicMetadata,
describeTopicResponse) and KafkaApis (getCurrentLeader, getCoordinator).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from support.memory_files import MemoryFiles
from support.simulated_node import SimulatedNode
from support.world import World

from odradek.broker.coordinators.group_metadata import BrokerGroupCatalog
from odradek.broker.metadata.image_brokers import ImageBrokers
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.settings.listener import Listener
from odradek.catalog.records import Id16, MetadataRecord, PartitionChangeRecord, PartitionRecord, TopicRecord
from odradek.catalog.state import CatalogState, RecordSteps
from odradek.cluster.cluster_catalog import ClusterCatalog, SteppedRecords
from odradek.cluster.records import BrokerRegistrationChangeRecord, Endpoint, RegisterBrokerRecord
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire import frames
from odradek.wire.api_keys import (
    DESCRIBE_CLUSTER,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    FIND_COORDINATOR,
    LIST_CONFIG_RESOURCES,
    METADATA,
    PRODUCE,
)

OWN, OTHER, FENCED = 1, 2, 3
CLIENTS, INSIDE, EXTRA = (Listener(name, "PLAINTEXT", "127.0.0.1", 9092) for name in ("CLIENTS", "INSIDE", "EXTRA"))
"""The fenced broker and this one have no endpoint on EXTRA."""
OK, LEFT = ErrorCode.none, ErrorCode.not_leader_or_follower
TOPIC = UUID(int=7)
OFFSETS = UUID(int=8)
ELSEWHERE = UUID(int=9)
HOMES = {broker: UUID(int=1000 + broker) for broker in (OWN, OTHER, FENCED)}
GONE = UUID(int=2000)
"""A log directory that no broker has."""


class RegisteredRole(LoneRole):
    """The role of a broker whose catalogue has registered brokers."""

    def new_catalog(self) -> CatalogState:
        return ClusterCatalog(lambda data: UUID(bytes=data), random.Random(1))

    def new_brokers(self) -> ImageBrokers:
        return ImageBrokers(self.node.catalog, self.node.listeners, self.node.new_uuid)


def registered(broker: int, rack: str | None) -> RegisterBrokerRecord:
    names = ["CLIENTS", "INSIDE"] + ["EXTRA"] * (broker == OTHER)
    endpoints = tuple(Endpoint(name, f"{name.lower()}-{broker}", 9000 + broker, 0) for name in names)
    return RegisterBrokerRecord(
        broker, UUID(int=broker), broker, endpoints, rack=rack, is_fenced=broker == FENCED, directories=(HOMES[broker],)
    )


def partition(
    index: int,
    leader: int,
    *,
    topic: Id16 = TOPIC,
    isr: tuple[int, ...] = (OWN, OTHER),
    lost: bool = False,
    **more: Any,
) -> PartitionRecord:
    homes = (HOMES[OWN], GONE if lost else HOMES[OTHER], HOMES[FENCED])
    return PartitionRecord(index, topic, (OWN, OTHER, FENCED), isr, leader, 5, directories=homes, **more)


class ClusterClient:
    """A client of the broker with registered brokers. ``listener``: the one that it has connected to."""

    def __init__(self, *, is_slow: bool = False) -> None:
        world = World(1)
        self.node = SimulatedNode(
            world, MemoryFiles(), {"node.id": str(OWN), "offsets.topic.num.partitions": "3"},
            new_role=RegisteredRole, is_slow=is_slow,
        )  # fmt: skip
        self.node.begin()
        self.broker = self.node.broker
        self.apply(
            registered(OWN, "a"), registered(OTHER, "b"), registered(FENCED, None),
            TopicRecord("t", TOPIC),
            partition(0, OWN), partition(1, OTHER, lost=True),
            partition(2, -1, isr=(), elr=(OWN,), last_known_elr=(FENCED,)),
            TopicRecord(OFFSETS_TOPIC, OFFSETS),
            *(partition(index, leader, topic=OFFSETS) for index, leader in enumerate((OWN, OTHER, -1))),
        )  # fmt: skip
        self.replies: list[bytes] = []

    def apply(self, *changes: MetadataRecord) -> None:
        def made() -> RecordSteps:
            yield from ()
            return list(changes)

        steps = self.broker.controller.steps_of(lambda change: change.add(SteppedRecords(made)))
        self.node.loop.run(lambda: self.broker.finish(steps))

    def ask(self, key: int, version: int, message: dict[str, Any], listener: Listener = CLIENTS) -> Any:
        self.replies.clear()
        wire = self.node.connect(self.replies.append)
        wire.connection.listener = listener
        wire.send(frames.encode_request(key, version, 1, "c", message))
        for _ in range(10_000):
            if self.replies:
                wire.hang_up()
                return frames.decode_reply(key, version, self.replies[0])[1]
            self.node.world.advance(1)
        raise AssertionError("no reply in ten seconds")


@pytest.fixture(params=[False, True], ids=["", "slow"])
def client(request: pytest.FixtureRequest) -> Iterator[ClusterClient]:
    made = ClusterClient(is_slow=request.param)
    yield made
    made.node.kill()


def metadata(client: ClusterClient, version: int, listener: Listener = CLIENTS) -> Any:
    message: dict[str, Any] = {"topics": [{"name": "t", "topic_id": None}]}
    message |= {
        "allow_auto_topic_creation": False, "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }  # fmt: skip
    return client.ask(METADATA, version, message, listener)


def addresses(rows: Any) -> list[tuple[int, str, int, str | None]]:
    return [(row.node_id, row.host, row.port, row.rack) for row in rows]


def test_metadata_names_the_brokers_without_a_fence_at_their_endpoints_of_the_listener(client: ClusterClient) -> None:
    reply = metadata(client, 9)
    assert addresses(reply.brokers) == [(OWN, "clients-1", 9001, "a"), (OTHER, "clients-2", 9002, "b")]
    assert addresses(metadata(client, 9, INSIDE).brokers) == [
        (OWN, "inside-1", 9001, "a"),
        (OTHER, "inside-2", 9002, "b"),
    ]
    assert addresses(metadata(client, 9, EXTRA).brokers) == [(OTHER, "extra-2", 9002, "b")]
    assert {metadata(client, 9).controller_id for _ in range(40)} == {OWN, OTHER}


def test_metadata_shows_leaders_and_offline_replicas(client: ClusterClient) -> None:
    def rows(version: int, listener: Listener = CLIENTS) -> list[tuple[Any, ...]]:
        (topic,) = metadata(client, version, listener).topics
        found = sorted(topic.partitions, key=lambda row: row.partition_index)
        return [
            (row.error_code, row.leader_id, getattr(row, "leader_epoch", None), row.replica_nodes, row.isr_nodes,
             getattr(row, "offline_replicas", None))
            for row in found
        ]  # fmt: skip

    everyone, unavailable = (OWN, OTHER, FENCED), ErrorCode.leader_not_available
    assert rows(9) == [
        (OK, OWN, 5, everyone, (OWN, OTHER), (FENCED,)),
        (OK, OTHER, 5, everyone, (OWN, OTHER), (OTHER, FENCED)),  # one replica is in a directory that is gone
        (unavailable, -1, 5, everyone, (), (FENCED,)),
    ]
    missing = ErrorCode.listener_not_found
    for version, code in ((9, missing), (6, missing), (5, unavailable), (1, unavailable)):
        (first, second, third) = rows(version, EXTRA)
        assert first[:2] == (code, -1), "this broker leads, and has no such listener"
        assert second[:2] == (OK, OTHER)
        assert third[:2] == (unavailable, -1)
        assert first[3] == everyone
        assert first[5] == ((OWN, FENCED) if version >= 5 else None)
    (first, _, third) = rows(0)  # lists the replicas that the client can reach
    assert first == (ErrorCode.replica_not_available, OWN, None, (OWN, OTHER), (OWN, OTHER), None)
    assert third == (unavailable, -1, None, (OWN, OTHER), (), None)


def test_metadata_of_many_partitions_is_the_same(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = metadata(client, 9)
    monkeypatch.setattr("odradek.broker.handlers.k03_metadata.PARTITIONS_AT_ONCE", 0)
    assert metadata(client, 9).topics == at_once.topics


def test_a_fence_and_its_end_are_visible_at_once(client: ClusterClient) -> None:
    client.apply(BrokerRegistrationChangeRecord(OTHER, OTHER, is_fenced=True))
    client.apply(BrokerRegistrationChangeRecord(FENCED, FENCED, is_fenced=False))
    reply = metadata(client, 9)
    assert addresses(reply.brokers) == [(OWN, "clients-1", 9001, "a"), (FENCED, "clients-3", 9003, None)]
    rows = sorted(reply.topics[0].partitions, key=lambda row: row.partition_index)
    assert [row.offline_replicas for row in rows] == [(OTHER,), (OTHER,), (OTHER,)]
    assert [row.leader_id for row in rows] == [OWN, OTHER, -1], "as in Kafka, a fence alone takes no leader away"
    client.apply(BrokerRegistrationChangeRecord(OWN, OWN, is_fenced=True))
    client.apply(BrokerRegistrationChangeRecord(FENCED, FENCED, is_fenced=True))
    assert metadata(client, 9).controller_id == -1
    assert metadata(client, 9).brokers == ()


def test_describe_cluster_shows_fenced_brokers_if_it_is_asked_to(client: ClusterClient) -> None:
    def described(version: int, **more: Any) -> list[tuple[Any, ...]]:
        message = (
            {"include_cluster_authorized_operations": False} | ({"endpoint_type": 1} if version >= 1 else {}) | more
        )
        reply = client.ask(DESCRIBE_CLUSTER, version, message)
        assert reply.controller_id in (OWN, OTHER)
        return [(row.broker_id, row.host, row.port, row.rack, getattr(row, "is_fenced", None)) for row in reply.brokers]

    alive = [(OWN, "clients-1", 9001, "a"), (OTHER, "clients-2", 9002, "b")]
    assert described(0) == described(1) == [(*row, None) for row in alive]
    assert described(2, include_fenced_brokers=False) == [(*row, False) for row in alive]
    assert described(2, include_fenced_brokers=True) == [
        *((*row, False) for row in alive), (FENCED, "clients-3", 9003, None, True),
    ]  # fmt: skip


def test_describe_topic_partitions_shows_leaders_and_eligible_leaders(client: ClusterClient) -> None:
    message = {"topics": [{"name": "t"}], "response_partition_limit": 10, "cursor": None}

    def rows(listener: Listener) -> list[tuple[Any, ...]]:
        (topic,) = client.ask(DESCRIBE_TOPIC_PARTITIONS, 0, message, listener).topics
        return [
            (row.error_code, row.leader_id, row.eligible_leader_replicas, row.last_known_elr, row.offline_replicas)
            for row in topic.partitions
        ]

    assert rows(CLIENTS) == [
        (OK, OWN, (), (), (FENCED,)), (OK, OTHER, (), (), (OTHER, FENCED)), (OK, -1, (OWN,), (FENCED,), (FENCED,)),
    ]  # fmt: skip
    assert [row[1] for row in rows(EXTRA)] == [-1, OTHER, -1]


def test_list_config_resources_lists_all_brokers_of_the_listener(client: ClusterClient) -> None:
    def names(kind: int, listener: Listener) -> list[str]:
        reply = client.ask(LIST_CONFIG_RESOURCES, 1, {"resource_types": [kind]}, listener)
        return [row.resource_name for row in reply.config_resources]

    for kind in (4, 8):
        assert names(kind, CLIENTS) == ["1", "2", "3"]
        assert names(kind, EXTRA) == ["2"]


def test_find_coordinator_finds_the_leader_of_the_internal_topics_partition(client: ClusterClient) -> None:
    runtime = client.broker.groups
    names = {runtime.partition_of(name): name for name in map(str, range(40))}

    def found(listener: Listener) -> list[tuple[Any, ...]]:
        keys = [names[index] for index in range(3)]
        reply = client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": keys}, listener)
        assert [row.key for row in reply.coordinators] == keys
        return [(row.error_code, row.node_id, row.host, row.port) for row in reply.coordinators]

    unknown = (ErrorCode.coordinator_not_available, -1, "", -1)
    assert found(CLIENTS) == [(OK, OWN, "clients-1", 9001), (OK, OTHER, "clients-2", 9002), unknown]
    assert found(EXTRA) == [unknown, (OK, OTHER, "extra-2", 9002), unknown]
    client.apply(BrokerRegistrationChangeRecord(OTHER, OTHER, is_fenced=True))
    assert found(CLIENTS) == [(OK, OWN, "clients-1", 9001), unknown, unknown]
    client.apply(PartitionChangeRecord(1, OFFSETS, leader=OWN))
    assert found(CLIENTS)[1] == (OK, OWN, "clients-1", 9001)


def produced(client: ClusterClient, version: int, indexes: tuple[int, ...], listener: Listener = CLIENTS) -> Any:
    topic: dict[str, Any] = {"partition_data": [{"index": index, "records": b"x"} for index in indexes]}
    topic |= {"topic_id": TOPIC} if version >= 13 else {"name": "t"}
    message = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": [topic]}
    return client.ask(PRODUCE, version, message, listener)


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_produce_names_the_leader_of_a_partition_of_another_broker(client: ClusterClient, version: int) -> None:
    reply = produced(client, version, (0, 1, 2, 9))
    rows = {row.index: row for row in reply.responses[0].partition_responses}
    assert [rows[index].error_code for index in (1, 2, 9)] == [LEFT, LEFT, ErrorCode.unknown_topic_or_partition]
    if version < 10:
        assert not hasattr(reply, "node_endpoints")
        return
    leaders = {index: (row.current_leader.leader_id, row.current_leader.leader_epoch) for index, row in rows.items()}
    assert leaders == {0: (-1, -1), 1: (OTHER, 5), 2: (-1, 5), 9: (-1, -1)}
    assert addresses(reply.node_endpoints) == [(OTHER, "clients-2", 9002, "b")]
    assert addresses(produced(client, version, (1,), EXTRA).node_endpoints) == [(OTHER, "extra-2", 9002, "b")]
    assert addresses(produced(client, version, (0, 2)).node_endpoints) == []


def test_a_long_produce_request_names_leaders_too(client: ClusterClient) -> None:
    indexes = (*range(100, 350), 1)
    reply = produced(client, 12, indexes)
    rows = {row.index: row for row in reply.responses[0].partition_responses}
    assert len(rows) == len(indexes)
    assert rows[1].current_leader.leader_id == OTHER
    assert addresses(reply.node_endpoints) == [(OTHER, "clients-2", 9002, "b")]


def fetched(
    client: ClusterClient, version: int, indexes: tuple[int, ...], epoch: int = -1, of: tuple[str, UUID] = ("t", TOPIC)
) -> Any:
    topic: dict[str, Any] = {"partitions": [
        {"partition": index, "current_leader_epoch": epoch, "fetch_offset": 0, "last_fetched_epoch": -1,
         "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        for index in indexes
    ]}  # fmt: skip
    topic |= {"topic_id": of[1]} if version >= 13 else {"topic": of[0]}
    message: dict[str, Any] = {
        "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "topics": [topic], "forgotten_topics_data": (), "rack_id": "",
    }  # fmt: skip
    message |= {"replica_id": -1} if version < 15 else {}
    return client.ask(FETCH, version, message)


@pytest.mark.parametrize("version", [12, 15, 16, 18])
@pytest.mark.parametrize("more", [(), tuple(range(100, 350))], ids=["", "long"])
def test_fetch_names_the_leader_of_a_partition_of_another_broker(
    client: ClusterClient, version: int, more: tuple[int, ...]
) -> None:
    """Of partitions 1 and 2, this broker has no replica."""
    elsewhere = (HOMES[OTHER], HOMES[FENCED])
    client.apply(
        TopicRecord("u", ELSEWHERE), partition(0, OWN, topic=ELSEWHERE),
        PartitionRecord(1, ELSEWHERE, (OTHER, FENCED), (OTHER,), OTHER, 5, directories=elsewhere),
        PartitionRecord(2, ELSEWHERE, (OTHER, FENCED), (), -1, 5, directories=elsewhere),
    )  # fmt: skip
    reply = fetched(client, version, (0, 1, 2, *more), of=("u", ELSEWHERE))
    rows = {row.partition_index: row for row in reply.responses[0].partitions}
    assert [rows[index].error_code for index in range(3)] == [OK, LEFT, LEFT]
    leaders = [(rows[at].current_leader.leader_id, rows[at].current_leader.leader_epoch) for at in range(3)]
    if version < 16:
        assert leaders == [(-1, -1)] * 3
        return
    assert leaders == [(-1, -1), (OTHER, 5), (-1, 5)]
    assert addresses(reply.node_endpoints) == [(OTHER, "clients-2", 9002, "b")]


@pytest.mark.parametrize("version", [10, 12, 15, 18])
def test_a_consumer_may_fetch_from_a_replica_that_does_not_lead(client: ClusterClient, version: int) -> None:
    """From version 11 on (KIP-392), also while there is no leader."""
    reply = fetched(client, version, (0, 1, 2))
    codes = [row.error_code for row in reply.responses[0].partitions]
    assert codes == ([OK, OK, OK] if version >= 11 else [OK, LEFT, LEFT])


def test_fetch_names_the_leader_to_a_reader_with_an_old_epoch(client: ClusterClient) -> None:
    reply = fetched(client, 17, (0,), epoch=4)
    (row,) = reply.responses[0].partitions
    assert row.error_code == ErrorCode.fenced_leader_epoch
    assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (OWN, 5)
    assert addresses(reply.node_endpoints) == [(OWN, "clients-1", 9001, "a")]
    assert fetched(client, 17, (0,), epoch=6).node_endpoints == (), "the reader knows a later epoch than the broker"


def test_groups_get_the_racks_of_the_replicas(client: ClusterClient) -> None:
    broker = client.broker
    facts = BrokerGroupCatalog(broker.catalog, broker.config, broker.brokers).topic("t")
    assert facts is not None
    assert facts.racks == (("a", "b"),) * 3
