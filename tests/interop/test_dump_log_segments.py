"""Apache Kafka's own tool reads our files, and our log reads files of Apache Kafka 4.3."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from uuid import UUID

import pytest
from support.jvm import KafkaTools
from support.logs import find_timestamp

from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata.lone_broker import BeginEpochs
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.catalog.credentials import SCRAM_SHA_256, AlterCredential
from odradek.catalog.state import (
    GROUP,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CreateTopic,
    DeleteTopic,
)
from odradek.core.access.credential import Credential
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log

T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CONFIG = LogConfig(segment_bytes=40_000, index_interval_bytes=512)
KAFKAS = Path(__file__).parent.parent / "data" / "kafka-log-0"
"""A log of Apache Kafka 4.3.0, copied while it ran, with index.interval.bytes=512 and segment.ms=60000.

Its records are from 15 idempotent librdkafka producers with every codec, then from a committed and an aborted
transaction.
"""


def dump(kafka_tools: KafkaTools, files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    done = kafka_tools.run("org.apache.kafka.tools.DumpLogSegments", "--files", names, *options, timeout_s=120)
    assert done.returncode == 0, done.stderr
    # 4.3's tool prints this for every segment that does not start at 0, for Kafka's own segments too.
    complaints = re.sub(r"Non-consecutive offsets in \S+\n  -1 is followed by \d+\n", "", done.stderr)
    assert not complaints.strip(), complaints
    for complaint in ("Mismatches", "Non-consecutive", "invalid bytes", "not found", "out of order", "corrupt"):
        assert complaint.lower() not in done.stdout.lower(), done.stdout[-2000:]
    return done.stdout


def write_log(path: Path) -> Log:
    log = Log.open(path, CONFIG, T0, clean=False)
    for number in range(600):
        records = [
            SimpleRecord(b"key-%d" % n, b"value " * (number % 40), T0 + number * 100 - (n * 131) % 700)
            for n in range(5)
        ]
        data = encode_batch(
            records,
            now_ms=T0,
            compression=CODECS[number % 5],
            producer_id=number % 3,
            producer_epoch=0,
            base_sequence=number // 3 * 5,
        )
        log.append(data, now_ms=T0, leader_epoch=number // 200)
    return log


@pytest.fixture(params=["closed", "killed", "live"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Our log after a clean stop, after recovery from an incomplete last write, and while it is open."""
    path = tmp_path / "flights-0"
    log = write_log(path)
    assert len(log.segments) > 2
    if request.param == "closed":
        log.close()
    elif request.param == "killed":
        newest = log.active.path(".log")
        newest.write_bytes(newest.read_bytes()[:-20])
        del log
        log = Log.open(path, CONFIG, T0, clean=False)
        assert log.log_end_offset == 2995
        path.joinpath(".killed").touch()
    return path


@pytest.mark.claim(8, part=True)
def test_kafkas_tool_finds_no_errors_in_our_files(kafka_tools: KafkaTools, directory: Path) -> None:
    by_suffix = {suffix: sorted(directory.glob(f"*{suffix}")) for suffix in (".log", ".index", ".timeindex")}
    output = dump(kafka_tools, by_suffix[".log"], "--deep-iteration")
    assert output.count("| offset:") in (2995, 3000)
    indexes = by_suffix[".index"] + by_suffix[".timeindex"]
    dump(kafka_tools, indexes, "--verify-index-only")
    entries = dump(kafka_tools, by_suffix[".index"])
    assert entries.count("position:") > 100
    sane = dump(kafka_tools, indexes, "--index-sanity-check")
    assert sane.count("passed sanity check") + sane.count("is empty") == len(indexes)
    snapshots = sorted(directory.glob("*.snapshot"))
    if snapshots:  # the recovery of the killed log removes them: the disk may have written them before their records
        assert "producerId: 2 producerEpoch: 0" in dump(kafka_tools, snapshots)
    else:
        assert directory.joinpath(".killed").exists()
    assert directory.joinpath("leader-epoch-checkpoint").read_text() == "0\n3\n0 0\n1 1000\n2 2000\n"


# The next two tests need no Java: our code reads files that Kafka wrote.


@pytest.fixture
def kafkas(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KAFKAS, tmp_path / "kafka-log-0"))


KAFKAS_CONFIG = LogConfig(index_interval_bytes=512, segment_ms=60_000, retention_ms=-1)


@pytest.mark.parametrize("clean", [True, False])
def test_our_log_reads_the_segments_of_kafka(kafkas: Path, clean: bool) -> None:
    log = Log.open(kafkas, KAFKAS_CONFIG, T0 + 300_000, clean=clean)
    assert (log.log_start_offset, log.log_end_offset, log.last_stable_offset) == (0, 622, 622)
    assert [segment.base_offset for segment in log.segments] == [0, 200, 400, 600, 610]
    rows = []
    while len(rows) < 622:
        rows += [row for row in iter_records(log.read(len(rows), 700).bytes()) if row.offset >= len(rows)]
    assert [row.offset for row in rows] == list(range(622))
    for number, row in enumerate(rows[:600]):
        codec = CODECS[number // 40 % 5].encode()
        assert row.key == b"key-%d" % (number % 9)
        assert row.value == (b"%s value %d " % (codec, number) * 3 if number % 11 else None)
        assert row.headers == ((("codec", codec), ("nil", None)) if number % 5 == 0 else ())
        assert row.timestamp == T0 + number // 200 * 70_000 + number % 40 * 10
    assert [row.is_control for row in rows[600:]] == ([False] * 10 + [True]) * 2
    assert find_timestamp(log, T0 + 70_000 + 200) == (220, T0 + 70_200, 0)
    assert len(log.producers) == 16
    assert log.epoch_end_offset(0) == (0, 622)


def test_our_rebuilt_indexes_equal_those_of_kafka_byte_for_byte(kafkas: Path) -> None:
    """Recovery of Kafka's segments writes the same index files as Kafka. Kafka has padded the indexes of the last
    segment with zeros."""
    for path in kafkas.iterdir():
        if path.suffix in {".index", ".timeindex"}:
            path.unlink()
    log = Log.open(kafkas, KAFKAS_CONFIG, T0 + 300_000, clean=False)
    compared = 0
    for path in KAFKAS.iterdir():
        if path.suffix in {".index", ".timeindex"} and not path.name.startswith("00000000000000000610"):
            assert kafkas.joinpath(path.name).read_bytes() == path.read_bytes(), path.name
            compared += 1
    assert compared == 8
    log.close()


def test_kafkas_tool_reads_records_that_we_appended_to_kafkas_log(kafka_tools: KafkaTools, kafkas: Path) -> None:
    log = Log.open(kafkas, KAFKAS_CONFIG, T0 + 300_000, clean=False)
    data = encode_batch([SimpleRecord(b"k", b"v", T0 + 310_000)] * 30, now_ms=T0, compression="zstd")
    assert log.append(data, now_ms=T0 + 310_000, leader_epoch=1).base_offset == 622
    log.close()
    logs = sorted(kafkas.glob("*.log"))
    assert dump(kafka_tools, logs, "--deep-iteration").count("| offset:") == 652
    dump(kafka_tools, sorted(kafkas.glob("*index")), "--verify-index-only")


def test_kafkas_tool_reads_the_metadata_log(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    topic_id = UUID(int=(1 << 100) + 5)
    catalog = StoredCatalog.open(
        tmp_path, clean=True, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=OsFiles()
    )
    catalog.apply(CreateTopic("flights", topic_id, 2, 1, configs={"retention.ms": "1"}))
    catalog.apply(BeginEpochs())
    catalog.close()
    printed = dump(kafka_tools, sorted((tmp_path / DIRECTORY).glob("*.log")), "--cluster-metadata-decoder")
    records = [json.loads(text) for text in re.findall(r"payload: (\{.*\})$", printed, re.MULTILINE)]
    assert [record["type"] for record in records] == [
        "TOPIC_RECORD", "CONFIG_RECORD", *["PARTITION_RECORD"] * 2, *["PARTITION_CHANGE_RECORD"] * 2
    ]  # fmt: skip
    kafkas_id = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    assert [record["data"] for record in records[-2:]] == [
        {"partitionId": number, "topicId": kafkas_id, "leader": 1} for number in range(2)
    ]


def test_kafkas_tool_reads_a_snapshot_of_the_metadata_log(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    catalog = StoredCatalog.open(
        tmp_path, clean=True, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=OsFiles()
    )
    catalog.apply(CreateTopic("flights", UUID(int=(1 << 100) + 5), 300, 1, configs={"retention.ms": "1"}))
    catalog.apply(CreateTopic("gone", UUID(int=7), 2, 1))
    catalog.apply(BeginEpochs())
    catalog.apply(DeleteTopic(UUID(int=7)))
    catalog.apply(AlterConfigs(GROUP, "g", {"consumer.session.timeout.ms": "45000"}))
    catalog.apply(AlterClientQuotas((("client-id", None),), {"producer_byte_rate": 1.5}))
    catalog.apply(AlterCredential("u", SCRAM_SHA_256, Credential(b"salt", b"stored", b"server", 4096)))
    catalog.apply(AllocateProducerIds(1))

    def at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
        job()
        return Deferred.of(None)

    finish(catalog.log.begin_snapshot(catalog.catalog.state, at_once))
    (snapshot,) = catalog.log.snapshots
    assert snapshot.path.name == f"{catalog.catalog.log_end_offset:020d}-0000000000.checkpoint"
    printed = dump(kafka_tools, [snapshot.path], "--cluster-metadata-decoder")
    assert re.findall(r"SnapshotHeader (\{.*\})$", printed, re.MULTILINE) == [
        f'{{"version":0,"lastContainedLogTimestamp":{T0}}}'
    ]
    assert re.findall(r"SnapshotFooter (\{.*\})$", printed, re.MULTILINE) == ['{"version":0}']
    records = [json.loads(text) for text in re.findall(r"payload: (\{.*\})$", printed, re.MULTILINE)]
    assert [kind for kind, _ in groupby(record["type"] for record in records)] == [
        "FEATURE_LEVEL_RECORD", "TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "CLIENT_QUOTA_RECORD",
        "PRODUCER_IDS_RECORD", "USER_SCRAM_CREDENTIAL_RECORD",
    ]  # fmt: skip
    partitions = [record["data"] for record in records if record["type"] == "PARTITION_RECORD"]
    assert [(row["partitionId"], row["leaderEpoch"]) for row in partitions] == [(n, 1) for n in range(300)]
    assert [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)] == list(
        range(len(records) + 2)
    )
