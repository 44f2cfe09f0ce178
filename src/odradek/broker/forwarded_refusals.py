"""Replies to requests that could not be forwarded to the controller: as Kafka's brokers make them.

The error is in each row of the reply, and in the whole reply if it has a place for it. Most have no text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.broker.fault_injection.error_replies import refusal
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
)

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Context
    from odradek.core.errors import KafkaError

_WITH_TEXT = (ALTER_CLIENT_QUOTAS, DESCRIBE_QUORUM)


def refused(context: Context, message: object, error: KafkaError) -> dict[str, object] | None:
    """Returns the reply to a decoded request; None if it has no place for an error."""
    text = error.message if context.api_key in _WITH_TEXT else None
    made = refusal(context.api_key, context.version, message, error.code, text)
    add = _ROWS.get(context.api_key)
    if made is not None and add is not None:
        made |= add(message, {"error_code": error.code, "error_message": text})
    return made


def _quotas(message: Any, error: dict[str, object]) -> dict[str, object]:
    return {"entries": [error | {"entity": [_named(part) for part in entry.entity]} for entry in message.entries]}


def _named(part: Any) -> dict[str, object]:
    return {"entity_type": part.entity_type, "entity_name": part.entity_name}


def _users(message: Any, error: dict[str, object]) -> dict[str, object]:
    names = dict.fromkeys(row.name for rows in (message.deletions, message.upsertions) for row in rows)
    return {"results": [error | {"user": name} for name in names]}


def _elections(message: Any, error: dict[str, object]) -> dict[str, object]:
    return {
        "replica_election_results": [
            {"topic": row.topic, "partition_result": [error | {"partition_id": index} for index in row.partitions]}
            for row in message.topic_partitions or ()
        ]
    }


def _moves(message: Any, error: dict[str, object]) -> dict[str, object]:
    return {
        "responses": [
            {
                "name": topic.name,
                "partitions": [error | {"partition_index": part.partition_index} for part in topic.partitions],
            }
            for topic in message.topics
        ]
    }


_ROWS: dict[int, Callable[[Any, dict[str, object]], dict[str, object]]] = {
    ALTER_CLIENT_QUOTAS: _quotas,
    ALTER_USER_SCRAM_CREDENTIALS: _users,
    ELECT_LEADERS: _elections,
    ALTER_PARTITION_REASSIGNMENTS: _moves,
}
"""The rows that the schema of the reply alone does not tell."""
