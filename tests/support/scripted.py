"""Brokers with scripted replies, for behaviour that one real broker cannot show."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

from odradek.core.errors import ErrorCode
from odradek.wire import frames, schemas
from odradek.wire.api_keys import (
    API_VERSIONS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    FETCH,
    FIND_COORDINATOR,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from odradek.wire.schemas import Kind

SERVED = (FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR)
SERVED += (DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS)

Reply = dict[str, Any] | bytes | None
"""What the broker sends: a mapping is encoded in the version of the request, bytes are sent unchanged. None closes the
connection."""


class ScriptedBroker:
    """Listens on its own port; ``answers[api_key](message, version)`` returns the reply. ``asked`` has the requests."""

    def __init__(self, cluster: ScriptedCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.asked: list[tuple[int, int, Any]] = []
        self.answers: dict[int, Callable[[Any, int], Reply]] = {}
        self.ranges = {key: schemas.known_versions(key) for key in (*SERVED, API_VERSIONS)}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self.asking = threading.local()
        """``asking.id``: the correlation id of the current request."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, api_key: int) -> int:
        return sum(1 for key, _, _ in self.asked if key == api_key)

    def stop(self) -> None:
        for one in [self._listener, *self._open]:
            with suppress(OSError):  # not connected
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = frames.FrameReader()
        try:
            while data := connection.recv(65_536):
                for frame in reader.feed(data):
                    reply = self.reply_to(frame)
                    if reply is None:
                        connection.close()
                        return
                    connection.sendall(reply)
        except OSError:
            return

    def reply_to(self, frame: bytes) -> bytes | None:
        head = frames.read_request_head(frame)
        key, version = head.api_key, head.version
        low, high = self.ranges.get(key, (0, -1))
        if key == API_VERSIONS and version > high:
            body = {"error_code": ErrorCode.unsupported_version.value, "api_keys": self._ranges(), "throttle_time": 0}
            return frames.frame(
                frames.reply_head(key, 0, head.correlation_id), schemas.encode(key, 0, Kind.RESPONSE, body)
            )
        assert low <= version <= high, f"version {version} of {key} was never offered"
        message, _ = schemas.decode(key, version, Kind.REQUEST, frame, head.body)
        self.asked.append((key, version, message))
        self.asking.id = head.correlation_id
        answer = self.answers[key] if key in self.answers else getattr(self, f"answer_{key}")
        reply = answer(message, version)
        if not isinstance(reply, dict):
            return reply
        return frames.frame(
            frames.reply_head(key, version, head.correlation_id), schemas.encode(key, version, Kind.RESPONSE, reply)
        )

    def _ranges(self) -> list[dict[str, int]]:
        return [{"api_key": k, "min_version": low, "max_version": high} for k, (low, high) in self.ranges.items()]

    # --- replies of a correct broker; a test replaces some -----------------------------------------------------

    def answer_18(self, message: Any, version: int) -> Reply:
        return {"error_code": 0, "api_keys": self._ranges(), "throttle_time": 0}

    def answer_3(self, message: Any, version: int) -> Reply:
        return self.cluster.metadata(message)

    def answer_1(self, message: Any, version: int) -> Reply:
        """The first batch of the cluster's log that ends at or after the requested offset. Only the leader sends it."""
        asked = message.topics[0].partitions[0]
        if self.cluster.leader != self.node_id:
            return fetch_reply(self.cluster, error=ErrorCode.not_leader_or_follower)
        if 0 <= getattr(asked, "current_leader_epoch", -1) < self.cluster.leader_epoch:
            return fetch_reply(self.cluster, error=ErrorCode.fenced_leader_epoch)
        batches = [data for last, data in self.cluster.log if last >= asked.fetch_offset]
        return fetch_reply(self.cluster, batches[0] if batches else b"")

    def answer_2(self, message: Any, version: int) -> Reply:
        offset = {-1: self.cluster.end_offset, -2: 0}[message.topics[0].partitions[0].timestamp]
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset}
        row["leader_epoch"] = self.cluster.leader_epoch
        return {"throttle_time": 0, "topics": [{"name": "t", "partitions": [row]}]}

    def answer_10(self, message: Any, version: int) -> Reply:
        node = self.cluster.brokers[self.cluster.coordinator]
        where = {"node_id": node.node_id, "host": "127.0.0.1", "port": node.port, "error_code": 0}
        return where | {"throttle_time": 0, "coordinators": [where | {"key": "g", "error_message": None}]}

    def answer_9(self, message: Any, version: int) -> Reply:
        code = 0 if self.cluster.coordinator == self.node_id else ErrorCode.not_coordinator.value
        row = {
            "partition_index": 0, "committed_offset": 7, "committed_leader_epoch": self.cluster.committed_epoch,
            "metadata": "m", "error_code": 0,
        }  # fmt: skip
        topics = [] if code else [{"name": "t", "partitions": [row]}]
        group = {"group_id": "g", "topics": topics, "error_code": code}
        return {"throttle_time": 0, "topics": topics, "error_code": code, "groups": [group]}

    def answer_23(self, message: Any, version: int) -> Reply:
        end = {"error_code": 0, "partition": 0, "leader_epoch": 0, "end_offset": self.cluster.epoch_0_end}
        return {"throttle_time": 0, "topics": [{"topic": "t", "partitions": [end]}]}

    def answer_32(self, message: Any, version: int) -> Reply:
        row = {
            "name": "cleanup.policy", "value": self.cluster.cleanup_policy, "read_only": False, "is_default": False,
            "config_source": 1, "is_sensitive": False, "synonyms": [], "config_type": 7, "documentation": None,
        }  # fmt: skip
        found = {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "t", "configs": [row]}
        return {"throttle_time": 0, "results": [found]}


class ScriptedCluster:
    """Topic ``t`` with partition 0, whose log is ``log``: pairs of last offset and batch."""

    def __init__(self, nodes: int, broker_type: type[ScriptedBroker] = ScriptedBroker) -> None:
        self.brokers: dict[int, ScriptedBroker] = {}
        self.leader = self.coordinator = 1
        self.leader_epoch = 0
        self.committed_epoch = 0
        self.epoch_0_end = 1 << 40
        self.topic_id = UUID(int=7)
        self.cleanup_policy = "delete"
        self.log: list[tuple[int, bytes]] = []
        self.high_watermark: int | None = None
        for node_id in range(1, nodes + 1):
            self.brokers[node_id] = broker_type(self, node_id)

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def end_offset(self) -> int:
        if self.high_watermark is not None:
            return self.high_watermark
        return self.log[-1][0] + 1 if self.log else 0

    def fall_over(self) -> None:
        """The first fetch ends the leadership of broker 1: broker 2 leads, and its log diverges from the old one at
        offset 8."""
        self.epoch_0_end = 8

        def answer(message: Any, version: int) -> Reply:
            reply = self.brokers[1].answer_1(message, version)
            self.leader, self.leader_epoch = 2, 1
            return reply

        self.brokers[1].answers[FETCH] = answer

    def metadata(self, message: Any) -> dict[str, Any]:
        partition = {
            "error_code": 0, "partition_index": 0, "leader_id": self.leader, "leader_epoch": self.leader_epoch,
            "replica_nodes": list(self.brokers), "isr_nodes": list(self.brokers), "offline_replicas": [],
        }  # fmt: skip
        topic = {
            "error_code": 0, "name": "t", "topic_id": self.topic_id, "is_internal": False, "partitions": [partition],
            "topic_authorized_operations": 0,
        }  # fmt: skip
        return {
            "throttle_time": 0, "cluster_id": "c", "controller_id": 1, "cluster_authorized_operations": 0,
            "topics": [topic], "error_code": 0,
            "brokers": [
                {"node_id": b.node_id, "host": "127.0.0.1", "port": b.port, "rack": None} for b in self.brokers.values()
            ],
        }  # fmt: skip


def fetch_reply(
    cluster: ScriptedCluster, records: bytes = b"", error: ErrorCode = ErrorCode.none, preferred: int = -1
) -> dict[str, Any]:
    row = {
        "partition_index": 0, "error_code": error.value, "high_watermark": cluster.end_offset,
        "last_stable_offset": cluster.end_offset, "log_start_offset": 0, "aborted_transactions": None,
        "preferred_read_replica": preferred, "records": records,
    }  # fmt: skip
    return {
        "throttle_time": 0, "error_code": 0, "session_id": 0,
        "responses": [{"topic": "t", "topic_id": cluster.topic_id, "partitions": [row]}],
    }  # fmt: skip


@contextmanager
def scripted(nodes: int = 1, broker_type: type[ScriptedBroker] = ScriptedBroker) -> Iterator[ScriptedCluster]:
    cluster = ScriptedCluster(nodes, broker_type)
    try:
        yield cluster
    finally:
        for broker in cluster.brokers.values():
            broker.stop()
