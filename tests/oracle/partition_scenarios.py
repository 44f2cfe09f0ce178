"""Scenarios of partitions with several replicas at a controller: ISRs, elections. See ``SCENARIOS``."""

from __future__ import annotations

from collections.abc import Callable

from controller_conversation import Conversation

Scenario = Callable[[Conversation], None]


# --- the ISR that a leader asks for -----------------------------------------------------------------------------


def a_shrinking_and_growing_isr(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.alter(1, c.isr("t", 1, 3))
    c.alter(1, c.isr("t", 1, partition_epoch=1))
    c.alter(1, c.isr("t", 1, 2, partition_epoch=2))
    c.alter(1, c.isr("t", 3, 2, 1, partition_epoch=3))
    c.records()


def an_isr_that_does_not_change(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1, 2))
    c.alter(1, c.isr("t", 2, 1))
    c.alter(1, c.isr("t", 2, 1, partition_epoch=1))
    c.records()


def an_isr_in_version_2(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1), version=2)
    c.alter(1, c.isr("t", 1, 2, partition_epoch=1), version=2)
    c.alter(1, c.isr("t", 1, 2, partition_epoch=1), version=2)
    c.records()


def an_isr_with_old_and_new_epochs(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(1, fence=True)
    c.beat(1)
    c.alter(2, c.isr("t", 2, leader_epoch=0, partition_epoch=1))
    c.alter(2, c.isr("t", 2, leader_epoch=2, partition_epoch=1))
    c.alter(2, c.isr("t", 2, leader_epoch=1, partition_epoch=2))
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=0))
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=1))
    c.alter(1, c.isr("t", 1, 2, leader_epoch=0, partition_epoch=0))
    c.records()


def an_isr_from_a_follower(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(2, c.isr("t", 1))
    c.alter(2, c.isr("t", 2))
    c.alter(2, c.isr("t", 2, partition_epoch=1))
    c.alter(2, c.isr("t", 2, leader_epoch=1))
    c.records()


def an_isr_from_a_broker_with_another_epoch(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1), epoch=c.epoch(1) + 1)
    c.alter(1, c.isr("t", 1), epoch=c.epoch(1) - 1)
    c.alter(1, c.isr("t", 1), epoch=-1)
    c.alter(7, c.isr("t", 1))
    c.alter(7)
    c.alter(1, epoch=3)
    c.records()


def an_isr_of_an_unknown_partition(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2), (2, 1))
    c.alter(
        1, c.isr("other", 1), c.isr("t", 1), c.isr("t", 1, index=2), c.isr("t", 1, index=-1), c.isr("t", 1, index=1)
    )
    c.records()


def an_isr_of_a_topic_that_is_created_again(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    former = c.isr("t", 1)
    c.delete("t")
    c.alter(1, former)
    c.create("t", (1, 2))
    c.alter(1, former)
    c.alter(1, c.isr("t", 1))
    c.records()


def isrs_that_cannot_be(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t"))
    c.alter(1, c.isr("t", 2))
    c.alter(1, c.isr("t", 1, 3))
    c.alter(1, c.isr("t", 1, 9))
    c.alter(1, c.isr("t", 1, 1))
    c.alter(1, c.isr("t", 1, 2, 2))
    c.alter(1, c.isr("t", 1, 2, recovering=1))
    c.alter(1, c.isr("t", 1, recovering=1))
    c.alter(1, c.isr("t", 1, (-2000, 5)))
    c.records()


def an_unknown_recovery_state(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1, recovering=2))
    c.wait_until_active()
    c.alter(1, c.isr("t", 1, recovering=-1))
    c.wait_until_active()
    c.alter(1, c.isr("t", 9, recovering=2))
    c.alter(1, c.isr("t", 1))
    c.records()


def an_isr_with_a_fenced_broker(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.beat(2, fence=True)
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=1))
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=1), version=2)
    c.alter(1, c.isr("t", 1, 3, partition_epoch=1))
    c.beat(2)
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=1))
    c.records()


def an_isr_with_a_broker_in_a_controlled_shutdown(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.create("kept", (2,))
    c.beat(2, stop=True)
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=1))
    c.alter(2, c.isr("kept", 2))
    c.alter(2, c.isr("kept", 2, leader_epoch=1, partition_epoch=1))
    c.records()


def an_isr_with_a_broker_that_is_gone(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.unregister(3)
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=1))
    c.alter(1, c.isr("t", 1, 2, partition_epoch=1))
    c.records()


def an_isr_with_another_incarnation(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    former = c.epoch(2)
    c.alter(1, c.isr("t", 1))
    c.end_sessions(1)
    c.register(2, 1)
    c.beat(2)
    c.alter(1, c.isr("t", 1, (2, former), partition_epoch=1))
    c.alter(1, c.isr("t", 1, (2, former + 1), partition_epoch=1))
    c.alter(1, c.isr("t", (1, former), 2, partition_epoch=1))
    c.alter(1, c.isr("t", 1, (2, -1), partition_epoch=1))
    c.alter(1, c.isr("t", 1, 2, partition_epoch=2))
    c.records()


def isrs_below_the_minimum(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("t", "min.insync.replicas", "2")
    c.alter(1, c.isr("t", 1, 2))
    c.alter(1, c.isr("t", 1, partition_epoch=1))
    c.alter(1, c.isr("t", 1, 3, partition_epoch=2))
    c.alter(1, c.isr("t", 1, partition_epoch=3))
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=4))
    c.records()


def isrs_with_a_minimum_above_the_replicas(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.set("t", "min.insync.replicas", "5")
    c.alter(1, c.isr("t", 1))
    c.set("t", "min.insync.replicas", "1")
    c.alter(1, c.isr("t", 1, 2, partition_epoch=2))
    c.records()


def a_leader_that_recovers(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.set("t", "unclean.leader.election.enable", "true")
    c.alter(1, c.isr("t", 1))
    c.beat(1, fence=True)
    c.alter(2, c.isr("t", 2, recovering=1, leader_epoch=1, partition_epoch=2))
    c.beat(1)
    c.alter(2, c.isr("t", 2, 1, recovering=1, leader_epoch=1, partition_epoch=2))
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=2))
    c.alter(2, c.isr("t", 2, recovering=1, leader_epoch=1, partition_epoch=3))
    c.records()


def one_partition_twice_in_a_request(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.alter(1, c.isr("t", 1, 2), c.isr("t", 1, 3))
    c.alter(1, c.isr("t", 1, 2, 3, partition_epoch=2), c.isr("t", 1, 2, 3, partition_epoch=1))
    c.records()


def an_isr_of_a_leader_in_an_offline_directory(c: Conversation) -> None:
    directories = [c.directory(1), c.directory(4)]
    c.register(1, log_dirs=directories)
    c.beat(1)
    c.start(2, 3)
    c.create("t", (1, 2, 3))
    c.assign(1, {directories[1]: {"t": [0]}})
    c.beat(1, offline=directories[1:])
    c.alter(1, c.isr("t", 1, 2, 3))
    c.alter(2, c.isr("t", 2, 1, 3, leader_epoch=1, partition_epoch=2))
    c.records()


# --- elections that are asked for -------------------------------------------------------------------------------


def preferred_leaders(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3), (2, 1, 3), (3, 1))
    c.elect(0, {"t": [0, 1, 2]})
    c.beat(1, fence=True)
    c.elect(0, {"t": [0, 1]})
    c.beat(1)
    c.elect(0, {"t": [0]})
    c.alter(2, c.isr("t", 2, 3, 1, leader_epoch=1, partition_epoch=1))
    c.elect(0, {"t": [0, 1, 2]})
    c.records()


def preferred_leaders_of_all_topics(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2), (2, 1))
    c.create("u", (1, 2))
    c.elect(0, None)
    c.beat(1, fence=True)
    c.beat(1)
    c.elect(0, None)
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=1))
    c.elect(0, None)
    c.elect(1, None)
    c.records()


def elections_of_unknown_partitions(c: Conversation) -> None:
    c.start(1)
    c.create("t", (1,))
    for kind in (0, 1):
        c.elect(kind, {"t": [0, 1, -1], "other": [0]})
        c.elect(kind, {"t": []})
        c.elect(kind, {})
    c.elect(7, {"t": [0], "other": [1]})
    c.elect(-1, None)
    c.elect(7, {})
    c.records()


def elections_in_each_version(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    for version in (0, 1, 2):
        c.elect(0, {"t": [0, 1]}, version=version)
    c.beat(1, fence=True)
    c.elect(0, {"t": [0]}, version=0)
    c.elect(1, {"t": [0]}, version=1)
    c.records()


def an_unclean_leader_on_request(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1))
    c.elect(1, {"t": [0]})
    c.beat(1, fence=True)
    c.elect(0, {"t": [0]})
    c.elect(1, {"t": [0]})
    c.elect(1, {"t": [0]})
    c.beat(1)
    c.alter(2, c.isr("t", 2, 1, leader_epoch=2, partition_epoch=3))
    c.elect(0, {"t": [0]})
    c.records()


def elections_without_a_candidate(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1))
    c.beat(1, fence=True)
    c.beat(2, fence=True)
    c.elect(0, {"t": [0]})
    c.elect(1, {"t": [0]})
    c.elect(1, None)
    c.records()


def one_partition_twice_in_an_election(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(1, fence=True)
    c.beat(1)
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=1))
    c.elect(0, {"t": [0, 0]})
    c.elect(0, {"t": [0, 0]})
    c.records()


def an_election_during_a_shutdown(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2), (2, 1))
    c.create("alone", (1,))
    c.beat(1, stop=True)
    c.elect(0, {"t": [0, 1], "alone": [0]})
    c.elect(1, {"t": [0], "alone": [0]})
    c.records()


# --- eligible leader replicas -----------------------------------------------------------------------------------


def replicas_that_stay_eligible(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("t", "min.insync.replicas", "2")
    c.beat(3, fence=True)
    c.beat(2, fence=True)
    c.beat(1, fence=True)
    c.beat(2)
    c.alter(2, c.isr("t", 2, leader_epoch=2, partition_epoch=4))
    c.beat(3)
    c.alter(2, c.isr("t", 2, 3, leader_epoch=2, partition_epoch=4))
    c.records()


def an_eligible_replica_that_stops_uncleanly(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.set("t", "min.insync.replicas", "2")
    c.beat(2, fence=True)
    c.register(2, 1)
    c.beat(2)
    c.beat(1, fence=True)
    c.elect(1, {"t": [0]})
    c.records()


def an_eligible_replica_that_stops_cleanly(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.set("t", "min.insync.replicas", "2")
    epoch = c.epoch(2)
    c.beat(2, stop=True)
    c.beat(2, stop=True)
    c.register(2, 1, previous_broker_epoch=epoch)
    c.beat(1, fence=True)
    c.beat(2)
    c.records()


def eligible_replicas_and_another_minimum(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.create("u", (1, 2, 3))
    for label in ("t", "u"):
        c.set(label, "min.insync.replicas", "3")
        c.alter(1, c.isr(label, 1))
    c.set("t", "min.insync.replicas", "2")
    c.alter(1, c.isr("t", 1, 2, partition_epoch=2))
    c.set("u", "min.insync.replicas", None)
    c.alter(1, c.isr("u", 1, 3, partition_epoch=2))
    c.records()


def eligible_replicas_and_the_minimum_of_the_cluster(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("", "min.insync.replicas", "2")
    c.alter(1, c.isr("t", 1))
    c.set("", "min.insync.replicas", "3")
    c.alter(1, c.isr("t", 1, 3, partition_epoch=2))
    c.set("", "min.insync.replicas", "1")
    c.records()


def an_unregistered_replica(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("t", "min.insync.replicas", "3")
    c.unregister(1)
    c.alter(2, c.isr("t", 2, leader_epoch=1, partition_epoch=1))
    c.unregister(3)
    c.unregister(2)
    c.elect(1, {"t": [0]})
    c.records()


def the_last_replica_stops_uncleanly(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.alter(1, c.isr("t", 1))
    c.end_sessions(2)
    c.register(1, 1)
    c.elect(0, {"t": [0]})
    c.beat(1)
    c.alter(1, c.isr("t", 1, leader_epoch=2, partition_epoch=4))
    c.alter(1, c.isr("t", 1, 2, leader_epoch=2, partition_epoch=5))
    c.records()


def a_leader_in_an_offline_directory(c: Conversation) -> None:
    directories = [c.directory(1), c.directory(4)]
    c.register(1, log_dirs=directories)
    c.beat(1)
    c.start(2)
    c.create("t", (1, 2))
    c.assign(1, {directories[1]: {"t": [0]}})
    c.alter(1, c.isr("t", 1, partition_epoch=1))
    c.beat(1, offline=directories[1:])
    c.elect(0, {"t": [0]})
    c.elect(1, {"t": [0]})
    c.alter(2, c.isr("t", 2, 1, leader_epoch=2, partition_epoch=4))
    c.elect(0, {"t": [0]})
    c.records()


def shutdowns_one_after_another(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    c.set("t", "min.insync.replicas", "2")
    for broker in (1, 2, 3):
        c.beat(broker, stop=True)
        c.beat(broker, stop=True)
    c.records()
    for broker in (3, 2):
        c.register(broker, 1, previous_broker_epoch=c.epoch(broker))
        c.beat(broker)
    c.records()


def topics_of_a_dead_replica(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(2, fence=True)
    c.delete("t")
    c.create("t", (1, 2))
    c.beat(2)
    c.alter(1, c.isr("t", 1, 2))
    c.delete("t")
    c.records()


# --- elections from time to time --------------------------------------------------------------------------------


def leaders_that_are_balanced(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2), (2, 1))
    c.beat(1, fence=True)
    c.beat(1)
    c.records()
    c.alter(2, c.isr("t", 2, 1, leader_epoch=1, partition_epoch=1))
    c.pass_ms(1500)
    c.alter(1, c.isr("t", 1, 2, leader_epoch=2, partition_epoch=3))
    c.records()


def a_topic_that_allows_unclean_leaders_later(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2))
    c.create("u", (1, 3))
    c.alter(1, c.isr("t", 1))
    c.alter(1, c.isr("u", 1))
    c.end_sessions(2, 3)
    c.records()
    c.set("t", "unclean.leader.election.enable", "true")
    c.end_sessions(2, 3)
    c.records()


SCENARIOS: tuple[Scenario, ...] = (
    a_shrinking_and_growing_isr, an_isr_that_does_not_change, an_isr_in_version_2, an_isr_with_old_and_new_epochs,
    an_isr_from_a_follower, an_isr_from_a_broker_with_another_epoch, an_isr_of_an_unknown_partition,
    an_isr_of_a_topic_that_is_created_again, isrs_that_cannot_be, an_unknown_recovery_state,
    an_isr_with_a_fenced_broker, an_isr_with_a_broker_in_a_controlled_shutdown, an_isr_with_a_broker_that_is_gone,
    an_isr_with_another_incarnation, isrs_below_the_minimum, isrs_with_a_minimum_above_the_replicas,
    a_leader_that_recovers, one_partition_twice_in_a_request, an_isr_of_a_leader_in_an_offline_directory,
    preferred_leaders, preferred_leaders_of_all_topics, elections_of_unknown_partitions, elections_in_each_version,
    an_unclean_leader_on_request, elections_without_a_candidate, one_partition_twice_in_an_election,
    an_election_during_a_shutdown, replicas_that_stay_eligible, an_eligible_replica_that_stops_uncleanly,
    an_eligible_replica_that_stops_cleanly, an_unregistered_replica, the_last_replica_stops_uncleanly,
    a_leader_in_an_offline_directory, shutdowns_one_after_another, topics_of_a_dead_replica,
    eligible_replicas_and_another_minimum, eligible_replicas_and_the_minimum_of_the_cluster,
)  # fmt: skip
PERIODIC_SCENARIOS: tuple[Scenario, ...] = (leaders_that_are_balanced, a_topic_that_allows_unclean_leaders_later)
PERIODIC_SETTINGS = {"leader.imbalance.check.interval.seconds": "1", "unclean.leader.election.interval.ms": "1000"}
"""The settings of the controller for those scenarios."""
