"""The admin requests for topics, records, settings (of topics, brokers and groups) and the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.client.arguments import as_name, as_names, as_setting
from odradek.client.cluster import Cluster, Deadline
from odradek.client.errors import UnknownTopic, error_for
from odradek.client.model import ClusterDescription, ConfigEntry, NewTopic
from odradek.client.offset_requests import by_topic
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
)

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.response import DescribeConfigsResourceResult

_RESOURCES = {"topic": 2, "broker": 4, "group": 32}
_SET, _DELETE = 0, 1
_SOURCES = {
    1: "topic", 2: "broker", 3: "cluster", 4: "static broker", 5: "default", 6: "broker logger", 7: "client metrics",
    8: "group",
}  # fmt: skip


async def at_controller(
    cluster: Cluster, what: str, call: Callable[[BrokerConnection], Awaitable[object]], deadline: Deadline
) -> object:
    """Runs ``call`` on a connection to the controller, or to any broker if the controller is unknown."""

    async def attempt() -> object:
        await cluster.refresh([])
        controller = cluster.controller_id
        connection = await (cluster.connection(controller) if controller >= 0 else cluster.any_connection())
        return await call(connection)

    return await cluster.retry(what, attempt, deadline)


async def create_topics(cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
    deadline = cluster.deadline()
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"topics: expected a list of NewTopic(name, partitions, replicas), not {topics!r}")
    rows = [
        {
            "name": as_name(topic.name, "topics"),
            "num_partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "assignments": [
                {"partition_index": partition, "broker_ids": brokers}
                for partition, brokers in topic.assignments().items()
            ],
            "configs": [{"name": name, "value": as_setting(value)} for name, value in topic.configs.items()],
        }
        for topic in topics
    ]
    left = {topic.name for topic in topics}

    async def call(connection: BrokerConnection) -> None:
        chosen = [row for row in rows if row["name"] in left]
        reply = await connection.call(
            CREATE_TOPICS, {"topics": chosen, "timeout": max(deadline.left_ms, 1), "validate_only": validate_only}
        )
        left.difference_update(row.name for row in reply.topics if row.error_code is ErrorCode.none)
        for row in reply.topics:
            if row.error_code is not ErrorCode.none:
                if row.error_code is ErrorCode.topic_already_exists:  # a broker's own text has the name again
                    raise error_for(row.error_code, f"topic {row.name} already exists")
                raise error_for(row.error_code, f"topic {row.name}: {row.error_message or 'not created'}")

    await at_controller(cluster, "creating topics", call, deadline)
    cluster.forget_topics(topic.name for topic in topics)


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> None:
    deadline = cluster.deadline()
    left = set(as_names(names, "topics"))

    async def call(connection: BrokerConnection) -> None:
        message = {
            "topics": [{"name": name, "topic_id": None} for name in sorted(left)],
            "topic_names": sorted(left),
            "timeout": max(deadline.left_ms, 1),
        }
        reply = await connection.call(DELETE_TOPICS, message)
        left.difference_update(row.name for row in reply.responses if row.error_code is ErrorCode.none)
        for row in reply.responses:
            if row.error_code is not ErrorCode.none:
                raise error_for(
                    row.error_code, f"topic {row.name}: {getattr(row, 'error_message', '') or 'not deleted'}"
                )

    await at_controller(cluster, "deleting topics", call, deadline)
    cluster.forget_topics(names)


async def create_partitions(cluster: Cluster, counts: Mapping[str, int], *, validate_only: bool) -> None:
    deadline = cluster.deadline()
    left = dict(counts)

    async def call(connection: BrokerConnection) -> None:
        reply = await connection.call(
            CREATE_PARTITIONS,
            {
                "topics": [{"name": name, "count": count, "assignments": None} for name, count in left.items()],
                "timeout": max(deadline.left_ms, 1),
                "validate_only": validate_only,
            },
        )
        for row in reply.results:
            if row.error_code is ErrorCode.none:
                left.pop(row.name, None)
        for row in reply.results:
            if row.error_code is ErrorCode.unknown_topic_or_partition:
                raise UnknownTopic(f"unknown topic {row.name}", (row.name,))
            if row.error_code is not ErrorCode.none:
                raise error_for(row.error_code, f"topic {row.name}: {row.error_message or 'no partitions added'}")

    await at_controller(cluster, "adding partitions", call, deadline)
    cluster.forget_topics(counts)


async def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    deadline = cluster.deadline()
    low_watermarks: dict[TopicPartition, int] = {}

    async def at(leader: int, part: Mapping[TopicPartition, int]) -> None:
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": i, "offset": part[TopicPartition(name, i)]} for i in indexes],
            }
            for name, indexes in by_topic(part).items()
        ]
        connection = await cluster.connection(leader)
        reply = await connection.call(DELETE_RECORDS, {"topics": topics, "timeout": max(deadline.left_ms, 1)})
        failure: KafkaError | None = None
        for topic in reply.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is ErrorCode.none:
                    low_watermarks[tp] = row.low_watermark
                else:
                    failure = failure or error_for(row.error_code, _refused_deletion(row.error_code, tp, part[tp]))
        if failure is not None:
            raise failure

    async def attempt() -> None:
        left = {tp: offset for tp, offset in before.items() if tp not in low_watermarks}
        per_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, leader in (await cluster.leaders(left, deadline)).items():
            per_leader.setdefault(leader, {})[tp] = left[tp]
        outcomes = await asyncio.gather(*(at(*one) for one in per_leader.items()), return_exceptions=True)
        failures = [outcome for outcome in outcomes if outcome is not None]
        if failures:
            cluster.forget_topics({tp.topic for tp in left if tp not in low_watermarks})
            raise failures[0]

    await cluster.retry("deleting records", attempt, deadline)
    return low_watermarks


async def describe_configs(cluster: Cluster, kind: str, names: Sequence[str]) -> dict[str, tuple[ConfigEntry, ...]]:
    """Looks up settings. ``kind``: topic, broker (names are broker ids, '' is the default of all brokers) or group.
    Raises ValueError."""
    number = _resource(kind)
    names = as_names(names, f"{kind}s")
    deadline = cluster.deadline()
    entries: dict[str, tuple[ConfigEntry, ...]] = {}

    async def attempt() -> None:
        for node_id, part in _by_node(kind, names).items():
            resources = [{"resource_type": number, "resource_name": n, "configuration_keys": None} for n in part]
            connection = await (cluster.any_connection() if node_id is None else cluster.connection(node_id))
            reply = await connection.call(
                DESCRIBE_CONFIGS, {"resources": resources, "include_synonyms": False, "include_documentation": False}
            )
            for row in reply.results:
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, f"{kind} {row.resource_name}: {row.error_message or 'no settings'}")
                entries[row.resource_name] = tuple(sorted(_entry(config) for config in row.configs))

    await cluster.retry(f"settings of {kind}s", attempt, deadline)
    return entries


def _resource(kind: str) -> int:
    if kind not in _RESOURCES:
        raise ValueError(f"kind {kind!r}: expected {', '.join(_RESOURCES)}")
    return _RESOURCES[kind]


def _by_node(kind: str, names: Sequence[str]) -> dict[int | None, list[str]]:
    """Groups the names by the broker to ask; None is any broker. Only a broker itself reports its settings."""
    names_by_node: dict[int | None, list[str]] = {}
    for name in names:
        own = kind == "broker" and name != ""
        if own and not name.isdecimal():
            raise ValueError(f"broker {name!r}: expected a broker's id")
        names_by_node.setdefault(int(name) if own else None, []).append(name)
    return names_by_node


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    source = getattr(config, "config_source", None)
    if source is None:  # version 0 has only is_default
        source = 5 if getattr(config, "is_default", False) else 1
    return ConfigEntry(config.name, config.value, _SOURCES.get(source, "unknown"), config.read_only)


async def alter_configs(
    cluster: Cluster, kind: str, name: str, changes: Mapping[str, str | None], *, validate_only: bool
) -> None:
    """Changes settings of a topic, broker or group; None resets a setting to its default. Raises ValueError."""
    deadline = cluster.deadline()
    configs = [
        {
            "name": key,
            "config_operation": _DELETE if value is None else _SET,
            "value": None if value is None else as_setting(value),
        }
        for key, value in changes.items()
    ]
    resource = {"resource_type": _resource(kind), "resource_name": name, "configs": configs}
    (node_id,) = _by_node(kind, [name])

    async def call(connection: BrokerConnection) -> None:
        if node_id is not None:
            connection = await cluster.connection(node_id)
        reply = await connection.call(
            INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": validate_only}
        )
        for row in reply.responses:
            if row.error_code is ErrorCode.unknown_topic_or_partition and kind == "topic":
                raise UnknownTopic(f"unknown topic {row.resource_name}", (row.resource_name,))
            if row.error_code is not ErrorCode.none:
                raise error_for(row.error_code, f"{kind} {row.resource_name}: {row.error_message or 'not altered'}")

    await at_controller(cluster, f"settings of {kind} {name}", call, deadline)


async def describe_cluster(cluster: Cluster) -> ClusterDescription:
    async def attempt() -> ClusterDescription:
        await cluster.refresh([])
        nodes = tuple(sorted(cluster.nodes(), key=lambda node: node.node_id))
        return ClusterDescription(cluster.cluster_id, cluster.node(cluster.controller_id), nodes)

    return await cluster.retry("describing the cluster", attempt, cluster.deadline())


def _refused_deletion(code: ErrorCode, tp: TopicPartition, offset: int) -> str:
    text = f"records of {tp} before offset {offset}"
    if code is ErrorCode.offset_out_of_range:
        what = "the partition ends before this offset" if offset >= 0 else "expected an offset, or -1 for the end"
        return f"{text}: {what}"
    return text
