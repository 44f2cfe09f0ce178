"""The link of a broker to its controller over connections: it registers the broker, keeps its session, reads the log.

A fetch waits at the controller for news, and replies come in the order of the requests. So heartbeats have a
connection of their own, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from odradek.broker.membership import controller_messages as messages
from odradek.broker.membership.controller_messages import ControllerMessage
from odradek.broker.remote.connection import RemoteNode
from odradek.cluster.lifecycle import HeartbeatAnswer
from odradek.cluster.log_observer import TIMEOUT_MS, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.observers import ObserverKey
from odradek.cluster.registrations import NewBroker
from odradek.cluster.sessions import BrokerHeartbeat
from odradek.core.errors import ErrorCode


class RemoteControllerLink:
    """``incarnation.ControllerLink``. ``beats`` and ``reads``: two connections to the controller. ``observer``: what
    the controller knows this node by. ``beat_timeout_ms``: that of registrations and heartbeats.

    ``heard``: how many heartbeats and registrations the controller has answered.
    """

    def __init__(
        self, beats: RemoteNode, reads: RemoteNode, observer: ObserverKey, cluster_id: str, beat_timeout_ms: int
    ) -> None:
        self.heard = 0
        self._beats, self._reads = beats, reads
        self._observer, self._cluster_id = observer, cluster_id
        self._beat_timeout_ms = beat_timeout_ms

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        self._beat(messages.registration(asked), messages.registered, answer)

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatAnswer | ErrorCode], None]) -> None:
        self._beat(messages.heartbeat(asked), messages.heard, answer)

    def read(self, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]) -> None:
        self._read(messages.fetch(asked, self._observer, self._cluster_id), messages.fetched, answer)

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None:
        message = messages.fetch_snapshot(asked, self._observer, self._cluster_id)
        self._read(message, messages.part_of_snapshot, answer)

    def close(self) -> None:
        self._beats.close()
        self._reads.close()

    def _beat(self, message: ControllerMessage, taken: Callable[[Any], Any], answer: Callable[[Any], None]) -> None:
        def take(reply: Any) -> None:
            if reply is not None:
                self.heard += 1
            answer(ErrorCode.none if reply is None else taken(reply))

        self._beats.send(*message, self._beat_timeout_ms, take)

    def _read(self, message: ControllerMessage, taken: Callable[[Any], Any], answer: Callable[[Any], None]) -> None:
        self._reads.send(*message, TIMEOUT_MS, lambda reply: answer(None if reply is None else taken(reply)))
