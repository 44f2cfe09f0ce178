"""Brokers in a simulated world whose offsets topic has three replicas, and requests of groups to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE, OFFSETS_TOPIC, partition_for_key
from odradek.wire import frames
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from support.replicated_nodes import ReplicatedNodes
from support.simulated_brokers import SimulatedBroker
from support.simulated_node import Wire

TOPIC = "t"
COMMIT_TIMEOUT_MS = 3_000
PARTITIONS = 2
"""Of the offsets topic."""
SETTINGS = {
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "offsets.commit.timeout.ms": str(COMMIT_TIMEOUT_MS),
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "1000",
}
_AT_LEAST = 2
_ORDERS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))


class GroupNodes(ReplicatedNodes):
    """A controller and brokers. The offsets topic exists, and a topic for clients. They have the replicas 1 to 3."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, seed: int = 1, topic_partitions: int = 3, count: int = 3
    ) -> None:
        super().__init__(SETTINGS | dict(settings or {}), seed=seed, count=count)
        orders = (_ORDERS * topic_partitions)[:topic_partitions]
        self.create(TOPIC, *orders, min_insync_replicas="1")
        own = _ORDERS[:PARTITIONS]
        self.create(OFFSETS_TOPIC, *own, cleanup_policy="compact", min_insync_replicas=str(_AT_LEAST))

    @staticmethod
    def index_of(group: str) -> int:
        return partition_for_key(group, PARTITIONS)

    def group_at(self, broker: int, prefix: str = "g") -> str:
        """Returns the id of a group whose coordinator is this broker at first."""
        return next(
            name for name in (f"{prefix}{number}" for number in range(100)) if _ORDERS[self.index_of(name)][0] == broker
        )

    def coordinator(self, group: str) -> int:
        """As the controller has it."""
        return self.leader(OFFSETS_TOPIC, self.index_of(group))

    def run_until_coordinated(self, group: str, *, not_by: int = NO_NODE) -> int:
        """Waits until a live broker has loaded the group. Returns the broker."""
        index = self.index_of(group)
        leader = self.run_until_led(OFFSETS_TOPIC, index, not_by=not_by)
        self.run_until(lambda: self.brokers[leader].broker.groups.shard(index) is not None)
        return leader

    # --- requests -----------------------------------------------------------------------------------------------

    def find(self, broker: int, group: str) -> tuple[ErrorCode, int]:
        message = {"key_type": 0, "coordinator_keys": [group]}
        found = self.brokers[broker].call(FIND_COORDINATOR, 4, message, answer_ms=9_000).coordinators[0]
        return found.error_code, found.node_id

    def commit(self, broker: int, group: str, offset: int, **options: Any) -> ErrorCode:
        message = commit_message(group, offset, **options)
        return code_of(self.brokers[broker].call(OFFSET_COMMIT, 9, message, answer_ms=9_000))

    def send(
        self, broker: int, api_key: int, version: int, message: Mapping[str, Any], on_end: Callable[[], None]
    ) -> list[Any]:
        """Sends a request. The list gets its reply. ``on_end``: the broker has closed the connection."""
        replies: list[Any] = []

        def answer(frame: bytes) -> None:
            replies.append(frames.decode_reply(api_key, version, frame)[1])

        ask(self.brokers[broker], api_key, version, message, answer, on_end)
        return replies

    def committed(self, broker: int, group: str, *, index: int = 0, stable: bool = False) -> int | ErrorCode:
        """Returns the committed offset, −1 without one, or the error."""
        message = fetch_message(group, index, stable=stable)
        found = self.brokers[broker].call(OFFSET_FETCH, 8, message, answer_ms=9_000).groups[0]
        return offset_of(found)


def ask(
    broker: SimulatedBroker, api_key: int, version: int, message: Mapping[str, Any], answer: Callable[[bytes], None],
    on_end: Callable[[], None],
) -> Wire:  # fmt: skip
    """Sends a client's request over a connection of its own. ``answer`` gets the frame of the reply."""
    wire = broker.node.connect(answer, on_end)
    wire.send(frames.encode_request(api_key, version, 1, "client", message))
    return wire


def commit_message(
    group: str, offset: int, *, index: int = 0, member: str = "", generation: int = -1, instance: str | None = None
) -> dict[str, Any]:
    part = {
        "partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""
    }  # fmt: skip
    return {
        "group_id": group, "generation_id_or_member_epoch": generation, "member_id": member,
        "group_instance_id": instance, "topics": [{"name": TOPIC, "partitions": [part]}],
    }  # fmt: skip


def fetch_message(group: str, *indexes: int, stable: bool = False) -> dict[str, Any]:
    rows = [{"name": TOPIC, "partition_indexes": list(indexes)}]
    return {"groups": [{"group_id": group, "topics": rows}], "require_stable": stable}


def code_of(reply: Any) -> ErrorCode:
    """Returns the code of a commit of one partition."""
    code: ErrorCode = reply.topics[0].partitions[0].error_code
    return code


def offset_of(found: Any) -> int | ErrorCode:
    """Returns the offset in a fetched group with one partition, or the error."""
    part = found.topics[0].partitions[0] if found.error_code is ErrorCode.none else found
    failed: ErrorCode = part.error_code
    if failed is not ErrorCode.none:
        return failed
    offset: int = part.committed_offset
    return offset
