"""The controller's decisions about brokers, and what they do to the leaders of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from support.controlled_cluster import SESSION_MS, ControlledCluster, new_catalog, state_of

from odradek.catalog.features import ELIGIBLE_LEADERS
from odradek.catalog.records import FeatureLevelRecord, PartitionChangeRecord, ProducerIdsRecord
from odradek.catalog.state import BROKER, TOPIC, AlterConfigs, CreatePartitions, CreateTopic, DeleteTopic
from odradek.cluster.cluster_catalog import ControlSteps
from odradek.cluster.control import MAX_PRODUCER_ID, Directories, ReplicaDirectory
from odradek.cluster.nodes.sessions import NEVER, BrokerHeartbeat, BrokerState
from odradek.cluster.partitions.elections import Election
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState, NewestRequests
from odradek.cluster.partitions.leader_elections import MOST_AT_ONCE
from odradek.cluster.partitions.partition_changes import unclean_elections
from odradek.cluster.records import BrokerRegistrationChangeRecord, UnregisterBrokerRecord
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import CORRELATION_IDS, FetchingReplica

ALL = (1, 2, 3)


@pytest.fixture
def cluster() -> Iterator[ControlledCluster]:
    """Three brokers. At the end of each test, the catalogue is equal to the replayed one and to one from a snapshot."""
    made = ControlledCluster()
    made.start(*ALL)
    yield made
    assert state_of(made.replayed()) == state_of(made.catalog)
    copy = new_catalog()
    for value in state_of(made.catalog):
        copy.replay(-1, value)
    assert state_of(copy) == state_of(made.catalog)
    assert copy.nodes.brokers == made.catalog.nodes.brokers


def code_of(call: object) -> ErrorCode:
    with pytest.raises(KafkaError) as raised:
        call()
    return raised.value.code


# --- sessions ---------------------------------------------------------------------------------------------------


def test_a_broker_leaves_the_fence_when_it_has_its_registration() -> None:
    cluster = ControlledCluster()
    cluster.register(1)
    reply = cluster.beat(1, offset=-1)
    assert (reply.is_caught_up, reply.is_fenced, reply.should_shut_down) == (False, True, False)
    assert cluster.beat(1, offset=0, fence=True).is_fenced
    reply = cluster.beat(1, offset=0)
    assert (reply.is_caught_up, reply.is_fenced) == (True, False)
    assert cluster.catalog.nodes.is_active(1)


def test_a_broker_without_heartbeats_is_fenced_after_its_session(cluster: ControlledCluster) -> None:
    cluster.now_ms += SESSION_MS
    cluster.beat(1)
    assert cluster.expire() == []
    cluster.now_ms += 1
    fenced = cluster.expire()
    assert [(type(record), record.broker_id) for record in fenced] == [
        (BrokerRegistrationChangeRecord, 2), (BrokerRegistrationChangeRecord, 3),
    ]  # fmt: skip
    assert [broker.is_fenced for broker in cluster.catalog.nodes.brokers.values()] == [False, True, True]
    assert not cluster.beat(2).is_fenced


def test_a_restarted_controller_gives_each_unfenced_broker_a_whole_session(cluster: ControlledCluster) -> None:
    cluster.beat(3, fence=True)
    cluster.now_ms += SESSION_MS - 1
    cluster.restart()
    cluster.now_ms += SESSION_MS
    assert cluster.expire() == []
    cluster.now_ms += 1
    assert len(cluster.expire()) == 2
    assert cluster.control.sessions.next_end_ms() == NEVER


def test_a_heartbeat_with_another_epoch_is_stale(cluster: ControlledCluster) -> None:
    epoch = cluster.catalog.nodes.brokers[1].epoch
    assert code_of(lambda: cluster.beat(1, epoch=epoch + 1)) is ErrorCode.stale_broker_epoch
    assert code_of(lambda: cluster.beat(9, epoch=0)) is ErrorCode.stale_broker_epoch
    cluster.now_ms += SESSION_MS + 1  # a stale heartbeat gives no session
    assert code_of(lambda: cluster.beat(1, epoch=epoch + 1)) is ErrorCode.stale_broker_epoch
    assert len(cluster.expire()) == 3


def test_a_new_incarnation_registers_after_the_session_of_the_former(cluster: ControlledCluster) -> None:
    former = cluster.catalog.nodes.brokers[1].epoch
    assert code_of(lambda: cluster.register(1, incarnation=1)) is ErrorCode.duplicate_broker_registration
    assert cluster.register(1) == former  # the same incarnation
    cluster.now_ms += SESSION_MS + 1
    newer = cluster.register(1, incarnation=1)
    assert newer > former
    assert cluster.expire() != []  # the sessions of 2 and 3; that of the former incarnation fences no broker
    assert cluster.catalog.nodes.brokers[1].is_fenced
    assert code_of(lambda: cluster.beat(1, epoch=former)) is ErrorCode.stale_broker_epoch
    assert not cluster.beat(1).is_fenced
    assert cluster.expire() == []


# --- leaders ----------------------------------------------------------------------------------------------------


def test_a_fence_moves_the_leaders(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    cluster.create("single", (1,))
    cluster.beat(1, fence=True)
    moved = [cluster.partition("t", index) for index in (0, 1, 2)]
    assert [(one.leader, one.isr) for one in moved] == [(2, (2, 3)), (2, (2, 3)), (3, (3, 2))]
    alone = cluster.partition("single")
    assert (alone.leader, alone.isr, alone.elr, alone.last_known_elr) == (-1, (), (1,), (1,))
    before = alone.leader_epoch
    cluster.beat(1)
    alone = cluster.partition("single")
    assert (alone.leader, alone.isr, alone.elr, alone.last_known_elr) == (1, (1,), (), ())
    assert alone.leader_epoch == before + 1
    assert cluster.partition("t").leader == 2


def test_without_eligible_replicas_the_last_one_of_the_isr_stays(cluster: ControlledCluster) -> None:
    cluster.commit([FeatureLevelRecord(ELIGIBLE_LEADERS, 0)])
    cluster.create("t", (1, 2))
    cluster.beat(1, fence=True)
    cluster.beat(2, fence=True)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr) == (-1, (2,), ())
    cluster.beat(1)
    assert cluster.partition("t").leader == -1
    cluster.beat(2)
    assert cluster.partition("t").leader == 2


@pytest.mark.parametrize("where", ["topic", "cluster", "node"])
def test_an_unclean_leader_is_elected_if_a_setting_allows_it(where: str) -> None:
    cluster = ControlledCluster(**({"unclean_leader_election_enable": "true"} if where == "node" else {}))
    cluster.start(*ALL)
    cluster.commit([FeatureLevelRecord(ELIGIBLE_LEADERS, 0)])
    cluster.create("t", (1, 2))
    if where != "node":
        resource = (TOPIC, "t") if where == "topic" else (BROKER, "")
        cluster.request(AlterConfigs(*resource, {"unclean.leader.election.enable": "true"}))
    cluster.beat(2, fence=True)
    cluster.beat(1, fence=True)
    assert cluster.partition("t").leader == -1
    cluster.beat(2)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.recovery_state) == (2, (2,), 1)


def test_replicas_stay_eligible_below_the_minimum(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2, 3))
    cluster.request(AlterConfigs(TOPIC, "t", {"min.insync.replicas": "5"}))  # at most the number of replicas
    cluster.beat(3, fence=True)
    assert (cluster.partition("t").isr, cluster.partition("t").elr) == ((1, 2), (3,))
    cluster.beat(1, fence=True)
    assert (cluster.partition("t").leader, cluster.partition("t").elr) == (2, (1, 3))


def test_an_unclean_stop_ends_the_eligibility_and_a_clean_one_does_not(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2, 3))
    cluster.request(AlterConfigs(TOPIC, "t", {"min.insync.replicas": "3"}))
    epochs = {broker: cluster.catalog.nodes.brokers[broker].epoch for broker in ALL}
    cluster.beat(3, fence=True)
    cluster.beat(2, fence=True)
    assert cluster.partition("t").elr == (2, 3)
    cluster.now_ms += SESSION_MS + 1
    cluster.register(3, incarnation=1, previous_epoch=epochs[3])
    assert cluster.partition("t").elr == (2, 3)
    cluster.register(2, incarnation=1, previous_epoch=epochs[2] - 1)
    assert cluster.partition("t").elr == (3,)
    cluster.register(1, incarnation=1)  # an earlier version of the request says nothing
    partition = cluster.partition("t")
    assert (partition.isr, partition.elr, partition.leader, partition.last_known_elr) == ((), (3,), -1, (1,))
    cluster.register(3, incarnation=2, previous_epoch=-1)
    assert cluster.partition("t").elr == ()
    cluster.beat(2)
    assert cluster.partition("t").leader == -1
    cluster.beat(1)  # the last known leader, although its stop was not clean
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.recovery_state) == (1, (1,), 1)


def test_a_controlled_shutdown_ends_when_all_active_brokers_know_the_new_leaders(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2), (2, 1))
    for broker in ALL:
        cluster.beat(broker)
    reply = cluster.beat(1, shutdown=True)
    assert (reply.after, reply.is_fenced, reply.should_shut_down) == (BrokerState.CONTROLLED_SHUTDOWN, False, False)
    assert [cluster.partition("t", index).leader for index in (0, 1)] == [2, 2]
    assert code_of(lambda: cluster.create("u", (1,))) is ErrorCode.invalid_replica_assignment
    assert not cluster.beat(1, shutdown=True).should_shut_down
    cluster.beat(2)
    assert not cluster.beat(1, shutdown=True).should_shut_down
    end = cluster.control.sessions.shutdown_offset(1)
    cluster.beat(3, offset=end - 1)
    assert not cluster.beat(1, shutdown=True).should_shut_down
    cluster.beat(3, offset=end)
    reply = cluster.beat(1, shutdown=True)
    assert (reply.should_shut_down, reply.is_fenced) == (True, True)
    assert cluster.catalog.nodes.brokers[1].is_fenced
    assert cluster.catalog.nodes.brokers[1].is_shutting_down


def test_the_last_broker_stops_although_no_other_can_lead() -> None:
    cluster = ControlledCluster()
    cluster.start(1)
    cluster.create("t", (1,))
    assert cluster.beat(1, shutdown=True).after is BrokerState.CONTROLLED_SHUTDOWN
    assert cluster.partition("t").leader == -1
    assert cluster.beat(1, shutdown=True).should_shut_down
    assert cluster.beat(1, shutdown=True).should_shut_down  # a lost reply
    cluster.now_ms += SESSION_MS + 1
    cluster.register(1, incarnation=1, previous_epoch=0)
    cluster.beat(1)
    assert (cluster.partition("t").leader, cluster.partition("t").recovery_state) == (1, 0)


def test_a_broker_without_leaders_stops_at_once(cluster: ControlledCluster) -> None:
    reply = cluster.beat(1, shutdown=True)
    assert (reply.before, reply.after) == (BrokerState.UNFENCED, BrokerState.SHUTDOWN_NOW)
    assert cluster.beat(2, shutdown=True, fence=True).should_shut_down


def test_an_unregistered_broker_leaves_the_isr(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2))
    records, _ = cluster.decided(cluster.control.unregister(1))
    assert isinstance(records[0], PartitionChangeRecord)
    assert isinstance(records[-1], UnregisterBrokerRecord)
    assert (cluster.partition("t").leader, cluster.partition("t").isr) == (2, (2,))
    assert code_of(lambda: cluster.decide(cluster.control.unregister(1))) is ErrorCode.broker_id_not_registered
    assert code_of(lambda: cluster.create("u", (1,))) is ErrorCode.invalid_replica_assignment
    assert cluster.register(1, incarnation=4) == len(cluster.values) - 1
    cluster.now_ms += SESSION_MS + 1
    cluster.expire()
    assert cluster.beat(1).after is BrokerState.UNFENCED


def test_a_directory_that_is_offline_leads_nothing() -> None:
    cluster = ControlledCluster()
    first, second = UUID(int=1 << 64), UUID(int=9 << 64)
    cluster.register(1, directories=(first, second))
    cluster.beat(1)
    cluster.start(2)
    cluster.create("t", (1, 2))
    cluster.create("u", (1, 2))
    change = PartitionChangeRecord(0, cluster.catalog.topics["t"].id, directories=(first, UUID(int=2 << 64)))
    cluster.commit([change])
    cluster.commit([change._replace(topic_id=cluster.catalog.topics["u"].id, directories=(second, UUID(int=2 << 64)))])
    cluster.beat(1, directories=Directories(offline=(first,)))
    assert (cluster.partition("t").leader, cluster.partition("u").leader) == (2, 1)
    assert cluster.catalog.nodes.brokers[1].directories == (second,)
    size = len(cluster.values)
    cluster.beat(1, directories=Directories(offline=(first,)))
    assert len(cluster.values) == size
    cluster.beat(1, directories=Directories(cordoned=(second,)))
    cluster.beat(1, directories=Directories(cordoned=(second,)))
    assert len(cluster.values) == size + 1
    assert [broker.broker_id for broker in cluster.catalog.usable_brokers()] == [2]


# --- new partitions ---------------------------------------------------------------------------------------------


def test_new_replicas_are_spread_and_have_the_directories_of_their_brokers(cluster: ControlledCluster) -> None:
    cluster.create("t", count=6, factor=2)
    partitions = cluster.catalog.topics["t"].partitions
    assert {partition.leader for partition in partitions} == set(ALL)
    for partition in partitions:
        assert partition.directories == tuple(UUID(int=broker << 64) for broker in partition.replicas)
        assert partition.isr == partition.replicas
    cluster.request(CreatePartitions("t", 8))
    assert len(cluster.catalog.topics["t"].partitions) == 8
    assert code_of(lambda: cluster.create("u", count=1, factor=4)) is ErrorCode.invalid_replication_factor


def test_a_fenced_broker_gets_replicas_but_is_not_in_the_isr(cluster: ControlledCluster) -> None:
    cluster.beat(2, fence=True)
    cluster.create("t", count=3, factor=3)
    for partition in cluster.catalog.topics["t"].partitions:
        assert 2 in partition.replicas
        assert set(partition.isr) == {1, 3}
        assert partition.leader == partition.replicas[0] != 2
    cluster.create("u", (2, 1))
    assert (cluster.partition("u").leader, cluster.partition("u").isr) == (1, (1,))
    assert code_of(lambda: cluster.create("v", (2,))) is ErrorCode.invalid_replica_assignment
    cluster.beat(1, fence=True)
    cluster.beat(3, fence=True)
    assert code_of(lambda: cluster.create("w")) is ErrorCode.invalid_replication_factor
    assert code_of(lambda: cluster.request(CreatePartitions("t", 4))) is ErrorCode.invalid_replication_factor


def test_racks_share_the_replicas() -> None:
    cluster = ControlledCluster()
    for broker in range(1, 7):
        cluster.register(broker, rack="ab"[broker % 2])
        cluster.beat(broker)
    cluster.create("t", count=9, factor=2)
    for partition in cluster.catalog.topics["t"].partitions:
        assert {replica % 2 for replica in partition.replicas} == {0, 1}


def test_producer_ids_are_for_registered_incarnations(cluster: ControlledCluster) -> None:
    epoch = cluster.catalog.nodes.brokers[2].epoch
    blocks = [cluster.decide(cluster.control.allocate_producer_ids(2, epoch)) for _ in range(2)]
    assert blocks == [(0, 1000), (1000, 1000)]
    assert cluster.catalog.next_producer_id == 2000
    stale = ErrorCode.stale_broker_epoch
    assert code_of(lambda: cluster.decide(cluster.control.allocate_producer_ids(2, epoch + 1))) is stale
    cluster.commit([ProducerIdsRecord(2, epoch, MAX_PRODUCER_ID - 999)])
    assert (
        code_of(lambda: cluster.decide(cluster.control.allocate_producer_ids(2, epoch)))
        is ErrorCode.unknown_server_error
    )


def test_a_request_of_thousands_of_partitions_has_steps(cluster: ControlledCluster) -> None:
    cluster.request(CreateTopic("t", UUID(int=99), 2000, 1))
    steps = cluster.control.unregister(1)
    count = sum(1 for _ in steps)
    assert count >= 4


# --- the ISR that a leader asks for ------------------------------------------------------------------------------


def alter(cluster: ControlledCluster, number: int, *isr: int) -> ErrorCode | list[IsrState | ErrorCode]:
    """Broker 1 asks for an ISR of t-0 with the request of this number, as if no other request had been accepted."""
    epochs = {each: cluster.catalog.nodes.brokers[each].epoch for each in ALL}
    members = tuple(FetchingReplica(each, epochs[each]) for each in isr)
    now = cluster.partition("t")
    change = IsrProposal(cluster.catalog.topics["t"].id, 0, now.leader_epoch, now.partition_epoch, members)
    try:
        return cluster.decide(cluster.control.change_isrs(1, epochs[1], [change], number))
    except KafkaError as error:
        return error.code


def test_a_request_for_an_isr_counts_only_before_later_ones_of_its_broker(cluster: ControlledCluster) -> None:
    """A refusal raises no epoch. So a former copy would be accepted after it."""
    cluster.create("t", (1, 2))
    assert isinstance(alter(cluster, 5, 1), list)
    cluster.beat(2, fence=True)
    assert alter(cluster, 9, 1, 2) == [ErrorCode.ineligible_replica]
    cluster.beat(2)
    before = cluster.partition("t")
    for late in (9, 8, 5, 0):
        assert alter(cluster, late, 1, 2) is ErrorCode.request_timed_out
    assert cluster.partition("t") == before
    assert isinstance(alter(cluster, 10, 1, 2), list)
    assert cluster.partition("t").isr == (1, 2)


def test_the_requests_of_another_incarnation_or_of_another_controller_are_numbered_from_the_start() -> None:
    newest = NewestRequests()
    newest.check(1, 7, 50)
    newest.check(2, 8, 1)
    assert code_of(lambda: newest.check(1, 7, 49)) is ErrorCode.request_timed_out
    newest.check(1, 9, 1)
    assert code_of(lambda: newest.check(1, 9, 1)) is ErrorCode.request_timed_out


def test_the_numbers_of_requests_begin_again_after_the_largest() -> None:
    newest = NewestRequests()
    for number in (CORRELATION_IDS - 2, CORRELATION_IDS - 1, 0, 3):
        newest.check(1, 7, number)
    assert code_of(lambda: newest.check(1, 7, CORRELATION_IDS - 1)) is ErrorCode.request_timed_out


# --- unclean elections ------------------------------------------------------------------------------------------


def lines_of(cluster: ControlledCluster, call: Callable[[], ControlSteps[Any]]) -> list[str]:
    """The lines about the unclean elections of an operation."""
    records = result_of(call()).records
    return [str(one) for one in unclean_elections(cluster.catalog, records)]


def test_an_unclean_election_names_the_new_leader_and_who_had_the_records(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2))
    cluster.request(AlterConfigs(TOPIC, "t", {"unclean.leader.election.enable": "true"}))
    epochs = {number: cluster.catalog.nodes.brokers[number].epoch for number in ALL}
    change = IsrProposal(cluster.catalog.topics["t"].id, 0, 0, 0, (FetchingReplica(1, epochs[1]),))
    cluster.decide(cluster.control.change_isrs(1, epochs[1], [change], number=1))
    fence = BrokerHeartbeat(1, epochs[1], NEVER, True, False)
    (line,) = lines_of(cluster, lambda: cluster.control.heartbeat(fence, Directories()))
    assert line == (
        "t-0: broker 2 leads by an unclean election, from leader epoch 1 on. Acknowledged records that it does not "
        "have are lost. Brokers that may have had them: 1"
    )
    (election,) = unclean_elections(cluster.catalog, result_of(cluster.control.heartbeat(fence, Directories())).records)
    assert election.may_lose
    cluster.beat(1, fence=True)
    assert cluster.partition("t").recovery_state == 1
    assert lines_of(cluster, lambda: cluster.control.heartbeat(fence, Directories())) == []


def test_an_election_from_the_isr_or_of_an_eligible_replica_is_clean(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2))
    cluster.create("alone", (1,))
    epoch = cluster.catalog.nodes.brokers[1].epoch
    fence = BrokerHeartbeat(1, epoch, NEVER, True, False)
    assert lines_of(cluster, lambda: cluster.control.heartbeat(fence, Directories())) == []
    cluster.beat(1, fence=True)
    assert cluster.partition("alone").elr == (1,)
    back = BrokerHeartbeat(1, epoch, NEVER, False, False)
    assert lines_of(cluster, lambda: cluster.control.heartbeat(back, Directories())) == []


def test_the_last_known_leader_loses_nothing(cluster: ControlledCluster) -> None:
    cluster.create("alone", (1,))
    cluster.now_ms += SESSION_MS + 1
    cluster.beat(2)
    cluster.expire()
    cluster.register(1, incarnation=1)
    assert (cluster.partition("alone").elr, cluster.partition("alone").last_known_elr) == ((), (1,))
    back = BrokerHeartbeat(1, cluster.catalog.nodes.brokers[1].epoch, NEVER, False, False)
    (line,) = lines_of(cluster, lambda: cluster.control.heartbeat(back, Directories()))
    assert (
        line
        == "alone-0: broker 1 leads again after an unclean stop, from leader epoch 2 on. No other broker has led since"
    )
    (election,) = unclean_elections(cluster.catalog, result_of(cluster.control.heartbeat(back, Directories())).records)
    assert not election.may_lose


# --- elections from time to time --------------------------------------------------------------------------------


def test_many_leaders_are_balanced_in_parts(cluster: ControlledCluster) -> None:
    """Each part is one batch of the metadata log, and the next one follows at once."""
    cluster.create("t", *[(1, 2)] * (MOST_AT_ONCE + 7), (2, 1))
    cluster.beat(1, fence=True)
    cluster.beat(1)
    assert cluster.decided(cluster.control.balance_leaders()) == ([], False)  # broker 1 is not in sync
    epoch = cluster.catalog.nodes.brokers[2].epoch
    asked = [
        IsrProposal(cluster.catalog.topics["t"].id, one.partition_id, one.leader_epoch, one.partition_epoch,
                  (FetchingReplica(2), FetchingReplica(1)))
        for one in cluster.catalog.topics["t"].partitions
    ]  # fmt: skip
    assert ErrorCode.none not in cluster.decide(cluster.control.change_isrs(2, epoch, asked, number=1))
    parts = [cluster.decided(cluster.control.balance_leaders()) for _ in range(3)]
    assert [(len(records), is_more) for records, is_more in parts] == [(MOST_AT_ONCE, True), (7, False), (0, False)]
    assert {one.leader for one in cluster.catalog.topics["t"].partitions[:-1]} == {1}
    assert cluster.partition("t", MOST_AT_ONCE + 7).leader == 2


def test_unclean_leaders_are_elected_only_where_a_topic_allows_them(cluster: ControlledCluster) -> None:
    for name in ("t", "u"):
        cluster.create(name, (1, 2))
        cluster.beat(2, fence=True)
        cluster.beat(2)
    cluster.beat(1, fence=True)
    assert {cluster.partition(name).leader for name in ("t", "u")} == {-1}
    assert cluster.decided(cluster.control.elect_unclean_leaders()) == ([], False)
    cluster.request(AlterConfigs(TOPIC, "u", {"unclean.leader.election.enable": "true"}))
    records, is_more = cluster.decided(cluster.control.elect_unclean_leaders())
    assert (len(records), is_more) == (1, False)
    assert (cluster.partition("u").leader, cluster.partition("u").recovery_state) == (2, 1)
    assert cluster.partition("t").leader == -1


def test_a_replica_in_an_offline_directory_may_not_lead(cluster: ControlledCluster) -> None:
    cluster.create("t", (1, 2))
    offline = UUID(int=77 << 64)
    assigned = [ReplicaDirectory(cluster.catalog.topics["t"].id, 0, offline)]
    cluster.decide(cluster.control.assign_directories(2, cluster.catalog.nodes.brokers[2].epoch, assigned))
    assert cluster.partition("t").isr == (1,)
    cluster.beat(1, fence=True)
    assert cluster.partition("t").leader == -1
    (_, (result,)) = cluster.decide(cluster.control.elect_leaders(Election.UNCLEAN, [("t", [0])]))[0]
    assert result.code is ErrorCode.eligible_leaders_not_available


def test_a_broker_that_was_eligible_registers_after_the_end_of_the_topic(cluster: ControlledCluster) -> None:
    """Apache Kafka 4.3 refuses it: ``docs/notes/elections-in-kafka.md``."""
    cluster.create("t", (1, 2))
    cluster.request(AlterConfigs(TOPIC, "t", {"min.insync.replicas": "2"}))
    cluster.beat(2, fence=True)
    assert cluster.partition("t").elr == (2,)
    cluster.request(AlterConfigs(TOPIC, "t", {"min.insync.replicas": "1"}))
    assert cluster.partition("t").elr == ()
    cluster.request(DeleteTopic(cluster.catalog.topics["t"].id))
    cluster.now_ms += SESSION_MS + 1
    cluster.register(2, incarnation=1)
    cluster.decide(cluster.control.unregister(2))
    assert sorted(cluster.catalog.nodes.brokers) == [1, 3]
