"""One full disk, case by case, on the wire: each case failed until a restart in earlier versions."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import Wire
from support.faulty_process import FaultyProcess
from support.logs import batch, sequenced

from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    CREATE_TOPICS,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hook finds the names of files in /proc")
OK, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyProcess, Wire]]:
    faulty = FaultyProcess(tmp_path_factory.mktemp("full"))
    with faulty.running() as (_, wire):
        yield faulty, wire


def _create(wire: Wire, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    reply = wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    return ErrorCode(reply.topics[0].error_code)


def _produce(wire: Wire, topic: str, data: bytes, transactional_id: str | None = None) -> ErrorCode:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    request = {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": rows}
    return ErrorCode(wire.call(PRODUCE, 9, request).responses[0].partition_responses[0].error_code)


def _end_offset(wire: Wire, topic: str) -> tuple[ErrorCode, int]:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    request = {"replica_id": -1, "isolation_level": 1, "topics": [{"name": topic, "partitions": [part]}]}
    found = wire.call(LIST_OFFSETS, 7, request).topics[0].partitions[0]
    return ErrorCode(found.error_code), int(found.offset)


def _fetched(wire: Wire, topic: str) -> tuple[ErrorCode, int]:
    """The error, and the number of bytes."""
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    request = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0}
    reply = wire.call(FETCH, 4, {**request, "topics": [{"topic": topic, "partitions": [part]}]})
    found = reply.responses[0].partitions[0]
    return ErrorCode(found.error_code), len(found.records or b"")


def _until(probe: Any, expected: Any) -> None:
    until = time.monotonic() + PATIENCE_S
    while (found := probe()) != expected:
        assert time.monotonic() < until, found
        time.sleep(0.05)


def _find(wire: Wire, key: str, kind: int) -> ErrorCode:
    return ErrorCode(wire.call(FIND_COORDINATOR, 3, {"key": key, "key_type": kind}).error_code)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_produce_and_reads_of_a_partition(process: tuple[FaultyProcess, Wire], number: int) -> None:
    faulty, wire = process
    topic = f"t{number}"
    assert _create(wire, topic) is OK
    assert _produce(wire, topic, batch(3)) is OK
    before = _fetched(wire, topic)
    faulty.fail(("writev", number, f"/{topic}-0/"))
    for _ in range(2):
        assert _produce(wire, topic, batch(1)) is STORAGE
        assert _end_offset(wire, topic) == (OK, 3)
        assert _fetched(wire, topic) == before
    faulty.fail()
    assert _produce(wire, topic, batch(1)) is OK
    assert _end_offset(wire, topic) == (OK, 4)


def test_commits_of_a_group(process: tuple[FaultyProcess, Wire]) -> None:
    faulty, wire = process
    assert _create(wire, "for-commits") is OK
    _until(lambda: _find(wire, "g", 0), OK)

    def commit(offset: int) -> ErrorCode:
        part = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
        request = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": "for-commits", "partitions": [{**part, "committed_metadata": ""}]}]
        reply = wire.call(OFFSET_COMMIT, 8, {**request, "topics": topics})
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    def committed() -> tuple[ErrorCode, int]:
        topics = [{"name": "for-commits", "partition_indexes": [0]}]
        reply = wire.call(OFFSET_FETCH, 7, {"group_id": "g", "topics": topics, "require_stable": False})
        if reply.error_code:
            return ErrorCode(reply.error_code), -1
        return OK, int(reply.topics[0].partitions[0].committed_offset)

    _until(lambda: commit(1), OK)
    faulty.fail(("writev", errno.ENOSPC, "/__consumer_offsets-"))
    for _ in range(2):
        assert commit(2) is ErrorCode.not_coordinator
        assert committed() == (OK, 1)
    faulty.fail()
    assert commit(2) is OK
    assert committed() == (OK, 2)


def test_a_transaction_whose_markers_were_refused(process: tuple[FaultyProcess, Wire]) -> None:
    faulty, wire = process
    assert _create(wire, "in-txn") is OK
    _until(lambda: _find(wire, "x", 1), OK)
    request = {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    _until(lambda: ErrorCode(wire.call(INIT_PRODUCER_ID, 4, request).error_code), OK)
    made = wire.call(INIT_PRODUCER_ID, 4, request)
    producer = {"producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    added = {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": made.producer_id}
    topics = [{"name": "in-txn", "partitions": [0]}]
    added |= {"v3_and_below_producer_epoch": made.producer_epoch, "v3_and_below_topics": topics}
    reply = wire.call(ADD_PARTITIONS_TO_TXN, 3, added)
    assert reply.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    data = sequenced(0, 2, made.producer_id, made.producer_epoch, transactional=True)
    assert _produce(wire, "in-txn", data, "x") is OK
    assert _end_offset(wire, "in-txn") == (OK, 0)

    def state() -> str:
        described = wire.call(DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["x"]}).transaction_states[0]
        return str(described.transaction_state)

    faulty.fail(("writev", errno.ENOSPC, "/in-txn-0/"))
    wire.call(END_TXN, 3, {"transactional_id": "x", **producer, "committed": True})
    assert state() == "PrepareCommit"
    faulty.fail()
    _until(state, "CompleteCommit")
    assert _end_offset(wire, "in-txn") == (OK, 3)


def test_a_topic_whose_log_could_not_be_made(process: tuple[FaultyProcess, Wire]) -> None:
    faulty, wire = process
    faulty.fail(("mkdir", errno.ENOSPC, "/no-room-0"))
    assert _create(wire, "no-room") is STORAGE
    faulty.fail()
    _until(lambda: _produce(wire, "no-room", batch(2)), OK)
    assert _end_offset(wire, "no-room") == (OK, 2)
