"""A controller and two brokers in a simulated world, and the requests that tests send to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odradek.catalog.image import CatalogImage
from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.wire.api_keys import OFFSET_COMMIT, PRODUCE
from support.combined_nodes import SimulatedCombined
from support.logs import batch
from support.simulated_brokers import SimulatedBroker, SimulatedNetwork
from support.simulated_controller import SimulatedController
from support.simulated_node import HOME

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, ALTER_CONFIGS = 19, 20, 37, 44
SESSION_MS = 2_000
SHORT = {"broker.session.timeout.ms": str(SESSION_MS), "broker.heartbeat.interval.ms": "500"}
NONE, LEFT = ErrorCode.none, ErrorCode.not_leader_or_follower


class Nodes:
    """A controller and two brokers. ``common``: settings of all; ``of_controller``: with _ in place of dots."""

    def __init__(
        self, common: Mapping[str, str] | None = None, *, seed: int = 1, combined: bool = False, **of_controller: str
    ) -> None:
        """``combined``: the controller is a broker, too."""
        self._common = SHORT | dict(common or {})
        own = {name.replace("_", "."): text for name, text in of_controller.items()}
        self.controller = (SimulatedCombined if combined else SimulatedController)(self._common | own, seed=seed)
        if isinstance(self.controller, SimulatedCombined):
            self.controller.run_until_joined()
        self.world = self.controller.world
        self.network = SimulatedNetwork(self.controller)
        self.brokers = {number: self.new_broker(number) for number in (1, 2)}
        for one in self.brokers.values():
            one.run_until_joined()

    def new_broker(self, number: int, **settings: str) -> SimulatedBroker:
        return SimulatedBroker(self.network, number, self._common | settings)

    def create(self, name: str, *leaders: int) -> None:
        assignments = [{"partition_index": at, "broker_ids": [leader]} for at, leader in enumerate(leaders)]
        topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments,
                 "configs": []}  # fmt: skip
        message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
        reply = self.controller.connect().call(CREATE_TOPICS, 7, message).topics[0]
        assert reply.error_code is NONE, reply

    def delete(self, name: str) -> None:
        message = {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000}
        assert self.controller.connect().call(DELETE_TOPICS, 6, message).responses[0].error_code is NONE

    def grow(self, name: str, *leaders: int) -> None:
        present = self.controller.broker.catalog.topic(name)
        assert present is not None
        assignments = [{"broker_ids": [leader]} for leader in leaders]
        topic = {"name": name, "count": present.partition_count + len(leaders), "assignments": assignments}
        message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
        assert self.controller.connect().call(CREATE_PARTITIONS, 3, message).results[0].error_code is NONE

    def set_retention(self, name: str, text: str) -> None:
        change = {"name": "retention.ms", "config_operation": 0, "value": text}
        resources = [{"resource_type": 2, "resource_name": name, "configs": [change]}]
        message = {"resources": resources, "validate_only": False}
        assert self.controller.connect().call(ALTER_CONFIGS, 1, message).responses[0].error_code is NONE

    def settle(self) -> None:
        """Waits until every broker has what is committed now."""
        end = self.controller.broker.metadata_log.synced_end
        for _ in range(2_000):
            if all(one.role.copy.applied.end_offset >= end for one in self.brokers.values()):
                return
            self.world.advance(5)
        raise AssertionError("a broker does not follow the metadata log")

    def check_images(self) -> None:
        self.settle()
        wanted = described(self.controller.broker.catalog.state)
        for number, one in self.brokers.items():
            assert described(one.broker.catalog.state) == wanted, number


def described(state: Any) -> list[bytes]:
    """A catalogue as the records of its snapshot, without their order."""
    return sorted(CatalogImage.of(state).values())


def produce(broker: SimulatedBroker, topic: str, partition: int, acks: int = -1) -> ErrorCode:
    row = {"name": topic, "partition_data": [{"index": partition, "records": batch(3)}]}
    message = {"transactional_id": None, "acks": acks, "timeout": 9000, "topic_data": [row]}
    code: ErrorCode = broker.call(PRODUCE, 9, message).responses[0].partition_responses[0].error_code
    return code


def commit(broker: SimulatedBroker, group: str, topic: str) -> ErrorCode:
    row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    message = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1,
        "topics": [{"name": topic, "partitions": [row]}],
    }  # fmt: skip
    code: ErrorCode = broker.call(OFFSET_COMMIT, 2, message).topics[0].partitions[0].error_code
    return code


def logs_of(broker: SimulatedBroker) -> set[str]:
    """The directories of partitions. A power cut may leave others, without the id of a topic."""
    files = broker.files
    names = [name for name in files.list(HOME) if name[-1].isdigit() and not name.startswith("__cluster_metadata")]
    return {name for name in names if checkpoints.read_partition_metadata(HOME / name, files) is not None}
