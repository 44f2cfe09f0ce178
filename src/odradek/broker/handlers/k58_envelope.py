"""Envelope 0: a request of a client that a broker has forwarded to the controller, with the client's principal.

The controller serves the request as that of the client. The reply to it, with its header, is in the envelope's reply.
Only a broker may forward requests, and only those that change the catalogue or ask for its state at the controller. A
request that cannot be read gets UNSUPPORTED_VERSION, as in Kafka: then the broker closes the client's connection.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.client_view import ClientView
from odradek.broker.limits.reply_memory import Hangup
from odradek.core.access.acl import Operation
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.security.forwarded_principal import read_principal
from odradek.wire.api_keys import FORWARDED
from odradek.wire.chunks import joined
from odradek.wire.frames import FrameError, read_request_head

if TYPE_CHECKING:
    from kio.schema.envelope.v0.request import EnvelopeRequest

    from odradek.broker.handlers.api import BrokerServices, Client, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.security.principal import Principal
    from odradek.wire.chunks import Chunk

log = logging.getLogger("odradek.broker")

VERSIONS = (0, 0)
LISTENERS = ("controller",)
LENGTH_BYTES = 4
_FAMILIES = {4: socket.AF_INET, 16: socket.AF_INET6}


class ForwardedClient(ClientView):
    """The client of a forwarded request. The broker that has forwarded it throttles the client."""

    def mute(self, duration_ms: int) -> None:
        """The connection of the broker is never muted: other clients' requests come over it."""


def handle(broker: BrokerServices, context: Context, message: EnvelopeRequest) -> Steps[dict[str, object]]:
    check_cluster(broker, context, Operation.CLUSTER_ACTION)
    try:
        client = ForwardedClient(context.connection, _principal(message), _host(message.client_host_address))
        _check(broker, message.request_data)
    except KafkaError as error:
        return {"response_data": None, "error_code": error.code}
    context.must_finish = True
    try:
        reply = yield from _served(broker, message.request_data, client)
    except (ValueError, Hangup) as error:
        log.warning("a forwarded request of %s cannot be served: %s", client.client_host[1:], error)
        return {"response_data": None, "error_code": ErrorCode.unsupported_version}
    return {"response_data": reply, "error_code": ErrorCode.none}


def _principal(message: EnvelopeRequest) -> Principal:
    """Raises KafkaError (PRINCIPAL_DESERIALIZATION_FAILURE)."""
    try:
        return read_principal(message.request_principal or b"")
    except ValueError as error:
        raise KafkaError(ErrorCode.principal_deserialization_failure, str(error)) from None


def _host(address: bytes) -> str:
    """Returns the address of the client as a connection has it. Raises KafkaError (INVALID_REQUEST)."""
    family = _FAMILIES.get(len(address))
    if family is None:
        raise KafkaError(ErrorCode.invalid_request, f"An address has 4 or 16 bytes, not {len(address)}.")
    return "/" + socket.inet_ntop(family, address)


def _check(broker: BrokerServices, frame: bytes) -> None:
    """Raises KafkaError for a request that cannot be forwarded."""
    try:
        head = read_request_head(frame)
    except FrameError as error:
        raise KafkaError(ErrorCode.unsupported_version, str(error)) from None
    api = broker.apis.get(head.api_key)
    if api is None or head.api_key not in FORWARDED:
        raise KafkaError(ErrorCode.invalid_request, f"Requests for API {head.api_key} cannot be forwarded.")
    if not api.advertised_oldest <= head.version <= api.newest:
        raise KafkaError(ErrorCode.unsupported_version, f"Version {head.version} is not served.")


def _served(broker: BrokerServices, frame: bytes, client: Client) -> Steps[bytes]:
    """Returns the whole reply to a request, without its length. Raises ValueError, Hangup."""
    reply: list[Chunk] | Deferred[list[Chunk] | None] = broker.dispatch(frame, client)
    chunks = (yield reply) if isinstance(reply, Deferred) else reply
    if not chunks:
        raise ValueError("the request has no reply")
    return joined(chunks)[LENGTH_BYTES:]
