"""Transactions in a log: the index of aborted transactions, the last stable offset, recovery, truncation, snapshots."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.logs import T0, aborted_in, batch, code_of, described, open_log, put, sequenced
from support.memory_files import MemoryFiles
from support.whole_steps import decode_snapshot

from odradek.batches.header import scan
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.storage.producers.states import encode_snapshot
from odradek.storage.segments.aborted_index import AbortedEntry

DATA = Path(__file__).parents[2] / "data"
KAFKAS = DATA / "kafka-transactions-0"
"""A log directory of Apache Kafka 4.3.0 after a clean stop, with transaction.version 2 and index.interval.bytes=200.
Four transactional producers have overlapping transactions in three segments. One transaction is open at the end."""
FETCHES = json.loads((DATA / "kafka-transactions-fetches.json").read_text())
"""The replies of this Apache Kafka to read_committed fetches of each offset, by partition_max_bytes: the last stable
offset, the number of bytes of records, the aborted transactions."""
END, STABLE = 42, 37


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "flights-0"


@pytest.fixture
def kafkas(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KAFKAS, tmp_path / "kafka-transactions-0"))


def send(log: Log, producer_id: int, count: int = 2, *, epoch: int = 0, sequence: int = 0) -> int:
    """Appends records of a transaction and returns their first offset."""
    data = sequenced(sequence, count, producer_id, epoch, transactional=True)
    return put(log, data).base_offset


def end(log: Log, producer_id: int, *, commit: bool = False, epoch: int = 1) -> int:
    """Appends a marker and returns its offset."""
    marker = EndTransactionMarker(producer_id, epoch, 0, commit, 2)
    return log.append_marker(marker, now_ms=T0, leader_epoch=0).base_offset


def indexes(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.glob("*.txnindex")}


def entries(log: Log) -> list[AbortedEntry]:
    """The entries of all indexes in the order of the markers."""
    found = []
    for segment in log.segments:
        if segment.has_aborted:
            index = segment.aborted_index
            rows = [index.entry.unpack_from(index.data(), at * 34) for at in range(index.entries)]
            found += [AbortedEntry(*row[1:]) for row in rows]
    return found


def state_of(log: Log) -> list[Any]:
    """The state that recovery must rebuild."""
    return [log.last_stable_offset, list(log.producers.open_transactions.items()), described(log), entries(log)]


# directories of Kafka


def fetched(log: Log, offset: int, max_bytes: int) -> list[Any]:
    """A read_committed fetch, as in ``FETCHES``."""
    records = log.read(offset, max_bytes, max_offset=log.last_stable_offset)
    aborted = log.segment_list.aborted_for(offset, records) if records.size else ()
    return [log.last_stable_offset, records.size, [list(transaction) for transaction in aborted]]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("max_bytes", ["1", "300", "1048576"])
def test_reads_of_a_directory_of_kafka_give_what_kafka_gives(kafkas: Path, clean: bool, max_bytes: str) -> None:
    log = open_log(kafkas, clean=clean, index_interval_bytes=200)
    expected = FETCHES[max_bytes]
    assert len(expected) == END + 1
    assert [fetched(log, offset, int(max_bytes)) for offset in range(END + 1)] == expected


@pytest.mark.parametrize("clean", [True, False])
def test_a_directory_of_kafka_keeps_its_producers_and_open_transactions(kafkas: Path, clean: bool) -> None:
    log = open_log(kafkas, clean=clean)
    assert (log.last_stable_offset, log.log_end_offset) == (STABLE, END)
    assert dict(log.producers.open_transactions) == {5: STABLE}
    assert [list(producer) for producer in described(log)] == sorted(FETCHES["producers"])


def test_recovery_writes_the_indexes_of_kafka(kafkas: Path) -> None:
    written = indexes(kafkas)
    assert len(written) == 3
    for name in written:
        (kafkas / name).unlink()
    log = open_log(kafkas, index_interval_bytes=200)
    assert log.segment_list.has_aborted
    assert indexes(kafkas) == written


def test_snapshots_have_the_bytes_of_kafka() -> None:
    found = sorted(KAFKAS.glob("*.snapshot"))
    assert len(found) == 3
    opened = 0
    for file in found:
        states = decode_snapshot(file.read_bytes())
        assert encode_snapshot(states) == file.read_bytes()
        opened += sum(state.transaction_start >= 0 for state in states)
    assert opened > 3


def test_the_same_appends_write_the_indexes_of_kafka(tmp_path: Path) -> None:
    """The test appends every batch of Kafka's directory to a new log, and rolls the log where Kafka did."""
    path = tmp_path / "ours-0"
    log = Log.create(path, LogConfig(index_interval_bytes=200), T0)
    path.mkdir()
    for file in sorted(KAFKAS.glob("*.log")):
        data = file.read_bytes()
        log.roll(T0)
        for pos, header in scan(data):
            one = data[pos : pos + header.size_in_bytes]
            log.append(one, now_ms=T0, leader_epoch=0, origin="coordinator")
    log.close()
    ours = {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in {".log", ".txnindex"}}
    assert ours == {file.name: file.read_bytes() for file in KAFKAS.iterdir() if file.suffix in {".log", ".txnindex"}}
    last = "00000000000000000042.snapshot"
    kafkas, snapshot = ((one / last).read_bytes() for one in (KAFKAS, path))
    by_id = {state.producer_id: encode_snapshot([state]) for state in decode_snapshot(kafkas)}
    for state in decode_snapshot(snapshot):
        del state.batches[:-1]
        assert encode_snapshot([state]) == by_id.pop(state.producer_id)
    assert not by_id


# the last stable offset


def test_open_transactions_are_in_the_order_of_their_first_offsets(path: Path) -> None:
    log = open_log(path)
    for producer_id in (9, 3, 5):
        send(log, producer_id)
    assert list(log.producers.open_transactions.items()) == [(9, 0), (3, 2), (5, 4)]
    send(log, 3, sequence=2)
    end(log, 9)
    assert list(log.producers.open_transactions.items()) == [(3, 2), (5, 4)]
    assert log.last_stable_offset == 2
    end(log, 5)
    assert log.last_stable_offset == 2
    log.close()
    again = open_log(path, clean=True)
    assert list(again.producers.open_transactions.items()) == [(3, 2)]
    end(again, 3, commit=True)
    assert again.last_stable_offset == again.log_end_offset


def test_a_snapshot_restores_open_transactions_in_order(path: Path) -> None:
    log = open_log(path)
    for producer_id in (9, 3, 5):
        send(log, producer_id)
    end(log, 9)
    send(log, 9, epoch=1)
    log.close()
    assert [state.producer_id for state in decode_snapshot((path / f"{9:020d}.snapshot").read_bytes())] == [9, 3, 5]
    again = open_log(path, clean=True)
    assert list(again.producers.open_transactions.items()) == [(3, 2), (5, 4), (9, 7)]
    assert again.last_stable_offset == 2


def test_a_truncation_changes_the_batch_with_the_log_start(path: Path) -> None:
    log = open_log(path)
    send(log, 7, 5)
    put(log, batch(3))
    log.removals.delete_before(6)
    assert log.last_stable_offset == 5
    log.removals.truncate_to(6, T0)
    for _ in range(3):
        put(log, batch(1))
    log.removals.delete_before(6)
    assert log.last_stable_offset == 6


def test_deleted_records_of_an_open_transaction_do_not_count(path: Path) -> None:
    log = open_log(path)
    send(log, 7, 5)
    put(log, batch(3))
    log.removals.delete_before(4)
    assert log.last_stable_offset == 0, "the batch with the log start, as in Kafka"
    log.removals.delete_before(6)
    assert log.last_stable_offset == 5
    log.removals.delete_before(-1)
    assert (log.log_start_offset, log.last_stable_offset) == (8, 8)
    end(log, 7)
    assert log.last_stable_offset == 9


def test_a_marker_above_the_high_watermark_leaves_the_transaction_unstable(path: Path) -> None:
    log = open_log(path)
    put(log, batch(2))
    send(log, 7)
    send(log, 8)
    log.high_watermark = 5
    end(log, 8)
    end(log, 7, commit=True)
    assert log.last_stable_offset == 2
    log.high_watermark = 7
    assert log.last_stable_offset == 2
    log.high_watermark = 8
    assert log.last_stable_offset == 8
    send(log, 7, epoch=1)
    end(log, 7, epoch=2)
    assert log.last_stable_offset == 8
    log.high_watermark = None
    assert log.last_stable_offset == 11


# the index


@pytest.mark.behaviour(54, part="b")
def test_the_index_has_only_aborted_transactions(path: Path) -> None:
    log = open_log(path)
    send(log, 7)
    end(log, 7, commit=True)
    assert not indexes(path)
    assert aborted_in(log, 0, 100) == ()
    send(log, 7, epoch=1)
    send(log, 8)
    end(log, 7, epoch=2)
    end(log, 7, epoch=2)
    end(log, 8)
    assert entries(log) == [(7, 3, 7, 5), (8, 5, 9, 10)]
    assert list(aborted_in(log, 0, 3)) == []
    assert list(aborted_in(log, 3, 4)) == [(7, 3)]
    assert list(aborted_in(log, 7, 9)) == [(7, 3), (8, 5)]
    assert list(aborted_in(log, 8, 9)) == [(8, 5)]
    assert list(aborted_in(log, 10, 99)) == []


def test_an_aborted_transaction_over_segments_is_found_from_its_first_segment(path: Path) -> None:
    log = open_log(path)
    send(log, 7)
    for _ in range(3):
        log.roll(T0)
        put(log, batch(2))
    log.roll(T0)
    end(log, 7)
    assert [segment.has_aborted for segment in log.segments] == [False] * 4 + [True]
    assert list(aborted_in(log, 0, 1)) == [(7, 0)]
    assert list(aborted_in(log, 4, 5)) == [(7, 0)]
    assert list(aborted_in(log, 9, 10)) == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_keeps_the_index(path: Path, clean: bool) -> None:
    log = many_transactions(path)
    before, written = state_of(log), indexes(path)
    if clean:
        log.close()
    again = open_log(path, clean=clean, recovery_point=log.recovery_point if clean else 0)
    assert state_of(again) == before
    assert indexes(path) == written


def many_transactions(path: Path) -> Log:
    """Three producers with overlapping transactions in five segments. Two transactions stay open."""
    log = open_log(path)
    epochs = dict.fromkeys((7, 8, 9), 0)
    for number in range(24):
        producer_id = 7 + number * 5 % 3
        send(log, producer_id, 1 + number % 3, epoch=epochs[producer_id])
        if number % 2:
            other = 7 + number * 7 % 3
            epochs[other] += 1
            end(log, other, commit=number % 3 == 0, epoch=epochs[other])
        if number % 6 == 5:
            log.roll(T0)
    send(log, 7, epoch=epochs[7])
    assert list(log.producers.open_transactions) == [8, 7]
    assert len(entries(log)) >= 6
    assert sum(segment.has_aborted for segment in log.segments) >= 3
    return log


def test_recovery_of_one_segment_begins_with_the_state_at_its_start(path: Path) -> None:
    """Recovery reads only the segments from the recovery point on. A transaction began in an earlier segment."""
    log = many_transactions(path)
    before, written = state_of(log), indexes(path)
    log.flush()
    base = log.segments[-2].base_offset
    (path / log.segments[-2].aborted_index.path.name).write_bytes(b"")
    again = open_log(path, recovery_point=base)
    assert state_of(again) == before
    assert indexes(path) == written


def test_a_damaged_index_is_rebuilt(path: Path) -> None:
    log = many_transactions(path)
    before, written = state_of(log), indexes(path)
    log.close()
    damaged = log.segments[1].path(".txnindex")
    for data in (damaged.read_bytes()[:-1], b"\0" * 34, b"\0\1" + damaged.read_bytes()[2:]):
        damaged.write_bytes(data)
        again = open_log(path, clean=True)
        assert indexes(path) == written
        assert state_of(again) == before
        again.abandon()


def test_an_index_of_records_that_a_crash_has_cut_off_is_dropped(path: Path) -> None:
    log = open_log(path)
    send(log, 7)
    size = log.size
    end(log, 7)
    assert indexes(path)
    log.abandon()
    file = path / f"{0:020d}.log"
    file.write_bytes(file.read_bytes()[:size])
    again = open_log(path)
    assert not indexes(path)
    assert dict(again.producers.open_transactions) == {7: 0}
    assert end(again, 7) == 2
    assert list(aborted_in(again, 0, 1)) == [(7, 0)]


@pytest.mark.parametrize("reopened", [True, False])
def test_a_truncation_opens_transactions_again(path: Path, reopened: bool) -> None:
    log = open_log(path)
    send(log, 7)
    end(log, 7)
    send(log, 7, epoch=1)
    send(log, 8)
    log.roll(T0)
    end(log, 7, epoch=2)
    end(log, 8)
    assert len(entries(log)) == 3
    log.removals.truncate_to(8, T0)
    assert (log.last_stable_offset, list(log.producers.open_transactions.items())) == (5, [(8, 5)])
    assert len(entries(log)) == 2
    log.removals.truncate_to(7, T0)
    assert (log.last_stable_offset, list(log.producers.open_transactions.items())) == (3, [(7, 3), (8, 5)])
    log.removals.truncate_to(2, T0)
    assert (log.last_stable_offset, list(log.producers.open_transactions.items())) == (0, [(7, 0)])
    assert entries(log) == []
    assert not any(indexes(path).values())
    if reopened:
        log = open_log(path)
    assert end(log, 7) == 2
    assert entries(log) == [(7, 0, 2, 3)]


def test_retention_removes_the_index_with_its_segment(path: Path) -> None:
    log = open_log(path, retention_bytes=1)
    send(log, 7)
    end(log, 7)
    send(log, 8)
    log.roll(T0)
    put(log, batch(1))
    assert len(indexes(path)) == 1
    log.removals.retain(T0)
    assert not indexes(path)
    assert log.log_start_offset >= 5
    assert log.last_stable_offset == log.log_start_offset
    assert dict(log.producers.open_transactions) == {8: 3}
    end(log, 8)
    assert log.last_stable_offset == log.log_end_offset
    assert open_log(path, log_start_offset=log.log_start_offset).last_stable_offset == log.log_end_offset


def test_the_index_of_a_closed_segment_is_synced_before_the_recovery_point_passes_it() -> None:
    files = MemoryFiles(T0)
    log = open_log(Path("/logs/flights-0"), files=files)
    send(log, 7)
    end(log, 7)
    log.flush()
    index = log.active.path(".txnindex")
    assert index not in files.syncs, "recovery rebuilds the index of the active segment"
    send(log, 7, epoch=1)
    log.roll(T0)
    assert log.recovery_point == 5
    assert index in files.syncs
    files.syncs.clear()
    end(log, 7, epoch=2)
    log.close()
    assert log.active.path(".txnindex") in files.syncs


def test_a_full_disk_at_the_index_loses_nothing() -> None:
    files = MemoryFiles(T0)
    path = Path("/logs/flights-0")
    log = open_log(path, files=files)
    send(log, 7)
    files.free_bytes = 78
    end(log, 7)
    assert files.free_bytes == 0, "the marker has taken the last bytes, and the index waits for room"
    files.free_bytes = None
    assert entries(log) == [(7, 0, 2, 3)]
    again = open_log(path, files=files)
    assert (again.last_stable_offset, entries(again)) == (3, [(7, 0, 2, 3)])


def test_many_transactions_end_in_the_order_in_which_they_began(path: Path) -> None:
    """While up to 2,000 transactions are open, each end moves the last stable offset to the next transaction."""
    log = open_log(path)
    for producer_id in range(2_000):
        send(log, producer_id, 1)
    for producer_id in range(2_000):
        assert log.last_stable_offset == producer_id
        end(log, producer_id, commit=True)
    assert log.last_stable_offset == log.log_end_offset == 4_000


def test_a_plain_batch_in_a_transaction_is_refused(path: Path) -> None:
    log = open_log(path)
    send(log, 7)
    assert code_of(put, log, sequenced(2, 2)) is ErrorCode.invalid_txn_state
