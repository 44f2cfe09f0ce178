"""The replies of the administration APIs to valid and invalid requests: topics, partitions, configs, quotas, logs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from recording import Run, Scenario
from scenarios_log import batch, fetch_message, produce, produce_message

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000aa")


# --- topics -----------------------------------------------------------------------------------------------------


def new_topic(
    name: str, partitions: int = -1, factor: int = -1, assigned: Iterable[tuple[int, list[int]]] = (), **configs: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assigned],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(run: Run, *topics: dict[str, Any], validate_only: bool = False, version: int = 7) -> Any:
    message = {"topics": list(topics), "timeout": 10_000, "validate_only": validate_only}
    return run.call(19, version, message, unordered=("topics", "configs"))


def topics_created_by_every_version(run: Run) -> None:
    for version in range(2, 8):
        create(run, new_topic(run.topic(f"v{version}"), 2, 1, retention_ms="1000"), version=version)
    create(run, new_topic(run.topic("old"), -1, -1), version=3)


def topics_created_with_assignments(run: Run) -> None:
    create(run, new_topic(run.topic("good"), assigned=[(0, [1]), (1, [1])]))
    create(run, new_topic(run.topic("counted"), 2, assigned=[(0, [1]), (1, [1])]))
    create(run, new_topic(run.topic("factored"), -1, 1, assigned=[(0, [1])]))
    create(run, new_topic(run.topic("gap"), assigned=[(0, [1]), (2, [1])]))
    create(run, new_topic(run.topic("twice"), assigned=[(0, [1]), (0, [1])]))
    create(run, new_topic(run.topic("empty"), assigned=[(0, [])]))
    create(run, new_topic(run.topic("stranger"), assigned=[(0, [7])]))
    create(run, new_topic(run.topic("same"), assigned=[(0, [1, 1])]))
    create(run, new_topic(run.topic("uneven"), assigned=[(0, [1]), (1, [1, 7])]))


def invalid_topics(run: Run) -> None:
    for label, partitions, factor in (("r3", 1, 3), ("r0", 1, 0), ("r-2", 1, -2), ("p0", 0, 1), ("p-2", -2, 1)):
        create(run, new_topic(run.topic(label), partitions, factor))
    for name in ("", ".", "..", "a b", "ä", "x" * 250, "a/b"):
        create(run, new_topic(name, 1, 1))
    there = run.topic("there")
    create(run, new_topic(there, 1, 1))
    run.wait_until_led(there)
    create(run, new_topic(there, 1, 1))
    create(run, new_topic(there, 1, 1), validate_only=True)
    twice = run.topic("twice")
    create(run, new_topic(twice, 1, 1), new_topic(run.topic("once"), 1, 1), new_topic(twice, 2, 1))
    create(run)


def topic_names_that_collide(run: Run) -> None:
    dotted, lined = run.fresh("topic.lide", "x"), run.fresh("topic_lide", "x")
    create(run, new_topic(dotted, 1, 1))
    run.wait_until_led(dotted)
    create(run, new_topic(lined, 1, 1))
    both = run.fresh("topic.both", "x"), run.fresh("topic_both", "x")
    create(run, *(new_topic(name, 1, 1) for name in both), validate_only=True)


def topics_with_configs(run: Run) -> None:
    for label, configs in (
        ("good", {"cleanup_policy": "compact", "segment_bytes": "2000000"}),
        ("unknown", {"no_such": "1"}),
        ("null", {"retention_ms": None}),
        ("type", {"retention_ms": "soon"}),
        ("range", {"segment_bytes": "1"}),
        ("choice", {"compression_type": "lzo"}),
        ("list", {"cleanup_policy": "compact,burn"}),
        ("none", {"cleanup_policy": ""}),
        ("spaces", {"cleanup_policy": " compact , delete "}),
        ("ratio", {"min_cleanable_dirty_ratio": "1.5"}),
        ("bool", {"preallocate": "yes"}),
        ("lag", {"min_compaction_lag_ms": "10", "max_compaction_lag_ms": "5"}),
        ("remote", {"remote_storage_enable": "true"}),
        ("throttled", {"leader_replication_throttled_replicas": "0:1,1:1"}),
        ("badthrottled", {"leader_replication_throttled_replicas": "zero"}),
        ("starthrottled", {"follower_replication_throttled_replicas": "*"}),
        ("overflow", {"max_message_bytes": "3000000000"}),
        ("isr", {"min_insync_replicas": "2"}),
        ("isr0", {"min_insync_replicas": "0"}),
        ("gone", {"message_format_version": "3.0"}),
        ("minus", {"retention_ms": "-2"}),
        ("twins", {"local_retention_ms": "100", "retention_ms": "50"}),
    ):
        create(run, new_topic(run.topic(label), 1, 1, **configs))
    create(run, new_topic(run.topic("try"), 3, 1, retention_ms="7"), validate_only=True)
    create(run, new_topic(run.topic("tryill"), 3, 1, retention_ms="x"), validate_only=True)
    row = new_topic(run.topic("double"), 1, 1)
    row["configs"] = [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}]
    create(run, row)


def delete(run: Run, *rows: tuple[str | None, uuid.UUID | None]) -> Any:
    topics = [{"name": name, "topic_id": topic_id} for name, topic_id in rows]
    return run.call(20, 6, {"topics": topics, "timeout": 10_000}, unordered=("responses",))


def topics_deleted(run: Run) -> None:
    a, b, c = run.topic("a"), run.topic("b"), run.topic("c")
    ids = {name: run.create(name) for name in (a, b, c)}
    delete(run, (a, ids[a]), (b, None))
    delete(run, (a, None), (run.topic("never"), None))
    delete(run, (None, ids[c]), (None, STRANGER))
    delete(run, (None, None))
    for name in (a, b, c):
        run.wait_until_deleted(name)
    delete(run, (None, ids[c]), (b, None))
    d, e = run.topic("d"), run.topic("e")
    ids = {name: run.create(name) for name in (d, e)}
    delete(run, (d, None), (d, None))
    delete(run, (None, ids[d]), (None, ids[d]))
    delete(run, (d, None), (None, ids[d]))
    run.until(3, 12, {"topics": [], **_QUIET}, lambda reply: True)
    delete(run)
    for version in range(1, 6):
        f = run.topic(f"v{version}")
        run.create(f)
        message = {"topic_names": [f, run.topic("not")], "timeout": 10_000}
        run.call(20, version, message, unordered=("responses",))


_QUIET = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}


def partitions_added(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)

    def ask(*rows: tuple[str, int, list[list[int]] | None], validate_only: bool = False, version: int = 3) -> None:
        topics = [
            {"name": name, "count": count, "assignments": assigned and [{"broker_ids": ids} for ids in assigned]}
            for name, count, assigned in rows
        ]
        message = {"topics": topics, "timeout": 10_000, "validate_only": validate_only}
        run.call(37, version, message, unordered=("results",))

    ask((topic, 2, None))
    ask((topic, 1, None))
    ask((topic, 0, None))
    ask((topic, -1, None))
    ask((run.topic("none"), 3, None))
    ask((topic, 3, [[1], [1]]))
    ask((topic, 3, [[7]]))
    ask((topic, 3, [[1, 7]]))
    ask((topic, 3, [[1, 1]]))
    ask((topic, 3, [[]]))
    ask((topic, 3, None), (topic, 4, None))
    ask((topic, 3, None), validate_only=True)
    ask((topic, 1, None), validate_only=True)
    ask((topic, 4, [[1], [1]]))
    run.wait_until_led(topic, 4)
    for version, count in ((0, 5), (1, 6), (2, 7)):
        ask((topic, count, None), version=version)


# --- metadata ---------------------------------------------------------------------------------------------------


def metadata_by_name_and_id(run: Run) -> None:
    topic = run.topic()
    topic_id = run.create(topic, 2)
    unknown = run.topic("unknown")
    for version in (0, 1, 4, 8, 9, 10, 11, 12, 13):
        for name in (topic, unknown, "a b"):
            message = {"topics": [{"topic_id": None, "name": name}], **_QUIET}
            if version < 4 and name == unknown:
                continue  # these versions create unknown topics
            run.call(3, version, message)
    for row in (
        {"topic_id": topic_id, "name": None},
        {"topic_id": STRANGER, "name": None},
        {"topic_id": topic_id, "name": unknown},
        {"topic_id": STRANGER, "name": topic},
        {"topic_id": None, "name": None},
    ):
        run.call(3, 12, {"topics": [row], **_QUIET})
        run.call(3, 13, {"topics": [row], **_QUIET})
        run.call(3, 10, {"topics": [row], **_QUIET})
    run.call(3, 12, {"topics": [{"topic_id": None, "name": topic}] * 2, **_QUIET})
    run.call(3, 9, {"topics": [], **_QUIET})
    allowed = _QUIET | {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    run.call(3, 9, {"topics": [{"topic_id": None, "name": topic}], **allowed})


def topic_partitions_in_pages(run: Run) -> None:
    a, b, c = run.topic("1"), run.topic("2"), run.topic("3")
    for name, count in ((a, 3), (b, 2), (c, 1)):
        run.create(name, count)

    def ask(names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> Any:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        rows = [{"name": name} for name in names]
        return run.call(75, 0, {"topics": rows, "response_partition_limit": limit, "cursor": at})

    ask([c, a, b])
    ask([a, b, c], 2)
    ask([a, b, c], 3)
    ask([a, b, c], 4, (a, 2))
    ask([a, b, c], 1, (b, 1))
    ask([a, b, c], 5, (b, 9))
    ask([a, b], 5, (c, 0))
    ask([b, c], 5, (a, 0))
    ask([a], 5, (a, -1))
    ask([a, a], 5)
    ask([a, run.topic("unknown"), "a b"], 2)
    ask([a], 0)
    ask([a], -1)
    ask([a], 5, ("", 0))


def clusters_described(run: Run) -> None:
    for version in range(3):
        for kind in (1, 2, 3):
            message = {"include_cluster_authorized_operations": kind == 1, "endpoint_type": kind}
            if version or kind == 1:
                run.call(60, version, message | {"include_fenced_brokers": True})


# --- configs ----------------------------------------------------------------------------------------------------


def describe(run: Run, kind: int, name: str, keys: list[str] | None, version: int = 4) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
    return run.call(32, version, message, unordered=("configs",))


def alter(run: Run, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False) -> Any:
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return run.call(44, 1, {"resources": [resource], "validate_only": validate_only})


def wait_for_setting(run: Run, kind: int, name: str, key: str, value: str | None) -> None:
    """Waits until a setting has this value."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": [key]}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}

    def ready(reply: Any) -> bool:
        rows = {row.name: row.value for row in reply.results[0].configs}
        return rows.get(key) == value

    run.until(32, 4, message, ready)


def configs_described(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 1, retention_ms="5000", cleanup_policy="compact,delete")
    for version in range(1, 5):
        describe(run, TOPIC, topic, ["retention.ms", "cleanup.policy", "max.message.bytes", "flush.ms"], version)
    describe(run, TOPIC, topic, [])
    describe(run, TOPIC, topic, ["no.such"])
    describe(run, TOPIC, run.topic("unknown"), None)
    describe(run, TOPIC, "a b", None)
    describe(run, TOPIC, "", None)
    describe(run, BROKER, "1", ["log.retention.hours", "log.retention.ms", "ssl.key.password", "num.io.threads"])
    describe(run, BROKER, "9", None)
    describe(run, BROKER, "x", None)
    describe(run, 3, "x", None)
    describe(run, 0, "x", None)
    describe(run, CLIENT_METRICS, run.fresh("metrics"), None)
    describe(run, CLIENT_METRICS, "", None)
    describe(run, GROUP, run.fresh("group"), ["consumer.session.timeout.ms", "share.isolation.level"])
    describe(run, GROUP, "", None)
    resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": ["flush.ms"]}
    message = {"resources": [resource, resource], "include_synonyms": False, "include_documentation": False}
    run.call(32, 4, message)


def topic_configs_altered(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    alter(run, TOPIC, topic, ("retention.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact"))
    wait_for_setting(run, TOPIC, topic, "retention.ms", "5000")
    keys = ["retention.ms", "cleanup.policy"]
    describe(run, TOPIC, topic, keys)
    alter(run, TOPIC, topic, ("cleanup.policy", SUBTRACT, "delete"))
    wait_for_setting(run, TOPIC, topic, "cleanup.policy", "compact")
    alter(run, TOPIC, topic, ("cleanup.policy", APPEND, "compact"), ("retention.ms", DELETE, None))
    wait_for_setting(run, TOPIC, topic, "retention.ms", "604800000")
    describe(run, TOPIC, topic, keys)
    for change in (
        ("no.such", SET, "1"),
        ("no.such", DELETE, None),
        ("retention.ms", SET, None),
        ("retention.ms", SET, "x"),
        ("retention.ms", APPEND, "1"),
        ("retention.ms", SUBTRACT, "1"),
        ("retention.ms", 9, "1"),
        ("cleanup.policy", APPEND, "burn"),
        ("cleanup.policy", SUBTRACT, "compact"),
        ("cleanup.policy", APPEND, None),
        ("retention.ms", DELETE, "1"),
    ):
        alter(run, TOPIC, topic, change)
    alter(run, TOPIC, topic, ("flush.ms", SET, "1"), ("flush.ms", SET, "2"))
    alter(run, TOPIC, topic, ("flush.ms", SET, "1"), ("flush.messages", SET, "x"))
    describe(run, TOPIC, topic, ["flush.ms"])
    alter(run, TOPIC, topic, ("flush.ms", SET, "7"), validate_only=True)
    describe(run, TOPIC, topic, ["flush.ms"])
    alter(run, TOPIC, run.topic("unknown"), ("flush.ms", SET, "1"))
    alter(run, TOPIC, "", ("flush.ms", SET, "1"))
    alter(run, 3, "x", ("flush.ms", SET, "1"))
    alter(run, TOPIC, topic)
    row = {"resource_type": TOPIC, "resource_name": topic, "configs": []}
    run.call(44, 1, {"resources": [row, row], "validate_only": False})
    for version in (0, 1):
        change = {"name": "flush.ms", "config_operation": SET, "value": "9"}
        run.call(44, version, {"resources": [row | {"configs": [change]}], "validate_only": False})


def topic_configs_replaced(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 1, retention_ms="5000")

    def replace(kind: int, name: str, *settings: tuple[str, str | None], validate_only: bool = False) -> None:
        configs = [{"name": key, "value": value} for key, value in settings]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        run.call(33, 2, {"resources": [resource], "validate_only": validate_only})

    replace(TOPIC, topic, ("flush.ms", "99"))
    wait_for_setting(run, TOPIC, topic, "flush.ms", "99")
    describe(run, TOPIC, topic, ["retention.ms", "flush.ms"])
    replace(TOPIC, topic, ("flush.ms", "x"))
    replace(TOPIC, topic, ("no.such", "1"))
    replace(TOPIC, topic, ("flush.ms", None))
    replace(TOPIC, topic, ("flush.ms", "1"), ("flush.ms", "2"))
    replace(TOPIC, topic, ("flush.ms", "1"), validate_only=True)
    describe(run, TOPIC, topic, ["flush.ms"])
    replace(TOPIC, run.topic("unknown"), ("flush.ms", "1"))
    replace(BROKER, "9", ("log.retention.ms", "1"))
    replace(BROKER, "1", ("no.such", "1"))
    replace(BROKER, "1", ("log.retention.ms", "x"))
    replace(3, "x")
    replace(BROKER, "1")
    replace(TOPIC, topic)
    wait_for_setting(run, TOPIC, topic, "flush.ms", "9223372036854775807")
    for version in (0, 1):
        run.call(33, version, {"resources": [{"resource_type": TOPIC, "resource_name": topic, "configs": []}],
                               "validate_only": False})  # fmt: skip


def broker_configs_altered(run: Run) -> None:
    key = "log.cleaner.backoff.ms"
    alter(run, BROKER, "1", (key, SET, "15001"))
    wait_for_setting(run, BROKER, "1", key, "15001")
    describe(run, BROKER, "1", [key])
    alter(run, BROKER, "", (key, SET, "15002"))
    wait_for_setting(run, BROKER, "", key, "15002")
    describe(run, BROKER, "1", [key])
    describe(run, BROKER, "", [key])
    alter(run, BROKER, "1", (key, DELETE, None))
    wait_for_setting(run, BROKER, "1", key, "15002")
    describe(run, BROKER, "1", [key])
    alter(run, BROKER, "", (key, DELETE, None))
    wait_for_setting(run, BROKER, "1", key, "15000")
    for change in (
        ("num.partitions", SET, "3"),
        ("no.such", SET, "3"),
        (key, SET, "x"),
        (key, SET, "-1"),
        ("node.id", SET, "3"),
        ("message.max.bytes", SET, "1"),
    ):
        alter(run, BROKER, "1", change, validate_only=True)
    alter(run, BROKER, "9", (key, SET, "1"))
    alter(run, BROKER, "x", (key, SET, "1"))
    alter(run, BROKER, "1", (key, APPEND, "1"))


def broker_settings_reach_topics(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    alter(run, BROKER, "1", ("log.index.interval.bytes", SET, "5000"))
    wait_for_setting(run, TOPIC, topic, "index.interval.bytes", "5000")
    describe(run, TOPIC, topic, ["index.interval.bytes"])
    alter(run, TOPIC, topic, ("index.interval.bytes", SET, "6000"))
    wait_for_setting(run, TOPIC, topic, "index.interval.bytes", "6000")
    describe(run, TOPIC, topic, ["index.interval.bytes"])
    alter(run, BROKER, "1", ("log.index.interval.bytes", DELETE, None))
    wait_for_setting(run, BROKER, "1", "log.index.interval.bytes", "4096")


def loggers(run: Run) -> None:
    describe(run, LOGGER, "1", ["root"])
    describe(run, LOGGER, "9", None)
    describe(run, LOGGER, "", None)
    alter(run, LOGGER, "1", ("no.such.logger", SET, "INFO"))
    alter(run, LOGGER, "1", ("root", SET, "LOUD"), validate_only=True)
    alter(run, LOGGER, "1", ("root", APPEND, "INFO"), validate_only=True)
    alter(run, LOGGER, "1", ("root", DELETE, None), validate_only=True)
    alter(run, LOGGER, "1", ("root", SET, "ERROR"), validate_only=True)
    alter(run, LOGGER, "9", ("root", SET, "ERROR"))


def groups_and_metrics_have_configs(run: Run) -> None:
    group, metrics = run.fresh("group"), run.fresh("metrics")
    alter(run, GROUP, group, ("consumer.session.timeout.ms", SET, "50000"))
    wait_for_setting(run, GROUP, group, "consumer.session.timeout.ms", "50000")
    describe(run, GROUP, group, ["consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"])
    alter(run, GROUP, group, ("consumer.session.timeout.ms", SET, "1"))
    alter(run, GROUP, group, ("consumer.session.timeout.ms", SET, "x"))
    alter(run, GROUP, group, ("no.such", SET, "1"))
    alter(run, GROUP, "", ("consumer.session.timeout.ms", SET, "50000"))
    alter(run, GROUP, group, ("consumer.session.timeout.ms", DELETE, None))
    wait_for_setting(run, GROUP, group, "consumer.session.timeout.ms", "45000")
    alter(run, CLIENT_METRICS, metrics, ("interval.ms", SET, "10000"), ("metrics", SET, "org.apache"))
    wait_for_setting(run, CLIENT_METRICS, metrics, "interval.ms", "10000")
    describe(run, CLIENT_METRICS, metrics, None)
    alter(run, CLIENT_METRICS, metrics, ("interval.ms", SET, "1"))
    alter(run, CLIENT_METRICS, metrics, ("match", SET, "client_id=[a"))
    alter(run, CLIENT_METRICS, metrics, ("no.such", SET, "1"))
    alter(run, CLIENT_METRICS, metrics, ("interval.ms", DELETE, None), ("metrics", DELETE, None))
    for version, kinds in ((0, []), (1, [CLIENT_METRICS]), (1, [3]), (1, [BROKER, LOGGER])):
        run.call(74, version, {"resource_types": kinds}, unordered=("config_resources",))


# --- quotas -----------------------------------------------------------------------------------------------------

Entity = dict[str, str | None]


def entity_rows(entity: Entity) -> list[dict[str, str | None]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]


def alter_quota(run: Run, entity: Entity, *ops: tuple[str, float | None], validate_only: bool = False) -> None:
    rows = [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops]
    message = {"entries": [{"entity": entity_rows(entity), "ops": rows}], "validate_only": validate_only}
    run.call(49, 1, message, unordered=("entity",))


def describe_quotas(run: Run, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    message = {"components": rows, "strict": strict}
    return run.call(48, 1, message, unordered=("entries", "values", "entity"))


def wait_for_quotas(run: Run, *components: tuple[str, int, str | None], entries: int) -> None:
    """Waits until this number of entities matches a filter."""
    rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    run.until(48, 1, {"components": rows, "strict": False}, lambda reply: len(reply.entries or ()) == entries)


def client_quotas(run: Run) -> None:
    user, client = run.fresh("user"), run.fresh("client")
    for entity in ({"user": user}, {"client-id": client}, {"user": user, "client-id": client},
                   {"user": user, "client-id": None}):  # fmt: skip
        alter_quota(run, entity, ("producer_byte_rate", 1e6), ("consumer_byte_rate", 2e6))
    wait_for_quotas(run, ("user", 0, user), entries=3)
    describe_quotas(run, ("user", 0, user))
    describe_quotas(run, ("user", 0, user), strict=True)
    describe_quotas(run, ("user", 0, user), ("client-id", 0, client))
    describe_quotas(run, ("user", 0, user), ("client-id", 1, None))
    describe_quotas(run, ("user", 0, user), ("client-id", 2, None))
    describe_quotas(run, ("client-id", 0, client))
    describe_quotas(run, ("client-id", 0, client), strict=True)
    describe_quotas(run, ("user", 0, run.fresh("user", "unknown")))
    alter_quota(run, {"user": user}, ("producer_byte_rate", None), ("request_percentage", 50.5))
    alter_quota(run, {"client-id": client}, ("producer_byte_rate", None), ("consumer_byte_rate", None))
    wait_for_quotas(run, ("client-id", 0, client), entries=1)
    describe_quotas(run, ("user", 0, user))
    describe_quotas(run, ("client-id", 0, client))
    for entity in ({"user": user}, {"user": user, "client-id": client}, {"user": user, "client-id": None}):
        keys = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
        alter_quota(run, entity, *((key, None) for key in keys))
    wait_for_quotas(run, ("user", 0, user), entries=0)
    message = {"components": [{"entity_type": "user", "match_type": 0, "match": user}], "strict": False}
    run.call(48, 0, message)


def client_quotas_refused(run: Run) -> None:
    user = run.fresh("user")
    alter_quota(run, {}, ("producer_byte_rate", 1.0))
    alter_quota(run, {"planet": "x"}, ("producer_byte_rate", 1.0))
    alter_quota(run, {"user": ""}, ("producer_byte_rate", 1.0))
    alter_quota(run, {"user": user, "ip": "1.2.3.4"}, ("producer_byte_rate", 1.0))
    alter_quota(run, {"ip": "1.2.3.4"}, ("producer_byte_rate", 1.0))
    alter_quota(run, {"ip": "no host"}, ("connection_creation_rate", 1.0))
    alter_quota(run, {"user": user}, ("connection_creation_rate", 1.0))
    alter_quota(run, {"user": user}, ("no_such_rate", 1.0))
    alter_quota(run, {"user": user}, ("no_such_rate", None))
    alter_quota(run, {"user": user}, ("producer_byte_rate", 0.0))
    alter_quota(run, {"user": user}, ("producer_byte_rate", -1.0))
    alter_quota(run, {"user": user}, ("producer_byte_rate", 1.5))
    alter_quota(run, {"user": user}, ("request_percentage", 1e9))
    alter_quota(run, {"user": user}, ("controller_mutation_rate", 0.5))
    alter_quota(run, {"user": user}, ("request_percentage", None), ("controller_mutation_rate", None))
    alter_quota(run, {"user": user}, ("producer_byte_rate", 5.0), validate_only=True)
    alter_quota(run, {"user": user}, ("producer_byte_rate", 5.0), ("producer_byte_rate", 6.0))
    row = {"entity": entity_rows({"user": user}), "ops": [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]}
    run.call(49, 1, {"entries": [row, row], "validate_only": False})
    run.call(49, 0, {"entries": [row], "validate_only": False})
    twice = entity_rows({"user": user}) * 2
    run.call(49, 1, {"entries": [row | {"entity": twice}], "validate_only": False})
    describe_quotas(run, ("planet", 0, "x"))
    describe_quotas(run, ("", 0, "x"))
    describe_quotas(run, ("user", 0, None))
    describe_quotas(run, ("user", 1, user))
    describe_quotas(run, ("user", 2, user))
    describe_quotas(run, ("user", 3, user))
    describe_quotas(run, ("user", 0, user), ("user", 0, user))
    describe_quotas(run, ("user", 0, user), ("ip", 0, "1.2.3.4"))


def clients_are_throttled(run: Run) -> None:
    topic, writer, reader, maker = run.topic(), run.fresh("writer"), run.fresh("reader"), run.fresh("maker")
    run.create(topic)
    for _ in range(30):
        produce(run, topic, 1, size=1000)
    limits = ((writer, "producer_byte_rate", 1000.0), (reader, "consumer_byte_rate", 1000.0),
              (maker, "controller_mutation_rate", 1.0))  # fmt: skip
    for client, key, limit in limits:
        alter_quota(run, {"client-id": client}, (key, limit))
        wait_for_quotas(run, ("client-id", 0, client), entries=1)
    run.call(0, 9, produce_message(topic, batch(1, size=100)), client=writer)
    run.call(0, 9, produce_message(topic, batch(1, size=11_000)), client=writer)
    run.call(1, 11, fetch_message(topic, 0), client=reader)
    time.sleep(0.2)
    run.call(1, 11, fetch_message(topic, 9), client=reader)
    # throttled, so this request begins no session
    run.call(1, 11, fetch_message(topic, 18, session_epoch=0), client=reader)
    message = {"topics": [new_topic(run.topic("b"), 13, 1)], "timeout": 10_000, "validate_only": False}
    how = {"client": maker, "unordered": ("topics", "configs")}
    run.call(19, 6, message, **how)
    run.disconnect(maker)  # on the same connection, the next request would be throttled
    run.call(19, 6, message | {"topics": [new_topic(run.topic("c"), 1, 1)]}, **how)
    run.disconnect(maker)
    run.call(19, 5, message | {"topics": [new_topic(run.topic("d"), 1, 1)]}, **how)
    run.disconnect(maker)
    for client, key, _ in limits:
        alter_quota(run, {"client-id": client}, (key, None))


# --- logs, producers, leaders -----------------------------------------------------------------------------------


def records_deleted(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)
    produce(run, topic, 10)

    def delete_before(offset: int, partition: int = 0, name: str = topic, version: int = 2) -> None:
        part = {"partition_index": partition, "offset": offset}
        run.call(21, version, {"topics": [{"name": name, "partitions": [part]}], "timeout": 10_000})

    for offset in (3, 3, 2, 0, -1, 10, 11, -2):
        delete_before(offset)
    delete_before(0, 1)
    delete_before(-1, 1)
    delete_before(0, 7)
    delete_before(0, 0, run.topic("unknown"))
    for version in (0, 1):
        delete_before(-1, version=version)
    for policy in ("compact", "compact,delete"):
        compacted = run.topic(policy.replace(",", "-"))
        run.create(compacted, 1, cleanup_policy=policy)
        delete_before(0, 0, compacted)


def log_dirs_described(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 3)
    produce(run, topic, 10)

    def ask(topics: list[dict[str, Any]] | None, version: int = 5) -> None:
        reply = run.call(35, version, {"topics": topics}, unordered=("topics", "partitions"))
        for found in reply.results:
            run.name_value(found.log_dir, "log dir")
            for number in (getattr(found, "total_bytes", -1), getattr(found, "usable_bytes", -1)):
                assert number == -1 or number > 0

    for version in range(1, 6):
        ask([{"topic": topic, "partitions": [0, 1]}], version)
    ask([{"topic": topic, "partitions": []}])
    ask([{"topic": topic, "partitions": [9]}])
    ask([{"topic": run.topic("unknown"), "partitions": [0]}])
    ask([])


def replicas_stay_in_their_log_dir(run: Run) -> None:
    topic = run.topic()
    run.create(topic)
    reply = run.quietly(35, 4, {"topics": []})
    here = reply.results[0].log_dir
    run.name_value(here, "log dir")
    for version in (1, 2):
        for path, name in ((here, topic), ("/nowhere", topic), ("nowhere", topic), (here, run.topic("unknown"))):
            rows = [{"name": name, "partitions": [0, 5]}]
            run.call(34, version, {"dirs": [{"path": path, "topics": rows}]}, unordered=("partitions",))


def describe_producers(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)

    def ask(partitions: list[int], name: str = topic) -> None:
        run.call(61, 0, {"topics": [{"name": name, "partition_indexes": partitions}]}, unordered=("partitions",))

    ask([0])
    message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    producer_id = run.quietly(22, 4, message).producer_id
    run.name_number(producer_id, "producer")
    produce(run, topic, 3, producer_id=producer_id, base_sequence=0)
    produce(run, topic, 2, producer_id=producer_id, base_sequence=3)
    ask([0, 1])
    ask([7])
    ask([0], run.topic("unknown"))
    ask([0], "a b")


def leaders_elected(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)

    def elect(topics: list[dict[str, Any]] | None, kind: int = 0, version: int = 2) -> None:
        message = {"election_type": kind, "topic_partitions": topics, "timeout": 10_000}
        run.call(43, version, message, unordered=("replica_election_results", "partition_result"))

    for kind in (0, 1):
        elect([{"topic": topic, "partitions": [0, 1]}], kind)
        elect([{"topic": topic, "partitions": [9]}], kind)
        elect([{"topic": run.topic("unknown"), "partitions": [0]}], kind)
    elect([])
    for version in (0, 1):
        elect([{"topic": topic, "partitions": [0]}], version=version)


def reassignments(run: Run) -> None:
    topic = run.topic()
    run.create(topic, 2)

    def alter_replicas(replicas: list[int] | None, partition: int = 0, name: str = topic, version: int = 1) -> None:
        part = {"partition_index": partition, "replicas": replicas}
        message = {"timeout": 10_000, "allow_replication_factor_change": True,
                   "topics": [{"name": name, "partitions": [part]}]}  # fmt: skip
        run.call(45, version, message)

    for version in (0, 1):
        alter_replicas([1], version=version)
    alter_replicas(None)
    alter_replicas([])
    alter_replicas([7])
    alter_replicas([1, 1])
    alter_replicas([-1])
    alter_replicas([1], 9)
    alter_replicas([1], 0, run.topic("unknown"))
    for asked in ([{"name": topic, "partition_indexes": [0, 1]}], [{"name": run.topic("no"), "partition_indexes": [0]}],
                  None, []):  # fmt: skip
        run.call(46, 0, {"timeout": 10_000, "topics": asked})


def features_and_quorum(run: Run) -> None:
    for version in (1, 2):
        for updates in ([], [{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}]):
            run.call(57, version, {"timeout": 10_000, "feature_updates": updates, "validate_only": True})
    for version in range(3):
        row = {"topic_name": "elsewhere", "partitions": [{"partition_index": 0}]}
        run.call(55, version, {"topics": [row]})


SCENARIOS: tuple[Scenario, ...] = (
    topics_created_by_every_version,
    topics_created_with_assignments,
    invalid_topics,
    topic_names_that_collide,
    topics_with_configs,
    topics_deleted,
    partitions_added,
    metadata_by_name_and_id,
    topic_partitions_in_pages,
    clusters_described,
    configs_described,
    topic_configs_altered,
    topic_configs_replaced,
    broker_configs_altered,
    broker_settings_reach_topics,
    loggers,
    groups_and_metrics_have_configs,
    client_quotas,
    client_quotas_refused,
    clients_are_throttled,
    records_deleted,
    log_dirs_described,
    replicas_stay_in_their_log_dir,
    describe_producers,
    leaders_elected,
    reassignments,
    features_and_quorum,
)
