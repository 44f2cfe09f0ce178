"""Observers of the metadata log at a controller's node: what they read, when they wait, what an idle node writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.simulated_controller import CONTROLLER, BlockingWire, SimulatedController
from test_controller_node import beat, register

from odradek.batches.rows import iter_records
from odradek.broker.controller.observer_reads import MOST_READ_BYTES
from odradek.catalog.records import MetadataRecord, TopicRecord
from odradek.cluster.metadata_log.observers import OBSERVER_SESSION_MS
from odradek.cluster.records import NoOpRecord, decode
from odradek.core.errors import ErrorCode

FETCH, DESCRIBE_QUORUM, FETCH_SNAPSHOT = 1, 55, 59
QUIET = {"metadata.max.idle.interval.ms": "0"}
TOPIC_ID, DIRECTORY = UUID(int=1), UUID(int=5)


def fetch_message(offset: int, last_epoch: int = 1, **changes: Any) -> dict[str, Any]:
    part = {
        "partition": 0, "current_leader_epoch": 1, "fetch_offset": offset, "last_fetched_epoch": last_epoch,
        "log_start_offset": -1, "partition_max_bytes": 0, "replica_directory_id": DIRECTORY,
        "high_watermark": (1 << 63) - 1,
    } | changes.pop("part", {})  # fmt: skip
    return {
        "cluster_id": None, "replica_state": {"replica_id": 7, "replica_epoch": -1}, "max_wait": 0, "min_bytes": 0,
        "max_bytes": 1 << 23, "isolation_level": 0, "session_id": 0, "session_epoch": -1,
        "topics": [{"topic_id": TOPIC_ID, "partitions": [part]}], "forgotten_topics_data": [], "rack_id": "",
    } | changes  # fmt: skip


def fetch(controller: SimulatedController, offset: int, last_epoch: int = 1, **changes: Any) -> Any:
    reply = controller.connect().call(FETCH, 18, fetch_message(offset, last_epoch, **changes))
    return reply.responses[0].partitions[0]


def records_in(data: Any) -> list[MetadataRecord]:
    rows = [row for row in iter_records(bytes(data or b"")) if not row.is_control]
    return [decode(row.value or b"", lambda packed: UUID(bytes=packed)) for row in rows]


def whole_log(controller: SimulatedController) -> list[MetadataRecord]:
    return records_in(fetch(controller, 0, 0).records)


def observers(controller: SimulatedController) -> Any:
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    return controller.connect().call(DESCRIBE_QUORUM, 2, {"topics": topics}).topics[0].partitions[0].observers


def test_an_idle_controller_writes_a_record_in_each_interval() -> None:
    controller = SimulatedController({"metadata.max.idle.interval.ms": "400"})
    controller.world.advance(4100)
    assert whole_log(controller).count(NoOpRecord()) == 10
    register(controller, 100)
    before = len(whole_log(controller))
    for number in range(20):  # not idle
        controller.world.advance(200)
        register(controller, number)
    assert whole_log(controller)[before:].count(NoOpRecord()) == 0


def test_no_record_of_an_idle_controller_without_an_interval() -> None:
    controller = SimulatedController(QUIET)
    controller.world.advance(60_000)
    assert whole_log(controller) == []


def test_an_idle_controller_goes_on_after_a_full_disk(caplog: pytest.LogCaptureFixture) -> None:
    controller = SimulatedController({"metadata.max.idle.interval.ms": "500"})
    controller.files.free_bytes = 0
    controller.world.advance(5000)
    assert whole_log(controller) == []
    assert sum("idle and cannot write" in line for line in caplog.messages) == 1
    controller.files.free_bytes = None
    controller.world.advance(5000)
    assert whole_log(controller).count(NoOpRecord()) > 5


def test_a_record_is_served_when_it_is_synced_and_not_before() -> None:
    controller = SimulatedController(QUIET)
    log = controller.broker.metadata_log
    end = log.end_offset
    log.append([b"\x12\0\0\0\1\6\1\x14\0\0"], 1)
    assert log.end_offset == end + 1
    assert fetch(controller, 0, 0).high_watermark == end
    assert not fetch(controller, end).records
    assert fetch(controller, end + 1).diverging_epoch.end_offset == end
    log.sync()
    log.note_synced()
    assert fetch(controller, end).high_watermark == end + 1
    assert fetch(controller, end).records


def test_a_change_ends_the_waits_of_all_observers() -> None:
    controller = SimulatedController(QUIET)
    register(controller, 1)
    end = controller.broker.metadata_log.end_offset
    wires = [BlockingWire(controller, "f") for _ in range(3)]
    waiting = fetch_message(end, max_wait=60_000)
    sent = [wire.send(FETCH, 18, waiting) for wire in wires]
    controller.world.advance(5000)
    assert not any(wire.has_reply(0) for wire in wires)
    epoch = register(controller, 2).broker_epoch
    for wire, correlation_id in zip(wires, sent, strict=True):
        part = wire.receive(FETCH, 18, correlation_id).responses[0].partitions[0]
        assert part.high_watermark == epoch + 1
        assert len(records_in(part.records)) == 1
    assert not controller.role.registered_brokers.observer_reads.waiters


def test_the_fetch_of_a_client_that_has_left_waits_no_more() -> None:
    controller = SimulatedController(QUIET)
    wire = BlockingWire(controller, "f")
    wire.send(FETCH, 18, fetch_message(controller.broker.metadata_log.end_offset, max_wait=60_000))
    controller.world.advance(10)
    assert len(controller.role.registered_brokers.observer_reads.waiters) == 1
    wire.close()
    controller.world.advance(10)
    assert not controller.role.registered_brokers.observer_reads.waiters


def test_a_stop_does_not_wait_for_fetches() -> None:
    controller = SimulatedController(QUIET)
    wire = BlockingWire(controller, "f")
    wire.send(FETCH, 18, fetch_message(controller.broker.metadata_log.end_offset, max_wait=60_000))
    controller.world.advance(10)
    task, begun = controller.node.stop(), controller.world.now_ms
    while not task.done():
        controller.world.advance(5)
    assert controller.world.now_ms - begun < 500


def test_long_records_come_in_several_replies() -> None:
    controller = SimulatedController(QUIET)
    register(controller, 1)
    beat(controller, 1, register(controller, 1).broker_epoch)
    name = "x" * 200
    for number in range(3):
        topics = [
            {"name": f"{name}{number}-{one}", "num_partitions": 10, "replication_factor": 1, "assignments": [],
             "configs": []}
            for one in range(600)
        ]  # fmt: skip
        message = {"topics": topics, "timeout": 10_000, "validate_only": False}
        reply = BlockingWire(controller, "c", answer_ms=60_000).call(19, 7, message)
        assert all(topic.error_code is ErrorCode.none for topic in reply.topics)
    offset, sizes, names = 1, [], 0
    while offset < controller.broker.metadata_log.end_offset:
        data = bytes(fetch(controller, offset).records)
        sizes.append(len(data))
        names += sum(isinstance(record, TopicRecord) for record in records_in(data))
        offset = [row.offset for row in iter_records(data)][-1] + 1
    assert names == 1800
    assert len(sizes) > 1
    assert max(sizes) <= MOST_READ_BYTES


def test_a_silent_observer_leaves_the_described_quorum() -> None:
    controller = SimulatedController(QUIET)
    fetch(controller, 1)
    ((row,),) = [observers(controller)]
    assert (row.replica_id, row.replica_directory_id, row.log_end_offset) == (7, DIRECTORY, 1)
    assert row.last_fetch_timestamp == row.last_caught_up_timestamp == controller.world.now_ms
    controller.world.jumped_ms += 2 * OBSERVER_SESSION_MS  # the clock that may be moved
    assert len(observers(controller)) == 1
    controller.world.advance(OBSERVER_SESSION_MS)
    assert not observers(controller)


# --- snapshots --------------------------------------------------------------------------------------------------


@pytest.fixture
def with_snapshot() -> SimulatedController:
    controller = SimulatedController(QUIET)
    for broker in range(1, 4):
        register(controller, broker)
    controller.broker.controller.begin_snapshot()
    controller.world.advance(100)
    return controller


def fetch_snapshot(controller: SimulatedController, **changes: Any) -> Any:
    (snapshot,) = controller.broker.metadata_log.snapshots
    part = {
        "partition": 0, "current_leader_epoch": 1, "position": 0, "replica_directory_id": DIRECTORY,
        "snapshot_id": {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch},
    } | changes.pop("part", {})  # fmt: skip
    message = {
        "cluster_id": None, "replica_id": 7, "max_bytes": 1 << 20,
        "topics": [{"name": "__cluster_metadata", "partitions": [part]}],
    } | changes  # fmt: skip
    return controller.connect().call(FETCH_SNAPSHOT, 1, message)


def test_a_snapshot_is_read_byte_by_byte(with_snapshot: SimulatedController) -> None:
    (snapshot,) = with_snapshot.broker.metadata_log.snapshots
    answer = fetch(with_snapshot, 0, 0)
    assert (answer.snapshot_id.end_offset, answer.snapshot_id.epoch) == (snapshot.end_offset, snapshot.epoch)
    assert not answer.records
    data = bytearray()
    for size in [1] * 300 + [1 << 20]:
        part = fetch_snapshot(with_snapshot, part={"position": len(data)}, max_bytes=size).topics[0].partitions[0]
        assert (part.size, part.position) == (snapshot.size, len(data))
        data += part.unaligned_records
    assert bytes(data) == bytes(with_snapshot.files.read(Path(snapshot.path)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"part": {"snapshot_id": {"end_offset": 1, "epoch": 1}}}, ErrorCode.snapshot_not_found),
        ({"part": {"snapshot_id": {"end_offset": 0, "epoch": 0}}}, ErrorCode.snapshot_not_found),
        ({"part": {"position": 1 << 40}}, ErrorCode.position_out_of_range),
        ({"part": {"position": -1}}, ErrorCode.position_out_of_range),
        ({"part": {"current_leader_epoch": 0}}, ErrorCode.fenced_leader_epoch),
        ({"part": {"current_leader_epoch": 2}}, ErrorCode.unknown_leader_epoch),
        ({"part": {"partition": 1}}, ErrorCode.unknown_topic_or_partition),
    ],
)
def test_a_wrong_request_for_a_snapshot(
    with_snapshot: SimulatedController, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Kafka's own reply with such a code cannot be packed, because its records are null (UNKNOWN_SERVER_ERROR)."""
    reply = fetch_snapshot(with_snapshot, **changes)
    assert reply.error_code is ErrorCode.none
    part = reply.topics[0].partitions[0]
    assert part.error_code is code
    assert part.unaligned_records == b""
    if code is not ErrorCode.unknown_topic_or_partition:
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (CONTROLLER, 1)


def test_a_request_of_another_cluster_for_a_snapshot(with_snapshot: SimulatedController) -> None:
    assert fetch_snapshot(with_snapshot, cluster_id="another").error_code is ErrorCode.inconsistent_cluster_id
    assert fetch_snapshot(with_snapshot, topics=[]).error_code is ErrorCode.invalid_request
