"""The link of a broker to its controller over connections: it registers the broker, keeps its session, reads the log.

A fetch waits at the controller for news, and replies come in the order of the requests. So heartbeats have a
connection of their own, as in Kafka.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from odradek.broker.remote import controller_messages as messages
from odradek.broker.remote.node_request import NodeRequest, R
from odradek.broker.remote.peers import Channel, Peers
from odradek.cluster.metadata_log.log_observer import TIMEOUT_MS, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.metadata_log.observers import ObserverKey
from odradek.cluster.nodes.lifecycle import HeartbeatReply
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.core.errors import ErrorCode

HEARTBEATS = Channel("heartbeats", 1 << 20, logging.WARNING, at_controller=True)
METADATA_READS = Channel("metadata reads", 64 << 20, at_controller=True)
"""Fetches of the metadata log and of snapshots. A reply has a batch of any size, and what comes with it."""


class RemoteControllerLink:
    """``incarnation.ControllerLink``. ``controller_id``: the controller among the peers. ``observer``: what the
    controller knows this node by. ``beat_timeout_ms``: that of registrations and heartbeats.

    ``heard``: how many heartbeats and registrations the controller has answered.
    """

    def __init__(
        self, peers: Peers, controller_id: int, observer: ObserverKey, cluster_id: str, beat_timeout_ms: int
    ) -> None:
        self.heard = 0
        self._peers, self._controller_id = peers, controller_id
        self._observer, self._cluster_id = observer, cluster_id
        self._beat_timeout_ms = beat_timeout_ms

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        self._beat(messages.registration(asked), answer)

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None:
        self._beat(messages.heartbeat(asked), answer)

    def read(self, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]) -> None:
        def take(reply: RecordsReply | None) -> None:
            connection = self._peers.connections(self._controller_id, METADATA_READS)
            answer(None if reply is None else reply._replace(connection=connection))

        self._read(messages.fetch(asked, self._observer, self._cluster_id), take)

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None:
        self._read(messages.fetch_snapshot(asked, self._observer, self._cluster_id), answer)

    def _read(self, request: NodeRequest[R], answer: Callable[[R | None], None]) -> None:
        self._peers.send(self._controller_id, request, TIMEOUT_MS, channel=METADATA_READS).then(answer)

    def _beat(self, request: NodeRequest[R | ErrorCode], answer: Callable[[R | ErrorCode], None]) -> None:
        def on_reply(reply: R | ErrorCode | None) -> None:
            if reply is not None:
                self.heard += 1
            answer(ErrorCode.none if reply is None else reply)

        self._peers.send(self._controller_id, request, self._beat_timeout_ms, channel=HEARTBEATS).then(on_reply)
