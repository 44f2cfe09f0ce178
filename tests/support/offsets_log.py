"""A scripted broker whose only topic is ``__consumer_offsets``: one partition with handmade batches.

The bytes follow Kafka's description of record batches (magic 2), not our encoder: compaction leaves offset gaps in
batches, and no encoder makes such gaps.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import crc32c

from odradek.core.effects import SimpleRecord
from odradek.core.ids import OFFSETS_TOPIC
from support.scripted import FETCH, LIST_OFFSETS, METADATA, ScriptedCluster, fetch_reply, scripted

ABORT, COMMIT = 0, 1
PLAIN = -1


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def commit(partition: int, offset: int, at_ms: int = 1_700_000_000_000) -> SimpleRecord:
    """A commit record: version 1 of Kafka's OffsetCommitKey.json and version 3 of OffsetCommitValue.json."""
    key = struct.pack(">h", 1) + text("g") + text("orders") + struct.pack(">i", partition)
    return SimpleRecord(key, struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", at_ms))


def marker(kind: int) -> SimpleRecord:
    """The record of a control batch. Key: version 0 and ``kind``. Value: version 0 and the coordinator's epoch."""
    return SimpleRecord(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 3))


def varint(value: int) -> bytes:
    """Zigzag encoding, seven bits in a byte."""
    rest, out = value * 2 if value >= 0 else -value * 2 - 1, b""
    while rest > 127:
        out, rest = out + bytes([rest & 127 | 128]), rest >> 7
    return out + bytes([rest])


class Batch(NamedTuple):
    """A batch with the offsets ``base`` to ``last``. ``records``: the records that exist, by offset."""

    base: int
    last: int
    records: Mapping[int, SimpleRecord]
    producer: int = PLAIN
    is_control: bool = False

    def data(self) -> bytes:
        body = b""
        for offset, record in self.records.items():
            key, value = record.key or b"", record.value or b""
            one = b"\0" + varint(0) + varint(offset - self.base) + varint(len(key)) + key + varint(len(value)) + value
            body += varint(len(one) + 1) + one + varint(0)
        attributes = (0x10 if self.producer >= 0 else 0) | (0x20 if self.is_control else 0)
        sequence = -1 if self.is_control or self.producer < 0 else self.base
        times, delta = (1_700_000_000_000, 1_700_000_000_000), self.last - self.base
        head = struct.pack(">hiqqqhii", attributes, delta, *times, self.producer, 0, sequence, len(self.records))
        rest = struct.pack(">ibI", 0, 2, crc32c.crc32c(head + body)) + head + body
        return struct.pack(">qi", self.base, len(rest)) + rest


class Log(NamedTuple):
    """The log of the partition. ``stable``: last stable offset.

    ``rolled_back``: the first offset of each aborted transaction, by producer id."""

    batches: Sequence[Batch]
    stable: int
    end: int
    start: int = 0
    rolled_back: Mapping[int, int] = {}


@contextmanager
def serving(log: Log) -> Iterator[ScriptedCluster]:
    held = [(batch.last, batch.data()) for batch in log.batches]

    def metadata(message: Any, version: int) -> Any:
        reply = made.metadata(message)
        reply["topics"][0] |= {"name": OFFSETS_TOPIC, "is_internal": True}
        for asked in message.topics or ():
            if asked.name not in (None, OFFSETS_TOPIC):  # the committed topic does not exist
                gone = {"error_code": 3, "name": asked.name, "topic_id": made.topic_id.__class__(int=0)}
                reply["topics"].append(reply["topics"][0] | gone | {"partitions": []})
        return reply

    def list_offsets(message: Any, version: int) -> Any:
        latest = log.stable if message.isolation_level == 1 else log.end
        offset = {-1: latest, -2: log.start}[message.topics[0].partitions[0].timestamp]
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        return {"throttle_time": 0, "topics": [{"name": OFFSETS_TOPIC, "partitions": [row]}]}

    def fetch(message: Any, version: int) -> Any:
        asked = message.topics[0].partitions[0].fetch_offset
        is_committed = message.isolation_level == 1
        limit = log.stable if is_committed else log.end
        reply = fetch_reply(made, b"".join(data for last, data in held if asked <= last < limit))
        reply["responses"][0]["topic"] = OFFSETS_TOPIC
        aborted = [{"producer_id": one, "first_offset": first} for one, first in log.rolled_back.items()]
        reply["responses"][0]["partitions"][0] |= {
            "high_watermark": log.end, "last_stable_offset": log.stable, "log_start_offset": log.start,
            "aborted_transactions": aborted if is_committed else None,
        }  # fmt: skip
        return reply

    with scripted(1) as made:
        made.cleanup_policy = "compact"
        made.brokers[1].answers |= {METADATA: metadata, LIST_OFFSETS: list_offsets, FETCH: fetch}
        yield made


def marked(offset: int, producer: int, kind: int = COMMIT) -> Batch:
    """A control batch, which ends a transaction."""
    return Batch(offset, offset, {offset: marker(kind)}, producer, True)


TRANSACTIONS = Log(
    [
        Batch(0, 0, {0: commit(0, 10)}),
        Batch(1, 2, {1: commit(0, 20), 2: commit(1, 3)}, 5),
        marked(3, 5),
        Batch(4, 4, {4: commit(0, 90)}, 6),  # aborted at offset 6
        Batch(5, 5, {5: commit(0, 30)}, 5),
        marked(6, 6, ABORT),
        marked(7, 5),
        Batch(8, 8, {8: commit(0, 99)}, 7),  # an open transaction
        Batch(9, 9, {9: commit(1, 4)}),
    ],
    stable=8,
    end=10,
    rolled_back={6: 4},
)
"""A log in which every offset has a record."""

COMPACTED = Log(
    [
        # 0 to 3: compaction removed these batches
        Batch(4, 7, {5: commit(0, 20), 7: commit(1, 3)}, 5),  # compaction removed the records 4 and 6
        marked(8, 5),
        Batch(9, 10, {}, 8),  # an empty batch, kept for the sequence number of its producer
        Batch(11, 11, {}, 8, True),  # an empty control batch, kept for the same reason
        Batch(12, 13, {12: commit(0, 90), 13: commit(1, 90)}, 6),  # aborted at offset 14
        marked(14, 6, ABORT),
        Batch(15, 16, {15: commit(0, 30), 16: commit(1, 4)}),
        # 17 and 18: compaction removed these batches
        marked(19, 5),
        Batch(20, 20, {20: commit(0, 40)}),
        marked(21, 5),
    ],
    stable=22,
    end=22,
    rolled_back={6: 12},
)
