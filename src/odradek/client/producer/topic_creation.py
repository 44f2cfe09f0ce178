"""The lookup of a producer's topic. The broker may create the topic, as for Java's producer."""

from __future__ import annotations

from odradek.client.cluster import UNKNOWN_TOPIC_GRACE_MS, Cluster
from odradek.client.errors import RequestTimedOut, UnknownTopic, error_for
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.wire.api_keys import DESCRIBE_CONFIGS

AUTO_CREATE = "auto.create.topics.enable"
_BROKER = 4


async def partition_count(cluster: Cluster, topic: str, max_block_ms: int) -> int:
    """Returns the topic's number of partitions. With ``allow_auto_create_topics`` the broker creates a missing topic.

    A broker replies UNKNOWN_TOPIC_OR_PARTITION or LEADER_NOT_AVAILABLE while it creates a topic: the lookup is repeated
    until ``max_block_ms`` passes (RequestTimedOut). Raises UnknownTopic if the client does not allow the creation, or
    if every broker has auto.create.topics.enable=false.
    """
    if not cluster.config.allow_auto_create_topics:
        try:
            metadata = await cluster.topics([topic], cluster.deadline(max_block_ms))
        except UnknownTopic as error:
            raise UnknownTopic(
                f"unknown topic {topic}: {_create(topic)}, or leave out allow_auto_create_topics=False"
                f" (allow.auto.create.topics=false), and the broker creates it (if its {AUTO_CREATE} is true)"
            ) from error
        return len(metadata[topic].partitions)
    return await _created(cluster, topic, max_block_ms)


async def _created(cluster: Cluster, topic: str, max_block_ms: int) -> int:
    deadline, grace = cluster.deadline(max_block_ms), cluster.deadline(min(UNKNOWN_TOPIC_GRACE_MS, max_block_ms))
    is_missing = is_checked = False  # is_missing: by the last reply; it holds if the time ends before the next reply

    async def attempt() -> int:
        nonlocal is_missing, is_checked
        try:
            code = (await cluster.refresh([topic])).get(topic)
        except OdradekError:
            is_missing = False
            raise
        known = cluster.known_topic(topic)
        if code is None and known is not None:
            return len(known.partitions)
        is_missing = code in (None, ErrorCode.unknown_topic_or_partition)
        if code is not None and not is_missing:
            raise error_for(code, f"topic {topic}")
        if grace.passed and not is_checked:
            is_checked = True
            if await _is_creation_off(cluster):
                raise UnknownTopic(
                    f"unknown topic {topic}: the broker creates no topics ({AUTO_CREATE}=false); {_create(topic)}, or"
                    f" set {AUTO_CREATE}=true for the broker"
                )
        raise KafkaError(ErrorCode.leader_not_available, f"unknown topic {topic}")

    try:
        return await cluster.retry("looking the topic up", attempt, deadline)
    except RequestTimedOut as error:
        if not is_missing:
            raise
        raise RequestTimedOut(
            f"unknown topic {topic}: the broker did not create it within max_block_ms={max_block_ms}"
            f" (its {AUTO_CREATE} may be false); {_create(topic)}"
        ) from error


async def _is_creation_off(cluster: Cluster) -> bool:
    """Returns whether every broker reports that it creates no topics. False if a broker does not report the setting."""
    nodes = cluster.nodes()
    for node in nodes:
        resource = {
            "resource_type": _BROKER,
            "resource_name": str(node.node_id),
            "configuration_keys": [AUTO_CREATE],
        }
        try:
            connection = await cluster.connection(node.node_id)
            reply = await connection.call(
                DESCRIBE_CONFIGS,
                {"resources": [resource], "include_synonyms": False, "include_documentation": False},
            )
        except OdradekError:
            return False
        if not any(one.name == AUTO_CREATE and one.value == "false" for row in reply.results for one in row.configs):
            return False
    return bool(nodes)


def _create(topic: str) -> str:
    return f"create it with `odradek topics create {topic} --partitions N -b HOST:PORT`"
