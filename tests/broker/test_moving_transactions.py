"""Coordinators of transactions that move between the brokers of a cluster, in a simulated world: what each broker
describes and lists, the expiry of transactional ids, and a log that cannot be read."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.group_nodes import GroupNodes
from support.replicated_nodes import ReplicatedNodes
from support.simulated_producer import Producing, code_of_produce
from support.transaction_schedule import RECORDS, SETTINGS

from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.errors import CorruptRecord, ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC, partition_for_key
from odradek.wire.api_keys import (
    DESCRIBE_PRODUCERS,
    DESCRIBE_TRANSACTIONS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_GROUPS,
    LIST_TRANSACTIONS,
)

NONE, ELSEWHERE = ErrorCode.none, ErrorCode.not_coordinator
BROKERS = (1, 2, 3)
INDEX = 1
"""The partition of ``__transaction_state`` that has the producer's transactional id."""


def described(producing: Producing, broker: int) -> tuple[ErrorCode, str]:
    """Returns the code and the state of DescribeTransactions at a broker."""
    message = {"transactional_ids": [producing.name]}
    (row,) = producing.nodes.brokers[broker].call(DESCRIBE_TRANSACTIONS, 0, message).transaction_states
    return row.error_code, row.transaction_state


def listed(nodes: GroupNodes, broker: int) -> tuple[ErrorCode, list[str]]:
    message = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    reply = nodes.brokers[broker].call(LIST_TRANSACTIONS, 1, message)
    return reply.error_code, [row.transactional_id for row in reply.transaction_states]


def producers(nodes: GroupNodes, broker: int, topic: str = RECORDS) -> tuple[ErrorCode, list[tuple[int, ...]]]:
    """Returns the code of DescribeProducers at a broker, and for each producer its id, epoch, last sequence and the
    first offset of its transaction."""
    message = {"topics": [{"name": topic, "partition_indexes": [0]}]}
    ((row,),) = [one.partitions for one in nodes.brokers[broker].call(DESCRIBE_PRODUCERS, 0, message).topics]
    return row.error_code, [
        (one.producer_id, one.producer_epoch, one.last_sequence, one.current_txn_start_offset)
        for one in row.active_producers
    ]


def run_until_loaded(nodes: GroupNodes, broker: int) -> None:
    nodes.settle()
    runtime = nodes.brokers[broker].broker.coordinators.runtime(TRANSACTIONS)
    nodes.run_until(lambda: runtime.shard(INDEX) is not None)


def writing() -> Producing:
    """A producer with an open transaction of one record in partition 0 of ``records``, which broker 1 leads."""
    producing = Producing()
    replies = producing.produce(1)
    producing.nodes.run_until(lambda: replies)
    assert code_of_produce(replies[0]) is NONE
    return producing


# --- descriptions -----------------------------------------------------------------------------------------------


def test_only_the_coordinator_describes_and_lists_a_transaction_also_after_a_move() -> None:
    producing = writing()
    nodes = producing.nodes
    assert [described(producing, at) for at in BROKERS] == [(ELSEWHERE, ""), (ELSEWHERE, ""), (NONE, "Ongoing")]
    assert [listed(nodes, at) for at in BROKERS] == [(NONE, []), (NONE, []), (NONE, [producing.name])]
    nodes.brokers[3].kill()
    successor = nodes.run_until_led(TRANSACTION_TOPIC, INDEX, not_by=3)
    other = 3 - successor
    run_until_loaded(nodes, successor)
    assert (described(producing, successor), described(producing, other)) == ((NONE, "Ongoing"), (ELSEWHERE, ""))
    assert (listed(nodes, successor), listed(nodes, other)) == ((NONE, [producing.name]), (NONE, []))
    nodes.brokers[3].begin()
    nodes.brokers[3].run_until_joined()
    assert (described(producing, 3), listed(nodes, 3)) == ((ELSEWHERE, ""), (NONE, []))


def test_each_replica_describes_the_producers_of_its_own_log() -> None:
    """Kafka's tool asks a follower with --broker-id. A broker without a replica gets NOT_LEADER_OR_FOLLOWER."""
    producing = writing()
    nodes = producing.nodes
    nodes.create("two", (2, 3))
    state = (producing.producer.producer_id, producing.producer.producer_epoch, 0, 0)
    nodes.run_until_equal(RECORDS, 0)
    assert [producers(nodes, at) for at in BROKERS] == [(NONE, [state])] * 3
    nodes.network.cut_off.add(3)
    replies = producing.produce(1, 1)
    nodes.run_until(lambda: replies)
    assert code_of_produce(replies[0]) is NONE
    newer = (*state[:2], 1, 0)
    assert [producers(nodes, at) for at in BROKERS] == [(NONE, [newer]), (NONE, [newer]), (NONE, [state])]
    nodes.network.cut_off.clear()
    nodes.run_until_equal(RECORDS, 0)
    assert producers(nodes, 3) == (NONE, [newer])
    assert producers(nodes, 2, "two") == producers(nodes, 3, "two") == (NONE, [])
    assert producers(nodes, 1, "two") == (ErrorCode.not_leader_or_follower, [])
    assert [producers(nodes, at, "none")[0] for at in BROKERS] == [ErrorCode.unknown_topic_or_partition] * 3


# --- expiry -----------------------------------------------------------------------------------------------------

EXPIRY = {
    "transactional.id.expiration.ms": "30000", "transaction.remove.expired.transaction.cleanup.interval.ms": "1000"
}  # fmt: skip


@pytest.mark.parametrize("moves", [False, True])
def test_only_the_coordinator_removes_expired_transactional_ids(moves: bool) -> None:
    """``moves``: the id expires at the second coordinator, while the first one runs as a follower."""
    producing = Producing(EXPIRY)
    nodes = producing.nodes
    coordinator = 3
    if moves:
        producing.move_away(TRANSACTION_TOPIC, INDEX)
        coordinator = nodes.leader(TRANSACTION_TOPIC, INDEX)
        assert coordinator != 3
        run_until_loaded(nodes, coordinator)
    nodes.run_until_equal(TRANSACTION_TOPIC, INDEX)
    end = nodes.partition(coordinator, TRANSACTION_TOPIC, INDEX).log_end_offset
    assert listed(nodes, coordinator) == (NONE, [producing.name])
    nodes.run_until(lambda: listed(nodes, coordinator) == (NONE, []), 45_000)
    nodes.world.advance(10_000)
    nodes.run_until_equal(TRANSACTION_TOPIC, INDEX)
    ends = [nodes.partition(at, TRANSACTION_TOPIC, INDEX).log_end_offset for at in BROKERS]
    assert ends == [end + 1] * 3  # one tombstone
    assert described(producing, coordinator) == (ErrorCode.transactional_id_not_found, "")


# --- logs and brokers that are missing --------------------------------------------------------------------------


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTION_TOPIC])
def test_a_log_that_cannot_be_read_is_left_out_of_lists(
    topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker leads two partitions, and one of them cannot be read. The ids and groups of the other are listed."""
    producing = Producing()
    nodes = producing.nodes
    other = next(name for name in map(str, range(20)) if partition_for_key(name, 2) != INDEX)
    message = {"transactional_id": other, "transaction_timeout": 9_000, "producer_id": -1, "producer_epoch": -1}
    at = nodes.leader(TRANSACTION_TOPIC, 0)
    nodes.run_until(lambda: nodes.brokers[at].call(INIT_PRODUCER_ID, 5, message).error_code is NONE)
    groups = [nodes.group_at(1), nodes.group_at(2)]
    assert [nodes.commit(nodes.coordinator(group), group, 5) for group in groups] == [NONE] * 2
    right, lost = ReplicatedPartition.read_bytes, (topic, INDEX)

    def read_bytes(self: ReplicatedPartition, offset: int, max_bytes: int) -> bytes:
        if (self.topic, self.index) == lost:
            raise CorruptRecord("the checksum of the batch at offset 0 is wrong")
        return right(self, offset, max_bytes)

    monkeypatch.setattr(ReplicatedPartition, "read_bytes", read_bytes)
    former = nodes.leader(*lost)
    nodes.brokers[former].kill()
    nodes.run_until_led(*lost, not_by=former)
    (left,) = [at for at in BROKERS if at not in (former, nodes.leader(*lost))]
    nodes.brokers[left].kill()
    survivor = nodes.run_until_led(topic, 1 - INDEX, not_by=left)
    assert survivor == nodes.leader(*lost)
    nodes.settle()
    found: list[Any] = []

    def is_listed() -> bool:
        if topic == TRANSACTION_TOPIC:
            found.append(listed(nodes, survivor))
            return found[-1] == (NONE, [other])
        reply = nodes.brokers[survivor].call(LIST_GROUPS, 4, {"states_filter": []})
        found.append((reply.error_code, [row.group_id for row in reply.groups]))
        return bool(found[-1] == (NONE, [one for one in groups if nodes.index_of(one) != INDEX]))

    nodes.run_until(is_listed)
    if topic == TRANSACTION_TOPIC:
        assert described(producing, survivor) == (ELSEWHERE, "")
    lines = [line for line in caplog.messages if line.startswith(f"{topic}-{INDEX}: the log cannot be read")]
    assert len(lines) == 1


def test_the_topic_of_transactions_waits_for_brokers(caplog: pytest.LogCaptureFixture) -> None:
    nodes = ReplicatedNodes(SETTINGS, count=2)
    message = {"key_type": 1, "coordinator_keys": ["x"]}
    with caplog.at_level(logging.ERROR, "odradek.broker"):
        for _ in range(3):
            (row,) = nodes.brokers[1].call(FIND_COORDINATOR, 4, message, answer_ms=9_000).coordinators
            assert row.error_code is ErrorCode.coordinator_not_available
    (line,) = [line for line in caplog.messages if TRANSACTION_TOPIC in line]
    assert line.startswith(f"{TRANSACTION_TOPIC} cannot be created, so its clients get COORDINATOR_NOT_AVAILABLE: INVA")
    assert "replication factor of 3 cannot be reached because only 2 broker(s) are registered" in line
