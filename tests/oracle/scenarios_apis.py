"""Every API in every version: an empty request, and meaningful requests.

One scenario for each API with a schema. Sequences of requests are in the other suites.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import apis_of_clusters as clusters
from api_requests import KEYS, QUIET, empty, filled, send_empty, versions, wait_for_deletions
from group_requests import GroupRequests, Member, stable
from recording import Run, Scenario
from scenarios_admin import STRANGER, new_topic
from scenarios_log import START_MS, batch, fetch_message, produce, produce_message

from odradek.wire import schemas

CONFIG = {"num.partitions": "4", "group.initial.rebalance.delay.ms": "0"}
RESTARTS = True


# --- records ----------------------------------------------------------------------------------------------------


def produces(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic)
    for version in versions(0):
        send_empty(run, 0, version)
        for where in (topic_id, STRANGER) if version >= 13 else (topic, run.topic("unknown")):
            run.call(0, version, produce_message(where, batch(2)))
        run.call(0, version, produce_message(topic_id if version >= 13 else topic, batch(2), partition=9, acks=1))


def fetches(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic)
    produce(run, topic, 3)
    for version in versions(1):
        reply = run.call(1, version, empty(1, version))
        if version >= 7:
            run.name_number(reply.session_id, "session")
        for where in (topic_id, STRANGER) if version >= 13 else (topic, run.topic("unknown")):
            run.call(1, version, fetch_message(where, 1))
        run.call(1, version, fetch_message(topic_id if version >= 13 else topic, 9))


def lists_offsets(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    produce(run, topic, 3)
    for version in versions(2):
        send_empty(run, 2, version)
        for name in (topic, run.topic("unknown")):
            for timestamp in (-1, -2, START_MS + 1):
                part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                message = {"replica_id": -1, "isolation_level": 0, "timeout": 10_000}
                run.call(2, version, message | {"topics": [{"name": name, "partitions": [part]}]})


def finds_epochs(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    produce(run, topic, 3)
    for version in versions(23):
        send_empty(run, 23, version)
        for name, epoch in ((topic, 0), (topic, 7), (run.topic("unknown"), 0)):
            part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
            run.call(23, version, {"replica_id": -1, "topics": [{"topic": name, "partitions": [part]}]})


def deletes_records(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    produce(run, topic, 30)
    for version in versions(21):
        send_empty(run, 21, version)
        for name, offset in ((topic, version + 1), (topic, 99), (run.topic("unknown"), 0)):
            part = {"partition_index": 0, "offset": offset}
            run.call(21, version, {"topics": [{"name": name, "partitions": [part]}], "timeout": 10_000})


def makes_producer_ids(run: Run) -> None:
    message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    message |= {"enable2_pc": False, "keep_prepared_txn": False}
    run.until(22, 5, message, lambda reply: reply.producer_id > 0)
    for version in versions(22):
        send_empty(run, 22, version)
        run.call(22, version, message | {"transactional_id": run.fresh("tx")})
        reply = run.call(22, version, message)
        if reply is not None:
            run.name_number(reply.producer_id, f"producer {version}")


# --- topics -----------------------------------------------------------------------------------------------------


def requests_metadata(run: Run) -> None:
    wait_for_deletions(run)
    topic = run.topic()
    run.create(topic)
    for version in versions(3):
        send_empty(run, 3, version)
        rows = [{"name": name, "topic_id": None} for name in (topic, run.topic("unknown"))]
        message = {"allow_auto_topic_creation": False} | dict.fromkeys(QUIET, version < 11)
        run.call(3, version, message | {"topics": rows if version >= 4 else rows[:1]}, unordered=("topics",))


def creates_topics(run: Run) -> None:
    for version in versions(19):
        send_empty(run, 19, version)
        name = run.topic(f"v{version}")
        for partitions in (2, 2, 0):
            topic = new_topic(name if partitions else run.topic("none"), partitions, 1, retention_ms="1000")
            message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
            run.call(19, version, message, unordered=("configs",))


def deletes_topics(run: Run) -> None:
    for version in versions(20):
        send_empty(run, 20, version)
        name = run.topic(f"v{version}")
        run.create(name)
        for asked in (name, run.topic("unknown")):
            message = {"topics": [{"name": asked, "topic_id": None}], "topic_names": [asked], "timeout": 10_000}
            run.call(20, version, message)


def adds_partitions(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(37):
        send_empty(run, 37, version)
        for name, count in ((topic, 2 + version), (topic, 1), (run.topic("unknown"), 2)):
            row = {"name": name, "count": count, "assignments": None}
            run.call(37, version, {"topics": [row], "timeout": 10_000, "validate_only": False})


def describes_partitions(run: Run) -> None:
    wait_for_deletions(run)
    GroupRequests(run)  # now the offsets topic exists
    topic = run.topic()
    run.create(topic)
    asked = {"topics": [], "response_partition_limit": 2000, "cursor": None}
    run.until(75, 0, asked, lambda reply: topic in [row.name for row in reply.topics])
    for version in versions(75):
        send_empty(run, 75, version)
        for name in (topic, run.topic("unknown")):
            run.call(75, version, {"topics": [{"name": name}], "response_partition_limit": 10, "cursor": None})


def describes_log_dirs(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    produce(run, topic, 3)
    run.name_value(run.quietly(35, 4, {"topics": []}).results[0].log_dir, "log dir")
    for version in versions(35):
        send_empty(run, 35, version)
        for name in (topic, run.topic("unknown")):
            run.call(35, version, {"topics": [{"topic": name, "partitions": [0]}]})


def moves_between_log_dirs(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    here = run.quietly(35, 4, {"topics": []}).results[0].log_dir
    run.name_value(here, "log dir")
    for version in versions(34):
        send_empty(run, 34, version)
        for path, name in ((here, topic), ("/nowhere", topic), (here, run.topic("unknown"))):
            run.call(34, version, {"dirs": [{"path": path, "topics": [{"name": name, "partitions": [0]}]}]})


def elects_leaders(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(43):
        send_empty(run, 43, version)
        for name in (topic, run.topic("unknown")):
            rows = [{"topic": name, "partitions": [0]}]
            run.call(43, version, {"election_type": 0, "topic_partitions": rows, "timeout": 10_000})


def moves_replicas(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(45):
        send_empty(run, 45, version)
        for name, replicas in ((topic, [1]), (topic, [7]), (topic, None), (run.topic("unknown"), [1])):
            rows = [{"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
            message = {"timeout": 10_000, "allow_replication_factor_change": True, "topics": rows}
            run.call(45, version, message)


def lists_moves(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(46):
        send_empty(run, 46, version)
        for rows in (None, [{"name": topic, "partition_indexes": [0]}]):
            run.call(46, version, {"timeout": 10_000, "topics": rows})


def describes_producers(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    for version in versions(61):
        send_empty(run, 61, version)
        for name in (topic, run.topic("unknown")):
            run.call(61, version, {"topics": [{"name": name, "partition_indexes": [0]}]})


# --- groups -----------------------------------------------------------------------------------------------------


def commits(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    topic_id = run.quietly(3, 12, {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False,
                                   **QUIET}).topics[0].topic_id  # fmt: skip
    for version in versions(8):
        send_empty(run, 8, version)
        for where in (topic_id, STRANGER) if version >= 10 else (topic, run.topic("unknown")):
            requests.commit((where, 0, version), version=version)
        requests.commit((topic_id if version >= 10 else topic, 0, 9), version=version, member="stranger", generation=3)


def fetches_offsets(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    topic_id = run.quietly(3, 12, {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False,
                                   **QUIET}).topics[0].topic_id  # fmt: skip
    requests.commit((topic, 0, 7, "said"))
    for version in versions(9):
        send_empty(run, 9, version)
        for where in (topic_id, STRANGER) if version >= 10 else (topic, run.topic("unknown")):
            requests.fetch({where: [0, 9]}, version=version)
        if version >= 2:
            requests.fetch(version=version)


def finds_coordinators(run: Run) -> None:
    requests = GroupRequests(run)
    for version in versions(10):
        send_empty(run, 10, version)
        for kind in (0, 9):
            run.call(10, version, {"key": requests.group, "key_type": kind, "coordinator_keys": [requests.group]})


def joins(run: Run) -> None:
    for version in versions(11):
        send_empty(run, 11, version)
        requests = GroupRequests(run, f"v{version}")
        reply = requests.join("a", version=version).receive()
        run.name_value(reply.member_id, f"member {version}")
        if version >= 4:
            requests.join("a", reply.member_id, version=version).receive()
        requests.join("b", "stranger", version=version).receive()


def _joined(run: Run, label: str = "a", version: int = 5) -> tuple[GroupRequests, Member]:
    requests = GroupRequests(run, label)
    member = Member(requests, f"c{label}")
    member.join()
    return requests, member


def syncs(run: Run) -> None:
    for version in versions(14):
        send_empty(run, 14, version)
        requests, member = _joined(run, f"v{version}")
        for known in (member.id, "stranger"):
            requests.sync("c", known, member.generation, {member.id: b"1"}, version=version).receive()


def beats(run: Run) -> None:
    requests, member = _joined(run)
    stable(requests, member)
    for version in versions(12):
        send_empty(run, 12, version)
        for known, generation in ((member.id, member.generation), (member.id, 9), ("stranger", 1)):
            requests.beat("c", known, generation, version=version)


def leaves(run: Run) -> None:
    for version in versions(13):
        send_empty(run, 13, version)
        requests, member = _joined(run, f"v{version}")
        requests.leave(("stranger", None), version=version)
        requests.leave((member.id, None), version=version)


def describes_groups(run: Run) -> None:
    requests, member = _joined(run)
    stable(requests, member)
    for version in versions(15):
        send_empty(run, 15, version)
        for group in (requests.group, run.fresh("group", "unknown")):
            requests.describe(version, group)


def lists_groups(run: Run) -> None:
    requests, member = _joined(run)
    stable(requests, member)
    for version in versions(16):
        requests.listed(version=version)  # an empty request
        if version >= 4:
            requests.listed(version=version, states=["Stable"])
        if version >= 5:
            requests.listed(version=version, types=["consumer"])


def deletes_groups(run: Run) -> None:
    for version in versions(42):
        send_empty(run, 42, version)
        requests = GroupRequests(run, f"v{version}")
        requests.commit((requests.topic(f"v{version}"), 0, 1))
        requests.delete(version=version)
        requests.delete(version=version)


def deletes_offsets(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.topic()
    requests.commit((topic, 0, 1))
    for version in versions(47):
        send_empty(run, 47, version)
        requests.delete_offsets({topic: [0, 9], run.topic("unknown"): [0]})
        requests.delete_offsets({topic: [0]}, run.fresh("group", "unknown"))


def consumes(run: Run) -> None:
    for version in versions(68):
        send_empty(run, 68, version)
        requests = GroupRequests(run, f"v{version}")
        topic = requests.known_topic(f"v{version}")
        first = {"member_id": "m" if version else "", "rebalance_timeout": 10_000}
        reply = requests.heartbeat(**first_beat(first, topic), version=version)
        run.name_value(reply.member_id, f"member {version}")
        requests.heartbeat(reply.member_id, reply.member_epoch, version=version)
        requests.heartbeat("stranger", 7, version=version)
        requests.heartbeat(reply.member_id, -1, version=version)


def first_beat(who: Mapping[str, Any], topic: str) -> dict[str, Any]:
    return {"member": who["member_id"], "epoch": 0, "rebalance_timeout": who["rebalance_timeout"],
            "subscribed_topic_names": [topic], "owned": {}}  # fmt: skip


def describes_consumers(run: Run) -> None:
    requests = GroupRequests(run)
    topic = requests.known_topic()
    requests.join_consumer("m", [topic])
    for version in versions(69):
        send_empty(run, 69, version)
        for group in (requests.group, run.fresh("group", "unknown")):
            requests.inspect(group, version=version)


_TOPIC_ID = base64.urlsafe_b64encode(STRANGER.bytes).decode().rstrip("=")


def finds_other_coordinators(run: Run) -> None:
    """Coordinators of transactions and of share groups. Apache Kafka creates topics for them, so this is the last
    scenario."""
    for kind, version in ((1, 3), (1, 4), (2, 6)):
        key = run.fresh("tx") if kind == 1 else f"{run.fresh('group')}:{_TOPIC_ID}:0"
        asked = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        run.until(10, version, asked, lambda reply: "coordinator_not_available" not in repr(reply))
        run.call(10, version, asked)


# --- all of them ------------------------------------------------------------------------------------------------

MEANINGFUL: dict[int, Callable[[Run], None]] = {
    0: produces, 1: fetches, 2: lists_offsets, 3: requests_metadata, 8: commits, 9: fetches_offsets,
    10: finds_coordinators, 11: joins, 12: beats, 13: leaves, 14: syncs, 15: describes_groups, 16: lists_groups,
    17: clusters.handshakes, 18: clusters.requests_versions, 19: creates_topics, 20: deletes_topics,
    21: deletes_records, 22: makes_producer_ids, 23: finds_epochs, 29: clusters.describes_acls,
    30: clusters.creates_acls, 31: clusters.deletes_acls, 32: clusters.describes_configs,
    33: lambda run: clusters.alters(run, 33), 34: moves_between_log_dirs, 35: describes_log_dirs,
    36: clusters.authenticates, 37: adds_partitions, 38: clusters.creates_tokens, 39: clusters.renews_tokens,
    40: clusters.expires_tokens, 41: clusters.describes_tokens, 42: deletes_groups, 43: elects_leaders,
    44: lambda run: clusters.alters(run, 44), 45: moves_replicas, 46: lists_moves, 47: deletes_offsets,
    48: clusters.describes_quotas, 49: clusters.alters_quotas, 50: clusters.describes_users,
    51: clusters.alters_users, 55: clusters.describes_quorums, 57: clusters.updates_features,
    60: clusters.describes_clusters, 61: describes_producers, 64: clusters.unregisters, 68: consumes,
    69: describes_consumers, 74: clusters.lists_config_resources, 75: describes_partitions, 80: clusters.adds_voters,
    81: clusters.removes_voters,
}  # fmt: skip


def _scenario(api_key: int) -> Scenario:
    def generic(run: Run) -> None:
        for version in versions(api_key):
            send_empty(run, api_key, version)
            run.call(api_key, version, filled(run, api_key, version), unordered=("accepted_compression_types",))

    def scenario(run: Run) -> None:
        MEANINGFUL.get(api_key, generic)(run)

    scenario.__name__ = f"k{api_key:02}_{schemas.api_name(api_key)}"
    return scenario


SCENARIOS: tuple[Scenario, ...] = (*map(_scenario, KEYS), finds_other_coordinators)
