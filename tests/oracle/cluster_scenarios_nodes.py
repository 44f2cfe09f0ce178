"""Scenarios of registrations, placement, and nodes of a cluster that are away. See ``SCENARIOS``."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from typing import Any

from cluster_conversation import BROKERS, CONTROLLER, ClusterRun
from cluster_scenarios_admin import SET, TOPIC, change, create, topic_row
from controller_conversation import FEATURES, ranges
from scenarios_log import batch, fetch_message, produce_message

NAMES = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


def rows_of(c: ClusterRun, name: str, at: int = 1) -> list[Any]:
    asked = {"topics": [{"topic_id": None, "name": name}]} | NAMES
    found: list[Any] = c.quietly(3, 13, asked, client=str(at)).topics[0].partitions
    return sorted(found, key=lambda one: int(one.partition_index))


# --- registrations ----------------------------------------------------------------------------------------------


def registrations_of_each_version(c: ClusterRun) -> None:
    for version in range(5):
        broker = c.made_up(version)
        c.name_epoch(c.register(broker, version=version, rack=f"r{version}"), f"epoch of {version}")
    c.settle()
    c.cluster_at()
    c.call(64, 0, {"broker_id": c.made_up(4)}, client="2")
    c.settle()
    c.cluster_at()


def repeated_registrations(c: ClusterRun) -> None:
    broker = c.made_up(1)
    for rack in ("ra", "rb"):
        c.name_epoch(c.register(broker, rack=rack), f"epoch with {rack}")
        c.settle()
        c.cluster_at(1, 3)
    c.name_epoch(c.register(broker, incarnation=2, rack="rc"), "epoch of another incarnation")
    c.settle()
    c.cluster_at(2)


def ids_of_live_brokers(c: ClusterRun) -> None:
    """The brokers are alive: another process with their id is refused, and they serve on."""
    name = c.place("t", *BROKERS)
    for broker in BROKERS:
        for version in (0, 2, 4):
            c.register(broker, version=version)
    c.name_epoch(c.register(100), "epoch of a controller's id")
    c.call(64, 0, {"broker_id": 100}, client="1")
    c.beat(2, 0)
    c.beat(2, 1 << 40)
    c.settle()
    c.cluster_at()
    for broker in BROKERS:
        c.call(0, 9, produce_message(name, batch(1), broker - 1), client=str(broker))


def registrations_with_other_features(c: ClusterRun) -> None:
    broker = c.made_up(1)
    without = {name: levels for name, levels in FEATURES.items() if name != "metadata.version"}
    for features in (
        without, FEATURES | {"metadata.version": (7, 29)}, FEATURES | {"metadata.version": (31, 40)},
        FEATURES | {"kraft.version": (1, 1)}, FEATURES | {"unknown.version": (1, 3)}, {},
    ):  # fmt: skip
        c.register(broker, features=ranges(features))
    c.register(broker, cluster_id="AAAAAAAAAAAAAAAAAAAAAA")
    c.register(broker, is_migrating_zk_broker=True)
    c.settle()
    c.cluster_at(2)


def directories_of_live_brokers(c: ClusterRun) -> None:
    """No broker may register the directory of another one."""
    row = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    found = c.quietly(55, 2, {"topics": [row]}).topics[0].partitions[0].observers
    taken = {one.replica_id: one.replica_directory_id for one in found}
    for broker, directory in taken.items():
        c.name_value(directory, f"directory of broker {broker}")
    c.register(c.made_up(1), log_dirs=[taken[2]])
    c.register(c.made_up(1), log_dirs=[c.directory(c.made_up(1)), taken[3]])
    c.register(c.made_up(1), log_dirs=[])
    c.register(c.made_up(1), log_dirs=[uuid.UUID(int=1)])
    c.name_epoch(c.register(c.made_up(1)), "epoch")
    c.register(c.made_up(2), log_dirs=[c.directory(c.made_up(1))])
    c.settle()
    c.cluster_at(1)


def a_fenced_start(c: ClusterRun) -> None:
    """A new broker is fenced until its first heartbeat with all records: then clients see it."""
    broker = c.made_up(1)
    epoch = c.name_epoch(c.register(broker, rack="z"), "epoch")
    c.settle()
    c.cluster_at()
    c.topics_at([])
    create(c, 1, topic_row(c.topic("on a fenced one"), (broker,)))
    create(c, 1, topic_row(c.topic("too"), (2,), (broker,)))
    c.beat(broker, epoch)
    c.settle()
    c.topics_at([])
    create(c, 2, topic_row(c.topic("on the new one"), (broker,), (3,)))
    c.settle()
    c.topics_at([c.topic("on the new one")])
    c.beat(broker, epoch, fence=True)
    c.settle()
    c.cluster_at(1)
    c.topics_at([c.topic("on the new one")])


def the_session_of_a_new_broker(c: ClusterRun) -> None:
    broker = c.made_up(1)
    epoch = c.name_epoch(c.register(broker), "epoch")
    c.beat(broker, epoch)
    name = c.place("t", broker, 2)
    c.topics_at([name])
    c.await_fence(broker)
    c.cluster_at()
    c.topics_at([name])
    c.beat(broker, epoch)
    c.settle()
    c.topics_at([name])
    c.call(64, 0, {"broker_id": broker}, client="3")
    c.settle()
    c.beat(broker, epoch)
    c.topics_at([name])


# --- placement --------------------------------------------------------------------------------------------------


def created(c: ClusterRun, count: int, topics: int, *beating: tuple[int, int]) -> list[list[int]]:
    """Creates topics with one replica of each partition. Returns the brokers of each topic's partitions.

    ``beating``: made-up brokers with their epochs, which send heartbeats meanwhile."""
    names = [c.topic(f"n{number}") for number in range(topics)]
    for at in range(0, topics, 10):
        for broker, epoch in beating:
            c.beat(broker, epoch, quiet=True)
        rows = [topic_row(name, count=count, factor=1) for name in names[at : at + 10]]
        reply = c.quietly(19, 7, {"topics": rows, "timeout": 30_000, "validate_only": False})
        assert {int(row.error_code) for row in reply.topics} == {0}, reply
    asked = {"topics": [{"topic_id": None, "name": name} for name in names]} | NAMES
    reply = c.until(3, 13, asked, lambda said: all(len(topic.partitions) == count for topic in said.topics))
    found = {topic.name: topic.partitions for topic in reply.topics}
    ordered = (sorted(found[name], key=lambda one: int(one.partition_index)) for name in names)
    return [[one.replica_nodes[0] for one in partitions] for partitions in ordered]


def partitions_of_a_topic_are_spread(c: ClusterRun) -> None:
    """The first three partitions are on three brokers. Which ones follow is chance, and not all rounds are fair."""
    for broker in BROKERS:
        create(c, broker, topic_row(c.topic(f"of {broker}"), count=30, factor=1), validate_only=broker == 3)
    topics = created(c, 12, c.nodes.topics_of_a_sample)
    c.note("first round", {}, sorted({len(set(found[:3])) for found in topics}))
    c.sample("leaders", Counter(str(leader) for found in topics for leader in found))
    c.sample("first leaders", Counter(str(found[0]) for found in topics))
    rounds = (found[at : at + 3] for found in topics for at in range(3, 12, 3))
    c.sample("brokers in a round", Counter(str(len(set(one))) for one in rounds))
    pairs = (pair for found in topics for pair in itertools.pairwise(found))
    c.sample("neighbours", Counter(f"{one} {other}" for one, other in pairs))


def more_partitions_are_spread(c: ClusterRun) -> None:
    """New partitions of present topics: their placement begins again."""
    topics = created(c, 1, c.nodes.topics_of_a_sample)
    names = [c.topic(f"n{number}") for number in range(len(topics))]
    rows = [{"name": name, "count": 10, "assignments": None} for name in names]
    c.quietly(37, 3, {"topics": rows, "timeout": 30_000, "validate_only": False})
    asked = {"topics": [{"topic_id": None, "name": name} for name in names]} | NAMES
    reply = c.until(3, 13, asked, lambda said: all(len(topic.partitions) == 10 for topic in said.topics))
    present = {topic.name: {one.partition_index: one.leader_id for one in topic.partitions} for topic in reply.topics}
    found = [[present[name][index] for index in range(10)] for name in names]
    c.note("kept", {}, [one[:1] for one in found] == topics)
    c.note("first round", {}, sorted({len(set(one[1:4])) for one in found}))
    c.sample("leaders", Counter(str(leader) for one in found for leader in one[1:]))
    c.sample("last and first", Counter(f"{one[0]} {one[1]}" for one in found))


def one_replica_each_is_placed_by_chance(c: ClusterRun) -> None:
    """One partition a topic: no broker follows another by rule."""
    leaders = [found[0] for found in created(c, 1, 3 * c.nodes.topics_of_a_sample)]
    c.sample("leaders", Counter(map(str, leaders)))
    c.sample("neighbours", Counter(f"{one} {other}" for one, other in itertools.pairwise(leaders)))


def racks_of_several_brokers(c: ClusterRun) -> None:
    """Racks take turns, so a broker that is alone in its rack gets more: 1 (a), 2 (b), 3 (c), and two more in a."""
    made = [c.made_up(number) for number in (1, 2)]
    epochs = [c.name_epoch(c.register(broker, rack="a"), f"epoch of {broker}") for broker in made]
    beating = tuple(zip(made, epochs, strict=True))
    for broker, epoch in beating:
        c.beat(broker, epoch)
    c.settle()
    topics = created(c, 10, c.nodes.topics_of_a_sample, *beating)
    label = {1: "1", 2: "2", 3: "3"} | {broker: f"made-up {at}" for at, broker in enumerate(made)}
    c.sample("leaders", Counter(label[leader] for found in topics for leader in found))
    c.note(
        "first round",
        {},
        sorted({len({min(one, 4) if one not in made else 1 for one in found[:3]}) for found in topics}),
    )


def a_fenced_broker_gets_no_partition(c: ClusterRun) -> None:
    """A fenced broker has a rack of its own here. Its turn goes to the next rack."""
    fenced = c.made_up(1)
    c.name_epoch(c.register(fenced, rack="aa"), "epoch")
    topics = created(c, 10, c.nodes.topics_of_a_sample)
    c.sample("leaders", Counter(str(leader) for found in topics for leader in found))


def wrong_assignments(c: ClusterRun) -> None:
    fenced = c.made_up(1)
    c.name_epoch(c.register(fenced), "epoch")
    for broker in (*BROKERS, CONTROLLER):
        create(c, broker, topic_row(c.topic("unknown"), (8,)), topic_row(c.topic("twice"), (1, 1)))
        create(c, broker, topic_row(c.topic("none"), ()), topic_row(c.topic("negative"), (-1,)))
        create(c, broker, topic_row(c.topic("fenced"), (fenced,)), topic_row(c.topic("lengths"), (1, 2), (1,)))
        gap = topic_row(c.topic("gap"), (1,), (2,))
        gap["assignments"][1]["partition_index"] = 2
        same = topic_row(c.topic("same"), (1,), (2,))
        same["assignments"][1]["partition_index"] = 0
        create(c, broker, gap, same)


def wrong_factors(c: ClusterRun) -> None:
    for broker in (*BROKERS, CONTROLLER):
        create(
            c, broker, topic_row(c.topic("four"), count=1, factor=4), topic_row(c.topic("many"), count=2, factor=3000)
        )
        create(c, broker, topic_row(c.topic("zero"), count=1, factor=0), topic_row(c.topic("less"), count=1, factor=-2))
        create(c, broker, topic_row(c.topic("no partition"), count=0, factor=1))
    create(c, 2, topic_row(c.topic("defaults")), validate_only=True)


# --- nodes that are away ----------------------------------------------------------------------------------------


def what_the_others_say(c: ClusterRun, name: str, *brokers: int) -> None:
    """Asks the live brokers about a topic and its group, whose coordinator is broker 3."""
    c.cluster_at(*brokers)
    c.topics_at([name], *brokers)
    for broker in brokers:
        client = str(broker)
        c.call(0, 12, produce_message(name, batch(1), 2), client=client)
        c.call(1, 12, fetch_message(name, 0, 2), client=client)
        rows = [{"partition_index": 2, "current_leader_epoch": -1, "timestamp": -1}]
        asked = {"replica_id": -1, "isolation_level": 0, "timeout": 5000}
        c.call(2, 8, asked | {"topics": [{"name": name, "partitions": rows}]}, client=client)
        c.call(10, 4, {"key_type": 0, "coordinator_keys": [c.key_at(3), c.key_at(broker)]}, client=client)
        c.call(
            12,
            4,
            {"group_id": c.key_at(3), "generation_id": 1, "member_id": "m", "group_instance_id": None},
            client=client,
        )
        c.call(75, 0, {"topics": [{"name": name}], "response_partition_limit": 10, "cursor": None}, client=client)


def changes_without_broker_3(c: ClusterRun) -> None:
    name = c.topic("made meanwhile")
    create(
        c, 1, topic_row(name, (1,), (2,)), topic_row(c.topic("on 3"), (3,)), topic_row(c.topic("partly"), (1,), (3,))
    )
    create(c, 2, topic_row(c.topic("placed"), count=8, factor=1), topic_row(c.topic("three"), count=1, factor=4))
    c.settle()
    c.topics_at([name], 1, 2)
    c.note("leaders", {}, sorted({one.leader_id for one in rows_of(c, c.topic("placed"))}))
    change(c, 2, TOPIC, name, ("retention.ms", SET, "99000"))
    rows = [{"topic": c.topic("t"), "partitions": [0, 2]}]
    for kind in (0, 1):
        asked = {"election_type": kind, "topic_partitions": rows, "timeout": 9000}
        c.call(43, 2, asked, client="1", unordered=("replica_election_results", "partition_result"))


def a_stopped_broker(c: ClusterRun) -> None:
    name = c.place("t", *BROKERS)
    c.stop(3)
    c.await_fence(3)
    what_the_others_say(c, name, 1, 2)
    changes_without_broker_3(c)
    c.start(3)
    c.topics_at([name])
    c.call(0, 12, produce_message(name, batch(1), 2), client="3")
    c.call(
        12, 4, {"group_id": c.key_at(3), "generation_id": 1, "member_id": "m", "group_instance_id": None}, client="3"
    )


def a_killed_broker(c: ClusterRun) -> None:
    name = c.place("t", *BROKERS)
    c.call(0, 12, produce_message(name, batch(3), 2), client="3")
    c.kill(3)
    c.await_fence(3)
    what_the_others_say(c, name, 1, 2)
    c.start(3)
    c.topics_at([name])
    c.call(1, 12, fetch_message(name, 0, 2), client="3")
    rows = [{"partition": 2, "current_leader_epoch": -1, "leader_epoch": 0}]
    c.call(23, 4, {"replica_id": -1, "topics": [{"topic": name, "partitions": rows}]}, client="3")
    c.call(0, 12, produce_message(name, batch(1), 2), client="3")


def a_fenced_broker(c: ClusterRun) -> None:
    """Broker 3 is halted until its session has ended. It goes on, and leads its partitions again."""
    name = c.place("t", *BROKERS)
    c.pause(3)
    c.await_fence(3)
    what_the_others_say(c, name, 1, 2)
    changes_without_broker_3(c)
    c.resume(3)
    c.topics_at([name])
    c.cluster_at()
    c.call(0, 12, produce_message(name, batch(1), 2), client="3")


def unregistered_brokers(c: ClusterRun) -> None:
    name = c.place("t", *BROKERS)
    for node in (*BROKERS, CONTROLLER):
        c.call(64, 0, {"broker_id": 99}, client=str(node))
        c.call(64, 0, {"broker_id": -1}, client=str(node))
    c.stop(3)
    c.await_fence(3)
    c.call(64, 0, {"broker_id": 3}, client="1")
    c.settle()
    c.cluster_at(1, 2)
    c.topics_at([name], 1, 2)
    c.call(64, 0, {"broker_id": 3}, client="2")
    create(c, 2, topic_row(c.topic("on 3"), (3,)), topic_row(c.topic("three"), count=1, factor=3), validate_only=True)
    c.start(3)
    c.cluster_at()
    c.topics_at([name])


def an_unregistered_live_broker(c: ClusterRun) -> None:
    name = c.place("t", *BROKERS)
    c.call(64, 0, {"broker_id": 3}, client="1")
    c.settle()
    c.cluster_at(1, 2)
    c.topics_at([name], 1, 2)
    create(c, 2, topic_row(c.topic("on 3"), (3,)))
    c.kill(3)
    c.start(3)
    c.cluster_at()
    c.topics_at([name])


def while_the_controller_is_down(c: ClusterRun) -> None:
    name = c.place("t", *BROKERS)
    c.kill(CONTROLLER)
    c.settle()
    c.topics_at([name])
    c.cluster_at()
    for broker in BROKERS:
        client = str(broker)
        c.call(0, 12, produce_message(name, batch(1), broker - 1), client=client)
        c.call(0, 12, produce_message(name, batch(1), broker % 3), client=client)
        c.call(1, 12, fetch_message(name, 0, broker - 1), client=client)
        c.call(10, 4, {"key_type": 0, "coordinator_keys": [c.key_at(one) for one in BROKERS]}, client=client)
        row = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": "m"}
        message = {
            "group_id": c.key_at(broker), "generation_id_or_member_epoch": -1, "member_id": "",
            "group_instance_id": None, "topics": [{"name": name, "partitions": [row]}],
        }  # fmt: skip
        c.call(8, 9, message, client=client)
        c.call(
            3,
            12,
            {"topics": [{"topic_id": None, "name": "a b"}]} | NAMES | _CLUSTER,
            client=client,
            unordered=("brokers",),
        )
    c.start(CONTROLLER)
    c.cluster_at()
    create(c, 3, topic_row(c.topic("afterwards"), (1,), (2,), (3,)))
    c.settle()
    c.topics_at([name, c.topic("afterwards")])


_CLUSTER = {"include_cluster_authorized_operations": False}


_ACL = {
    "resource_type": 2, "resource_pattern_type": 3, "principal": "User:u", "host": "*", "operation": 3,
    "permission_type": 3,
}  # fmt: skip
_ANY_ACL = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
    "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


def changes_while_the_controller_is_down(c: ClusterRun) -> None:
    """No change is acknowledged. The replies come when the broker gives up, whatever time the request allows."""
    name = c.place("t", *BROKERS)
    c.kill(CONTROLLER)
    c.settle()
    before = c.nodes.elapsed_ms()
    quick = {"timeout": 1000}
    row = topic_row(c.topic("new"), (1,))
    quota = {
        "entity": [{"entity_type": "user", "entity_name": "u"}],
        "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
    }
    setting = {"name": "retention.ms", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": name, "configs": [setting]}
    plain = {"resource_type": 2, "resource_name": name, "configs": [{"name": "retention.ms", "value": "1"}]}
    user = {"name": "u", "mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"x" * 32}
    feature = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    requests: list[tuple[int, int, dict[str, Any]]] = [
        (19, 7, {"topics": [row], "validate_only": False} | quick),
        (20, 6, {"topics": [{"name": name, "topic_id": None}]} | quick),
        (37, 3, {"topics": [{"name": name, "count": 9, "assignments": None}], "validate_only": False} | quick),
        (44, 1, {"resources": [resource], "validate_only": False}),
        (33, 2, {"resources": [plain], "validate_only": False}),
        (49, 1, {"entries": [quota], "validate_only": False}),
        (51, 0, {"deletions": [], "upsertions": [user]}),
        (57, 1, {"feature_updates": [feature], "validate_only": False} | quick),
        (64, 0, {"broker_id": 99}),
        (43, 2, {"election_type": 0, "topic_partitions": [{"topic": name, "partitions": [0]}]} | quick),
        (45, 0, {"topics": [{"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]}]} | quick),
        (46, 0, {"topics": None} | quick),
        (30, 3, {"creations": [_ACL | {"resource_name": "t"}, _ACL | {"resource_name": "u"}]}),
        (31, 3, {"filters": [_ANY_ACL, _ANY_ACL]}),
        (55, 2, {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}),
    ]  # fmt: skip
    pending = [
        c.send(api, version, message, client=f"{number % 3 + 1}/{number}")
        for number, (api, version, message) in enumerate(requests)
    ]
    for one in pending:
        one.receive()
    c.note("seconds", {}, round((c.nodes.elapsed_ms() - before) / 10_000) * 10)
    c.start(CONTROLLER)
    c.topics_at([name, c.topic("new")])


SCENARIOS = (
    registrations_of_each_version, repeated_registrations, ids_of_live_brokers, registrations_with_other_features,
    directories_of_live_brokers, a_fenced_start, the_session_of_a_new_broker, partitions_of_a_topic_are_spread,
    more_partitions_are_spread, a_fenced_broker_gets_no_partition,
    one_replica_each_is_placed_by_chance, racks_of_several_brokers, wrong_assignments, wrong_factors, a_stopped_broker,
    a_killed_broker, a_fenced_broker, unregistered_brokers, an_unregistered_live_broker, while_the_controller_is_down,
    changes_while_the_controller_is_down,
)  # fmt: skip
