"""Scenarios of brokers at a controller: registrations, heartbeats, fences, shutdowns, placement. See ``SCENARIOS``."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from controller_conversation import FEATURES, Conversation, listener, ranges

from odradek.catalog.records import MetadataRecord, PartitionRecord
from odradek.catalog.registrations import PartitionRegistration

Scenario = Callable[[Conversation], None]


def without(name: str) -> dict[str, tuple[int, int]]:
    return {feature: levels for feature, levels in FEATURES.items() if feature != name}


# --- registrations ----------------------------------------------------------------------------------------------


def versions_of_a_registration(c: Conversation) -> None:
    for version in (2, 3, 4):
        c.register(version, version=version, rack="ra")
    c.register(1, version=1)
    c.register(1, version=0)
    c.records()


def another_cluster(c: Conversation) -> None:
    c.register(1, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    c.register(1, cluster_id="")
    c.records()


def directories(c: Conversation) -> None:
    one, two = c.directory(1), c.directory(2)
    for wrong in ([], [UUID(int=1)], [UUID(int=99)], [UUID(int=1 << 63)], [one, one]):
        c.register(1, log_dirs=wrong)
    c.register(1, log_dirs=[two, one])
    c.register(2, log_dirs=[c.directory(3), two])
    c.register(2, log_dirs=[c.directory(3)])
    c.records()


def a_directory_of_a_broker_that_is_gone(c: Conversation) -> None:
    c.register(1, log_dirs=[c.directory(1)])
    c.unregister(1)
    c.register(2, log_dirs=[c.directory(1)])
    c.register(1, 1, log_dirs=[c.directory(1)])
    c.records()


def features(c: Conversation) -> None:
    c.register(1, features=ranges(without("metadata.version")))
    c.register(1, features=ranges(FEATURES | {"metadata.version": (7, 29)}))
    c.register(1, features=ranges(FEATURES | {"metadata.version": (31, 40)}))
    c.register(1, features=ranges(without("group.version")))
    c.register(1, features=ranges(without("kraft.version")))
    c.register(2, features=ranges(FEATURES | {"unknown.version": (0, 3)}))
    c.register(3, features=ranges(FEATURES | {"unknown.version": (1, 3)}))
    c.register(3, features=ranges(FEATURES | {"kraft.version": (1, 1)}))
    c.register(3, features=[])
    c.records()


def endpoints(c: Conversation) -> None:
    for wrong in (listener("P", port=0), listener("P", protocol=9), listener("P", host="")):
        c.register(1, listeners=[wrong])
        c.wait_until_active()
    c.register(1, listeners=[])
    c.register(2, listeners=[listener("A", port=65535, protocol=3), listener("B", "ü", 1)])
    c.records()


def from_zookeeper(c: Conversation) -> None:
    c.register(1, is_migrating_zk_broker=True)
    c.records()


def the_same_incarnation_again(c: Conversation) -> None:
    c.register(1)
    c.register(1, rack="rb", listeners=[listener("Q", port=7)])
    c.beat(1)
    c.register(1, rack="rc")
    c.beat(1, fence=True)
    c.register(1)
    c.records()


def another_incarnation(c: Conversation) -> None:
    c.start(1)
    c.register(1, 1)
    c.beat(1, fence=True)
    c.register(1, 1)
    c.end_sessions()
    c.register(1, 1)
    c.beat(1)
    c.records()


def another_incarnation_of_a_broker_without_heartbeats(c: Conversation) -> None:
    c.register(1)
    c.register(1, 1)
    c.register(1, 2, version=2)
    c.records()


# --- heartbeats -------------------------------------------------------------------------------------------------


def versions_of_a_heartbeat(c: Conversation) -> None:
    c.register(1)
    for version in (0, 1, 2):
        c.beat(1, version=version)
    c.records()


def heartbeats_with_other_epochs(c: Conversation) -> None:
    c.register(1)
    c.beat(1, epoch=c.epoch(1) + 1)
    c.beat(1, epoch=c.epoch(1) - 1)
    c.beat(1, epoch=-1)
    c.beat(2, epoch=5)
    c.register(1, 1)
    c.beat(1)
    c.records()


def a_broker_behind_its_registration(c: Conversation) -> None:
    epoch = c.register(1)
    for offset in (-1, 0, epoch - 1, epoch):
        c.beat(1, offset=offset)
    c.beat(1, offset=0)
    c.records()


def a_fence_on_request(c: Conversation) -> None:
    c.register(1)
    c.beat(1, fence=True)
    c.beat(1)
    c.beat(1, fence=True)
    c.beat(1, fence=True)
    c.beat(1)
    c.records()


def the_end_of_a_session(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3), (2, 3, 1), (3, 1, 2))
    c.end_sessions(2, 3)
    c.records()
    c.beat(1)
    c.records()


def the_end_of_all_sessions(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.create("u", (1,))
    c.records()
    c.beat(2, fence=True)
    c.end_sessions()
    c.records()
    c.beat(2)
    c.records()
    c.beat(1)
    c.records()


# --- shutdowns --------------------------------------------------------------------------------------------------


def a_shutdown_without_leaders(c: Conversation) -> None:
    c.start(1, 2)
    c.beat(1, stop=True)
    c.beat(1, stop=True)
    c.beat(2, stop=True, fence=True)
    c.register(3)
    c.beat(3, stop=True)
    c.beat(3, stop=True, fence=True)
    c.records()


def a_controlled_shutdown(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2), (2, 1), (3, 1))
    c.beat(2, offset=0)
    c.beat(3, offset=0)
    c.beat(1, stop=True)
    c.records()
    c.beat(1, stop=True)
    c.beat(2)
    c.beat(1, stop=True)
    c.beat(3)
    c.beat(1, stop=True)
    c.beat(1, stop=True)
    c.records()


def a_shutdown_that_is_taken_back(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(2, offset=0)
    c.beat(1, stop=True)
    c.beat(1)
    c.beat(1, fence=True)
    c.beat(2)
    c.beat(1)
    c.beat(1)
    c.records()


def a_shutdown_of_the_last_broker(c: Conversation) -> None:
    c.start(1)
    c.create("t", (1,))
    c.beat(1, stop=True)
    c.beat(1, stop=True)
    c.records()
    c.end_sessions()
    c.register(1, 1, previous_broker_epoch=c.epoch(1))
    c.beat(1)
    c.records()


def a_session_that_ends_in_a_shutdown(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(2, offset=0)
    c.beat(1, stop=True)
    c.end_sessions(2)
    c.beat(1, stop=True)
    c.beat(1)
    c.records()


# --- incarnations and eligible replicas -------------------------------------------------------------------------


def a_clean_stop(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("t", "min.insync.replicas", "3")
    c.beat(3, fence=True)
    c.records()
    c.end_sessions(1, 2)
    c.register(3, 1, previous_broker_epoch=c.epoch(3))
    c.records()


def an_unclean_stop(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3))
    c.set("t", "min.insync.replicas", "3")
    c.beat(3, fence=True)
    c.beat(2, fence=True)
    c.end_sessions(1)
    c.records()
    c.register(3, 1, previous_broker_epoch=c.epoch(3) - 1)
    c.register(2, 1, version=2)
    c.records()


def an_unclean_stop_of_a_leader(c: Conversation) -> None:
    c.register(1)
    c.beat(1)
    c.start(2)
    c.create("t", (1, 2), (1,))
    c.unregister(9)
    c.end_sessions(2)
    c.records()
    c.register(1, 1)
    c.records()
    c.beat(1)
    c.records()


def the_last_known_leader(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(1, fence=True)
    c.beat(2, fence=True)
    c.records()
    c.end_sessions()
    c.register(2, 1)
    c.register(1, 1)
    c.records()
    c.beat(1)
    c.records()
    c.beat(2)
    c.records()


def eligible_replicas(c: Conversation) -> None:
    c.start(1, 2, 3)
    c.create("t", (1, 2, 3), (2, 3, 1))
    c.set("t", "min.insync.replicas", "2")
    for broker in (1, 2, 3):
        c.beat(broker, fence=True)
    c.records()
    for broker in (2, 1, 3):
        c.beat(broker)
    c.records()


def an_unclean_election(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.set("t", "unclean.leader.election.enable", "true")
    c.set("t", "min.insync.replicas", "1")
    c.beat(2, fence=True)
    c.beat(1, fence=True)
    c.records()
    c.beat(2)
    c.records()


# --- unregistering ----------------------------------------------------------------------------------------------


def unregistered_brokers(c: Conversation) -> None:
    c.unregister(1)
    c.start(1, 2)
    c.create("t", (1, 2), (1,))
    c.unregister(1)
    c.beat(1)
    c.records()
    c.unregister(1)
    c.register(1, 1)
    c.beat(1)
    c.records()


# --- new partitions ---------------------------------------------------------------------------------------------


def manual_assignments(c: Conversation) -> None:
    c.start(1, 2)
    c.register(3)
    c.create("none", ())
    c.create("twice", (1, 1))
    c.create("unknown", (1, 8))
    c.create("lengths", (1, 2), (1,))
    c.create("fenced", (3,))
    c.create("t", (3, 1), (2, 3))
    c.records()
    c.grow("t", 3, (3, 8))
    c.grow("t", 3, (1,))
    c.grow("t", 3, (1, 3))
    c.records()
    c.beat(1, fence=True)
    c.beat(2, fence=True)
    c.grow("t", 4, (1, 2))
    c.grow("t", 4)
    c.records()


def assignments_during_a_shutdown(c: Conversation) -> None:
    c.start(1, 2)
    c.create("t", (1, 2))
    c.beat(2, offset=0)
    c.beat(1, stop=True)
    c.create("u", (1,))
    c.create("v", (1, 2))
    c.records()


def too_many_replicas(c: Conversation) -> None:
    c.create("t", count=1, factor=3000)
    c.create("u", count=1, factor=0)
    c.create("v", count=0, factor=1)
    c.records()


def offline_directories(c: Conversation) -> None:
    one, two = c.directory(1), c.directory(2)
    c.register(1, log_dirs=[one, two])
    c.beat(1)
    c.beat(1, offline=[two], version=1)
    c.beat(1, offline=[two])
    c.records()
    c.beat(1, offline=[one])
    c.records()


def cordoned_directories(c: Conversation) -> None:
    one = c.directory(1)
    c.register(1, log_dirs=[one])
    c.beat(1, cordoned=[])
    c.beat(1, cordoned=[one])
    c.beat(1, cordoned=[one])
    c.records()
    c.register(1, log_dirs=[one])
    c.beat(1, cordoned=[])
    c.records()


def replicas_in_directories(c: Conversation) -> None:
    one, two = c.directory(1), c.directory(3)
    c.register(1, log_dirs=[one, two])
    c.beat(1)
    c.start(2)
    c.create("t", (1, 2), (2, 1), (2,))
    c.records()
    c.assign(1, {one: {"t": [0]}, two: {"t": [1]}})
    c.records()
    c.assign(1, {one: {"t": [0]}})
    c.assign(1, {one: {"t": [2, 9, -1], "unknown": [0, 1]}})
    c.assign(1, {})
    c.assign(1, {one: {"t": [0]}}, epoch=c.epoch(1) + 1)
    c.assign(2, {one: {"t": [2]}})
    c.records()
    c.assign(1, {c.directory(9): {"t": [0, 1]}})
    c.records()
    c.assign(1, {two: {"t": [0, 0]}, one: {"t": [0]}})
    c.records()


# --- producer ids and controllers -------------------------------------------------------------------------------


def producer_ids(c: Conversation) -> None:
    c.register(1)
    c.allocate(1)
    c.allocate(1)
    c.allocate(1, epoch=c.epoch(1) + 1)
    c.allocate(2, epoch=5)
    c.records()


def controllers(c: Conversation) -> None:
    c.register_controller(1)
    c.register_controller(1, listeners=[listener("C", port=0)])
    c.wait_until_active()
    c.register_controller(1, listeners=[], features=[])
    c.records()


def placed(found: list[MetadataRecord]) -> list[PartitionRegistration]:
    return [PartitionRegistration.of(record) for record in found if isinstance(record, PartitionRecord)]


def an_updated_voter(c: Conversation) -> None:
    """``kraft.version`` is 0, so the voters are fixed, and DescribeQuorum names no directory of theirs. With one in the
    request, the process of Apache Kafka 4.3's controller ends: no conversation has it."""

    def versions(lowest: int, highest: int) -> dict[str, int]:
        return {"min_supported_version": lowest, "max_supported_version": highest}

    c.update_voter("itself")
    for epoch in (-1, 1):
        c.update_voter(f"leader epoch {epoch:+}", epoch=epoch)
    c.update_voter("no leader epoch", current_leader_epoch=-1)
    c.update_voter("another cluster", cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    c.update_voter("no cluster", cluster_id=None)
    c.update_voter("another listener", listener="ELSEWHERE")
    c.update_voter("no listener", listeners=[])
    for range_ in ((0, 0), (1, 1), (2, 3), (1, 0)):
        c.update_voter(f"versions {range_}", k_raft_version_feature=versions(*range_))
    for voter in (77, -1):
        c.update_voter(f"voter {voter}", voter_id=voter)
    c.update_voter("another voter with another leader epoch", voter_id=77, epoch=1)
    c.update_voter("itself again")
    c.records()


SCENARIOS: tuple[Scenario, ...] = (
    versions_of_a_registration, another_cluster, directories, a_directory_of_a_broker_that_is_gone, features, endpoints,
    from_zookeeper, the_same_incarnation_again, another_incarnation,
    another_incarnation_of_a_broker_without_heartbeats, versions_of_a_heartbeat, heartbeats_with_other_epochs,
    a_broker_behind_its_registration, a_fence_on_request, the_end_of_a_session, the_end_of_all_sessions,
    a_shutdown_without_leaders, a_controlled_shutdown, a_shutdown_that_is_taken_back, a_shutdown_of_the_last_broker,
    a_session_that_ends_in_a_shutdown, a_clean_stop, an_unclean_stop, an_unclean_stop_of_a_leader,
    the_last_known_leader, eligible_replicas, an_unclean_election, unregistered_brokers, manual_assignments,
    assignments_during_a_shutdown, too_many_replicas, offline_directories, cordoned_directories,
    replicas_in_directories, producer_ids, controllers, an_updated_voter,
)  # fmt: skip
