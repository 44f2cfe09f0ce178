"""Scenarios of clients whose requests reach the wrong broker of a cluster, and the right one. See ``SCENARIOS``."""

from __future__ import annotations

from typing import Any

from api_requests import versions
from cluster_conversation import BROKERS, ClusterRun
from group_requests import subscription
from scenarios_log import batch, fetch_message, produce_message


def id_of(c: ClusterRun, name: str) -> Any:
    asked = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": False}
    asked |= {"include_topic_authorized_operations": False}
    return c.quietly(3, 12, asked).topics[0].topic_id


# --- records ----------------------------------------------------------------------------------------------------


def records_for_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    topic_id = id_of(c, name)
    for version in range(3, 14):
        where = topic_id if version >= 13 else name
        c.call(0, version, produce_message(where, batch(2), 1), client="1")
    c.call(0, 13, produce_message(topic_id, batch(2), 0), client="2")
    c.call(0, 13, produce_message(topic_id, batch(2), 1, acks=1), client="3")
    c.call(0, 12, produce_message(name, batch(2), 9), client="3")
    both = produce_message(name, batch(2), 0)
    both["topic_data"][0]["partition_data"] += produce_message(name, batch(2), 1)["topic_data"][0]["partition_data"]
    for broker in BROKERS:
        c.call(0, 12, both, client=str(broker), unordered=("partition_responses",))
    for broker in BROKERS:
        c.call(1, 12, fetch_message(name, 0, 1), client=str(broker))


def fetches_from_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    topic_id = id_of(c, name)
    c.quietly(0, 9, produce_message(name, batch(3), 1), client="2")
    for version in range(4, 19):
        where = topic_id if version >= 13 else name
        c.call(1, version, fetch_message(where, 0, 1), client="1")
        c.call(1, version, fetch_message(where, 0, 1), client="2")
    c.call(1, 17, fetch_message(topic_id, 0, 1, current_leader_epoch=0), client="3")
    c.call(1, 17, fetch_message(topic_id, 0, 1, current_leader_epoch=5), client="3")
    c.call(1, 17, fetch_message(topic_id, 0, 1, current_leader_epoch=5), client="2")
    c.call(1, 17, fetch_message(topic_id, 0, 9), client="3")
    c.call(1, 17, fetch_message(topic_id, 0, 1, rack_id="b"), client="3")
    c.call(1, 17, fetch_message(topic_id, 0, 1, rack_id="c"), client="2")


def fetch_sessions_at_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    topic_id = id_of(c, name)
    message = fetch_message(topic_id, 0, 1) | {"session_epoch": 0}
    reply = c.call(1, 17, message, client="1")
    c.name_number(reply.session_id, "session")
    message = fetch_message(topic_id, 0, 0) | {"session_id": reply.session_id, "session_epoch": 1}
    c.call(1, 17, message, client="1")
    c.call(1, 17, message | {"topics": [], "session_epoch": 2}, client="1")
    c.call(1, 17, message | {"topics": [], "session_epoch": 3}, client="2")


def offsets_at_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    c.quietly(0, 9, produce_message(name, batch(3), 1), client="2")
    for broker in BROKERS:
        for version in range(1, 12):
            rows = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in (0, 1, 9)]
            asked = {"replica_id": -1, "isolation_level": 0, "timeout": 5000}
            asked["topics"] = [{"name": name, "partitions": rows}]
            c.call(2, version, asked, client=str(broker), unordered=("partitions",))
        for epoch in (0, 4):
            rows = [{"partition_index": 1, "current_leader_epoch": epoch, "timestamp": -2}]
            c.call(2, 8, asked | {"topics": [{"name": name, "partitions": rows}]}, client=str(broker))


def epochs_at_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    c.quietly(0, 9, produce_message(name, batch(3), 1), client="2")
    for broker in BROKERS:
        for version in versions(23):
            rows = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in (0, 1, 9)]
            rows += [{"partition": 1, "current_leader_epoch": 3, "leader_epoch": 0}]
            c.call(23, version, {"replica_id": -1, "topics": [{"topic": name, "partitions": rows}]}, client=str(broker))


def deleted_records_and_producers_at_another_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    c.quietly(0, 9, produce_message(name, batch(3), 1), client="2")
    for broker in BROKERS:
        rows = [{"partition_index": index, "offset": 0} for index in (0, 1, 9)]
        c.call(
            21, 2, {"topics": [{"name": name, "partitions": rows}], "timeout": 5000}, client=str(broker),
            unordered=("partitions",),
        )  # fmt: skip
        c.call(
            61, 0, {"topics": [{"name": name, "partition_indexes": [0, 1, 9]}]}, client=str(broker),
            unordered=("partitions",),
        )  # fmt: skip


def directories_of_each_broker(c: ClusterRun) -> None:
    name = c.place("t", 1, 2, 2)
    c.quietly(0, 9, produce_message(name, batch(3), 1), client="2")
    for broker in BROKERS:
        asked = {"topics": [{"topic": name, "partitions": [0, 1, 2, 9]}]}
        reply = c.quietly(35, 4, asked, client=str(broker))
        found = [
            [int(result.error_code), sorted([row.partition_index, row.partition_size] for each in result.topics
             for row in each.partitions)]
            for result in reply.results
        ]  # fmt: skip
        c.note("directories", {"broker": broker}, found)
        rows = [{"path": "/no/such", "topics": [{"name": name, "partitions": [0, 1]}]}]
        c.call(34, 2, {"dirs": rows}, client=str(broker), unordered=("partitions",))


# --- coordinators -----------------------------------------------------------------------------------------------


def coordinators_are_found_at_each_broker(c: ClusterRun) -> None:
    groups = [c.key_at(broker) for broker in BROKERS]
    ids = [c.key_at(broker, "x") for broker in BROKERS]
    for version in range(7):
        for kind, keys in ((0, groups), (1, ids), (7, ["k"])):
            if version >= 4:
                c.at_each(10, version, {"key_type": kind, "coordinator_keys": keys})
            elif version or not kind:
                for key in keys:
                    c.at_each(10, version, {"key": key} | ({"key_type": kind} if version else {}))


def commits_at_another_coordinator(c: ClusterRun) -> None:
    name = c.place("t", 1, 2)
    topic_id = id_of(c, name)
    group = c.key_at(2)
    for version in range(2, 11):
        where = {"topic_id": topic_id} if version >= 10 else {"name": name}
        row = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": "m"}
        message = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "retention_time_ms": -1, "topics": [where | {"partitions": [row]}],
        }  # fmt: skip
        c.call(8, version, message, client="1")
        c.call(8, version, message, client="2")
    for version in range(1, 11):
        if version >= 8:
            where = {"topic_id": topic_id} if version >= 10 else {"name": name}
            topics = [where | {"partition_indexes": [0]}]
            rows = [
                {"group_id": one, "member_id": None, "member_epoch": -1, "topics": topics}
                for one in (group, c.key_at(1))
            ]
            asked: dict[str, Any] = {"groups": rows, "require_stable": False}
        else:
            asked = {
                "group_id": group, "topics": [{"name": name, "partition_indexes": [0]}], "require_stable": False,
            }  # fmt: skip
        c.at_each(9, version, asked)


def members_at_another_coordinator(c: ClusterRun) -> None:
    group = c.key_at(3)
    for broker in (1, 2, 3):
        client = str(broker)
        for version in (2, 5, 9):
            join = {
                "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "stranger",
                "group_instance_id": None, "protocol_type": "consumer", "reason": None,
                "protocols": [{"name": "range", "metadata": subscription("t")}],
            }  # fmt: skip
            c.call(11, version, join, client=client)
        who = {"group_id": group, "generation_id": 1, "member_id": "m", "group_instance_id": None}
        for version in versions(12):
            c.call(12, version, who, client=client)
        names = {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
        for version in versions(14):
            c.call(14, version, who | names, client=client)
        for version in versions(13):
            members = [{"member_id": "m", "group_instance_id": None, "reason": None}]
            c.call(13, version, {"group_id": group, "member_id": "m", "members": members}, client=client)


def groups_of_each_coordinator(c: ClusterRun) -> None:
    name = c.place("t", 1)
    groups = [c.key_at(broker) for broker in BROKERS]
    row = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": "m"}
    for broker, group in zip(BROKERS, groups, strict=True):
        message = {
            "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
            "topics": [{"name": name, "partitions": [row]}],
        }  # fmt: skip
        c.quietly(8, 9, message, client=str(broker))
    for broker in BROKERS:
        client = str(broker)
        for version in versions(15):
            asked = {"groups": groups, "include_authorized_operations": False}
            c.call(15, version, asked, client=client)
        found = c.quietly(16, 4, {"states_filter": []}, client=client).groups
        c.note("listed", {"broker": broker}, c.shown(sorted(one.group_id for one in found if one.group_id in groups)))
    for broker in BROKERS:
        topics = [{"name": name, "partitions": [{"partition_index": 0}]}]
        c.call(47, 0, {"group_id": groups[1], "topics": topics}, client=str(broker))
    for broker in BROKERS:
        c.call(42, 2, {"groups_names": groups}, client=str(broker), unordered=("results",))


def kip_848_members_at_another_coordinator(c: ClusterRun) -> None:
    c.place("t", 1)
    group = c.key_at(1, "n")
    for broker in (2, 3):
        for version in versions(68):
            message = {
                "group_id": group, "member_id": "m" * 22, "member_epoch": 0, "instance_id": None, "rack_id": None,
                "rebalance_timeout": 30_000, "subscribed_topic_names": [c.topic("t")], "subscribed_topic_regex": None,
                "server_assignor": None, "topic_partitions": [],
            }  # fmt: skip
            c.call(68, version, message, client=str(broker))
            c.call(69, version, {"group_ids": [group], "include_authorized_operations": False}, client=str(broker))
    c.call(69, 1, {"group_ids": [group], "include_authorized_operations": False}, client="1")


def transactions_at_another_coordinator(c: ClusterRun) -> None:
    name = c.place("t", 1)
    key = c.key_at(3, "x")
    who = {"transactional_id": key, "producer_id": 5, "producer_epoch": 0}
    for broker in (1, 2):
        client = str(broker)
        begin = {"transactional_id": key, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        c.call(22, 4, begin, client=client)
        topics: Any = [{"name": name, "partitions": [0]}]
        legacy = {f"v3_and_below_{field}": value for field, value in (who | {"topics": topics}).items()}
        c.call(24, 3, legacy, client=client)
        c.call(25, 3, who | {"group_id": c.key_at(1)}, client=client)
        c.call(26, 3, who | {"committed": True}, client=client)
        c.call(65, 0, {"transactional_ids": [key]}, client=client)
        row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        topics = [{"name": name, "partitions": [row]}]
        commit = who | {"group_id": c.key_at(3), "generation_id": -1, "member_id": "", "group_instance_id": None}
        c.call(28, 3, commit | {"topics": topics}, client=client)


def producer_ids_of_each_broker(c: ClusterRun) -> None:
    """Each broker has producer ids of blocks of its own."""
    found = []
    for broker in (*BROKERS, *BROKERS):
        message = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

        def ready(reply: Any) -> bool:
            return int(reply.error_code) == 0

        reply = c.until(22, 4, message, ready, client=str(broker))
        found.append((broker, reply.producer_id // 1000, reply.producer_id, reply.producer_epoch))
    blocks = {broker: block for broker, block, _, _ in found[:3]}
    c.note("ids", {}, {
        "blocks": len(set(blocks.values())),
        "same block": [block == blocks[broker] for broker, block, _, _ in found[3:]],
        "different ids": len({number for _, _, number, _ in found}),
        "epochs": sorted({epoch for *_, epoch in found}),
    })  # fmt: skip


def topics_are_made_by_metadata(c: ClusterRun) -> None:
    """A client asks for a topic that does not exist, and the broker lets the controller create it."""
    for broker in BROKERS:
        name = c.topic(f"auto {broker}")
        asked = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": True}
        asked |= {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}

        def ready(reply: Any) -> bool:
            (topic,) = reply.topics
            return len(topic.partitions) == 3 and all(one.leader_id > 0 for one in topic.partitions)

        reply = c.until(3, 12, asked, ready, client=str(broker))
        c.settle()
        leaders = {one.partition_index: one.leader_id for one in reply.topics[0].partitions}
        seen = [c.quietly(3, 12, asked, client=str(other)).topics[0].partitions for other in BROKERS]
        same = [{one.partition_index: one.leader_id for one in rows} == leaders for rows in seen]
        c.note("created", {"broker": broker}, {"leaders": len(set(leaders.values())), "same": same})
        c.quietly(20, 6, {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000})
    for name in ("a b", "x" * 250, ""):
        asked["topics"] = [{"topic_id": None, "name": name}]
        c.call(3, 12, asked, client="2", unordered=("brokers",))


SCENARIOS = (
    records_for_another_broker, fetches_from_another_broker, fetch_sessions_at_another_broker,
    offsets_at_another_broker, epochs_at_another_broker, deleted_records_and_producers_at_another_broker,
    directories_of_each_broker, coordinators_are_found_at_each_broker, commits_at_another_coordinator,
    members_at_another_coordinator, groups_of_each_coordinator, kip_848_members_at_another_coordinator,
    transactions_at_another_coordinator, producer_ids_of_each_broker, topics_are_made_by_metadata,
)  # fmt: skip
