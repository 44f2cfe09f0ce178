"""A controller and brokers in a simulated world, with partitions of three replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from odradek.broker.partitions.partition import Partition
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.catalog.registrations import PartitionRegistration
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE
from odradek.wire.api_keys import CREATE_TOPICS, DELETE_RECORDS, DELETE_TOPICS, FETCH, PRODUCE
from support.cluster_nodes import SHORT
from support.logs import batch
from support.simulated_brokers import SimulatedBroker, SimulatedNetwork
from support.simulated_controller import SimulatedController

LAG_MS = 3_000
QUICK = SHORT | {"replica.lag.time.max.ms": str(LAG_MS), "replica.socket.timeout.ms": "2000"}
NONE = ErrorCode.none


class ReplicatedNodes:
    """``settings``: of all nodes. ``brokers`` by id."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 1, count: int = 3) -> None:
        self._settings = QUICK | dict(settings or {})
        self.controller = SimulatedController(self._settings, seed=seed)
        self.world = self.controller.world
        self.network = SimulatedNetwork(self.controller)
        self.brokers = {number: SimulatedBroker(self.network, number, self._settings) for number in range(1, count + 1)}
        for one in self.brokers.values():
            one.run_until_joined()

    # --- topics -------------------------------------------------------------------------------------------------

    def create(self, name: str, *replicas: tuple[int, ...], **configs: str) -> None:
        """Makes a topic. The first replica of each partition leads it."""
        assignments = [{"partition_index": at, "broker_ids": list(each)} for at, each in enumerate(replicas)]
        own = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments,
                 "configs": own}  # fmt: skip
        message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
        reply = self.controller.connect().call(CREATE_TOPICS, 7, message).topics[0]
        assert reply.error_code is NONE, reply
        self.settle()

    def delete(self, name: str) -> None:
        message = {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000}
        assert self.controller.connect().call(DELETE_TOPICS, 6, message).responses[0].error_code is NONE

    def registration(self, name: str = "t", index: int = 0) -> PartitionRegistration:
        """As the controller has it."""
        topic = self.controller.broker.catalog.topic(name)
        assert topic is not None
        return topic.partitions[index]

    # --- brokers ------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> dict[int, SimulatedBroker]:
        """The brokers that run, and are neither halted nor cut off."""
        ones = ((number, one, one.node.process) for number, one in self.brokers.items())
        cut = self.network.cut_off
        return {at: one for at, one, process in ones if process.is_alive and not process.is_halted and at not in cut}

    def partition(self, broker: int, name: str = "t", index: int = 0) -> ReplicatedPartition:
        found = self.brokers[broker].broker.partitions[name, index]
        assert isinstance(found, ReplicatedPartition)
        return found

    def leader(self, name: str = "t", index: int = 0) -> int:
        return self.registration(name, index).leader

    def run_until(self, reached: Callable[[], object], within_ms: int = 30_000) -> None:
        """Lets time pass until a condition holds."""
        end_ms = self.world.now_ms + within_ms
        while not reached():
            assert self.world.now_ms < end_ms, "it does not happen"
            self.world.advance(5)

    def settle(self) -> None:
        """Waits until every live broker has what the controller has committed."""
        end = self.controller.broker.metadata_log.synced_end
        self.run_until(lambda: all(one.role.copy.applied.end_offset >= end for one in self.alive.values()))

    def run_until_led(self, name: str = "t", index: int = 0, *, not_by: int = NO_NODE) -> int:
        """Waits until a live broker leads the partition, and knows it. Returns the broker."""

        def is_led() -> bool:
            leader = self.leader(name, index)
            if leader in (NO_NODE, not_by) or leader not in self.alive:
                return False
            return self.brokers[leader].broker.partition(name, index) is not None

        self.run_until(is_led)
        return self.leader(name, index)

    def run_until_in_sync(self, *broker_ids: int, name: str = "t", index: int = 0) -> None:
        """Waits until these brokers are the ISR."""
        self.run_until(lambda: set(self.registration(name, index).isr) == set(broker_ids))
        self.settle()

    def run_until_equal(self, name: str = "t", index: int = 0) -> None:
        """Waits until all live replicas have all records, and know that they are committed."""

        def is_equal() -> bool:
            replicas = self.registration(name, index).replicas
            ones = [self.partition(number, name, index) for number in self.alive if number in replicas]
            ends = {one.log_end_offset for one in ones} | {one.high_watermark for one in ones}
            return len(ends) == 1

        self.run_until(is_equal)

    # --- requests -----------------------------------------------------------------------------------------------

    def produce(
        self, broker: int, count: int = 1, *, acks: int = -1, name: str = "t", index: int = 0,
        timeout_ms: int = 9_000, data: bytes | None = None,
    ) -> tuple[ErrorCode, int]:  # fmt: skip
        """Produces a batch. Returns the code and the base offset."""
        row = {"name": name, "partition_data": [{"index": index, "records": data or batch(count)}]}
        message = {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": [row]}
        reply = self.brokers[broker].call(PRODUCE, 9, message, answer_ms=timeout_ms + 1_000)
        part = reply.responses[0].partition_responses[0]
        return part.error_code, part.base_offset

    def fetch(self, broker: int, offset: int, *, name: str = "t", index: int = 0, version: int = 12) -> Any:
        """Fetches as a consumer, without a wait. Returns the row of the partition."""
        message = fetch_message(name, index, offset)
        ((row,),) = [topic.partitions for topic in self.brokers[broker].call(FETCH, version, message).responses]
        return row

    def delete_records(self, broker: int, offset: int, *, timeout_ms: int = 9_000, name: str = "t") -> tuple[Any, int]:
        """Deletes the records of partition 0 before an offset. Returns the code and the low watermark."""
        part = {"partition_index": 0, "offset": offset}
        message = {"topics": [{"name": name, "partitions": [part]}], "timeout": timeout_ms}
        reply = self.brokers[broker].call(DELETE_RECORDS, 2, message, answer_ms=timeout_ms + 1_000)
        row = reply.topics[0].partitions[0]
        return row.error_code, row.low_watermark


def fetch_message(name: str, index: int, offset: int, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """A consumer's fetch of one partition, which does not wait."""
    part = {
        "partition": index, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": max_bytes,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": max_bytes, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": name, "topic_id": None, "partitions": [part]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


def bytes_below_watermark(partition: Partition) -> bytes:
    """The log's bytes below the high watermark."""
    log = partition.log
    return log.read(log.log_start_offset, 1 << 30, max_offset=log.high_watermark).bytes()
