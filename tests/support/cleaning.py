"""Shared code of the cleaner's tests: keyed batches, transactions, cleanings of a log with either engine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from odradek.batches.encode import encode_batch
from odradek.batches.header import BatchHeader, scan
from odradek.batches.rows import Row, batch_rows
from odradek.core.effects import SimpleRecord
from odradek.storage.cleaning.cleaner import CleanedSegment, CleaningResult, Engine, clean
from odradek.storage.cleaning.jobs import Job, LogToClean, measure
from odradek.storage.cleaning.jobs import job_of as job_for
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.log import Log

T0 = 1_700_000_000_000
MAX_KEYS = 1_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def open_log(
    path: Path, files: Files | None = None, now_ms: int = T0, *, clean: bool = False, **options: object
) -> Log:
    settings = {"cleanup_policy": frozenset({"compact"}), "segment_bytes": 1 << 20, "index_interval_bytes": 100}
    config = LogConfig(**(settings | options))
    return Log.open(path, config, now_ms, clean=clean, files=files or OsFiles())


def keyed(*pairs: tuple[bytes | None, bytes | None], at_ms: int = T0, **options: object) -> bytes:
    """One batch of records that are one millisecond apart."""
    records = [SimpleRecord(key, value, at_ms + number) for number, (key, value) in enumerate(pairs)]
    return encode_batch(records, now_ms=at_ms, **options)


def put(log: Log, *pairs: tuple[bytes | None, bytes | None], now_ms: int = T0, **options: object) -> int:
    """Appends a batch like a coordinator, without the checks of a client's batch. Returns its base offset."""
    data = keyed(*pairs, at_ms=now_ms, **options)
    return log.append(data, now_ms=now_ms, leader_epoch=0, origin="coordinator").base_offset


def marker(log: Log, producer_id: int, kind: int, epoch: int = 0, now_ms: int = T0) -> int:
    """Appends an ABORT (0) or COMMIT (1) marker."""
    key = b"\x00\x00" + kind.to_bytes(2, "big")
    value = b"\x00\x00" + (7).to_bytes(4, "big")
    return put(log, (key, value), now_ms=now_ms, producer_id=producer_id, producer_epoch=epoch, transactional=True,
               control=True)  # fmt: skip


def job_of(log: Log, now_ms: int = T0, max_keys: int = MAX_KEYS) -> tuple[LogToClean, Job]:
    dirt = measure(log, now_ms)
    return dirt, job_for(log, dirt, now_ms, max_keys=max_keys, bytes_per_second=float("inf"))


def compact(
    log: Log, now_ms: int = T0, *, engine: Engine | None = None, files: Files | None = None, max_keys: int = MAX_KEYS
) -> CleaningResult:
    """Cleans the section of the log that may be cleaned, like the broker for small logs."""
    files = files or OsFiles()
    _, job = job_of(log, now_ms, max_keys)
    by_base = {segment.base_offset: segment for segment in log.segments}
    steps = clean(job, engine or RowEngine(), files)
    while True:
        try:
            step = next(steps)
        except StopIteration as done:
            log.removals.cleaned_offset = done.value.end_offset
            return done.value
        if isinstance(step, CleanedSegment):
            step.finish()
            assert log.removals.replace_segments(step.base_offset, [by_base[base] for base in step.replaces])


def batches(log: Log) -> Iterator[tuple[BatchHeader, list[Row]]]:
    """Every batch on disk with its records."""
    for segment in log.segments:
        data = segment.file.pread(0, segment.size)
        assert len(data) == segment.size
        for pos, header in scan(data):
            yield header, list(batch_rows(data, pos, header))


def rows(log: Log) -> list[Row]:
    return [row for _, found in batches(log) for row in found]


def pairs(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of each data record."""
    return [(row.offset, row.key, row.value) for row in rows(log) if not row.is_control]


def contents(directory: Path, files: Files | None = None) -> dict[str, bytes]:
    """Every segment file and index by name."""
    files = files or OsFiles()
    wanted: Sequence[str] = (".log", ".index", ".timeindex", ".txnindex")
    return {name: files.read(directory / name) for name in files.list(directory) if name.endswith(tuple(wanted))}


def busy_log(path: Path, seed: int) -> Log:
    """A log of many segments with all codecs, tombstones, null keys, producers and transactions."""
    chance = random.Random(seed)
    log = open_log(path, segment_bytes=4_000)
    sequences = dict.fromkeys(range(4), 0)
    open_transactions: set[int] = set()
    now_ms = T0
    for _ in range(120):
        now_ms += chance.choice([0, 1, 40, -3, 100_000])
        records = [
            (
                None if chance.random() < 0.05 else b"key-%d" % chance.randrange(60),
                None if chance.random() < 0.2 else chance.randbytes(chance.randrange(60)),
            )
            for _ in range(chance.choice([1, 1, 3, 12]))
        ]
        options: dict[str, object] = {"compression": chance.choice(CODECS)}
        producer = chance.randrange(8)
        if producer < 4:
            options |= {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += len(records)
            if producer < 2:
                options["transactional"] = True
                open_transactions.add(producer)
        put(log, *records, now_ms=now_ms, **options)
        for producer in sorted(open_transactions):
            if chance.random() < 0.3:
                marker(log, producer, chance.randrange(2), now_ms=now_ms)
                open_transactions.discard(producer)
    for producer in sorted(open_transactions):
        marker(log, producer, 1, now_ms=now_ms)
    log.roll(now_ms)
    return log
