"""Apache Kafka 4.3's dump tool on the folders of all replicas of a topic whose leaders are killed."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest
from support.brokers import eventually, unique
from support.jvm import KafkaTools

import odradek
from odradek.client import NewTopic

pytestmark = pytest.mark.slow
BROKERS, PARTITIONS, KILLS = (1, 2, 3), 2, 4
SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000, "min.insync.replicas": 2,
}  # fmt: skip
BATCH = re.compile(
    r"baseOffset: (?P<first>\d+) lastOffset: (?P<last>\d+) .* partitionLeaderEpoch: (?P<epoch>\d+) .*"
    r" size: (?P<size>\d+) magic: 2 compresscodec: (?P<codec>\w+) crc: (?P<crc>\d+) isvalid: (?P<valid>\w+)"
)


class DumpedBatch(NamedTuple):
    """One line of the tool on a batch."""

    first: int
    last: int
    epoch: int
    size: int
    codec: str
    crc: int


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, config=SETTINGS) as made:
        yield made


def create(cluster: odradek.Cluster) -> str:
    name = unique("dumped")
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, PARTITIONS, 3, configs={"segment.bytes": "1048576"})])
    return str(name)


class Load(threading.Thread):
    """Sends records to all partitions until ``ended``. ``ends``: partition → the end of what is acknowledged. ``left``:
    how many records librdkafka still sends after the end of the thread; its queue is short, so that a busy machine
    sends it in time."""

    def __init__(
        self, cluster: odradek.Cluster, topic: str, ended: threading.Event, settings: dict[str, object]
    ) -> None:
        super().__init__(daemon=True)
        self.ends: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
        self.left = 0
        self._topic, self._ended = topic, ended
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "linger.ms": 5,
                "batch.num.messages": 50,
                "queue.buffering.max.messages": 2_000,
            }
            | settings
        )

    def run(self) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            wait_s = 0.001 if number % 20 == 0 else 0.0
            try:
                self._producer.produce(
                    self._topic,
                    f"value {number} " * (number % 50),
                    partition=number % PARTITIONS,
                    on_delivery=self._note,
                )
            except BufferError:
                wait_s = 0.05
            self._producer.poll(wait_s)
        self.left = self._producer.flush(60)

    def _note(self, error: confluent_kafka.KafkaError | None, sent: confluent_kafka.Message) -> None:
        if error is None:
            self.ends[sent.partition()] = max(self.ends[sent.partition()], sent.offset() + 1)


def segments(cluster: odradek.Cluster, broker: int, topic: str, index: int) -> list[Path]:
    return sorted((cluster.data_dir / str(broker) / f"{topic}-{index}").glob("*.log"))


def dump(tools: KafkaTools, files: list[Path]) -> list[DumpedBatch]:
    names = ",".join(map(str, files))
    done = tools.run("org.apache.kafka.tools.DumpLogSegments", "--files", names, "--deep-iteration", timeout_s=120)
    assert done.returncode == 0, done.stderr
    # 4.3's tool prints this for every segment that does not start at 0, for Kafka's own segments too.
    complaints = re.sub(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n", "", done.stderr)
    assert not complaints.strip(), complaints
    assert "invalid bytes" not in done.stdout
    found = [BATCH.search(line) for line in done.stdout.splitlines() if line.startswith("baseOffset")]
    assert all(one is not None and one["valid"] == "true" for one in found)
    return [
        DumpedBatch(
            int(one["first"]), int(one["last"]), int(one["epoch"]), int(one["size"]), one["codec"], int(one["crc"])
        )
        for one in found
        if one is not None
    ]


def bytes_below(cluster: odradek.Cluster, broker: int, topic: str, index: int, end: int) -> bytes:
    """The batches of a replica that begin below ``end``, which is the end of a batch."""
    data = b"".join(path.read_bytes() for path in segments(cluster, broker, topic, index))
    position = 0
    while position + 12 <= len(data) and int.from_bytes(data[position : position + 8], "big") < end:
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return data[:position]


def kill_a_leader(cluster: odradek.Cluster, topic: str, loads: list[Load]) -> None:
    """Kills the leader of partition 0 while records are sent. Before it is back, and at rest, what is acknowledged by
    all in-sync replicas has the same bytes in all folders."""
    leader = cluster.leader(topic)
    assert leader is not None
    cluster.kill(leader)
    acknowledged = dict(loads[0].ends)
    for index, end in acknowledged.items():
        assert end > 0

        def are_equal(index: int = index, end: int = end) -> bool:
            return len({bytes_below(cluster, one, topic, index, end) for one in BROKERS}) == 1

        eventually(are_equal, within_s=60)
    eventually(lambda: cluster.leader(topic) not in (None, leader), within_s=30)
    before = dict(loads[0].ends)
    eventually(lambda: all(loads[0].ends[index] > before[index] for index in before), within_s=60)
    cluster.start(leader)
    cluster.wait_until_in_sync([topic])


def test_kafkas_tool_finds_the_same_valid_batches_on_each_replica(
    cluster: odradek.Cluster, kafka_tools: KafkaTools
) -> None:
    topic, ended = create(cluster), threading.Event()
    kinds: list[dict[str, object]] = [
        {"acks": "all", "enable.idempotence": True, "compression.type": "lz4"},
        {"acks": "all", "compression.type": "zstd"},
        {"acks": 1},  # what only a killed leader has is cut from its log
    ]
    loads = [Load(cluster, topic, ended, one) for one in kinds]
    for one in loads:
        one.start()
    eventually(lambda: all(min(one.ends.values()) > 0 for one in loads), within_s=30)
    for _ in range(KILLS):
        kill_a_leader(cluster, topic, loads)
    ended.set()
    for one in loads:
        one.join(90)
        assert (one.is_alive(), one.left) == (False, 0)
    cluster.wait_until_in_sync([topic])
    for index in range(PARTITIONS):
        eventually(lambda: len({log_bytes(cluster, one, topic, index) for one in BROKERS}) == 1)  # noqa: B023
        dumps = [dump(kafka_tools, segments(cluster, one, topic, index)) for one in BROKERS]
        assert dumps[0] == dumps[1] == dumps[2]
        batches = dumps[0]
        assert batches[0].first == 0
        assert all(left.last + 1 == right.first for left, right in pairwise(batches))
        epochs = [one.epoch for one in batches]
        assert epochs == sorted(epochs)
        assert {"none", "lz4", "zstd"} <= {one.codec for one in batches}
        assert max(one.ends[index] for one in loads[:2]) <= batches[-1].last + 1
        assert all(len(segments(cluster, one, topic, index)) > 1 for one in BROKERS)
        for broker in BROKERS:
            assert epochs_of(cluster, broker, topic, index, batches[-1].last + 1) == first_offsets(batches)
    assert len({one.epoch for one in dump(kafka_tools, segments(cluster, 1, topic, 0))}) > KILLS
    indexes = [
        path
        for broker in BROKERS
        for suffix in ("index", "timeindex")
        for path in sorted((cluster.data_dir / str(broker) / f"{topic}-0").glob(f"*.{suffix}"))
    ]
    done = kafka_tools.run(
        "org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(map(str, indexes)), "--verify-index-only",
        timeout_s=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Mismatches" not in done.stdout + done.stderr


def log_bytes(cluster: odradek.Cluster, broker: int, topic: str, index: int) -> bytes:
    return b"".join(path.read_bytes() for path in segments(cluster, broker, topic, index))


def first_offsets(batches: list[DumpedBatch]) -> dict[int, int]:
    """The first offset of each leader epoch that has records."""
    found: dict[int, int] = {}
    for one in batches:
        found.setdefault(one.epoch, one.first)
    return found


def epochs_of(cluster: odradek.Cluster, broker: int, topic: str, index: int, end: int) -> dict[int, int]:
    """The checkpoint of a replica's leader epochs, without those that have no records. ``end``: that of the log."""
    path = cluster.data_dir / str(broker) / f"{topic}-{index}" / "leader-epoch-checkpoint"
    rows = [tuple(map(int, line.split())) for line in path.read_text().splitlines()[2:]]
    following = [start for _, start in rows[1:]] + [end]
    return {epoch: start for (epoch, start), after in zip(rows, following, strict=True) if start < after}
