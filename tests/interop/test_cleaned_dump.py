"""Apache Kafka's cleaner and ours on the same segments, and Kafka's DumpLogSegments on the segments of our cleaner.

The test fills two topics of Kafka 4.3, and Kafka cleans them. Before each cleaning the test copies the partition's
files, and our cleaner works on the copy. Without compression, both leave the same bytes in all segments but the active
one.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from support.brokers import apache_broker, eventually
from support.cleaning import batches, compact, open_log
from support.jvm import KafkaTools
from support.publish import admin, create_topic

from odradek.batches.header import DELETE_HORIZON_BIT, scan
from odradek.storage.log import Log

DELETE_RETENTION_MS = 1_500
SEGMENT_BYTES = 3_000
CONFIG = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": str(SEGMENT_BYTES),
    "index.interval.bytes": "400",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "min.cleanable.dirty.ratio": "1.0",
}
CODECS = {"plain": ["none"], "packed": ["none", "gzip", "snappy", "lz4", "zstd"]}


class Writer:
    """Small batches of one topic from many producers: idempotent, plain and transactional ones."""

    def __init__(self, bootstrap: str, topic: str, seed: int) -> None:
        self.topic = topic
        self.chance = random.Random(seed)
        base = {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "log_level": 2}
        self.producers = [
            Producer(base | {"compression.type": codec, "enable.idempotence": idempotent})
            for codec in CODECS[topic]
            for idempotent in (True, False)
        ]
        self.transactional = [
            Producer(base | {"transactional.id": f"{topic}-{number}", "compression.type": CODECS[topic][-1]})
            for number in range(2)
        ]
        for producer in self.transactional:
            producer.init_transactions(30)

    def batch(self, producer: Producer) -> None:
        for _ in range(self.chance.choice([1, 1, 3, 8])):
            value = None if self.chance.random() < 0.2 else b"%d" % self.chance.randrange(9) * self.chance.randrange(90)
            producer.produce(self.topic, value, f"key-{self.chance.randrange(40)}", 0)
        assert producer.flush(30) == 0

    def write(self, rounds: int) -> None:
        for number, producer in enumerate(self.producers):  # so that batches of each codec remain
            for record in range(4):
                producer.produce(self.topic, b"v" * 60, f"own-{number}-{record}", 0)
            assert producer.flush(30) == 0
        for _ in range(rounds):
            self.batch(self.chance.choice(self.producers))
            if self.chance.random() < 0.3:
                producer = self.chance.choice(self.transactional)
                producer.begin_transaction()
                for _ in range(self.chance.choice([1, 2])):
                    self.batch(producer)
                    self.batch(self.producers[0])
                end = producer.commit_transaction if self.chance.random() < 0.6 else producer.abort_transaction
                end(30)


@dataclass
class Cleaning:
    """A partition before and after one of Kafka's cleanings. ``from_offset`` is where this cleaning started."""

    topic: str
    before: Path
    after: Path
    from_offset: int | None


def settle(log: Path) -> None:
    """Waits until the log stops growing: a commit returns before its marker is in the log."""
    sizes: list[int] = []

    def is_quiet() -> bool:
        sizes.append(sum(path.stat().st_size for path in log.glob("*.log")))
        return len(sizes) > 5 and len(set(sizes[-5:])) == 1

    eventually(is_quiet, every_s=0.2)


def copy_log(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.deleted"))
    return target


def checkpoint(data: Path, topic: str) -> int | None:
    try:
        lines = (data / "cleaner-offset-checkpoint").read_text().splitlines()
    except FileNotFoundError:
        return None
    found = [int(line.split()[2]) for line in lines if line.startswith(f"{topic} ")]
    return found[0] if found else None


def set_ratio(bootstrap: str, topic: str, ratio: str) -> None:
    entry = ConfigEntry("min.cleanable.dirty.ratio", ratio, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin(bootstrap).incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture(scope="module")
def cleanings(kafka_cp: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, int], Cleaning]]:
    root = tmp_path_factory.mktemp("cleaned")
    kafka = apache_broker(root / "kafka", {"log.cleaner.backoff.ms": "200", "auto.create.topics.enable": "false"})
    kafka.start()
    data = root / "kafka" / "data"
    found = {}
    try:
        writers = {}
        for topic in CODECS:
            create_topic(kafka.bootstrap, topic, **{name.replace(".", "_"): value for name, value in CONFIG.items()})
            writers[topic] = Writer(kafka.bootstrap, topic, 7)
        for number in range(2):
            for topic, writer in writers.items():
                writer.write(60)
                log = data / f"{topic}-0"
                settle(log)
                active = max(int(path.stem) for path in log.glob("*.log"))
                known = checkpoint(data, topic)
                before = copy_log(log, root / f"{number}-before" / f"{topic}-0")
                set_ratio(kafka.bootstrap, topic, "0.0")
                eventually(lambda: checkpoint(data, topic) == active, within_s=60, what=f"{topic} cleaned")  # noqa: B023
                set_ratio(kafka.bootstrap, topic, "1.0")
                after = copy_log(log, root / f"{number}-after" / f"{topic}-0")
                found[topic, number] = Cleaning(topic, before, after, known)
            time.sleep(DELETE_RETENTION_MS / 1000 + 0.3)
        yield found
    finally:
        kafka.kill()


def open_copy(path: Path, now_ms: int) -> Log:
    return open_log(
        path,
        now_ms=now_ms,
        segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=400,
        delete_retention_ms=DELETE_RETENTION_MS,
    )


def horizons(cleaning: Cleaning) -> set[int]:
    """The delete horizons in the segments that Kafka has cleaned."""
    return {
        header.base_timestamp
        for path in cleaning.after.glob("*.log")
        for _, header in scan(path.read_bytes())
        if header.attributes & DELETE_HORIZON_BIT
    }


def cleaning_time(cleaning: Cleaning) -> int:
    """The time of Kafka's cleaning: the latest delete horizon minus the delete retention."""
    return max(horizons(cleaning)) - DELETE_RETENTION_MS


def clean_copy(cleaning: Cleaning, target: Path) -> Log:
    shutil.copytree(cleaning.before, target)
    now_ms = cleaning_time(cleaning)
    log = open_copy(target, now_ms)
    log.removals.cleaned_offset = cleaning.from_offset
    compact(log, now_ms)
    return log


@pytest.mark.claim(14, 16, part=True)
@pytest.mark.behaviour(39)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_both_cleaners_leave_the_same_bytes(
    cleanings: dict[tuple[str, int], Cleaning], tmp_path: Path, number: int
) -> None:
    cleaning = cleanings["plain", number]
    log = clean_copy(cleaning, tmp_path / "plain-0")
    bases = [segment.base_offset for segment in log.segments]
    assert bases == sorted(int(path.stem) for path in cleaning.after.glob("*.log"))
    sizes = [path.stat().st_size for path in cleaning.before.glob("*.log")]
    assert log.size < sum(sizes) * 0.8
    if number:  # no batch has a delete horizon of the first cleaning any more
        assert not horizons(cleanings["plain", 0]) & horizons(cleaning)
    for base in bases[:-1]:
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            ours, theirs = tmp_path / "plain-0" / f"{base:020d}{suffix}", cleaning.after / f"{base:020d}{suffix}"
            assert (ours.read_bytes() if ours.exists() else b"") == (theirs.read_bytes() if theirs.exists() else b"")


@pytest.mark.claim(16)
@pytest.mark.claim(14, part=True)
@pytest.mark.behaviour(39)
@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_both_cleaners_leave_the_same_records_in_compressed_batches(
    cleanings: dict[tuple[str, int], Cleaning], tmp_path: Path, number: int
) -> None:
    cleaning = cleanings["packed", number]
    ours = clean_copy(cleaning, tmp_path / "packed-0")
    theirs = open_copy(shutil.copytree(cleaning.after, tmp_path / "theirs" / "packed-0"), cleaning_time(cleaning))
    assert [segment.base_offset for segment in ours.segments] == [segment.base_offset for segment in theirs.segments]

    def seen(log: Log) -> list[object]:
        # The libraries of a codec may compress differently: length and CRC (fields 1 and 4) then differ.
        return [
            (tuple(field for place, field in enumerate(header) if place not in (1, 4)), rows)
            for header, rows in batches(log)
        ]

    assert seen(ours) == seen(theirs)
    assert {header.compression for header, rows in batches(ours) if rows} == {0, 1, 2, 3, 4}


def test_kafkas_tool_prints_the_same_for_both_cleaners(
    cleanings: dict[tuple[str, int], Cleaning], tmp_path: Path, kafka_tools: KafkaTools
) -> None:
    """DumpLogSegments unpacks every batch and follows each index entry. For the topic without compression, its output
    is the same for Kafka's own files, also the warnings about gaps in the offsets and empty batches without a time."""

    def dump(directory: Path, bases: list[int]) -> str:
        names = [f"{base:020d}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")]
        files = ",".join(str(directory / name) for name in names)
        command = ["org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", files]
        done = kafka_tools.run(*command, timeout_s=120)
        assert done.returncode == 0, done.stderr[-2000:]
        output = done.stdout + done.stderr
        assert output.count("Dumping ") == len(names)
        assert "isvalid: true" in output
        assert "deleteHorizonMs: OptionalLong[" in output
        for complaint in ("isvalid: false", "corrupt", "exception", "mismatches in", "found out of order"):
            assert complaint not in output.lower(), complaint
        return output.replace(str(directory), "")

    for topic in CODECS:
        log = clean_copy(cleanings[topic, 1], tmp_path / f"{topic}-0")
        bases = [segment.base_offset for segment in log.segments[:-1]]
        log.close()
        ours = dump(tmp_path / f"{topic}-0", bases)
        if topic == "plain":
            theirs = dump(cleanings[topic, 1].after, bases)
            assert sorted(ours.splitlines()) == sorted(theirs.splitlines())
