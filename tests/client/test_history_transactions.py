"""Offsets committed inside of transactions (``sendOffsetsToTransaction``), as the history of groups tells them.

Those of transactions that were rolled back, or are open, were never committed; markers are no records of groups.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from brokers import eventually, kafka_with_transactions, unique
from scripted import FETCH, LIST_OFFSETS, METADATA, ScriptedCluster, fetch_reply, scripted

from odradek import Admin, TopicPartition
from odradek.batches.encode import encode_batch
from odradek.client import NewTopic
from odradek.core.effects import Record
from odradek.core.ids import OFFSETS_TOPIC
from odradek.history import read_offset_history, stream_offset_history
from odradek.history.analysis import analyse_offset_history

ABORT, COMMIT = 0, 1
PLAIN = -1


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit(partition: int, offset: int, at_ms: int = 1_700_000_000_000) -> Record:
    """Key 1, value 3, byte by byte as in Kafka's OffsetCommitKey.json and OffsetCommitValue.json."""
    key = struct.pack(">h", 1) + text("g") + text("orders") + struct.pack(">i", partition)
    return Record(key, struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", at_ms))


def marker(kind: int) -> Record:
    """Of a control batch: key version 0 and what it says, value version 0 and the coordinator's epoch."""
    return Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3))


LOG: list[tuple[int, list[Record], bool]] = [
    (PLAIN, [commit(0, 10)], False),  # 0
    (5, [commit(0, 20), commit(1, 3)], False),  # 1, 2
    (5, [marker(COMMIT)], True),  # 3
    (6, [commit(0, 90)], False),  # 4: rolled back at 6
    (5, [commit(0, 30)], False),  # 5
    (6, [marker(ABORT)], True),  # 6
    (5, [marker(COMMIT)], True),  # 7
    (7, [commit(0, 99)], False),  # 8: open
    (PLAIN, [commit(1, 4)], False),  # 9
]
"""Producer, records, whether it is a control batch."""
STABLE, END = 8, 10
ROLLED_BACK = {"producer_id": 6, "first_offset": 4}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    """A broker whose only topic is ``__consumer_offsets``, with ``LOG`` in its one partition."""
    batches: list[tuple[int, bytes]] = []
    at = 0
    for producer, records, control in LOG:
        data = encode_batch(
            records, now_ms=1, base_offset=at, leader_epoch=0, producer_id=producer, producer_epoch=0,
            base_sequence=-1 if control or producer < 0 else at, transactional=producer >= 0, control=control,
        )  # fmt: skip
        at += len(records)
        batches.append((at - 1, data))
    assert at == END

    def metadata(message: Any, version: int) -> Any:
        reply = made.metadata(message)
        reply["topics"][0] |= {"name": OFFSETS_TOPIC, "is_internal": True}
        for asked in message.topics or ():
            if asked.name not in (None, OFFSETS_TOPIC):  # the topic that was committed is gone
                gone = {"error_code": 3, "name": asked.name, "topic_id": made.topic_id.__class__(int=0)}
                reply["topics"].append(reply["topics"][0] | gone | {"partitions": []})
        return reply

    def list_offsets(message: Any, version: int) -> Any:
        latest = STABLE if message.isolation_level == 1 else END
        offset = {-1: latest, -2: 0}[message.topics[0].partitions[0].timestamp]
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        return {"throttle_time": 0, "topics": [{"name": OFFSETS_TOPIC, "partitions": [row]}]}

    def fetch(message: Any, version: int) -> Any:
        asked = message.topics[0].partitions[0].fetch_offset
        limit = STABLE if message.isolation_level == 1 else END
        reply = fetch_reply(made, b"".join(data for last, data in batches if asked <= last < limit))
        reply["responses"][0]["topic"] = OFFSETS_TOPIC
        row = reply["responses"][0]["partitions"][0] | {"high_watermark": END, "last_stable_offset": STABLE}
        reply["responses"][0]["partitions"][0] = row | {
            "aborted_transactions": [ROLLED_BACK] if limit == STABLE else None
        }
        return reply

    with scripted(1) as made:
        made.brokers[1].answers |= {METADATA: metadata, LIST_OFFSETS: list_offsets, FETCH: fetch}
        yield made


def told(bootstrap: str, group: str, level: str) -> list[tuple[int, int]]:
    """Partition and offset of each commit, in the log's order."""
    rows = [
        row
        for batch in stream_offset_history(bootstrap, group=group, isolation_level=level)
        for row in batch.to_pylist()
        if row["kind"] == "offset_commit"
    ]
    return [(row["partition"], row["committed_offset"]) for row in rows]


def test_only_what_transactions_committed_is_history(cluster: ScriptedCluster) -> None:
    """Claims 82 and 83 (part)."""
    found = read_offset_history(cluster.bootstrap).to_pylist()
    assert [row["record_offset"] for row in found] == [0, 1, 2, 5]
    assert {row["kind"] for row in found} == {"offset_commit"}, "markers are records of no group"
    kept = [(0, 10), (0, 20), (1, 3), (0, 30)]
    assert told(cluster.bootstrap, "g", "read_committed") == kept
    assert told(cluster.bootstrap, "g", "read_uncommitted") == [*kept[:3], (0, 90), kept[3], (0, 99), (1, 4)]


def test_what_was_rolled_back_is_no_move_of_the_group(cluster: ScriptedCluster) -> None:
    """From 20 to 90 and back to 30 nobody went; that offsets are missing where markers stand is said."""
    found = analyse_offset_history(cluster.bootstrap)
    assert [row["kind"] for row in found.findings.to_pylist() if row["kind"] in ("rewind", "jump")] == []
    assert (found.commit_count, found.record_count, found.groups) == (4, 4, ("g",))
    assert found.incomplete_below == {0: 5}
    assert {row["partition"]: row["committed_offset"] for row in found.expiry.to_pylist()} == {0: 30, 1: 3}


# --- Apache Kafka -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_with_transactions(Path(tmp_path_factory.mktemp("apache"))) as bootstrap:
        yield bootstrap


@pytest.mark.slow
def test_on_apache_kafka(transactional: str, topic: str) -> None:
    """A consumer's offsets sent to the transactions of librdkafka's producer: kept, rolled back, kept, open."""
    group = unique("txn-group")
    with Admin(transactional) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": transactional, "group.id": group, "enable.auto.commit": False}
    )
    reader.subscribe([topic])
    producer = confluent_kafka.Producer({"bootstrap.servers": transactional, "transactional.id": topic})
    producer.init_transactions(30)
    try:
        while not reader.assignment():
            reader.poll(0.2)
        for offset, finish in ((5, "commit"), (90, "abort"), (7, "commit"), (99, None)):
            producer.begin_transaction()
            producer.produce(topic, b"result")
            where = [confluent_kafka.TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(where, reader.consumer_group_metadata(), 30)
            if finish == "commit":
                producer.commit_transaction(30)
            elif finish == "abort":
                producer.abort_transaction(30)
        everything, kept = [(0, 5), (0, 90), (0, 7), (0, 99)], [(0, 5), (0, 7)]
        # Markers are written after the producer has been told.
        eventually(lambda: told(transactional, group, "read_committed") == kept, what="the second commit")
        assert told(transactional, group, "read_uncommitted") == everything
        found = analyse_offset_history(transactional, group=group)
        assert [row["kind"] for row in found.findings.to_pylist() if row["kind"] in ("rewind", "jump")] == []
        with Admin(transactional) as admin:
            assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 7
        producer.commit_transaction(30)
        eventually(lambda: told(transactional, group, "read_committed") == [*kept, (0, 99)], what="the last commit")
    finally:
        reader.close()
