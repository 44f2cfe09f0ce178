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


SCENARIOS: tuple[Scenario, ...] = (
    a_shrinking_and_growing_isr, an_isr_that_does_not_change, an_isr_in_version_2, an_isr_with_old_and_new_epochs,
    an_isr_from_a_follower, an_isr_from_a_broker_with_another_epoch, an_isr_of_an_unknown_partition,
    an_isr_of_a_topic_that_is_created_again, isrs_that_cannot_be, an_unknown_recovery_state,
    an_isr_with_a_fenced_broker, an_isr_with_a_broker_in_a_controlled_shutdown, an_isr_with_a_broker_that_is_gone,
    an_isr_with_another_incarnation, isrs_below_the_minimum, isrs_with_a_minimum_above_the_replicas,
    a_leader_that_recovers, one_partition_twice_in_a_request, an_isr_of_a_leader_in_an_offline_directory,
)  # fmt: skip
