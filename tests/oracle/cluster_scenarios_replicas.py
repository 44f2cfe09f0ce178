"""Scenarios of topics with several replicas: assignments, ISR, elections, topics whose replicas are away.

See ``SCENARIOS``. They run in a cluster of their own, whose leaders are not balanced from time to time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from cluster_conversation import BROKERS, CONTROLLER, ClusterRun
from cluster_scenarios_admin import SET, TOPIC, change, create, topic_row
from scenarios_log import batch, fetch_message, produce_message

from odradek.core.errors import ErrorCode

SETTINGS = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "30000"}
PREFERRED, UNCLEAN = 0, 1
_LATER = {"timeout": 10_000}
_NAMES = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
_UNORDERED = ("brokers", "topics", "partitions", "isr_nodes", "offline_replicas", "eligible_leader_replicas")


def replicated(c: ClusterRun, label: str, *replicas: tuple[int, ...], **configs: str) -> str:
    """Creates a topic, not in the trace. Returns its name."""
    name = c.topic(label)
    message = {"topics": [topic_row(name, *replicas, **configs)], "validate_only": False} | _LATER
    found = c.quietly(19, 7, message).topics[0]
    assert found.error_code is ErrorCode.none, found
    c.name_value(found.topic_id, f"id of {label}")
    c.settle()
    return name


def partitions_at(c: ClusterRun, name: str, *brokers: int) -> None:
    """Adds leaders, ISR, ELR and offline replicas, as these brokers show them."""
    for broker in brokers:
        rows = [{"topic_id": None, "name": name}]
        c.call(3, 13, {"topics": rows} | _NAMES, client=str(broker), unordered=_UNORDERED)
        asked = {"topics": [{"name": name}], "response_partition_limit": 100, "cursor": None}
        c.call(75, 0, asked, client=str(broker), unordered=_UNORDERED)


def elect(c: ClusterRun, kind: int, asked: Mapping[str, list[int]] | None, *, client: str = "1") -> None:
    rows = None if asked is None else [{"topic": name, "partitions": list(which)} for name, which in asked.items()]
    message = {"election_type": kind, "topic_partitions": rows} | _LATER
    c.call(43, 2, message, client=client, unordered=("replica_election_results", "partition_result"))
    c.settle()


def await_isr(c: ClusterRun, name: str, wanted: Collection[int], index: int = 0, at: int = 1) -> None:
    """Waits until the ISR of a partition is this one, as a broker shows it."""
    rows = [{"topic_id": None, "name": name}]

    def ready(reply: Any) -> bool:
        parts = {one.partition_index: one for one in reply.topics[0].partitions}
        return index in parts and set(parts[index].isr_nodes) == set(wanted)

    c.until(3, 13, {"topics": rows} | _NAMES, ready, client=f"{at}/isr")
    c.settle()


def write(c: ClusterRun, name: str, at: int, *, count: int = 1, acks: int = -1, index: int = 0, **options: Any) -> None:
    c.call(0, 12, produce_message(name, batch(count, **options), index, acks=acks), client=str(at))


def read(c: ClusterRun, name: str, at: int, offset: int = 0, **options: Any) -> None:
    c.call(1, 12, fetch_message(name, offset, **options), client=str(at))


def offsets(c: ClusterRun, name: str, at: int, *times: int, epoch: int = -1) -> None:
    asked = {"replica_id": -1, "isolation_level": 0, "timeout": 5000}
    for time in times or (-1, -2, -3):
        rows = [
            {"name": name, "partitions": [{"partition_index": 0, "current_leader_epoch": epoch, "timestamp": time}]}
        ]
        c.call(2, 8, asked | {"topics": rows}, client=str(at))


# --- assignments ------------------------------------------------------------------------------------------------


def assignments_of_replicas(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2), (2, 3), (3, 1))
    partitions_at(c, name, *BROKERS)
    rows = [{"broker_ids": [1, 3]}, {"broker_ids": [2, 1]}]
    asked = {"topics": [{"name": name, "count": 5, "assignments": rows}], "validate_only": False} | _LATER
    c.call(37, 3, asked, client="2")
    c.settle()
    partitions_at(c, name, 3)


def wrong_assignments_of_replicas(c: ClusterRun) -> None:
    wrong: tuple[tuple[tuple[int, ...], ...], ...] = (
        ((1, 9),), ((1, 1),), ((1, 2), (1,)), ((1,), (1, 2)), ((),), ((1, 2), ()), ((-1, 1),), ((3, 2, 3),), ((9, 9),),
        ((1, 2, 3, 4),),
    )  # fmt: skip
    for broker in (1, CONTROLLER):
        for number, assignments in enumerate(wrong):
            create(c, broker, topic_row(c.topic(f"w{number}"), *assignments))
        row = topic_row(c.topic("gap"), (1, 2))
        row["assignments"][0]["partition_index"] = 1
        create(c, broker, row)
        row = topic_row(c.topic("twice"), (1, 2), (2, 1))
        row["assignments"][1]["partition_index"] = 0
        create(c, broker, row)
    c.settle()
    c.topics_at([c.topic("gap")], 1)


def wrong_assignments_of_new_partitions(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2))
    wrong: tuple[list[list[int]], ...] = (
        [[1]], [[1, 2, 3]], [[1, 1]], [[1, 9]], [[]], [[1, 2], [2, 1]], [[-1, 1]], [[2, 3, 2]],
    )  # fmt: skip
    for rows in wrong:
        assignments = [{"broker_ids": row} for row in rows]
        asked = {"topics": [{"name": name, "count": 2, "assignments": assignments}], "validate_only": False} | _LATER
        c.call(37, 3, asked, client="3")
    partitions_at(c, name, 1)


def impossible_replication_factors(c: ClusterRun) -> None:
    for factor in (4, 99, 0, -2, 32767):
        create(c, 1, topic_row(c.topic(f"f{factor}"), count=2, factor=factor))
    create(c, 2, topic_row(c.topic("checked"), count=2, factor=3), validate_only=True)
    made = create(c, 3, topic_row(c.topic("three"), count=3, factor=3))
    c.name_value(made.topics[0].topic_id, "id of three")
    c.settle()
    rows = [{"topic_id": None, "name": c.topic("three")}]
    found = c.quietly(3, 13, {"topics": rows} | _NAMES, client="1").topics[0].partitions
    shapes = sorted((one.partition_index, sorted(one.replica_nodes), sorted(one.isr_nodes)) for one in found)
    c.note("replicas", {}, [list(shape) for shape in shapes])
    c.note("leaders", {}, sorted(one.leader_id for one in found))


# --- brokers that are away --------------------------------------------------------------------------------------


def a_killed_leader(c: ClusterRun) -> None:
    name = replicated(c, "t", (3, 1, 2), (1, 2, 3))
    c.kill(3)
    c.await_fence(3)
    partitions_at(c, name, 1, 2)
    write(c, name, 2)
    c.start(3)
    for index in (0, 1):
        await_isr(c, name, BROKERS, index)
    partitions_at(c, name, 1, 3)
    elect(c, PREFERRED, {name: [0, 1]})
    partitions_at(c, name, 1)


def a_stopped_leader(c: ClusterRun) -> None:
    """Its leaders move before it stops."""
    name = replicated(c, "t", (3, 1, 2), (1, 3, 2), (2, 3, 1))
    c.stop(3)
    c.settle()
    partitions_at(c, name, 1, 2)
    c.start(3)
    for index in (0, 1, 2):
        await_isr(c, name, BROKERS, index)
    partitions_at(c, name, 2)
    elect(c, PREFERRED, None, client="2")
    partitions_at(c, name, 2)


def two_killed_brokers(c: ClusterRun) -> None:
    """The minimum is 2: the brokers that die stay eligible."""
    name = replicated(c, "t", (2, 3, 1), (3, 2, 1), min_insync_replicas="2")
    c.kill(3)
    c.await_fence(3)
    partitions_at(c, name, 1)
    c.kill(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    elect(c, PREFERRED, {name: [0, 1]})
    for broker in (2, 3):
        c.nodes.start(str(broker))
    for index in (0, 1):
        await_isr(c, name, BROKERS, index)
    partitions_at(c, name, 1, 2)


def a_partition_without_a_candidate(c: ClusterRun) -> None:
    """Both replicas are killed; only the last leader may lead."""
    name = replicated(c, "t", (2, 3))
    c.kill(3)
    c.await_fence(3)
    partitions_at(c, name, 1)
    c.kill(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    elect(c, PREFERRED, {name: [0]})
    elect(c, UNCLEAN, {name: [0]})
    write(c, name, 1)
    offsets(c, name, 1, -1)
    c.start_alone(3)
    partitions_at(c, name, 1)
    c.nodes.start("2")
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1, 2)


def an_unclean_leader_on_request(c: ClusterRun) -> None:
    name = replicated(c, "t", (2, 3))
    write(c, name, 2, count=3)
    c.kill(3)
    c.await_fence(3)
    write(c, name, 2, count=2)
    c.kill(2)
    c.await_fence(2)
    c.start_alone(3)
    partitions_at(c, name, 1)
    elect(c, PREFERRED, {name: [0]})
    elect(c, UNCLEAN, {name: [0]})
    await_isr(c, name, (3,))
    partitions_at(c, name, 1, 3)
    elect(c, UNCLEAN, {name: [0]})
    c.nodes.start("2")
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 1)


def an_unclean_leader_by_setting(c: ClusterRun) -> None:
    name = replicated(c, "t", (2, 3), unclean_leader_election_enable="true")
    c.kill(3)
    c.await_fence(3)
    c.kill(2)
    c.await_fence(2)
    partitions_at(c, name, 1)
    c.nodes.start("3")
    await_isr(c, name, (3,))
    partitions_at(c, name, 1)
    c.nodes.start("2")
    await_isr(c, name, (2, 3))
    partitions_at(c, name, 2)


def the_last_known_leader(c: ClusterRun) -> None:
    name = replicated(c, "t", (3,))
    c.kill(3)
    c.await_fence(3)
    partitions_at(c, name, 1)
    c.start(3)
    await_isr(c, name, (3,))
    partitions_at(c, name, 1, 3)


def another_minimum_meanwhile(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 2, 3), min_insync_replicas="3")
    c.kill(3)
    c.await_fence(3)
    partitions_at(c, name, 1)
    change(c, 1, TOPIC, name, ("min.insync.replicas", SET, "2"))
    c.settle()
    partitions_at(c, name, 1, 2)
    c.start(3)
    await_isr(c, name, BROKERS)
    partitions_at(c, name, 3)


# --- topics whose replicas are away -----------------------------------------------------------------------------


def a_topic_is_deleted_without_a_replica(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 3), (3, 1))
    write(c, name, 1, count=3)
    c.kill(3)
    c.await_fence(3)
    c.call(20, 5, {"topic_names": [name], **_LATER}, client="2")
    c.settle()
    partitions_at(c, name, 1)
    c.start(3)
    partitions_at(c, name, 3)
    logs = {"topics": [{"topic": name, "partitions": [0, 1]}]}
    found = c.quietly(35, 4, logs, client="3").results[0].topics
    c.note("logs at 3", {}, sum(len(topic.partitions) for topic in found))


def a_topic_is_created_again_without_a_replica(c: ClusterRun) -> None:
    name = replicated(c, "t", (1, 3))
    write(c, name, 1, count=3)
    c.kill(3)
    c.await_fence(3)
    c.quietly(20, 5, {"topic_names": [name], **_LATER}, client="2")
    c.settle()
    made = create(c, 2, topic_row(name, (3, 1)), topic_row(c.topic("alone"), (3,)))
    c.name_value({one.name: one for one in made.topics}[name].topic_id, "id of the second")
    c.settle()
    partitions_at(c, name, 1)
    write(c, name, 1, count=2)
    c.start(3)
    await_isr(c, name, (1, 3))
    partitions_at(c, name, 3)
    read(c, name, 1)


def topics_are_created_while_a_broker_is_away(c: ClusterRun) -> None:
    c.kill(3)
    c.await_fence(3)
    create(c, 1, topic_row(c.topic("three"), (1, 2, 3)), topic_row(c.topic("last"), (3, 1)))
    create(c, 2, topic_row(c.topic("only"), (3,)))
    create(c, 2, topic_row(c.topic("placed"), count=3, factor=3))
    create(c, 2, topic_row(c.topic("four"), count=1, factor=4))
    c.settle()
    partitions_at(c, c.topic("three"), 1)
    partitions_at(c, c.topic("last"), 2)
    c.start(3)
    await_isr(c, c.topic("three"), BROKERS)
    await_isr(c, c.topic("last"), (1, 3))
    partitions_at(c, c.topic("three"), 1)


# --- acknowledgements -------------------------------------------------------------------------------------------


def writes_with_replicas_down(c: ClusterRun) -> None:
    """acks × replicas down × minimum: what is accepted, and what can be read then."""
    names = [replicated(c, f"m{least}", (1, 2, 3), min_insync_replicas=str(least)) for least in (1, 2, 3)]
    for down in (0, 1, 2):
        if down:
            c.kill(4 - down)
            c.await_fence(4 - down)
        for name in names:
            for acks in (-1, 1):
                write(c, name, 1, acks=acks)
        c.settle()
        for name in names:
            read(c, name, 1)
    for broker in (2, 3):
        c.nodes.start(str(broker))
    for name in names:
        await_isr(c, name, BROKERS)
    for name in names:
        read(c, name, 1)


SCENARIOS = (
    assignments_of_replicas, wrong_assignments_of_replicas, wrong_assignments_of_new_partitions,
    impossible_replication_factors,
    a_killed_leader, a_stopped_leader, two_killed_brokers, a_partition_without_a_candidate,
    an_unclean_leader_on_request, an_unclean_leader_by_setting, the_last_known_leader,
    a_topic_is_deleted_without_a_replica, a_topic_is_created_again_without_a_replica,
    topics_are_created_while_a_broker_is_away, writes_with_replicas_down, another_minimum_meanwhile,
)  # fmt: skip
"""``another_minimum_meanwhile`` is the last one: its ClearElr record leaves a broker in the controller's table of
eligible replicas, and after the end of the topic Apache Kafka's controller registers this broker no more."""
Scenario = Callable[[ClusterRun], None]
