"""The controller in the process of a broker, as its own listeners see it.

A node with both roles has one loop, one directory and one metadata log. Its listeners are of two kinds, and each kind
has a table of APIs. ``ControllerSide`` is what the listeners in ``controller.listener.names`` serve: the owner of their
connections, and the services of their handlers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from odradek.broker.front_end.router import Router, served_apis
from odradek.broker.handlers.client_view import ClientView
from odradek.broker.handlers.k58_envelope import LENGTH_BYTES
from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata.image_brokers import ImageBrokers
from odradek.broker.settings.listener import AT_CONTROLLER
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire.chunks import joined

if TYPE_CHECKING:
    from odradek.broker.front_end.router import Api
    from odradek.broker.handlers.api import BrokerServices, Client, Context, ControllerRoleServices
    from odradek.broker.limits.request_elements import RequestElements
    from odradek.broker.loop.leftovers import Leftovers
    from odradek.broker.loop.workers import Workers
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.node.node import Node
    from odradek.broker.settings.listener import Listener
    from odradek.wire.chunks import Chunk


class ControllerSide:
    """``api.ControllerServices``, and the owner of connections (``front_end/connection``).

    ``role``: what handlers ask about the controller. ``envelope_bytes``: how much longer a request may be than that of
    a client. Made when the node has its catalogue, before it has a router."""

    def __init__(self, node: Node, role: ControllerRoleServices, envelope_bytes: int) -> None:
        self._node = node
        self._envelope_bytes = envelope_bytes
        self.role = role
        self.config, self.authorizer, self.tokens = node.config, node.authorizer, node.tokens
        self.controller, self.catalog, self.quorum = node.controller, node.catalog, node.quorum
        self.quotas, self.scheduler, self.purgatory = node.quotas, node.scheduler, node.purgatory
        self.request_memory, self.reply_memory = node.request_memory, node.reply_memory
        self.request_times = node.request_times
        self.node_id, self.cluster_id = node.node_id, node.cluster_id
        self.now_ms, self.steady_ms, self.new_uuid = node.now_ms, node.steady_ms, node.new_uuid
        self.advertised_address, self.log_failure = node.advertised_address, node.log_failure
        self.admit, self.remove = node.admit, node.remove
        self.brokers: Brokers = ImageBrokers(node.catalog, node.other_listeners, node.new_uuid)
        # The table has no API that needs more than ``api.ControllerServices``.
        self._router = Router(cast("BrokerServices", self), served_apis(AT_CONTROLLER))

    # --- services -----------------------------------------------------------------------------------------------

    @property
    def listeners(self) -> tuple[Listener, ...]:
        return self._node.other_listeners

    @property
    def apis(self) -> Mapping[int, Api]:
        return self._router.apis

    @property
    def leftovers(self) -> Leftovers:
        return self._node.leftovers

    @property
    def request_elements(self) -> RequestElements:
        return self._node.request_elements

    @property
    def workers(self) -> Workers:
        return self._node.workers

    # --- connections --------------------------------------------------------------------------------------------

    @property
    def most_request_bytes(self) -> int:
        return self.config.socket_request_max_bytes + self._envelope_bytes

    def fast_path(self, frame: bytes) -> None:
        """Returns None: no client commits offsets here."""

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        return self._router.dispatch(frame, connection)

    def serve_forwarded(self, context: Context, request: bytes, changes: bool, wait_ms: int) -> Steps[bytes]:
        """Serves a request of the broker's client (``forwarded_requests.Forward``). Its change is published in this
        process before the reply. Raises KafkaError (UNKNOWN_SERVER_ERROR) for a request without a reply."""
        client = ClientView(context.connection, context.principal, context.client_host)
        reply: list[Chunk] | Deferred[list[Chunk] | None] = self.dispatch(request, client)
        chunks = (yield reply) if isinstance(reply, Deferred) else reply
        if not chunks:
            raise KafkaError(ErrorCode.unknown_server_error, "The request has no reply.")
        return joined(chunks)[LENGTH_BYTES:]
