"""Fetches of followers as bytes at whole brokers: what they read, what wakes them, and which are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.cluster_nodes import Nodes
from support.logs import batch
from support.peers import Peer, run_alone, until
from support.replicas import make_replicated

from odradek.broker.handlers import k01_fetch
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.broker.server import BrokerServer
from odradek.catalog.records import Id16, MetadataRecord, PartitionChangeRecord
from odradek.catalog.state import CatalogState, OwnRecords
from odradek.core.errors import ErrorCode
from odradek.replication.follower_states import FollowerState
from odradek.wire import frames
from odradek.wire.api_keys import CREATE_TOPICS, FETCH, PRODUCE

LEADER, FOLLOWER, STRANGER = 1, 2, 9
NONE, LEFT = ErrorCode.none, ErrorCode.not_leader_or_follower
LONG_MS = 60_000
SIZE = len(batch(1))


class Change(OwnRecords):
    """A change of a partition, as the controller of a cluster makes it."""

    def __init__(self, topic_id: Id16, **fields: Any) -> None:
        self._record = PartitionChangeRecord(0, topic_id, **fields)

    def records(self, catalog: CatalogState) -> list[MetadataRecord]:
        return [self._record]


def fetch_message(
    replica: int, offset: int, *, epoch: int = 1, last_epoch: int = -1, wait_ms: int = 0, broker_epoch: int = -1,
    version: int = 12, **fields: Any,
) -> dict[str, Any]:  # fmt: skip
    part = {
        "partition": 0, "current_leader_epoch": epoch, "fetch_offset": offset, "last_fetched_epoch": last_epoch,
        "log_start_offset": 0, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    who = {"replica_id": replica} if version < 15 else {
        "replica_state": {"replica_id": replica, "replica_epoch": broker_epoch}
    }  # fmt: skip
    topic = {"topic": "t", "topic_id": fields.pop("topic_id", None), "partitions": [part]}
    return who | {
        "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "topics": [topic], "forgotten_topics_data": [], "rack_id": "",
    } | fields  # fmt: skip


def row_of(reply: Any) -> Any:
    ((row,),) = [topic.partitions for topic in reply.responses]
    return row


class Setup:
    """A broker that leads ``t``-0. The other replica, broker 2, is in sync, and fetches only if the test does."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        self.partition = make_replicated(broker, "t")
        self.change(replicas=(LEADER, FOLLOWER), isr=(LEADER, FOLLOWER), leader=LEADER)  # leader epoch 1

    @property
    def followers(self) -> Mapping[int, FollowerState]:
        assert self.partition.leader is not None
        return self.partition.leader.followers.states

    def change(self, **fields: Any) -> None:
        topic = self.broker.catalog.topic("t")
        assert topic is not None
        self.broker.finish(self.broker.controller.steps_of(lambda to: to.add(Change(topic.id, **fields))))

    async def produce(self, count: int = 1) -> None:
        topic = {"name": "t", "partition_data": [{"index": 0, "records": batch(1)}]}
        message = {"transactional_id": None, "acks": 1, "timeout": 9000, "topic_data": [topic]}
        peer = Peer(self.broker)
        for _ in range(count):
            reply = await peer.ask(PRODUCE, 9, message)
            assert reply.responses[0].partition_responses[0].error_code is NONE
        peer.close()

    async def fetch(self, replica: int, offset: int, **fields: Any) -> Any:
        peer = Peer(self.broker)
        reply = await peer.ask(FETCH, 12, fetch_message(replica, offset, **fields))
        peer.close()
        return row_of(reply)

    def begin(self, replica: int, offset: int, **fields: Any) -> Peer:
        """Sends a fetch that may wait."""
        peer = Peer(self.broker)
        message = fetch_message(replica, offset, wait_ms=LONG_MS, **fields)
        peer.connection.data_received(frames.encode_request(FETCH, 12, 1, "c", message))
        return peer

    async def row(self, peer: Peer) -> Any:
        await until(lambda: bool(peer.written))
        return row_of(frames.decode_reply(FETCH, 12, b"".join(peer.written)[4:])[1])

    async def rest(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)


@pytest.fixture
def run_scenario(tmp_path: Path) -> Any:
    return lambda scenario: run_alone(scenario, tmp_path, Setup, partitions=1)


def test_an_append_wakes_a_follower_and_the_high_watermark_a_consumer(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        follower, consumer = setup.begin(FOLLOWER, 0), setup.begin(-1, 0)
        await setup.produce()
        row = await setup.row(follower)
        assert (row.error_code, row.high_watermark, len(row.records), row.aborted_transactions) == (NONE, 0, SIZE, None)
        await setup.rest()
        assert not consumer.written, "a follower has to have the record first"
        waiting = setup.begin(FOLLOWER, 1)
        row = await setup.row(consumer)
        assert (row.high_watermark, len(row.records)) == (1, SIZE)
        await setup.rest()
        assert not waiting.written, "a new high watermark alone does not end the wait of a follower, as in Kafka"

    run_scenario(scenario)


def test_a_fetch_notes_the_follower_once(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.produce(3)
        waiting = setup.begin(FOLLOWER, 3)
        first = setup.followers[FOLLOWER]
        assert (first.end_offset, first.leader_end) == (3, 3)
        await setup.produce(2)
        await setup.row(waiting)
        assert setup.followers[FOLLOWER] == first, "the second read of the same fetch says nothing new"
        await setup.fetch(-1, 0)
        await setup.fetch(STRANGER, 5)
        assert setup.followers == {FOLLOWER: first}

    run_scenario(scenario)


@pytest.mark.parametrize("at_once", [k01_fetch.AT_ONCE, 0], ids=["at once", "in steps"])
def test_a_fetch_gets_what_its_own_position_lets_a_coordinator_append(
    run_scenario, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A coordinator appends when the high watermark has passed its last record: the end of a transaction behind its
    markers. Without these records the fetch would wait, and each transaction with it."""
    monkeypatch.setattr(k01_fetch, "AT_ONCE", at_once)

    async def scenario(setup: Setup) -> None:
        await setup.produce()
        setup.partition.wait_for(1, lambda _: setup.partition.append(batch(1)) and None)
        row = await asyncio.wait_for(setup.fetch(FOLLOWER, 1, wait_ms=LONG_MS), LONG_MS / 2000)
        assert (row.high_watermark, len(row.records)) == (1, SIZE)
        assert setup.followers[FOLLOWER].end_offset == 1

    run_scenario(scenario)


def test_a_change_of_the_role_ends_the_wait_of_a_follower(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        waiting = setup.begin(FOLLOWER, 0)
        setup.change(leader=FOLLOWER)
        assert (await setup.row(waiting)).error_code is LEFT
        assert setup.partition.leader is None, "a follower has no followers"
        setup.change(leader=LEADER)
        assert setup.partition.leader is not None
        assert (await setup.fetch(FOLLOWER, 0, epoch=3)).error_code is NONE

    run_scenario(scenario)


def test_a_broker_without_a_replica_is_refused_until_it_has_one(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.produce()
        assert (await setup.fetch(STRANGER, 0)).error_code is ErrorCode.unknown_leader_epoch
        assert (await setup.fetch(STRANGER, 0, epoch=-1)).error_code is LEFT
        assert (await setup.fetch(LEADER, 0)).error_code is ErrorCode.unknown_leader_epoch, "the leader itself"
        assert (await setup.fetch(FOLLOWER, 0, epoch=0)).error_code is ErrorCode.fenced_leader_epoch
        setup.change(replicas=(LEADER, FOLLOWER, STRANGER), adding=(STRANGER,))  # no new leader epoch
        assert len((await setup.fetch(STRANGER, 0)).records) == SIZE
        setup.change(replicas=(LEADER, STRANGER), adding=())
        assert (await setup.fetch(FOLLOWER, 0)).error_code is ErrorCode.unknown_leader_epoch

    run_scenario(scenario)


def test_a_follower_whose_log_diverges_learns_where(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.produce(2)
        setup.change(leader=LEADER)
        setup.change(leader=LEADER)  # epochs 2 and 3; only the last one gets a record
        await setup.produce()
        row = await setup.fetch(FOLLOWER, 4, epoch=3, last_epoch=2)
        assert (row.error_code, row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (NONE, 1, 2)
        assert not row.records
        assert setup.followers[FOLLOWER].end_offset == -1, "it has not the records before its offset"
        row = await setup.fetch(FOLLOWER, 2, epoch=3, last_epoch=1)
        assert (row.diverging_epoch.epoch, len(row.records)) == (-1, SIZE)

    run_scenario(scenario)


def test_no_quota_throttles_or_cuts_the_fetch_of_a_follower(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        quotas = {"consumer_byte_rate": 1.0, "request_percentage": 0.0001}
        await setup.produce(4)
        setup.partition.move_high_watermark(4)
        setup.broker.quotas.replace({(("client-id", None),): quotas})
        peers = [Peer(setup.broker) for _ in range(4)]
        replies = [await peer.ask(FETCH, 12, fetch_message(FOLLOWER, 0)) for peer in peers]
        assert [len(row_of(reply).records) for reply in replies] == [4 * SIZE] * 4
        assert all(not reply.throttle_time for reply in replies)
        for _ in range(3):
            reply = await Peer(setup.broker).ask(FETCH, 12, fetch_message(-1, 0))
        assert reply.throttle_time, "a consumer is throttled"

    run_scenario(scenario)


# --- in a cluster -----------------------------------------------------------------------------------------------


def test_a_follower_of_an_earlier_incarnation_is_refused_and_the_present_one_is_noted() -> None:
    nodes = Nodes()
    nodes.network.cut_off.add(2)  # otherwise it fetches by itself
    del nodes.brokers[2]
    assignments = [{"partition_index": 0, "broker_ids": [1, 2]}]
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}
    message: dict[str, Any] = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    made = nodes.controller.connect().call(CREATE_TOPICS, 7, message).topics[0]
    assert made.error_code is NONE, made
    nodes.settle()
    leader = nodes.brokers[1]
    registered = leader.broker.catalog.registered_brokers()[2]
    partition = leader.broker.partitions["t", 0]
    assert isinstance(partition, ReplicatedPartition)
    assert partition.leader is not None
    followers = partition.leader.followers
    assert followers.states[2].end_offset == -1

    def code(broker_epoch: int) -> ErrorCode:
        asked = fetch_message(
            2, 0, epoch=partition.leader_epoch, version=17, broker_epoch=broker_epoch, topic_id=made.topic_id
        )
        found: ErrorCode = row_of(leader.call(FETCH, 17, asked)).error_code
        return found

    assert code(registered.epoch - 1) is LEFT
    assert followers.states[2].end_offset == -1
    assert code(registered.epoch) is NONE
    state = followers.states[2]
    assert (state.end_offset, state.broker_epoch) == (0, registered.epoch)
    assert state.caught_up_ms == state.fetched_ms <= leader.broker.steady_ms()
