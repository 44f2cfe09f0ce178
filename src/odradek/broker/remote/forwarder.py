"""Requests of clients that a broker passes on to the controller, and their replies.

A change is visible at this broker when its client gets the reply, as at a lone broker. So after the reply of the
controller, the broker asks for the end of what is committed, and waits until it has applied the log up to there.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.broker.remote.node_request import NodeRequest, R, schema_request
from odradek.broker.remote.peers import CONTROLLER_READS, CONTROLLER_REQUESTS, REQUEST_TIMEOUT_MS, Channel, Peers
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import METADATA_TOPIC, NO_OFFSET
from odradek.security.forwarded_principal import pack_principal
from odradek.wire.api_keys import DESCRIBE_QUORUM, ENVELOPE

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v0.response import DescribeQuorumResponse
    from kio.schema.envelope.v0.response import EnvelopeResponse

    from odradek.broker.remote.applied_offsets import AppliedOffsets
    from odradek.security.principal import Principal

log = logging.getLogger("odradek.broker")

FORWARD_TIMEOUT_MS = 60_000
"""The time after which a forwarded request gets REQUEST_TIMED_OUT, whatever time the request itself allows: Kafka's
brokers have this time for it, too."""
_QUORUM_VERSION = 0
_ENVELOPE_VERSION = 0
_QUORUM = {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
_LATE = "The controller did not answer in time."


class RequestForwarder:
    """``controller_id``: the controller among the peers. ``applied``: what this broker has applied. ``now_ms``: a clock
    that only goes forward."""

    def __init__(self, peers: Peers, controller_id: int, applied: AppliedOffsets, now_ms: Callable[[], int]) -> None:
        self._peers, self._controller_id = peers, controller_id
        self._applied = applied
        self._now_ms = now_ms

    def forward(
        self,
        request: bytes,
        principal: Principal,
        host: str,
        *,
        changes: bool = True,
        wait_ms: int = FORWARD_TIMEOUT_MS,
    ) -> Steps[bytes]:
        """Forwards a whole request of a client, without its length. Returns the whole reply, also without its length.

        ``host``: the address of the client. ``changes``: whether this broker has to apply what the request has changed
        before the reply, at most ``wait_ms`` from now on.

        Raises KafkaError: REQUEST_TIMED_OUT; UNSUPPORTED_VERSION if the controller cannot read the request;
        UNKNOWN_SERVER_ERROR if it refuses this broker's envelope."""
        until_ms = self._now_ms() + wait_ms
        message: dict[str, object] = {
            "request_data": request,
            "request_principal": pack_principal(principal),
            "client_host_address": _packed_address(host),
        }
        envelope = schema_request(ENVELOPE, _ENVELOPE_VERSION, message, _forwarded_reply)
        reply = yield from self.ask(envelope, FORWARD_TIMEOUT_MS)
        if reply is ErrorCode.unsupported_version:
            raise KafkaError(reply, "the controller cannot read the forwarded request")
        if isinstance(reply, ErrorCode):
            log.warning("the controller has refused a forwarded request: %s", reply.name)
            raise KafkaError(ErrorCode.unknown_server_error, "The controller has refused the forwarded request.")
        if changes:
            yield from self.catch_up(until_ms - self._now_ms())
        return reply

    def ask(self, request: NodeRequest[R], timeout_ms: int = REQUEST_TIMEOUT_MS) -> Steps[R]:
        """Sends a request of this broker itself. Returns the reply. Raises KafkaError (REQUEST_TIMED_OUT)."""
        reply = yield from self._reply(request, timeout_ms)
        if reply is None:
            raise KafkaError(ErrorCode.request_timed_out, _LATE)
        return reply

    def catch_up(self, within_ms: int = REQUEST_TIMEOUT_MS) -> Steps[None]:
        """Waits until this broker has applied all that is committed now, but at most for a time."""
        end = yield from self._reply(
            schema_request(DESCRIBE_QUORUM, _QUORUM_VERSION, _QUORUM, _high_watermark),
            max(within_ms, 1),
            CONTROLLER_READS,
        )
        if end is not None and end > 0:
            yield self._applied.wait_for(end, within_ms)

    def _reply(
        self, request: NodeRequest[R], timeout_ms: int, channel: Channel = CONTROLLER_REQUESTS
    ) -> Steps[R | None]:
        """Returns the reply, None if none has come in time."""
        reply: R | None = yield self._peers.send(
            self._controller_id, request, timeout_ms, channel=channel, repeats=True
        )
        return reply


def _packed_address(host: str) -> bytes:
    """Returns the address of a client, which a connection has after a slash."""
    try:
        return ipaddress.ip_address(host.removeprefix("/").partition("%")[0]).packed
    except ValueError:  # a connection without an address
        return ipaddress.ip_address("127.0.0.1").packed


def _forwarded_reply(reply: EnvelopeResponse) -> bytes | ErrorCode:
    return reply.error_code or reply.response_data or b""


def _high_watermark(reply: DescribeQuorumResponse) -> int:
    """Returns the end of what is committed, −1 if the controller does not say it."""
    for topic in reply.topics:
        for part in topic.partitions:
            if not part.error_code:
                return int(part.high_watermark)
    return NO_OFFSET
