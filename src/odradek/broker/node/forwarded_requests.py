"""The requests that a broker of a cluster does not serve itself: it forwards them to the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from odradek.broker.front_end.router import Api, Router, served_apis
from odradek.broker.handlers.api import Context
from odradek.broker.handlers.client_view import ClientView
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.remote.forwarder import FORWARD_TIMEOUT_MS
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    FORWARDED,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
)
from odradek.wire.frames import reply_head
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from odradek.broker.handlers.api import BrokerServices, Client, Later, Reply
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.remote.forwarder import RequestForwarder
    from odradek.core.deferred import Deferred
    from odradek.wire.chunks import Chunk

Forward = Callable[[Context, bytes, bool, int], "Steps[bytes]"]
"""Passes a whole request on to the controller, and returns the whole reply, both without their lengths. It gets the
context of the request, whether the request changes the catalogue, and the most ms that the reply waits for the change.

Raises KafkaError (``RequestForwarder.forward``)."""

READS = frozenset({DESCRIBE_QUORUM, LIST_PARTITION_REASSIGNMENTS})
"""These change nothing, so no reply waits."""


class RequestToForward(ClientView):
    """The client of a request that is to be forwarded. ``frame``: the whole request."""

    def __init__(self, connection: Client, frame: bytes) -> None:
        super().__init__(connection, connection.principal, connection.client_host)
        self.frame = frame


class ForwardingRouter(Router):
    """The router of a broker of a cluster."""

    def __init__(self, broker: BrokerServices, forward: Forward) -> None:
        super().__init__(broker, forwarding_apis(forward))

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        if int.from_bytes(frame[:2], "big") in FORWARDED:
            connection = RequestToForward(connection, frame)
        return super().dispatch(frame, connection)


def by_envelopes(forwarder: RequestForwarder) -> Forward:
    """Returns how a broker passes requests on to a controller in another process."""

    def forward(context: Context, request: bytes, changes: bool, wait_ms: int) -> Steps[bytes]:
        return forwarder.forward(request, context.principal, context.client_host, changes=changes, wait_ms=wait_ms)

    return forward


def forwarding_apis(forward: Forward) -> dict[int, Api]:
    """Returns the APIs of a broker of a cluster. Those of the controller forward their requests."""
    apis, own = served_apis(), served_apis()
    for key in FORWARDED & apis.keys():
        _forward(apis[key], own[key], forward)
    return apis


def _forward(api: Api, own: Api, pass_on: Forward) -> None:
    """Lets an API forward its requests. ``own``: the same API, as a lone broker serves it."""

    def handle(broker: BrokerServices, context: Context, message: object) -> Later | Steps[Later]:
        client = cast(RequestToForward, context.connection)

        def forward(request: bytes) -> Steps[bytes]:
            return _forwarded(pass_on, context, message, request)

        if context.api_key in (ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS):
            from odradek.broker.handlers import forwarded_settings

            return _with_refusals(
                context, message, forwarded_settings.handle(broker, context, message, client.frame, forward)
            )
        return _with_refusals(context, message, forward(client.frame))

    api.handle, api.load = handle, own.load


def _forwarded(pass_on: Forward, context: Context, message: object, request: bytes) -> Steps[bytes]:
    """Returns the message of the controller's reply. Raises KafkaError."""
    timeout = getattr(message, "timeout", None)
    wait_ms = FORWARD_TIMEOUT_MS if timeout is None else min(milliseconds(timeout), FORWARD_TIMEOUT_MS)
    reply = yield from pass_on(context, request, context.api_key not in READS, wait_ms)
    return _message(context, reply)


def _with_refusals(context: Context, message: object, steps: Steps[Reply]) -> Steps[Later]:
    """Returns the reply. If the request cannot be forwarded, the reply has the error in each of its rows, as in Kafka.

    Raises KafkaError (UNSUPPORTED_VERSION), which ends the connection: the controller cannot read the request."""
    try:
        return (yield from steps)
    except KafkaError as error:
        if error.code is ErrorCode.unsupported_version:
            raise Hangup(error.message) from None
        reply = _refused(context, message, error)
        if reply is None:
            raise
        return reply


def _message(context: Context, reply: bytes) -> bytes:
    """Returns a reply without its header. Raises KafkaError for one that is cut."""
    start = len(reply_head(context.api_key, context.version, 0))
    if len(reply) < start or reply[4:start] not in (b"", b"\0"):
        raise KafkaError(ErrorCode.unknown_server_error, "The controller's reply is malformed.")
    return reply[start:]


# --- replies to requests that could not be forwarded --------------------------------------------------------

_WITH_TEXT = (ALTER_CLIENT_QUOTAS, DESCRIBE_QUORUM)


def _refused(context: Context, message: object, error: KafkaError) -> dict[str, object] | None:
    """Returns the reply to a decoded request that could not be forwarded, as Kafka's brokers make it: the error is in
    each row, and in the whole reply if it has a place there. Most have no text. None if it has no place at all."""
    from odradek.broker.fault_injection.error_replies import refusal

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
