"""Requests about topics, for all clients: the descriptions of topics, and whether a topic is compacted."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.client.arguments import as_names
from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.errors import error_for, first_row
from odradek.client.model import TopicDescription
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import DESCRIBE_CONFIGS

_TOPIC_RESOURCE = 2


async def describe_topics(
    cluster: Cluster, names: Iterable[str] | None, *, missing_ok: bool = False
) -> dict[str, TopicDescription]:
    wanted = None if names is None else as_names(names, "topics")
    return await cluster.topics(wanted, cluster.deadline(), missing_ok=missing_ok)


async def is_compacted(cluster: Cluster, topic: str, deadline: Deadline) -> bool:
    """Returns whether the topic's cleanup.policy contains "compact". Also False if the broker does not report it."""
    wanted = {"resource_type": _TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": ["cleanup.policy"]}

    async def attempt() -> bool:
        connection = await cluster.any_connection()
        if not connection.supports(DESCRIBE_CONFIGS):
            return False
        reply = await connection.call(
            DESCRIBE_CONFIGS, {"resources": [wanted], "include_synonyms": False, "include_documentation": False}
        )
        row = first_row(reply.results, f"settings of topic {topic}")
        if row.error_code is not ErrorCode.none:
            failure = error_for(row.error_code, f"settings of topic {topic}: {row.error_message or ''}")
            if worth_retrying(failure):
                raise failure
            return False  # e.g. TOPIC_AUTHORIZATION_FAILED: a client that may read the topic may not see its settings
        return any("compact" in (config.value or "") for config in row.configs if config.name == "cleanup.policy")

    return await cluster.retry(f"settings of topic {topic}", attempt, deadline)
