"""A log on a disk that fills up at each of its changes, one after another, and gets room again."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import cleaning
from support.full_disk import FullDisk
from support.logs import T0, aborted_in, batch, code_of, described, open_log, put, rows_from, sequenced

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EndTransactionMarker
from odradek.storage.disk.write_failures import SyncFailed, WriteFailures
from odradek.storage.log import Log

PATH = Path("/logs/flights-0")
SETTINGS: dict[str, Any] = {"segment_bytes": 700, "index_interval_bytes": 1, "retention_bytes": 1500}
Operation = Callable[[Log], object]


def _send(producer_id: int, first: int, count: int, *, in_transaction: bool = False) -> Operation:
    data = sequenced(first, count, producer_id, transactional=in_transaction)
    return lambda log: put(log, data)


def _end(producer_id: int, *, commit: bool) -> Operation:
    marker = EndTransactionMarker(producer_id, 1, 0, commit, 2)
    return lambda log: log.append_marker(marker, now_ms=T0, leader_epoch=0)


def _retain(log: Log) -> None:
    log.removals.retain(T0)


def operations() -> list[Operation]:
    """Batches of two idempotent producers, three transactions, rolls, a new leader epoch, retention, a sync."""
    made: list[Operation] = []
    for number in range(6):
        made += [_send(7, 4 * number, 4), _send(8, 2 * number, 2)]
        if number % 2 == 0:
            made += [_send(20 + number, 0, 3, in_transaction=True), _end(20 + number, commit=number == 2)]
        if number == 3:
            made += [lambda log: log.assign_epoch(1), _retain, Log.flush]
    made += [lambda log: log.roll(T0), _send(7, 24, 2), _retain, lambda log: log.removals.delete_before(20)]
    return made


def state_of(log: Log) -> tuple[list[tuple[int, bytes | None]], list[Any], list[Any], int]:
    start = log.log_start_offset
    rows = [(row.offset, row.key) for row in rows_from(log, start)]
    aborted = sorted(aborted_in(log, start, log.log_end_offset))
    return rows, described(log), aborted, log.log_end_offset


def run(log: Log, on_failure: Callable[[KafkaError, Log, Operation], None]) -> None:
    for operation in operations():
        try:
            operation(log)
        except KafkaError as error:
            on_failure(error, log, operation)


def _number_of_changes() -> int:
    files = FullDisk(T0)
    log = open_log(PATH, files=files, **SETTINGS)
    before = files.changes
    run(log, pytest.fail)
    return files.changes - before


CHANGES = _number_of_changes()


def _expected(log: Log) -> Any:
    """The state of a log that has had room all the time, and that starts where ``log`` starts."""
    whole = open_log(PATH, files=FullDisk(T0), **{**SETTINGS, "retention_bytes": -1})
    run(whole, pytest.fail)
    whole.removals.delete_before(log.log_start_offset)
    return state_of(whole)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_log_goes_on_after_each_failed_change(number: int) -> None:
    for change in range(CHANGES):
        files = FullDisk(T0, number)
        log = open_log(PATH, files=files, **SETTINGS)
        files.fill_after(change)

        def on_failure(error: KafkaError, log: Log, operation: Operation, files: FullDisk = files) -> None:
            assert error.code is ErrorCode.kafka_storage_error
            before = state_of(log)
            assert code_of(operation, log) is ErrorCode.kafka_storage_error
            assert state_of(log) == before, "a failed write leaves the log as it was, and reads go on"
            log.active.cut_torn_end()
            files.make_room()
            operation(log)

        run(log, on_failure)
        assert files.refused, change
        files.make_room()
        assert log.disk.offline is None
        assert state_of(log) == _expected(log), change
        copy = FullDisk(T0)
        copy.data = {path: bytearray(data) for path, data in files.data.items()}
        copy.modified = dict(files.modified)
        start = log.log_start_offset
        killed = open_log(PATH, files=copy, recovery_point=log.recovery_point, log_start_offset=start, **SETTINGS)
        assert state_of(killed) == state_of(log), change
        log.close()
        stopped = open_log(PATH, files=files, clean=True, log_start_offset=start, **SETTINGS)
        assert state_of(stopped) == state_of(killed), change


def test_a_log_that_is_killed_on_the_full_disk_has_all_acknowledged_records() -> None:
    for change in range(CHANGES):
        files = FullDisk(T0)
        log = open_log(PATH, files=files, **SETTINGS)
        files.fill_after(change)
        for operation in operations():
            try:
                operation(log)
            except KafkaError:
                break
        before, point, start = state_of(log), log.recovery_point, log.log_start_offset
        files.make_room()
        again = open_log(PATH, files=files, recovery_point=point, log_start_offset=start, **SETTINGS)
        assert state_of(again) == before, change


def test_without_room_for_its_torn_end_to_be_cut_the_log_cuts_it_before_the_next_write() -> None:
    files = FullDisk(T0)
    log = open_log(PATH, files=files)
    put(log, batch(5))
    size = log.size
    files.fill_after(0)
    assert code_of(put, log, batch(50)) is ErrorCode.kafka_storage_error
    files.data[log.active.path(".log")] += b"torn"
    files.make_room()
    put(log, batch(1, 5))
    assert files.size(log.active.path(".log")) == log.size > size
    assert [row.offset for row in rows_from(log, 0)] == list(range(6))


def _dirty_log(files: FullDisk) -> Log:
    """A compacted log of some segments, with records of aborted transactions."""
    log = cleaning.open_log(PATH, files, segment_bytes=300)
    for number in range(4):
        key = b"k%d" % (number % 2)
        cleaning.put(log, (key, b"v%d" % number), (b"of-all", b"%d" % number))
        producer: dict[str, Any] = {"producer_id": number, "producer_epoch": 0, "base_sequence": 0}
        cleaning.put(log, (key, b"in-transaction"), transactional=True, **producer)
        cleaning.marker(log, number, number % 2)
    log.roll(T0)
    return log


def _committed(log: Log) -> tuple[dict[bytes | None, bytes | None], int]:
    """What a reader of committed records finds: the newest value of each key, and the end offset."""
    aborted = sorted(aborted_in(log, log.log_start_offset, log.log_end_offset), key=lambda one: one.first_offset)
    newest, ongoing = {}, set()
    for header, rows in cleaning.batches(log):
        ongoing |= {one.producer_id for one in aborted if one.first_offset <= header.base_offset}
        if header.is_control:
            ongoing.discard(header.producer_id)
            aborted = [
                one for one in aborted if one.producer_id != header.producer_id or one.first_offset > header.base_offset
            ]
        elif header.producer_id not in ongoing:
            newest |= {row.key: row.value for row in rows}
    return newest, log.log_end_offset


def _copy_of(files: FullDisk) -> FullDisk:
    copy = FullDisk(T0)
    copy.data = {path: bytearray(data) for path, data in files.data.items()}
    copy.modified, copy.directories = dict(files.modified), set(files.directories)
    return copy


def test_failed_compactions_leave_all_old_or_all_new_segments() -> None:
    """Whatever change of a cleaning is refused: nothing half is left, and the next cleaning has the usual result."""
    whole = FullDisk(T0)
    log = _dirty_log(whole)
    expected = _committed(log)
    cleaning.compact(log, files=whole)
    assert _committed(log) == expected
    kept = len(cleaning.pairs(log))
    for change in range(200):
        files = FullDisk(T0)
        log = _dirty_log(files)
        files.fill_after(change)
        with suppress(OSError, KafkaError):
            cleaning.compact(log, files=files)
        if not files.refused:
            break
        assert log.disk.offline is None
        assert _committed(log) == expected, change
        killed = cleaning.open_log(PATH, _copy_of(files), segment_bytes=300)
        assert _committed(killed) == expected, change
        log.removals.discard_cleaned()
        assert [name for name in files.list(PATH) if name.endswith((".cleaned", ".swap"))] == [], change
        files.make_room()
        cleaning.put(log, (b"new", b"1"))
        log.roll(T0)
        log.removals.cleaned_offset = None
        cleaning.compact(log, files=files)
        assert _committed(log)[0] == expected[0] | {b"new": b"1"}, change
        assert len(cleaning.pairs(log)) <= kept + 1, change
    assert 20 < change < 199


def test_a_full_disk_is_one_warning_and_its_end_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "odradek.storage")
    files, failures, begun = FullDisk(T0), WriteFailures(), []
    failures.on_begin = lambda: begun.append(True)
    logs = [open_log(Path(f"/logs/flights-{number}"), files=files) for number in range(3)]
    for log in logs:
        log.disk.failures = failures
        put(log, batch(1))
    files.fill_after(0)
    for _ in range(10):
        for log in logs:
            assert code_of(put, log, batch(9)) is ErrorCode.kafka_storage_error
    assert failures.retry()
    files.make_room()
    put(logs[0], batch(1, 1))
    assert len(failures) == 3, "a smaller write does not show that the failed one would succeed"
    assert not failures.retry()
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert begun == [True]
    assert texts[0].startswith("/logs/flights-0: append failed: No space left on device (errno 28, ")
    assert texts[1] == "writes succeed again; 3 logs or files were affected"
    assert [files.size(log.active.path(".log")) for log in logs] == [log.size for log in logs], "the trials are cut"


def test_a_write_that_fails_for_ever_keeps_no_other_from_its_next_attempt() -> None:
    """For example, the file of one log has reached the limit of a file's size (EFBIG)."""
    failures, full, tried = WriteFailures(), {1, 2, 3, 4}, []

    def attempt(key: int) -> None:
        tried.append(key)
        if key in full:
            raise OSError(errno.EFBIG, "File too large")

    for key in (1, 2, 3, 4):
        failures.begin(key, PATH, "append", OSError(errno.EFBIG, "File too large"), partial(attempt, key))
    full -= {2, 4}
    assert failures.retry()
    assert failures.retry()
    assert set(tried) >= {1, 2, 3}
    assert failures.retry()
    assert len(failures) == 2
    full.clear()
    assert not failures.retry()
    assert len(failures) == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_after_other_failed_writes_the_broker_ends(number: int) -> None:
    files, failures, reasons = FullDisk(T0, number), WriteFailures(), []
    failures.on_end = reasons.append
    log = open_log(PATH, files=files)
    log.disk.failures = failures
    put(log, batch(5))
    files.fill_after(0)
    assert code_of(put, log, batch(5)) is ErrorCode.kafka_storage_error
    assert code_of(log.read, 0, 10) is ErrorCode.kafka_storage_error
    assert len(reasons) == 1
    assert "append failed" in reasons[0]


def test_after_a_failed_sync_the_broker_ends_even_if_the_disk_was_full() -> None:
    """The kernel drops pages that it could not write, and the next sync of the file reports success."""
    files, failures, reasons = FullDisk(T0), WriteFailures(), []
    failures.on_end = reasons.append
    log = open_log(PATH, files=files)
    log.disk.failures = failures
    put(log, batch(5))

    def refuse(path: Path) -> None:
        raise SyncFailed(errno.ENOSPC, "sync failed", str(path))

    files.check_sync = refuse
    assert code_of(log.flush) is ErrorCode.kafka_storage_error
    assert log.recovery_point == 0
    assert log.disk.offline is not None
    assert len(reasons) == 1


def test_a_failed_read_concerns_only_its_request(caplog: pytest.LogCaptureFixture) -> None:
    files = FullDisk(T0)
    log = open_log(PATH, files=files)
    put(log, batch(5))
    files.fail_read = lambda path: True
    for _ in range(3):
        assert code_of(log.read, 0, 10) is ErrorCode.kafka_storage_error
    assert len(caplog.records) == 1
    files.fail_read = lambda path: False
    assert len(rows_from(log, 0)) == 5
    put(log, batch(1))
