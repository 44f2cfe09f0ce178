"""Scenarios of groups whose coordinator is killed, stopped and moved, or has too few replicas. See ``SCENARIOS``."""

from __future__ import annotations

from cluster_conversation import BROKERS
from cluster_group_run import COMMIT_TIMEOUT_MS, GroupClusterRun, MovingGroup, Scenario

SESSION_MS, LONG_SESSION_MS = 30_000, 600_000


def below_minimum(c: GroupClusterRun, broker: int) -> None:
    """Kills all brokers but this one: its partition of the offsets topic has one replica in sync, and needs two."""
    others = [one for one in BROKERS if one != broker]
    for other in others:
        c.kill(other)
        c.await_fence(other, at=broker)
    c.await_replicas(broker - 1, (broker,), at=broker)


def restart(c: GroupClusterRun, *brokers: int) -> None:
    for broker in brokers:
        c.nodes.start(str(broker))
    c.balance()


# --- offsets ----------------------------------------------------------------------------------------------------


def commits_follow_a_killed_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1, 3)
    group = MovingGroup(c, 2)
    group.found_at(*BROKERS)
    group.commits(topic, 5)
    group.commits(topic, 7, 1)
    group.fetches(topic, 0, 1)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.found_at(1, 3)
    group.fetches(topic, 0, 1)
    group.fetches(topic, 0, 1, stable=True)
    group.commits(topic, 6)
    group.fetches(topic, 0)
    c.start(2)
    group.found_at(2)
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    group.found_at(*BROKERS)
    group.fetches(topic, 0, 1)


def commits_follow_a_stopped_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1, 3)
    group = MovingGroup(c, 2)
    group.commits(topic, 5)
    c.stop(2)
    group.move_to(3)
    group.found_at(1, 3)
    group.fetches(topic)
    group.commits(topic, 6)
    c.start(2)
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    group.fetches(topic)


def every_request_at_a_former_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    member, generation = group.lone_member(session_ms=LONG_SESSION_MS)
    group.commits(topic, 5, member=member, generation=generation)
    successor = c.move(2)
    for at in (2, 1):
        group.at = at
        every_request(group, topic, member, generation)
    group.listed_at()
    group.move_to(successor)
    group.described()
    group.beats(member, generation)
    group.fetches(topic)


def every_request(group: MovingGroup, topic: str, member: str, generation: int) -> None:
    """Each request about a group, at a broker that does not serve it."""
    group.commits(topic, 6, member=member, generation=generation)
    group.commits(topic, 6)
    group.fetches(topic)
    group.fetches(topic, stable=True)
    group.fetches(topic, version=7)
    group.joins("a", member).receive()
    group.joins("b").receive()
    group.syncs("a", member, generation).receive()
    group.beats(member, generation)
    group.leave((member, None), client=group.client)
    group.described()
    group.inspected()
    group.consumer_beats("m", 0, rebalance_timeout=5000, subscribed_topic_names=[topic], owned={})
    group.deleted()
    group.offsets_deleted(topic)


def every_request_during_a_load(c: GroupClusterRun) -> None:
    """The next coordinator has much to load. A heartbeat is answered as if it had loaded the member."""
    topic = c.place("t", 1, 3)
    group = MovingGroup(c, 2)
    member, generation = group.lone_member(session_ms=LONG_SESSION_MS)
    group.commits(topic, 5, member=member, generation=generation)
    c.nodes.make_loads_slow("2", c.key_at(2, "filler"))
    c.kill(2)
    group.at = 3
    group.await_load()
    every_request(group, topic, member, generation)
    group.listed_at(3)
    group.found_at(3)
    group.await_load()
    group.move_to(3)
    group.described()
    group.beats(member, generation)
    group.fetches(topic)
    c.start(2)


def offsets_are_deleted_for_good(c: GroupClusterRun) -> None:
    topic = c.place("t", 1, 3)
    group, other = MovingGroup(c, 2), MovingGroup(c, 2, "h")
    for index in (0, 1):
        group.commits(topic, 5 + index, index)
        other.commits(topic, 5 + index, index)
    group.offsets_deleted(topic, 0)
    other.deleted()
    group.move_to(c.move(2))
    other.move_to(group.at)
    group.fetches(topic, 0, 1)
    other.fetches(topic, 0, 1)
    other.described()
    group.deleted()
    c.elect(1)
    group.move_to(2)
    group.fetches(topic, 0, 1)
    group.described()
    group.listed_at()


def commits_wait_for_replicas(c: GroupClusterRun) -> None:
    """Both followers are halted, and still in the ISR: a commit is written, and not acknowledged."""
    topic = c.place("t", 1)
    group = MovingGroup(c, 1)
    group.commits(topic, 5)
    c.pause(2)
    c.pause(3)
    waiting = group.send_commit(topic, 6)
    group.fetches(topic)
    waiting.receive()
    group.fetches(topic)
    c.nodes.resume("2")
    c.resume(3)
    c.await_replicas(0, BROKERS)
    group.commits(topic, 7)
    group.fetches(topic)


def stable_fetches_wait_for_replicas(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 1)
    group.commits(topic, 5)
    c.pause(2)
    c.pause(3)
    waiting = group.send_commit(topic, 6)
    group.fetches(topic, stable=True)
    waiting.receive()
    c.nodes.resume("2")
    c.resume(3)
    c.await_replicas(0, BROKERS)
    c.nodes.pass_ms(COMMIT_TIMEOUT_MS)
    group.fetches(topic, stable=True)


def commits_below_the_minimum(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 1)
    group.commits(topic, 5)
    c.kill(3)
    c.await_fence(3)
    group.commits(topic, 6)
    c.kill(2)
    c.await_fence(2)
    c.await_replicas(0, (1,))
    group.commits(topic, 7)
    group.fetches(topic)
    group.fetches(topic, stable=True)
    group.offsets_deleted(topic)
    group.deleted()
    group.fetches(topic)
    restart(c, 2, 3)
    group.fetches(topic)
    group.commits(topic, 8)
    group.fetches(topic)


def offsets_after_a_restart_of_all_brokers(c: GroupClusterRun) -> None:
    topic = c.place("t", 1, 3)
    groups = [MovingGroup(c, broker) for broker in BROKERS]
    for number, group in enumerate(groups):
        group.commits(topic, 10 + number)
    for broker in BROKERS:
        c.stop(broker)
    for broker in BROKERS:
        c.nodes.start(str(broker))
    c.balance()
    for group in groups:
        group.serve()
        group.fetches(topic)
        group.found_at(1)


# --- classic groups ---------------------------------------------------------------------------------------------


def a_classic_group_outlives_its_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    member, generation = group.lone_member(session_ms=SESSION_MS)
    group.commits(topic, 5, member=member, generation=generation)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.described()
    group.beats(member, generation)
    group.commits(topic, 6, member=member, generation=generation)
    group.commits(topic, 7, member=member, generation=generation - 1)
    group.commits(topic, 7, member="who", generation=generation)
    group.fetches(topic)
    group.beats(member, generation + 1)
    joined = group.joins("a", member, session_ms=SESSION_MS).receive()
    group.syncs("a", member, joined.generation_id, {member: b"again"}).receive()
    group.commits(topic, 8, member=member, generation=generation)
    group.commits(topic, 8, member=member, generation=joined.generation_id)
    group.leave((member, None), client=group.client)
    group.described()
    c.start(2)
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    group.described()
    group.fetches(topic)


def a_waiting_join_when_the_coordinator_moves(c: GroupClusterRun) -> None:
    group = MovingGroup(c, 2)
    successor = c.move(2)
    group.move_to(successor)
    member, generation = group.lone_member(session_ms=LONG_SESSION_MS)
    waiting = group.joins("b", rebalance_ms=60_000, session_ms=LONG_SESSION_MS)
    group.described()
    c.elect(1)
    waiting.receive()
    group.move_to(2)
    group.described()
    group.beats(member, generation)


def a_waiting_sync_when_the_coordinator_moves(c: GroupClusterRun) -> None:
    group = MovingGroup(c, 2)
    group.move_to(c.move(2))
    member, generation = group.lone_member(session_ms=SESSION_MS)
    second = group.joins("b", rebalance_ms=60_000, session_ms=SESSION_MS)
    again = group.joins("a", member, rebalance_ms=60_000, session_ms=SESSION_MS).receive()
    other = second.receive()
    name = group.named("b", other)
    waiting = group.syncs("b", name, other.generation_id)
    c.elect(1)
    waiting.receive()
    group.move_to(2)
    group.described()
    group.syncs("a", member, again.generation_id, {member: b"a", name: b"b"}).receive()
    group.beats(member, generation)


def a_rebalance_begins_again_at_the_next_coordinator(c: GroupClusterRun) -> None:
    """The member that does not join again is removed when the rebalance ends."""
    group = MovingGroup(c, 2)
    member, _ = group.lone_member(session_ms=SESSION_MS, rebalance_ms=3000)
    group.joins("b", session_ms=SESSION_MS, rebalance_ms=3000)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    joined = group.joins("c", session_ms=SESSION_MS, rebalance_ms=3000).receive()
    other = group.named("c", joined)
    group.syncs("c", other, joined.generation_id, {other: b"c"}).receive()
    group.described()
    group.beats(member, joined.generation_id)
    c.start(2)


def sessions_begin_again_at_the_next_coordinator(c: GroupClusterRun) -> None:
    group = MovingGroup(c, 2)
    member, generation = group.lone_member(session_ms=6000)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    c.nodes.pass_ms(1500)
    group.beats(member, generation)
    c.nodes.pass_ms(8000)
    group.beats(member, generation)
    group.described()
    c.start(2)


def static_members_outlive_their_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    options = {"version": 5, "session_ms": LONG_SESSION_MS, "instance": "one"}
    member, generation = group.lone_member(**options)
    group.commits(topic, 5, member=member, generation=generation, instance="one")
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.beats(member, generation, instance="one")
    group.beats("other", generation, instance="one")
    again = group.joins("b", **options).receive()
    second = group.named("b", again)
    group.syncs("b", second, again.generation_id, instance="one").receive()
    group.beats(member, generation, instance="one")
    group.commits(topic, 6, member=member, generation=generation, instance="one")
    group.commits(topic, 6, member=second, generation=again.generation_id, instance="one")
    c.start(2)
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    group.described()
    group.beats(second, again.generation_id, instance="one")
    group.fetches(topic)


def a_static_member_whose_new_id_is_not_in_the_log(c: GroupClusterRun) -> None:
    """A static member rejoins during a rebalance, and the coordinator moves before the assignment is written. The next
    coordinator knows the member by its former id, and fences the new one. It also fences a commit that has the instance
    id and no member id, as librdkafka sends it when its own session has ended."""
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    group.move_to(c.move(2))
    options = {"version": 5, "session_ms": LONG_SESSION_MS, "rebalance_ms": 60_000, "instance": "one"}
    member, generation = group.lone_member(**options)
    joined = group.joins("a", member, **options).receive()
    again = group.joins("b", **options).receive()
    second = group.named("b", again)
    c.elect(1)
    group.move_to(2)
    group.described()
    group.syncs("b", second, again.generation_id, {second: b"b"}, instance="one").receive()
    group.beats(second, again.generation_id, instance="one")
    group.commits(topic, 5, member=second, generation=again.generation_id, instance="one")
    group.joins("b", second, **options).receive()
    group.leave((second, "one"), client=group.client)
    group.beats(member, generation, instance="one")
    group.beats(member, joined.generation_id, instance="one")
    third = group.joins("c", **options).receive()
    name = group.named("c", third)
    group.syncs("c", name, third.generation_id, {name: b"c"}, instance="one").receive()
    group.beats(name, third.generation_id, instance="one")
    group.commits(topic, 6, member="", generation=third.generation_id, instance="one")
    group.commits(topic, 6, member="", generation=-1, instance="one")
    group.commits(topic, 6, member=name, generation=third.generation_id, instance="one")
    group.described()


def classic_members_below_the_minimum(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 1)
    options = {"session_ms": LONG_SESSION_MS, "rebalance_ms": 300_000}
    member, generation = group.lone_member(**options)
    below_minimum(c, 1)
    group.beats(member, generation)
    group.commits(topic, 5, member=member, generation=generation)
    joined = group.joins("a", member, **options).receive()
    group.syncs("a", member, joined.generation_id, {member: b"a"}).receive()
    restart(c, 2, 3)
    again = group.joins("a", member, **options).receive()
    group.syncs("a", member, again.generation_id, {member: b"a"}).receive()
    group.described()


def a_leave_below_the_minimum(c: GroupClusterRun) -> None:
    group = MovingGroup(c, 1)
    member, generation = group.lone_member(session_ms=120_000, rebalance_ms=2000)
    below_minimum(c, 1)
    group.leave((member, None), client=group.client)
    group.beats(member, generation)
    restart(c, 2, 3)
    group.described()


def a_sync_waits_for_replicas(c: GroupClusterRun) -> None:
    """The followers are halted: the assignment is written, and not replicated in time."""
    group = MovingGroup(c, 1)
    member, _ = group.lone_member(session_ms=SESSION_MS)
    joined = group.joins("a", member, session_ms=SESSION_MS).receive()
    c.pause(2)
    c.pause(3)
    group.syncs("a", member, joined.generation_id, {member: b"new"}).receive()
    c.nodes.resume("2")
    c.resume(3)
    c.await_replicas(0, BROKERS)
    again = group.joins("a", member, session_ms=SESSION_MS).receive()
    group.syncs("a", member, again.generation_id, {member: b"newer"}).receive()
    group.described()


def groups_are_listed_by_their_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    group.commits(topic, 5)
    group.listed_at()
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.listed_at(1, 3)
    c.start(2)
    group.listed_at()
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    c.await_leader(1, 2, at=3)
    group.listed_at()


# --- groups of KIP-848 ------------------------------------------------------------------------------------------


def a_consumer_group_outlives_its_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1, 3)
    group = MovingGroup(c, 2)
    first = group.consumer_beats("a", 0, rebalance_timeout=30_000, subscribed_topic_names=[topic], owned={})
    owned = {row.topic_id: list(row.partitions) for row in first.assignment.topic_partitions}
    epoch = int(first.member_epoch)
    group.consumer_beats("a", epoch, owned=owned)
    group.commits(topic, 5, member="a", generation=epoch)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.inspected()
    group.consumer_beats("a", epoch)
    group.consumer_beats("a", epoch + 3)
    group.consumer_beats("who", epoch)
    group.commits(topic, 6, member="a", generation=epoch)
    group.commits(topic, 7, member="a", generation=epoch + 3)
    group.fetches(topic, member="a", epoch=epoch)
    group.fetches(topic, member="a", epoch=epoch + 3)
    group.consumer_beats("a", -1)
    group.inspected()
    c.start(2)
    c.await_replicas(1, BROKERS)
    c.elect(1)
    group.move_to(2)
    group.inspected()
    group.fetches(topic)


def a_partition_is_given_up_at_the_next_coordinator(c: GroupClusterRun) -> None:
    """One member has to give a partition up for another one when the coordinator is killed."""
    topic = c.place("t", 1, 3)
    group = MovingGroup(c, 2)
    begin = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic], "owned": {}}
    first = group.consumer_beats("a", 0, **begin)
    (row,) = first.assignment.topic_partitions
    group.consumer_beats("a", first.member_epoch, owned={row.topic_id: list(row.partitions)})
    second = group.consumer_beats("b", 0, **begin)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.inspected()
    revoked = group.consumer_beats("a", first.member_epoch)
    kept = {one.topic_id: list(one.partitions) for one in revoked.assignment.topic_partitions}
    group.consumer_beats("b", second.member_epoch)
    group.consumer_beats("a", first.member_epoch, owned=kept)
    group.consumer_beats("b", second.member_epoch)
    group.inspected()
    c.start(2)


def static_members_of_a_consumer_group_outlive_their_coordinator(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    begin = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic], "owned": {}, "instance_id": "one"}
    first = group.consumer_beats("a", 0, **begin)
    (row,) = first.assignment.topic_partitions
    group.consumer_beats("a", first.member_epoch, owned={row.topic_id: list(row.partitions)}, instance_id="one")
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    group.consumer_beats("b", 0, **begin)
    group.consumer_beats("a", -2, instance_id="one")
    again = group.consumer_beats("b", 0, **begin)
    group.consumer_beats("a", first.member_epoch, instance_id="one")
    group.consumer_beats("b", again.member_epoch, instance_id="one")
    group.inspected()
    c.start(2)


def a_consumer_group_below_the_minimum(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group, new = MovingGroup(c, 1), MovingGroup(c, 1, "n")
    begin = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic], "owned": {}}
    first = group.consumer_beats("a", 0, **begin)
    (row,) = first.assignment.topic_partitions
    group.consumer_beats("a", first.member_epoch, owned={row.topic_id: list(row.partitions)})
    below_minimum(c, 1)
    group.consumer_beats("a", first.member_epoch)
    group.commits(topic, 5, member="a", generation=first.member_epoch)
    group.consumer_beats("a", -1)
    new.consumer_beats("n", 0, **begin)
    restart(c, 2, 3)
    group.consumer_beats("a", first.member_epoch)
    group.inspected()


def sessions_of_a_consumer_group_begin_again(c: GroupClusterRun) -> None:
    topic = c.place("t", 1)
    group = MovingGroup(c, 2)
    group._set(group.group, {"consumer_session_timeout_ms": "6000", "consumer_heartbeat_interval_ms": "1000"})
    c.settle()
    begin = {"rebalance_timeout": 60_000, "subscribed_topic_names": [topic], "owned": {}}
    first = group.consumer_beats("a", 0, **begin)
    c.kill(2)
    c.await_fence(2)
    group.move_to(3)
    c.nodes.pass_ms(1500)
    group.consumer_beats("a", first.member_epoch)
    c.nodes.pass_ms(8000)
    group.consumer_beats("a", first.member_epoch)
    group.inspected()
    c.start(2)


SCENARIOS: tuple[Scenario, ...] = (
    commits_follow_a_killed_coordinator, commits_follow_a_stopped_coordinator, every_request_at_a_former_coordinator,
    offsets_are_deleted_for_good, commits_wait_for_replicas, stable_fetches_wait_for_replicas,
    commits_below_the_minimum, offsets_after_a_restart_of_all_brokers, a_classic_group_outlives_its_coordinator,
    a_waiting_join_when_the_coordinator_moves, a_waiting_sync_when_the_coordinator_moves,
    a_rebalance_begins_again_at_the_next_coordinator, sessions_begin_again_at_the_next_coordinator,
    static_members_outlive_their_coordinator, a_static_member_whose_new_id_is_not_in_the_log,
    classic_members_below_the_minimum, a_leave_below_the_minimum, a_sync_waits_for_replicas,
    groups_are_listed_by_their_coordinator, a_consumer_group_outlives_its_coordinator,
    a_partition_is_given_up_at_the_next_coordinator, static_members_of_a_consumer_group_outlive_their_coordinator,
    a_consumer_group_below_the_minimum, sessions_of_a_consumer_group_begin_again, every_request_during_a_load,
)  # fmt: skip
