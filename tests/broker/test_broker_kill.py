"""kill -9 at random moments under a mixed workload.

No acknowledged record is lost, and no record of an idempotent producer exists twice.

A run ends one broker five times, in the slow tests ten times: mostly with kill -9, sometimes with a clean stop. One
seed determines all choices. A failure reports the seed and the number of the crash.
"""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.brokers import CONFIG, Wire, eventually
from support.crash_workload import NOT_YET, WINDOW, Ledger, Recreation, Where, Workload
from support.jvm import kafka_command
from support.publish import create_topic

from odradek.batches.header import CRC_OFFSET, BatchHeader, crc_is_valid, scan
from odradek.batches.rows import Row, batch_rows
from odradek.core.ids import OFFSETS_TOPIC
from odradek.testing.process import BrokerFailed, BrokerProcess

FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, ALTER_CONFIGS = 1, 2, 3, 9, 44
ROUNDS = 10
FEW_ROUNDS = 5
SETTINGS = CONFIG | {
    "offsets.topic.num.partitions": "4",
    "log.cleaner.backoff.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "log.flush.start.offset.checkpoint.interval.ms": "300",
}
SMALL_SEGMENTS = {"internal.segment.bytes": "6000", "index.interval.bytes": "512"}
COMPACTED = SMALL_SEGMENTS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}
Found = list[tuple[bytes, int, BatchHeader]]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "broker", config=SETTINGS)
    yield process
    process.kill()


@pytest.mark.claim(1)
@pytest.mark.claim(92, part="a")
@pytest.mark.claim(54, part=True)
@pytest.mark.behaviour(20, 36, 55, part=True)
def test_kill_9_at_random_moments_keeps_each_acknowledged_record_once(broker: BrokerProcess) -> None:
    run(broker, seed=1, rounds=FEW_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_kill_9_at_many_random_moments_keeps_each_acknowledged_record_once(broker: BrokerProcess, seed: int) -> None:
    run(broker, seed)


@pytest.mark.slow
def test_apache_kafka_reads_the_logs_after_crashes(broker: BrokerProcess, kafka_cp: str) -> None:
    run(broker, seed=2)
    files = sorted(str(path) for path in broker.data_dir.glob("*/*.log") if "-delete" not in path.parent.name)
    assert len(files) > 50, "some segments were rolled"
    for option in ("--deep-iteration", "--verify-index-only"):
        for at in range(0, len(files), 100):
            command = [*kafka_command(kafka_cp), "org.apache.kafka.tools.DumpLogSegments", option]
            names = [name.replace(".log", ".index") for name in files[at : at + 100]] + files[at : at + 100]
            done = subprocess.run(
                [*command, "--files", ",".join(names)], capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stderr[-2000:]
            for complaint in ("Mismatches", "invalid bytes", "not found", "out of order", "corrupt", "isvalid: false"):
                assert complaint.lower() not in done.stdout.lower(), done.stdout[-2000:]


def run(broker: BrokerProcess, seed: int, rounds: int = ROUNDS) -> None:
    dice = random.Random(seed)
    crashes = 0
    try:
        broker.start()
        workload = Workload(broker.bootstrap, dice)
        prepare(broker, workload)
        while crashes < rounds:
            crashes += 1
            workload.start()
            # The kill follows a number of replies, and not a time. So some requests are in flight on any machine.
            workload.busy(dice.randint(20, 400))
            time.sleep(dice.random() * 0.02)
            end(broker, dice)
            workload.join()
            restart(broker, dice)
            verify(broker, workload)
        workload.end_lasting()
        verify(broker, workload)
        broker.stop()
        check_indexes(broker.data_dir, at_least=3 * rounds)
        assert "Traceback" not in broker.log_path.read_text()
        assert compacted(broker.data_dir, workload) > 0, "the cleaner removed records"
    except BaseException as error:
        error.add_note(f"seed {seed}, crash {crashes}; the end of the broker's log:\n{broker.log_tail()}")
        raise


def prepare(broker: BrokerProcess, workload: Workload) -> None:
    create_topic(broker.bootstrap, workload.log, 3, **SMALL_SEGMENTS)
    create_topic(broker.bootstrap, workload.lines, 3, **SMALL_SEGMENTS)
    create_topic(broker.bootstrap, workload.table, 2, **COMPACTED)
    with Wire(broker.bootstrap) as wire:
        eventually(lambda: wire.call(10, 0, {"key": "g"}).error_code == 0, what="a coordinator")
        rows = [{"name": "internal.segment.bytes", "config_operation": 0, "value": "6000"}]
        resource = {"resource_type": 2, "resource_name": OFFSETS_TOPIC, "configs": rows}
        reply = wire.call(ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        assert reply.responses[0].error_code == 0, reply
    workload.begin_lasting()


def end(broker: BrokerProcess, dice: random.Random) -> None:
    """Ends the broker with kill -9, or sometimes with a clean stop, after which it opens the logs without recovery."""
    if dice.random() < 0.15:
        assert broker.stop() == 0
    else:
        broker.kill()


def restart(broker: BrokerProcess, dice: random.Random) -> None:
    """Starts the broker. Before this, it sometimes starts the broker and kills it during the recovery, once or more."""
    while dice.random() < 0.35:
        after_s = dice.uniform(0.1, 0.8)

        def kill() -> None:
            if broker.process is not None:
                broker.process.kill()

        timer = threading.Timer(after_s, kill)
        timer.start()
        with contextlib.suppress(BrokerFailed):
            broker.start()
        timer.join()
        broker.kill()
    broker.start()


# --- expected state ---------------------------------------------------------------------------------------------


def verify(broker: BrokerProcess, workload: Workload) -> None:
    ledger = workload.ledger
    assert not ledger.failures, ledger.failures
    with Wire(broker.bootstrap) as wire:
        for where in workload.log_targets:
            verify_batches(ledger, where, gapless(read_all(wire, where), where))
        for where in workload.line_targets:
            verify_lines(wire, ledger, where, exact=where in workload.line_targets[:2])
        for where in workload.table_targets:
            verify_table(ledger, where, read_all(wire, where))
        verify_times(wire, workload)
        for group in workload.groups:
            verify_commits(wire, ledger, group)
        verify_topics(wire, ledger, broker.data_dir)
        verify_recreation(wire, workload.recreation)


def read_all(wire: Wire, where: Where) -> Found:
    """``(buffer, position, header)`` of every batch of a partition, as a consumer gets them."""
    start, end = (list_offset(wire, where, timestamp) for timestamp in (-2, -1))
    found: Found = []
    offset = start
    while offset < end:
        data = fetch(wire, where, offset)
        batches = [(data, pos, header) for pos, header in scan(data)]
        assert batches, f"{where}: nothing at {offset} of {end}"
        found += batches
        offset = batches[-1][2].last_offset + 1
    assert all(crc_is_valid(data, pos, header) for data, pos, header in found)
    return found


def gapless(found: Found, where: Where) -> Found:
    """Checks that offsets and the sequences of each producer have no gap and no repetition. Returns the batches."""
    expected = 0
    sequences: dict[tuple[int, int], int] = {}
    for _, _, header in found:
        assert header.base_offset == expected, f"{where}: a gap before {header.base_offset}"
        assert header.record_count == header.last_offset_delta + 1
        expected = header.last_offset + 1
        if header.producer_id >= 0:
            producer = (header.producer_id, header.producer_epoch)
            assert header.base_sequence == sequences.get(producer, 0), f"{where}: {producer} at {header.base_offset}"
            sequences[producer] = header.last_sequence + 1
    return found


def verify_batches(ledger: Ledger, where: Where, found: Found) -> None:
    stored = {header.base_offset: data[pos + CRC_OFFSET : pos + header.size_in_bytes] for data, pos, header in found}
    missing = {offset for offset, sent in ledger.batches[where].items() if stored.get(offset) != sent}
    assert not missing, f"{where}: acknowledged at {sorted(missing)}, but missing or different"
    foreign = [offset for offset, data in stored.items() if data not in ledger.sent_batches]
    assert not foreign, f"{where}: the batches at {foreign} were never sent"
    assert len(set(stored.values())) == len(stored), f"{where}: a batch exists twice"
    owed = len(stored) - len(ledger.batches[where])
    assert owed <= WINDOW * 3 * 11, "only batches in flight at a crash may exist without an acknowledgement"


def rows_of(found: Found) -> Iterator[Row]:
    for data, pos, header in found:
        yield from batch_rows(data, pos, header)


def verify_lines(wire: Wire, ledger: Ledger, where: Where, *, exact: bool) -> None:
    with ledger.lock:  # meanwhile producers add to the ledger
        acknowledged = dict(ledger.records[where])
    rows = list(rows_of(gapless(read_all(wire, where), where)))
    stored = {row.offset: (row.key, row.value) for row in rows}
    missing = {offset for offset, pair in acknowledged.items() if stored.get(offset) != pair}
    assert not missing, f"{where}: acknowledged at {sorted(missing)}, but missing or different"
    if exact:
        twice = [value for value, count in Counter(row.value for row in rows).items() if count > 1]
        assert not twice, f"{where}: records of an idempotent producer exist twice: {twice}"


def verify_table(ledger: Ledger, where: Where, found: Found) -> None:
    """A compacted topic has each acknowledged record, or a later one with its key."""
    rows = list(rows_of(found))
    assert all(a.offset < b.offset for a, b in pairwise(rows))
    last = {row.key: row.offset for row in rows}
    stored = {row.offset: (row.key, row.value) for row in rows}
    for offset, (key, value) in ledger.records[where].items():
        assert last.get(key, -1) >= offset, f"{where}: {key!r} is missing from {offset} on"
        assert stored.get(offset, (key, value)) == (key, value), f"{where}: another record is at {offset}"
    values = [row.value for row in rows if row.value is not None]
    assert len(set(values)) == len(values), f"{where}: a record exists twice"
    assert ledger.sent_values.issuperset(values), f"{where}: some values were never sent"


def verify_times(wire: Wire, workload: Workload) -> None:
    """Checks lookups through the indexes for some batches of each partition.

    A fetch from a batch's first offset begins with this batch. A lookup of its time finds this batch or an earlier one.
    A lookup of a later time than all records finds nothing.
    """
    for where in workload.log_targets:
        offsets = sorted(workload.ledger.batches[where])
        for offset in offsets[:: max(1, len(offsets) // 8)]:
            data = fetch(wire, where, offset)
            _, header = next(scan(data))
            assert header.base_offset == offset
            found = list_offset(wire, where, header.max_timestamp)
            assert 0 <= found <= header.last_offset, f"{where}: time of {offset} leads to {found}"
            later = list_offset(wire, where, header.max_timestamp + 3_600_000)
            assert later == -1


def verify_commits(wire: Wire, ledger: Ledger, group: str) -> None:
    with ledger.lock:
        wanted = {key: place for key, place in ledger.acknowledged_commits.items() if key[0] == group}
    stored = committed(wire, group)
    with ledger.lock:
        sent = {where: list(offsets) for (of, where), offsets in ledger.commits.items() if of == group}
    for where, offsets in sent.items():
        place = wanted.get((group, where))
        offset, note = stored.get(where, (None, ""))
        if place is None and offset is None:
            continue
        since = offsets[place or 0 :]
        assert offset in since, f"{group}: {where} is at {offset}; acknowledged {place}, may be {since[:9]}…"
        assert note in ("", f"note {offset}")
    assert set(stored) <= set(sent), f"{group}: some offsets were never committed"


def verify_topics(wire: Wire, ledger: Ledger, data_dir: Path) -> None:
    for name, allowed in ledger.topics.items():
        message = {"topics": [{"name": name, "topic_id": None}], "allow_auto_topic_creation": False,
                   "include_topic_authorized_operations": False}  # fmt: skip
        row = wire.call(METADATA, 12, message).topics[0]
        now = row.topic_id if row.error_code == 0 else None
        assert row.error_code in (0, 3), row
        assert not allowed or now in allowed, f"{name} is {now}; may be {allowed}"
        directories = [path.name for path in data_dir.glob(f"{name}-*") if not path.name.endswith("-delete")]
        assert sorted(directories) == ([f"{name}-0", f"{name}-1"] if now else [])
        if now is not None:
            assert sorted(part.partition_index for part in row.partitions) == [0, 1]
            values = [r.value for r in rows_of(read_all(wire, (name, 1)))]
            first_value = ledger.first_values.get(now)
            assert values == [first_value] if first_value else values in ([], [now.bytes]), f"{name} holds {values}"
        ledger.topics[name] = {now}


def verify_recreation(wire: Wire, again: Recreation) -> None:
    """Checks that the current topic has all acknowledged records, and that the group's committed offset is one of this
    topic and not of an earlier topic with the same name."""
    message = {"topics": [{"name": again.topic, "topic_id": None}], "allow_auto_topic_creation": False,
               "include_topic_authorized_operations": False}  # fmt: skip
    row = wire.call(METADATA, 12, message).topics[0]
    offset, _ = committed(wire, again.group).get((again.topic, 0), (None, ""))
    if row.error_code == 3:
        assert again.may_be_gone, f"{again.topic} does not exist"
        assert offset is None, f"{again.topic} does not exist, and {offset} is committed for it"
        again.begin_life(exists=False)
        return
    assert again.may_exist, f"{again.topic} was deleted"
    where = (again.topic, 0)
    start, end = (list_offset(wire, where, timestamp) for timestamp in (-2, -1))
    assert again.starts[0] <= start <= again.starts[1], f"{where} starts at {start}; may be {again.starts}"
    assert end >= max(again.values, default=-1) + 1, f"{where} ends at {end}, before {max(again.values)}"
    found = {row.offset: row.value for row in rows_of(read_all(wire, where))}
    missing = [at for at, value in again.values.items() if at >= start and found.get(at) != value]
    assert not missing, f"{where}: acknowledged at {missing}, but missing or different"
    may_be = again.commits[again.acknowledged_commit :]
    assert offset in may_be, f"{where} has the committed offset {offset}; may be {may_be}"
    again.may_exist, again.may_be_gone, again.starts = True, False, (start, start)


# --- indexes ----------------------------------------------------------------------------------------------------


def check_indexes(data_dir: Path, at_least: int) -> None:
    """Checks that every entry of every index points to a batch and has the values of this batch.

    ``at_least``: the number of entries that the indexes together must have.
    """
    checked = 0
    for path in sorted(data_dir.glob("*/*.log")):
        data = path.read_bytes()
        batches = dict(scan(data))
        assert sum(header.size_in_bytes for header in batches.values()) == len(data), f"{path}: an incomplete batch"
        base = int(path.stem)
        ends = {header.last_offset: header for header in batches.values()}
        before = (-1, -1)
        for offset, position in struct.iter_unpack(">ii", path.with_suffix(".index").read_bytes()):
            assert batches[position].last_offset == base + offset, path
            assert offset > before[0], path
            assert position > before[1], path
            before = (offset, position)
            checked += 1
        before = (-1, -1)
        for timestamp, offset in struct.iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes()):
            assert ends[base + offset].max_timestamp == timestamp, path
            assert timestamp > before[0], path
            assert offset > before[1], path
            before = (timestamp, offset)
            checked += 1
        newest = max((header.max_timestamp for header in batches.values()), default=-1)
        assert before[0] == newest, f"{path}: after a clean stop the index has the newest time"
    assert checked >= at_least


def compacted(data_dir: Path, workload: Workload) -> int:
    """Returns how many acknowledged records of the compacted topic the cleaner has removed."""
    gone = 0
    for topic, partition in workload.table_targets:
        kept: set[int] = set()
        for path in data_dir.glob(f"{topic}-{partition}/*.log"):
            data = path.read_bytes()
            kept |= {row.offset for pos, header in scan(data) for row in batch_rows(data, pos, header)}
        gone += len(set(workload.ledger.records[topic, partition]) - kept)
    return gone


# --- requests ---------------------------------------------------------------------------------------------------


def list_offset(wire: Wire, where: Where, timestamp: int) -> int:
    part = {"partition_index": where[1], "timestamp": timestamp}
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": where[0], "partitions": [part]}]}
    row = wire.call(LIST_OFFSETS, 2, message).topics[0].partitions[0]
    assert row.error_code == 0, row
    return int(row.offset)


def fetch(wire: Wire, where: Where, offset: int) -> bytes:
    part = {"partition": where[1], "current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1,
            "partition_max_bytes": 1 << 20}  # fmt: skip
    message = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 50 << 20, "isolation_level": 0,
               "session_id": 0, "session_epoch": -1, "topics": [{"topic": where[0], "partitions": [part]}],
               "forgotten_topics_data": [], "rack_id": ""}  # fmt: skip
    answer = wire.call(FETCH, 11, message).responses[0].partitions[0]
    assert answer.error_code == 0, answer.error_code
    return bytes(answer.records or b"")


def committed(wire: Wire, group: str) -> dict[Where, tuple[int, str]]:
    """Returns the group's committed offset and its metadata for each partition."""

    def answer() -> Any:
        asked = {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
        (found,) = wire.call(OFFSET_FETCH, 8, {"groups": [asked], "require_stable": False}).groups
        return found if found.error_code not in NOT_YET else None

    found = eventually(answer, what=f"the coordinator of {group}")
    assert found.error_code == 0
    return {
        (topic.name, row.partition_index): (row.committed_offset, row.metadata or "")
        for topic in found.topics
        for row in topic.partitions
    }
