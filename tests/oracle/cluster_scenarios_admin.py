"""Scenarios of administrators' requests, sent to each broker of a cluster and to its controller. See ``SCENARIOS``."""

from __future__ import annotations

import uuid
from typing import Any

from api_requests import versions
from cluster_conversation import BROKERS, CONTROLLER, ClusterRun

from odradek.security.forwarded_principal import pack_principal
from odradek.security.principal import ANONYMOUS
from odradek.wire import frames

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000bb")
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_LATER = {"timeout": 10_000}
BETWEEN_NODES = (4, 5, 6, 7, 27, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82)
"""The APIs whose requests only nodes send, also those that Kafka has given up."""


def topic_row(name: str, *assignments: tuple[int, ...], count: int = -1, factor: int = -1, **configs: str) -> Any:
    rows = [{"partition_index": at, "broker_ids": list(brokers)} for at, brokers in enumerate(assignments)]
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    return {
        "name": name,
        "num_partitions": count,
        "replication_factor": factor,
        "assignments": rows,
        "configs": settings,
    }


def create(c: ClusterRun, broker: int | str, *rows: Any, version: int = 7, validate_only: bool = False) -> Any:
    message = {"topics": list(rows), "validate_only": validate_only} | _LATER
    return c.call(19, version, message, client=str(broker), unordered=("topics",))


# --- topics -----------------------------------------------------------------------------------------------------


def topics_are_created_at_each_broker(c: ClusterRun) -> None:
    names = [c.topic(f"of {broker}") for broker in BROKERS]
    for broker, name in zip(BROKERS, names, strict=True):
        made = create(c, broker, topic_row(name, *((one,) for one in BROKERS), retention_ms=f"{broker}000000"))
        c.name_value(made.topics[0].topic_id, f"id of topic of {broker}")
    c.settle()
    c.topics_at(names)
    for broker in (*BROKERS, CONTROLLER):
        create(c, broker, topic_row(names[0], (1,)))
    for version in versions(19):
        found = create(c, 2, topic_row(c.topic(f"v{version}"), (3,)), version=version, validate_only=version % 2 == 1)
        if version >= 7:
            c.name_value(found.topics[0].topic_id, f"id of v{version}")


def topics_are_refused(c: ClusterRun) -> None:
    c.place("t", 1)
    for broker in (1, 3, CONTROLLER):
        create(c, broker, topic_row(c.topic("t"), (1,)), topic_row("a b", (1,)), topic_row("", (1,)))
        create(c, broker, topic_row(c.topic("twice"), (1,)), topic_row(c.topic("twice"), (2,)))
        create(c, broker, topic_row(c.topic("a"), (1,), count=1), topic_row(c.topic("b"), (1,), factor=1))
        create(c, broker, topic_row(c.topic("a"), (1,), retention_ms="x"), topic_row(c.topic("b"), (1,), no_such="1"))
        create(c, broker, topic_row(c.topic("a"), count=0), topic_row(c.topic("b"), count=-2))
        create(c, broker, topic_row("__cluster_metadata", (1,)))
        create(c, broker, topic_row(c.topic("only checked"), (2,)), validate_only=True)
    c.settle()
    c.topics_at([c.topic("only checked"), c.topic("a")])


def partitions_are_added_at_each_broker(c: ClusterRun) -> None:
    name = c.place("t", 1)
    for broker in BROKERS:
        rows = [{"broker_ids": [broker]}]
        asked = {"topics": [{"name": name, "count": broker + 1, "assignments": rows}], "validate_only": False} | _LATER
        c.call(37, 3, asked, client=str(broker))
    c.settle()
    c.topics_at([name])
    wrong: list[tuple[int, list[list[int]] | None]] = [
        (4, None), (3, None), (0, None), (-1, None), (5, []), (5, [[1], [2]]), (5, [[8]]), (5, [[]]), (5, [[1, 2]]),
        (5, [[-1]]),
    ]  # fmt: skip
    for count, assignments in wrong:
        found = None if assignments is None else [{"broker_ids": brokers} for brokers in assignments]
        row = {"name": name, "count": count, "assignments": found}
        c.call(37, 3, {"topics": [row], "validate_only": False} | _LATER, client="2")
    rows = [{"name": other, "count": 9, "assignments": None} for other in (c.topic("unknown"), name, name)]
    c.call(37, 3, {"topics": rows, "validate_only": False} | _LATER, client="3", unordered=("results",))
    c.settle()
    c.topics_at([name])


def topics_are_deleted_at_each_broker(c: ClusterRun) -> None:
    names = [c.place(f"t{broker}", *BROKERS) for broker in BROKERS]
    ids = c.quietly(3, 12, {"topics": [{"topic_id": None, "name": names[1]}]} | _asked())
    rows: list[Any] = [
        {"name": names[0], "topic_id": None}, {"name": None, "topic_id": ids.topics[0].topic_id},
        {"name": names[2], "topic_id": None},
    ]  # fmt: skip
    for broker, row in zip(BROKERS, rows, strict=True):
        c.call(20, 6, {"topics": [row]} | _LATER, client=str(broker))
        c.settle()
        c.topics_at(names)
    for broker in BROKERS:
        wrong = [{"name": c.topic("unknown"), "topic_id": None}, {"name": None, "topic_id": STRANGER}]
        c.call(20, 6, {"topics": wrong} | _LATER, client=str(broker), unordered=("responses",))
    c.call(20, 5, {"topic_names": [names[0], c.topic("unknown")]} | _LATER, client="2", unordered=("responses",))


def internal_topics_and_unknown_ids(c: ClusterRun) -> None:
    for broker in BROKERS:
        rows = [{"topic_id": STRANGER, "name": None}]
        c.call(3, 13, {"topics": rows} | _asked(), client=str(broker))
        rows = [{"topic_id": None, "name": "__consumer_offsets"}, {"topic_id": None, "name": "a b"}]
        c.call(3, 12, {"topics": rows} | _asked(), client=str(broker), unordered=("topics", "brokers", "partitions"))


def _asked() -> dict[str, Any]:
    return {
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


# --- settings ---------------------------------------------------------------------------------------------------


def change(
    c: ClusterRun, node: int | str, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any
) -> Any:
    rows = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": rows}]
    message = {"resources": resources, "validate_only": more.get("validate_only", False)}
    return c.call(44, 1, message, client=str(node), unordered=("responses",))


def replace(c: ClusterRun, node: int | str, kind: int, name: str, **configs: str | None) -> Any:
    rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    resources = [{"resource_type": kind, "resource_name": name, "configs": rows}]
    return c.call(33, 2, {"resources": resources, "validate_only": False}, client=str(node), unordered=("responses",))


def describe(c: ClusterRun, kind: int, name: str, *keys: str, nodes: tuple[int | str, ...] = BROKERS) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    for node in nodes:
        c.call(32, 4, message, client=str(node), unordered=("configs",))


def settings_of_topics(c: ClusterRun) -> None:
    name = c.place("t", 1, 2, 3)
    for broker in BROKERS:
        change(c, broker, TOPIC, name, ("retention.ms", SET, f"{broker}0000"), ("cleanup.policy", APPEND, "compact"))
    c.settle()
    describe(c, TOPIC, name, "retention.ms", "cleanup.policy", "segment.bytes")
    change(c, 3, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    change(c, 2, TOPIC, name, ("retention.ms", SET, "x"))
    change(c, 2, TOPIC, name, ("retention.ms", APPEND, "7"))
    change(c, 1, TOPIC, name, ("no.such", SET, "1"))
    change(c, 1, TOPIC, c.topic("unknown"), ("retention.ms", SET, "1"))
    change(c, 1, TOPIC, c.topic("unknown"), ("retention.ms", SET, "x"))
    change(c, 1, TOPIC, c.topic("unknown"), ("retention.ms", APPEND, "1"))
    change(c, 1, TOPIC, c.topic("unknown"), ("no.such", SET, "1"))
    change(c, 1, TOPIC, "a b", ("retention.ms", SET, "1"))
    change(c, 1, TOPIC, "", ("retention.ms", SET, "1"))
    change(c, 2, TOPIC, name, ("retention.ms", SET, "9"), validate_only=True)
    change(c, 2, TOPIC, name, ("retention.ms", SET, None))
    c.settle()
    describe(c, TOPIC, name, "retention.ms", "cleanup.policy")
    replace(c, 2, TOPIC, name, segment_bytes="2000000")
    replace(c, 3, TOPIC, c.topic("unknown"), segment_bytes="2000000")
    replace(c, 3, TOPIC, c.topic("unknown"), segment_bytes="1")
    replace(c, 3, TOPIC, "a b", segment_bytes="2000000")
    replace(c, 3, TOPIC, "", segment_bytes="2000000")
    c.settle()
    describe(c, TOPIC, name, "retention.ms", "cleanup.policy", "segment.bytes")
    describe(c, TOPIC, c.topic("unknown"), "retention.ms")


def settings_of_brokers(c: ClusterRun) -> None:
    for broker in BROKERS:
        change(c, broker, BROKER, str(broker), ("log.cleaner.threads", SET, "2"))
        change(c, broker, BROKER, str(broker % 3 + 1), ("log.retention.ms", SET, f"{broker}0000000"))
    change(c, 3, BROKER, "", ("log.retention.ms", SET, "77000000"))
    c.settle()
    for broker in BROKERS:
        describe(c, BROKER, str(broker), "log.retention.ms", "log.cleaner.threads")
    describe(c, BROKER, "", "log.retention.ms", "log.cleaner.threads")
    for broker in BROKERS:
        change(
            c, broker, BROKER, str(broker), ("log.cleaner.threads", DELETE, None), ("log.retention.ms", DELETE, None)
        )
    c.settle()
    describe(c, BROKER, "2", "log.retention.ms", "log.cleaner.threads", nodes=(2,))
    change(c, 2, BROKER, "", ("log.retention.ms", DELETE, None))
    change(c, 1, BROKER, "9", ("log.retention.ms", SET, "5"))
    change(c, 1, BROKER, "x", ("log.retention.ms", SET, "5"))
    change(c, 1, BROKER, "-1", ("log.retention.ms", SET, "5"))
    change(c, 2, BROKER, "1", ("node.id", SET, "5"))
    change(c, 2, BROKER, "1", ("broker.rack", SET, "z"))
    change(c, 2, BROKER, "", ("log.retention.ms", SET, "x"))
    change(c, 2, BROKER, "1", ("no.such", SET, "5"))
    c.settle()
    describe(c, BROKER, "1", "log.retention.ms", "no.such", nodes=(1,))
    change(c, 2, BROKER, "1", ("no.such", DELETE, None))


def settings_replaced_as_a_whole(c: ClusterRun) -> None:
    for broker in BROKERS:
        replace(c, broker, BROKER, str(broker), log_retention_ms=f"{broker}2000000", log_cleaner_threads="2")
    c.settle()
    describe(c, BROKER, "2", "log.retention.ms", "log.cleaner.threads", nodes=(2,))
    replace(c, 1, BROKER, "2", log_cleaner_threads="3")
    c.settle()
    describe(c, BROKER, "2", "log.retention.ms", "log.cleaner.threads", nodes=(2,))
    for broker in BROKERS:
        replace(c, broker, BROKER, str(broker))
    replace(c, 3, BROKER, "", log_retention_ms="x")
    replace(c, 3, BROKER, "", log_retention_ms="2000000")
    replace(c, 3, BROKER, "x", log_retention_ms="1")
    c.settle()


def settings_of_groups_and_subscriptions(c: ClusterRun) -> None:
    group = c.key_at(1)
    for broker in BROKERS:
        change(c, broker, GROUP, group, ("consumer.session.timeout.ms", SET, f"5000{broker}"))
        change(c, broker, METRICS, c.fresh("subscription"), ("interval.ms", SET, f"10{broker}00"))
        change(c, broker, GROUP, group, ("consumer.session.timeout.ms", SET, "1"))
        change(c, broker, GROUP, "", ("consumer.session.timeout.ms", SET, "50001"))
        change(c, broker, GROUP, group, ("no.such", SET, "1"))
    c.settle()
    describe(c, GROUP, group, "consumer.session.timeout.ms")
    describe(c, METRICS, c.fresh("subscription"), "interval.ms")
    for broker in BROKERS:
        c.call(74, 1, {"resource_types": [GROUP, METRICS]}, client=str(broker), unordered=("config_resources",))
    change(c, 1, GROUP, group, ("consumer.session.timeout.ms", DELETE, None))
    change(c, 2, METRICS, c.fresh("subscription"), ("interval.ms", DELETE, None))
    c.settle()
    for broker in BROKERS:
        c.call(74, 1, {"resource_types": [GROUP, METRICS]}, client=str(broker), unordered=("config_resources",))


def settings_at_the_controller(c: ClusterRun) -> None:
    """Kafka's tools ask the controller with ``--bootstrap-controller``."""
    name = c.place("t", 1)
    change(c, CONTROLLER, TOPIC, name, ("retention.ms", SET, "50000"))
    change(c, CONTROLLER, BROKER, "2", ("log.retention.ms", SET, "60000000"))
    change(c, CONTROLLER, BROKER, "", ("log.cleaner.threads", SET, "2"))
    change(c, CONTROLLER, BROKER, "100", ("log.retention.ms", SET, "70000000"))
    change(c, CONTROLLER, BROKER, "9", ("log.retention.ms", SET, "70000000"))
    change(c, CONTROLLER, BROKER, "x", ("log.retention.ms", SET, "70000000"))
    change(c, CONTROLLER, TOPIC, c.topic("unknown"), ("retention.ms", SET, "1"))
    c.settle()
    describe(c, BROKER, "100", "log.retention.ms", "log.cleaner.threads", nodes=(CONTROLLER,))
    describe(c, BROKER, "2", "log.retention.ms", nodes=(CONTROLLER, 2))
    describe(c, BROKER, "", "log.retention.ms", "log.cleaner.threads", nodes=(CONTROLLER, 1))
    describe(c, TOPIC, name, "retention.ms", nodes=(CONTROLLER, 3))
    describe(c, TOPIC, c.topic("unknown"), "retention.ms", nodes=(CONTROLLER,))
    describe(c, BROKER, "x", "log.retention.ms", nodes=(CONTROLLER, 1))
    describe(c, GROUP, c.key_at(1), "consumer.session.timeout.ms", nodes=(CONTROLLER,))
    describe(c, 99, "x", nodes=(CONTROLLER, 1))
    for resource in ("2", "", "100", "9"):
        change(
            c, CONTROLLER, BROKER, resource, ("log.retention.ms", DELETE, None), ("log.cleaner.threads", DELETE, None)
        )
    replace(c, CONTROLLER, TOPIC, name, segment_bytes="2000000")


# --- quotas, users, features, access ------------------------------------------------------------------------------


def quota(user: str | None, client: str | None, value: float | None) -> Any:
    entity = [{"entity_type": "user", "entity_name": user}, {"entity_type": "client-id", "entity_name": client}]
    ops = [{"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}]
    return {"entity": entity, "ops": ops}


def quotas_at_each_broker(c: ClusterRun) -> None:
    user, client = c.fresh("user"), c.fresh("client")
    for broker in BROKERS:
        c.call(49, 1, {"entries": [quota(user, client, 1000.0 * broker)], "validate_only": False}, client=str(broker))
        c.settle()
        components = [{"entity_type": "user", "match_type": 0, "match": user}]
        c.at_each(48, 1, {"components": components, "strict": False})
    wrong = {"entity": [{"entity_type": "x", "entity_name": "y"}], "ops": []}
    c.call(49, 1, {"entries": [wrong], "validate_only": False}, client="2")
    c.call(49, 1, {"entries": [quota(user, client, -1.0)], "validate_only": False}, client="2")
    c.call(49, 1, {"entries": [quota(user, client, 5.0)], "validate_only": True}, client="3")
    c.call(49, 1, {"entries": [quota(user, client, None)], "validate_only": False}, client="1")
    c.settle()
    c.at_each(48, 1, {"components": components, "strict": False})


def users_at_each_broker(c: ClusterRun) -> None:
    user = c.fresh("user")
    for broker in BROKERS:
        row = {"name": user, "mechanism": 1, "iterations": 4096 + broker, "salt": b"salt", "salted_password": b"x" * 32}
        c.call(51, 0, {"deletions": [], "upsertions": [row]}, client=str(broker))
        c.settle()
        c.at_each(50, 0, {"users": [{"name": user}]})
    c.call(51, 0, {"deletions": [{"name": user, "mechanism": 2}], "upsertions": []}, client="1")
    c.call(51, 0, {"deletions": [{"name": user, "mechanism": 1}], "upsertions": []}, client="2")
    c.settle()
    c.at_each(50, 0, {"users": [{"name": user}]})


def features_at_each_broker(c: ClusterRun) -> None:
    def update(node: int | str, name: str, level: int, how: int = 1, *, validate_only: bool = False) -> None:
        row = {"feature": name, "max_version_level": level, "upgrade_type": how}
        c.call(57, 1, {"feature_updates": [row], "validate_only": validate_only} | _LATER, client=str(node))

    def levels() -> None:
        asked = {"client_software_name": "t", "client_software_version": "1"}
        for broker in BROKERS:
            found = c.quietly(18, 4, asked, client=str(broker))
            rows = sorted((one.name, int(one.max_version_level)) for one in found.finalized_features)
            c.note("levels", {"broker": broker}, rows)

    levels()
    for broker in BROKERS:
        update(broker, "group.version", 7)
        update(broker, "no.such", 1)
        update(broker, "metadata.version", 1, 2)
        update(broker, "group.version", 0, 2, validate_only=True)
    update(CONTROLLER, "group.version", 0, 1)
    update(2, "group.version", 0, 2)
    c.settle()
    levels()
    update(3, "group.version", 1)
    c.settle()
    levels()


def what_is_not_configured(c: ClusterRun) -> None:
    """Without an authorizer and a secret, ACLs and tokens are refused by each broker."""
    any_acl = {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip
    made = {
        "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:u", "host": "*",
        "operation": 3, "permission_type": 3,
    }  # fmt: skip
    for broker in BROKERS:
        c.call(29, 3, any_acl, client=str(broker))
        c.call(30, 3, {"creations": [made]}, client=str(broker))
        c.call(31, 3, {"filters": [any_acl]}, client=str(broker))
        owner = {"owner_principal_type": None, "owner_principal_name": None}
        c.call(38, 3, owner | {"renewers": [], "max_lifetime": -1}, client=str(broker))
        c.call(41, 3, {"owners": None}, client=str(broker))


# --- replicas and leaders ---------------------------------------------------------------------------------------


def elections_of_leaders(c: ClusterRun) -> None:
    name = c.place("t", 1, 2, 3)
    for broker in BROKERS:
        for kind in (0, 1, 2):
            rows = [{"topic": name, "partitions": [0, 9]}, {"topic": c.topic("unknown"), "partitions": [0]}]
            c.call(
                43, 2, {"election_type": kind, "topic_partitions": rows} | _LATER, client=str(broker),
                unordered=("replica_election_results", "partition_result"),
            )  # fmt: skip
        c.call(
            43, 2, {"election_type": 0, "topic_partitions": None} | _LATER, client=str(broker),
            unordered=("replica_election_results",),
        )  # fmt: skip
        c.call(43, 2, {"election_type": 1, "topic_partitions": []} | _LATER, client=str(broker))


def moves_of_replicas(c: ClusterRun) -> None:
    name = c.place("t", 1, 2, 3)

    def move(broker: int, topic: str, *wanted: tuple[int, list[int] | None]) -> None:
        rows = [{"partition_index": index, "replicas": replicas} for index, replicas in wanted]
        message = {"topics": [{"name": topic, "partitions": rows}]} | _LATER
        c.call(45, 0, message, client=str(broker), unordered=("responses", "partitions"))

    for broker in BROKERS:
        move(broker, name, (0, [1]), (1, [2]))
        move(broker, name, (0, None), (9, None), (9, [1]))
        move(broker, name, (0, []), (1, [9]), (2, [3, 3]))
        move(broker, name, (0, [-1]))
        move(broker, c.topic("unknown"), (0, [1]), (0, None))
        c.call(46, 0, {"topics": None} | _LATER, client=str(broker))
        asked = [{"name": name, "partition_indexes": [0, 9]}, {"name": c.topic("unknown"), "partition_indexes": [0]}]
        c.call(46, 0, {"topics": asked} | _LATER, client=str(broker), unordered=("topics",))
    c.settle()
    c.topics_at([name])


# --- the cluster as a whole -------------------------------------------------------------------------------------


def the_cluster_at_each_node(c: ClusterRun) -> None:
    for version in versions(60):
        for kind in (1, 2, 3) if version else (1,):
            for fenced in (False, True) if version >= 2 else (False,):
                asked = {
                    "include_cluster_authorized_operations": kind == 1, "endpoint_type": kind,
                    "include_fenced_brokers": fenced,
                }  # fmt: skip
                for node in (*BROKERS, CONTROLLER):
                    c.call(60, version, asked, client=str(node), unordered=("brokers",))


def topics_at_each_broker(c: ClusterRun) -> None:
    name, other = c.place("t", 1, 2, 3), c.place("u", 3)
    for version in versions(3):
        unknown = [c.topic("unknown")] if version >= 4 else []  # an earlier version creates the topic
        rows = [{"topic_id": None, "name": one} for one in (name, other, *unknown)]
        asked = {"topics": rows} | _asked()
        c.at_each(3, version, asked, unordered=("brokers", "topics", "partitions"))
        c.call(3, version, {"topics": []} | _asked(), client="2", unordered=("brokers", "topics"))


def partitions_in_pages(c: ClusterRun) -> None:
    name, other = c.place("t", 1, 2, 3), c.place("u", 3, 2, 1)
    rows = [{"name": one} for one in (name, other, c.topic("unknown"))]
    for cursor in (None, {"topic_name": name, "partition_index": 1}, {"topic_name": other, "partition_index": 0}):
        for limit in (1, 4, 100):
            c.at_each(75, 0, {"topics": rows, "response_partition_limit": limit, "cursor": cursor})


def the_quorum_at_each_node(c: ClusterRun) -> None:
    row = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    for node in (*BROKERS, CONTROLLER):
        for version in versions(55):
            reply = c.quietly(55, version, {"topics": [row]}, client=str(node))
            part = reply.topics[0].partitions[0]
            shown: dict[str, Any] = {
                "errors": [int(reply.error_code), int(part.error_code)],
                "leader": part.leader_id,
                "voters": [one.replica_id for one in part.current_voters],
                "observers": sorted(one.replica_id for one in part.observers),
                "is any behind": any(one.log_end_offset < 0 for one in part.observers),
            }
            if version >= 2:
                shown["nodes"] = [[one.node_id, [each.name for each in one.listeners]] for one in reply.nodes]
            c.note("quorum", {"node": node, "version": version}, shown)
        wrong = [{"topic_name": "other", "partitions": [{"partition_index": 0}]}]
        c.call(55, 2, {"topics": wrong}, client=str(node))


def envelopes(c: ClusterRun) -> None:
    """What a controller refuses of a broker, and that a broker refuses everything of the kind."""
    principal = pack_principal(ANONYMOUS)
    inner = {"topics": [topic_row(c.topic("e"), (2,))], "validate_only": True} | _LATER
    host = bytes([127, 0, 0, 1])

    def wrapped(data: bytes, who: bytes | None = principal, address: bytes = host) -> dict[str, Any]:
        return {"request_data": data, "request_principal": who, "client_host_address": address}

    whole = frames.encode_request(19, 7, 5, "inside", inner)[4:]
    metadata = frames.encode_request(3, 12, 5, "inside", {"topics": []} | _asked())[4:]
    for number, message in enumerate([
        wrapped(whole), wrapped(metadata), wrapped(frames.encode_request(58, 0, 5, "inside", wrapped(whole))[4:]),
        wrapped(whole, b"\0"), wrapped(whole, None), wrapped(whole, principal, b"12"),
        wrapped(whole[:-3]), wrapped(b""),
        wrapped(whole[:2] + b"\x7f\xff" + whole[4:]),
    ]):  # fmt: skip
        client = f"{CONTROLLER}/{number}"
        try:
            reply = c.quietly(58, 0, message, client=client)
        except ConnectionError:
            c.note("envelope", {"number": number}, "the connection is closed")
        else:
            inside: Any = None
            if reply.response_data:
                (row,) = frames.decode_reply(19, 7, bytes(reply.response_data))[1].topics
                inside = [row.name == c.topic("e"), int(row.error_code), row.num_partitions]
            c.note("envelope", {"number": number}, {"error": reply.error_code.name, "inside": inside})
        c.disconnect(client)
    c.call(58, 0, wrapped(whole), client="2/envelope")


def requests_for_the_other_kind_of_node(c: ClusterRun) -> None:
    """A controller's requests at a broker, and a broker's at the controller: the connection ends."""
    row = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
    for broker in BROKERS:
        c.call(62, 4, _registration(c), client=f"{broker}/registration")
        heartbeat = {
            "broker_id": 1, "broker_epoch": 1, "current_metadata_offset": 1, "want_fence": False,
            "want_shut_down": False, "offline_log_dirs": [],
        }  # fmt: skip
        c.call(63, 1, heartbeat, client=f"{broker}/heartbeat")
        c.call(67, 0, {"broker_id": 1, "broker_epoch": 1}, client=f"{broker}/ids")
    c.call(3, 12, {"topics": [row and {"topic_id": None, "name": "t"}]} | _asked(), client=f"{CONTROLLER}/metadata")
    c.call(10, 4, {"key_type": 0, "coordinator_keys": ["g"]}, client=f"{CONTROLLER}/coordinator")
    c.call(16, 4, {"states_filter": []}, client=f"{CONTROLLER}/groups")
    asked = {"client_software_name": "t", "client_software_version": "1"}
    for node in ("1", CONTROLLER):
        found = c.quietly(18, 4, asked, client=node)
        known = {18, 62, 63, 67, 3, 10, 16, 58, 19, 60, 32, 44, 33, 55, 70, 73, 64, 0}
        rows = sorted([row.api_key, row.min_version, row.max_version] for row in found.api_keys if row.api_key in known)
        c.note("versions", {"node": node}, rows)


def versions_between_nodes(c: ClusterRun) -> None:
    """The versions of the requests that only nodes send, at the listener of each kind of node."""
    asked = {"client_software_name": "t", "client_software_version": "1"}
    for node in (1, CONTROLLER):
        found = {int(one.api_key): one for one in c.quietly(18, 4, asked, client=str(node)).api_keys}
        rows = {str(key): [found[key].min_version, found[key].max_version] for key in BETWEEN_NODES if key in found}
        c.note("versions", {"node": node}, rows)


def _registration(c: ClusterRun) -> dict[str, Any]:
    return {
        "broker_id": 77, "cluster_id": c.cluster_id, "incarnation_id": STRANGER, "listeners": [], "features": [],
        "rack": None, "is_migrating_zk_broker": False, "log_dirs": [STRANGER], "previous_broker_epoch": -1,
    }  # fmt: skip


def least_isr_of_every_broker(c: ClusterRun) -> None:
    """When ``eligible.leader.replicas.version`` rises, ``min.insync.replicas`` of each broker is deleted. That of all
    brokers gets the controller's value, unless there is one."""
    feature, setting = "eligible.leader.replicas.version", "min.insync.replicas"
    own = tuple(str(broker) for broker in (*BROKERS, 100))

    def update(node: int | str, level: int, how: int, *, validate_only: bool = False) -> None:
        row = {"feature": feature, "max_version_level": level, "upgrade_type": how, "allow_downgrade": how > 1}
        c.call(57, 2, {"feature_updates": [row], "validate_only": validate_only} | _LATER, client=str(node))
        c.settle()

    def shown() -> None:
        for broker in BROKERS:
            describe(c, BROKER, str(broker), setting, nodes=(broker,))
        describe(c, BROKER, "100", setting, nodes=(CONTROLLER,))
        describe(c, BROKER, "", setting, nodes=(1,))

    def set_each(value: str) -> None:
        for name in own:
            change(c, 1 if name in ("1", "2") else CONTROLLER, BROKER, name, (setting, SET, value))
        c.settle()

    set_each("2")
    update(1, 0, 2)
    set_each("2")
    shown()
    update(2, 1, 1, validate_only=True)
    shown()
    update(2, 1, 1)
    shown()
    set_each("2")
    update(3, 0, 2)
    shown()
    change(c, 3, BROKER, "", (setting, DELETE, None))
    change(c, 3, BROKER, "3", (setting, SET, "3"))
    c.settle()
    shown()
    update(CONTROLLER, 1, 1)
    shown()
    change(c, 1, BROKER, "", (setting, SET, "2"))
    c.settle()
    update(1, 1, 1)
    shown()
    change(c, 1, BROKER, "", (setting, SET, "1"))


def voters_that_may_change(c: ClusterRun) -> None:
    """The voters are settings (``controller.quorum.voters``), and each node supports ``kraft.version`` 0 and 1. The
    level cannot be lowered, so this scenario is the last one of a cluster."""
    every = (*BROKERS, CONTROLLER)

    def update(node: int | str, level: int, how: int = 1, *, validate_only: bool = False, version: int = 2) -> None:
        row = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": how, "allow_downgrade": how > 1}
        message = {"feature_updates": [row], "validate_only": validate_only} | _LATER
        c.call(57, version, message, client=str(node))

    def levels() -> None:
        asked = {"client_software_name": "t", "client_software_version": "1"}
        for node in every:
            found = c.quietly(18, 4, asked, client=str(node))
            rows = sorted((one.name, int(one.max_version_level)) for one in found.finalized_features)
            c.note("levels", {"node": node}, rows)

    def change_voters() -> None:
        row = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
        for voter in (100, 101):
            asked = {"cluster_id": c.cluster_id, "voter_id": voter, "voter_directory_id": STRANGER}
            more = {"timeout": 1000, "listeners": [row], "ack_when_committed": True}
            for node in (2, CONTROLLER):
                c.call(80, 1, asked | more, client=f"{node}/voters")
                c.call(81, 0, asked, client=f"{node}/voters")

    change_voters()
    for node in every:
        for level in (0, 1, 2):
            for how in (1, 2, 3):
                update(node, level, how, validate_only=True)
    levels()
    update(2, 1, version=1)
    c.settle()
    levels()
    change_voters()
    for level in (0, 1):
        for how in (1, 2, 3):
            update(3, level, how)
    create(c, 1, topic_row(c.topic("t"), (1,), (2,), (3,)))
    c.kill(CONTROLLER)
    c.start(CONTROLLER)
    levels()


SCENARIOS = (
    topics_are_created_at_each_broker, topics_are_refused, partitions_are_added_at_each_broker,
    topics_are_deleted_at_each_broker, internal_topics_and_unknown_ids, settings_of_topics, settings_of_brokers,
    settings_replaced_as_a_whole, settings_of_groups_and_subscriptions, settings_at_the_controller,
    quotas_at_each_broker, users_at_each_broker, features_at_each_broker, least_isr_of_every_broker,
    what_is_not_configured, elections_of_leaders,
    moves_of_replicas, the_cluster_at_each_node, topics_at_each_broker, partitions_in_pages, the_quorum_at_each_node,
    envelopes, requests_for_the_other_kind_of_node, versions_between_nodes,
)  # fmt: skip
LAST = (voters_that_may_change,)
