"""A log at its opening: what contradicts the other files is reported, and a guarded log stays offline until a person
decides."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.logs import T0, aborted_in, batch, put, rows_from, sequenced

from odradek.batches.header import scan
from odradek.core.errors import KafkaError
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles
from odradek.storage.epochs import FILE_NAME as EPOCHS
from odradek.storage.log import Log
from odradek.storage.recovery.evidence import LostRecords, Witnesses
from odradek.storage.recovery.log_check import DataDirectory

FILES = OsFiles()
COMPACTED = LogConfig(segment_bytes=1000, index_interval_bytes=200, cleanup_policy=frozenset({"compact"}))
PLAIN = LogConfig(segment_bytes=1000, index_interval_bytes=200)
END = 40


def reopen(path: Path, known: Witnesses, config: LogConfig = PLAIN) -> Log:
    return Log.reopen(path, config, T0, known, leader_epoch=0, files=FILES)


def written(path: Path, config: LogConfig = PLAIN) -> Log:
    log = reopen(path, Witnesses(), config)
    for number in range(END):
        put(log, batch(1, number, size=50))
    return log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{OFFSETS_TOPIC}-3"


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.log"))


def log_file(path: Path, number: int) -> Path:
    return path / f"{bases(path)[number]:020d}.log"


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def remove_last(path: Path) -> None:
    log_file(path, -1).unlink()


def empty_last(path: Path) -> None:
    log_file(path, -1).write_bytes(b"")


def cut_last(path: Path) -> None:
    file = log_file(path, -1)
    file.write_bytes(file.read_bytes()[:-1])


def remove_middle(path: Path) -> None:
    log_file(path, 1).unlink()


def remove_first(path: Path) -> None:
    log_file(path, 0).unlink()


def halve_middle(path: Path) -> None:
    file = log_file(path, 1)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_payload(path: Path) -> None:
    flip(log_file(path, -1), 80)


LOSSES = [remove_last, empty_last, cut_last, remove_middle, remove_first, halve_middle, flip_payload]
CLEAN = Witnesses(True, END, None, END)
CRASH = Witnesses(False, END)


@pytest.mark.parametrize("known", [CLEAN, CRASH], ids=["clean", "crash"])
@pytest.mark.parametrize("damage", LOSSES)
def test_a_guarded_log_that_lost_records_stays_as_it_is_until_a_person_accepts(
    path: Path, known: Witnesses, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    log = written(path, COMPACTED)
    rows = {row.offset: row.value for row in rows_from(log, 0)}
    log.close()
    damage(path)
    if damage is flip_payload and known.clean:  # nothing reads the payload at an opening without damage of an index
        for index in path.glob("*index"):
            index.unlink()
    files = {file.name: file.read_bytes() for file in path.iterdir() if not file.name.endswith("index")}
    for _ in range(2):
        with pytest.raises(LostRecords, match=r"Nothing was changed.*odradek log accept --data-dir \S+ \S+-3"):
            reopen(path, known._replace(is_guarded=True), COMPACTED)
        assert {file.name: file.read_bytes() for file in path.iterdir() if file.name in files} == files
    assert not caplog.records or not [one for one in caplog.records if one.levelname == "ERROR"]

    name = f"{OFFSETS_TOPIC} 3 {END}\n"
    (path.parent / checkpoints.RECOVERY_POINT).write_text("0\n1\n" + name)
    checkpoints.write_partition_metadata(path, UUID(int=1), FILES)
    directory = DataDirectory(path.parent)
    assert list(directory.partitions()) == [path.name]
    assert directory.check(path.name)
    end = directory.accept(path.name)
    assert directory.check(path.name) == []
    directory.close()
    points = checkpoints.read_offsets(path.parent / checkpoints.RECOVERY_POINT, FILES)
    caplog.clear()
    again = reopen(path, Witnesses(True, *points.values(), is_guarded=True), COMPACTED)
    assert again.log_end_offset == end
    kept = {row.offset: row.value for row in rows_from(again, again.log_start_offset)}
    assert kept == {offset: value for offset, value in rows.items() if offset in kept}
    lost = rows.keys() - kept.keys()
    assert lost
    assert len(lost) <= 10
    assert not caplog.records


@pytest.mark.parametrize("known", [CLEAN, CRASH], ids=["clean", "crash"])
@pytest.mark.parametrize("damage", LOSSES[:-1])
def test_another_log_goes_on_with_one_line_about_all_that_is_lost(
    path: Path, known: Witnesses, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    log = written(path)
    log.close()
    damage(path)
    again = reopen(path, known)
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f"{path.name}: ")
    assert again.was_cut
    there = {row.offset for row in rows_from(again, again.log_start_offset)}
    lost = sorted(set(range(END)) - there)
    assert lost == list(range(lost[0], lost[-1] + 1))
    is_open = known is CRASH and lost[-1] == END - 1
    one, some = f"the record at offset {lost[0]}", f"the records at offsets {lost[0]} to {lost[-1]}"
    said = {
        (True, False): f"{one} is lost",
        (True, True): f"{one} and any records after it are lost",
        (False, False): f"{some} are lost",
        (False, True): f"{some} and any records after them are lost",
    }
    assert said[len(lost) == 1, is_open] in errors[0]
    caplog.clear()
    end = again.log_end_offset
    again.close()
    for clean in (True, False):
        assert reopen(path, Witnesses(clean, end)).log_end_offset == end
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "known", [Witnesses(True, 900, None, END), Witnesses(True, END, None, 900), Witnesses(True, 3, None, END)]
)
def test_one_wrong_checkpoint_loses_nothing_and_takes_nothing_offline(path: Path, known: Witnesses) -> None:
    written(path).close()
    again = reopen(path, known._replace(is_guarded=True))
    assert again.log_end_offset == END
    assert len(rows_from(again, 0)) == END
    assert not again.was_cut


def test_a_restored_older_log_contradicts_its_checkpoints(path: Path) -> None:
    log = written(path)
    log.close()
    shutil.copytree(path, path.parent / "older")
    log = reopen(path, CLEAN)
    put(log, batch(5, 0, size=50))
    end = log.log_end_offset
    log.close()
    shutil.rmtree(path)
    shutil.copytree(path.parent / "older", path)
    with pytest.raises(LostRecords, match=f"offsets {END} to {end - 1} are lost"):
        reopen(path, Witnesses(True, end, None, end, is_guarded=True))


@pytest.mark.parametrize("byte", [0, 6, 7])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("which", [0, 2, -1])
def test_a_batch_gets_its_base_offset_back(
    path: Path, byte: int, clean: bool, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(path, LogConfig())
    rows = rows_from(log, 0)
    log.close()
    file = log_file(path, 0)
    data = file.read_bytes()
    positions = [position for position, _ in scan(data)]
    flip(file, byte + positions[which])
    if clean:  # else only the batches after the last entry of the index are read
        for index in path.glob("*index"):
            index.unlink()
    again = reopen(path, Witnesses(clean, END if clean else 0, None, END if clean else None, is_guarded=True))
    assert rows_from(again, 0) == rows
    assert file.read_bytes() == data
    assert "offset" in " ".join(record.getMessage() for record in caplog.records if record.levelname == "ERROR")


def transactions(path: Path) -> Log:
    log = reopen(path, Witnesses())
    for producer in range(30):
        put(log, sequenced(0, 2, producer, 0, transactional=True))
        log.append_marker(EndTransactionMarker(producer, 0, 0, bool(producer % 3), 1), now_ms=T0, leader_epoch=0)
    return log


def aborted(log: Log) -> list[tuple[int, int]]:
    return sorted((one.producer_id, one.first_offset) for one in aborted_in(log, 0, log.log_end_offset))


INDEX_DAMAGES = ["removed", "emptied", "flipped", "cut", "older"]


def hurt_index(file: Path, damage: str) -> None:
    data = file.read_bytes()
    file.unlink()
    match damage:
        case "emptied":
            file.write_bytes(b"")
        case "flipped":
            file.write_bytes(data)
            flip(file, 9)
        case "cut":
            file.write_bytes(data[:-1])
        case "older":
            file.write_bytes(data[:-34])


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", INDEX_DAMAGES)
@pytest.mark.parametrize("number", [0, 1, -1])
def test_an_index_of_aborted_transactions_that_disagrees_with_the_markers_is_rebuilt(
    path: Path, clean: bool, damage: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = transactions(path)
    expected, end = aborted(log), log.log_end_offset
    assert len(expected) == 10
    log.close()
    file = sorted(path.glob("*.txnindex"))[number]
    data = file.read_bytes()
    hurt_index(file, damage)
    again = reopen(path, Witnesses(clean, end, None, end if clean else None))
    assert aborted(again) == expected
    assert file.read_bytes() == data
    if clean or number != -1:  # after a crash, the index of the last segment is always made from the log
        assert [record for record in caplog.records if file.stem in record.getMessage()]
    caplog.clear()
    again.close()
    reopen(path, Witnesses(clean, end, None, end if clean else None))
    assert not caplog.records


@pytest.mark.parametrize("damage", INDEX_DAMAGES)
@pytest.mark.parametrize("is_reopened", [False, True])
def test_an_index_of_aborted_transactions_that_changes_under_a_running_broker_hides_nothing(
    tmp_path: Path, is_reopened: bool, damage: str
) -> None:
    """A reader gets an error as often as it asks, and other reads go on. The next start rebuilds the index."""
    whole = transactions(tmp_path / "t-0")
    expected, end = aborted(whole), whole.log_end_offset
    whole.close()
    names = sorted(file.name for file in (tmp_path / "t-0").glob("*.txnindex"))
    for number, name in enumerate(names, 1):
        path = tmp_path / f"t-{number}"
        if is_reopened:
            shutil.copytree(tmp_path / "t-0", path)
            log = reopen(path, Witnesses(True, end, None, end))
        else:
            log = transactions(path)
        hurt_index(path / name, damage)
        for segment in log.segments:
            segment.close_file()  # maps of removed files would still have the right entries
        for _ in range(3):
            with pytest.raises(OSError, match=name):
                aborted(log)
        assert log.read(0, 1000).size
        if number % 2:
            with suppress(KafkaError):
                log.close()
        log.abandon()
        again = reopen(path, Witnesses(False, log.recovery_point))
        assert aborted(again) == expected
        assert (path / name).read_bytes() == (tmp_path / "t-0" / name).read_bytes()
        again.abandon()


@pytest.mark.parametrize("suffix", [".txnindex", ".index", ".timeindex"])
def test_an_index_that_cannot_be_opened_refuses_the_append(
    path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the marker of an aborted transaction would be in the log without its entry in the index."""
    transactions(path).close()
    log = reopen(path, Witnesses(True, 90, None, 90), replace(PLAIN, segment_bytes=10_000))
    before, end = aborted(log), log.log_end_offset
    put(log, sequenced(0, 2, 99, 0, transactional=True))
    log.abandon()
    log = reopen(path, Witnesses(True, 90), replace(PLAIN, segment_bytes=10_000))
    opened = os.open

    def fails(name: Any, *args: Any, **options: Any) -> int:
        if str(name).endswith(suffix):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(name))
        return opened(name, *args, **options)

    marker = EndTransactionMarker(99, 0, 0, False, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        for _ in range(2):
            with pytest.raises(KafkaError, match="Too many open files"):
                log.append_marker(marker, now_ms=T0, leader_epoch=0)
            assert (log.log_end_offset, log.producers.open_transactions, log.disk.offline) == (end + 2, {99: end}, None)
    log.append_marker(marker, now_ms=T0, leader_epoch=0)
    assert aborted(log) == sorted([*before, (99, end)])
    log.abandon()
    assert aborted(reopen(path, Witnesses(False, 90))) == sorted([*before, (99, end)])


def test_a_raised_start_and_removed_segments_are_no_contradiction(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = written(path)
    log.removals.delete_before(20)
    log.removals.retain(T0)
    start = log.segments[0].base_offset
    assert start
    log.abandon()
    (path / f"{0:020d}.index").write_bytes(b"")  # a crash between the removals of two files of a segment
    assert (path / EPOCHS).exists()
    assert reopen(path, Witnesses(False, END, is_guarded=True)).log_end_offset == END
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def older_middle(path: Path) -> None:
    """Puts back an older copy of a segment, with its indexes: it lacks the last batch."""
    file = log_file(path, 1)
    data = file.read_bytes()
    file.write_bytes(data[: [position for position, _ in scan(data)][-1]])
    for suffix in (".index", ".timeindex"):
        file.with_suffix(suffix).unlink()


def remove_all_of_middle(path: Path) -> None:
    for file in path.glob(f"{bases(path)[1]:020d}.*"):
        file.unlink()


@pytest.mark.parametrize("damage", [older_middle, remove_all_of_middle])
def test_a_compacted_log_knows_its_segments_after_a_clean_stop(
    path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A cleaning leaves gaps between segments, so the gap alone says nothing."""
    log = written(path, COMPACTED)
    log.close()
    first, last = bases(path)[1:3]
    lost = (
        f"offsets {first} to {last - 1} are lost" if damage is remove_all_of_middle else f"at offset {last - 1} is lost"
    )
    assert reopen(path, CLEAN, COMPACTED).log_end_offset == END
    assert not caplog.records
    damage(path)
    for _ in range(2):
        with pytest.raises(LostRecords, match=lost):
            reopen(path, CLEAN._replace(is_guarded=True), COMPACTED)
    again = reopen(path, CLEAN, COMPACTED)
    assert again.was_cut
    assert [record.getMessage() for record in caplog.records if lost in record.getMessage()]
    again.close()
    caplog.clear()
    assert reopen(path, CLEAN, COMPACTED).log_end_offset == END
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("noted", [11, 25])
def test_a_log_start_above_the_first_leader_epoch_hides_no_record(
    path: Path, noted: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = written(path)
    log.removals.delete_before(10)
    log.close()
    again = reopen(path, CLEAN._replace(log_start_offset=noted))
    assert again.log_start_offset == 10
    assert f"log-start-offset-checkpoint has {noted}" in caplog.text


def test_deleted_records_that_are_there_again_have_their_leader_epochs(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without them, a follower with other records there would not see that its log diverges."""
    one_segment = LogConfig(segment_bytes=1 << 20)
    log = written(path, one_segment)
    log.assign_epoch(3)
    put(log, batch(1, END, size=50), leader_epoch=3)
    entries = log.epochs.entries
    assert [(entry.epoch, entry.start_offset) for entry in entries] == [(0, 0), (3, END)]
    log.removals.delete_before(END + 1)
    assert [(entry.epoch, entry.start_offset) for entry in log.epochs.entries] == [(3, END + 1)]
    log.abandon()
    again = Log.reopen(path, one_segment, T0, Witnesses(False, 0, 0), leader_epoch=3, files=FILES)
    assert again.log_start_offset == 0
    assert "may be there again" in caplog.text
    assert again.epochs.entries == entries
    assert again.epoch_end_offset(0) == (0, END)
    again.close()
    known = Witnesses(True, END + 1, 0, END + 1)
    assert Log.reopen(path, one_segment, T0, known, leader_epoch=3, files=FILES).epochs.entries == entries


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_missing_last_segment_after_a_crash_is_reported(
    path: Path, is_stopped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot of a roll says that a segment began there. The snapshot of a clean stop does not."""
    log = written(path)
    if is_stopped:
        log.close()
    else:
        log.abandon()
        remove_last(path)
    reopen(path, Witnesses(False, 3))
    lines = [record.getMessage() for record in caplog.records if "is missing" in record.getMessage()]
    assert len(lines) == (0 if is_stopped else 1)


@pytest.mark.parametrize("known", [CLEAN._replace(clean=False), Witnesses(False, 3)])
def test_a_record_behind_a_damaged_batch_keeps_its_offset(path: Path, known: Witnesses) -> None:
    log = written(path)
    log.abandon()
    file = log_file(path, -1)
    positions = [position for position, _ in scan(file.read_bytes())]
    flip(file, positions[-2] + 80)
    again = reopen(path, known)
    rows = {row.offset: row.value for row in rows_from(again, 0)}
    assert sorted(rows) == [*range(END - 2), END - 1]
    assert again.log_end_offset == END
