"""Load of a shard's log, record by record, or in runs if the tenant supports it.

A tenant whose log has millions of records with the same layout supplies ``RecordRuns``, which replay such records
together. Every other record is replayed separately, in log order.

The public methods of ``Loader`` are generators: other code runs between their steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from mmap import mmap
from typing import Generic, NamedTuple, Protocol, TypeVar

from odradek.batches.compression import Plain, decompress_in_steps, decompress_small
from odradek.batches.control import ABORT, COMMIT, read_control
from odradek.batches.header import HEADER_BYTES, MIN_RECORD_BYTES, BatchHeader, crc_is_valid, scan
from odradek.batches.rows import read_record
from odradek.batches.steps import BatchSteps, finish
from odradek.coordinator_runtime.shard import CoordinatorShard, TransactionalShard
from odradek.coordinator_runtime.shard_log import ShardLog
from odradek.core.deferred import Deferred
from odradek.core.effects import Result, ResultSteps, SimpleRecord, Warn
from odradek.core.errors import CorruptRecord, KafkaError, StorageError
from odradek.core.varints import OverlongVarint

log = logging.getLogger("odradek.broker")

LITTLE_RECORDS = 500
ROWS_AT_ONCE = 2000
"""The number of records between two yields: about one millisecond of work."""
_ROWS_LIKE_ONE = 4
"""One record outside a run takes as much time as this number of records in a run."""

S = TypeVar("S", bound=CoordinatorShard)

Load = Generator[Deferred[object] | None, object, None]
"""Yields None where other code may run, and a promise if the load cannot continue before it is resolved."""
LongWork = Callable[[BatchSteps[object]], Generator[Deferred[object] | None, object, object]]
"""Runs long work, like ``broker.workers.Workers.run``."""
Replay = Callable[[int, bytes, bytes | None], None]
"""Replays one record: offset (-1: unknown), key, value. It counts a record that cannot be replayed and never raises."""


class LoadSteps(NamedTuple):
    """The longest share of a load in seconds, and the bytes that one step reads."""

    seconds: float = 0.002
    size: int = 256 * 1024


LOAD_STEPS = LoadSteps()


class RecordRuns(Protocol):
    """Runs of records with the same layout. Their replay may be delayed until the next record outside a run.

    The result of a load in runs equals that of a replay record by record.
    """

    @property
    def is_full(self) -> bool:
        """Whether the held back records must be replayed before the next run."""

    def take(self, payload: bytes | mmap, at: int, most: int) -> tuple[int, int]:
        """Reads a run of at most ``most`` records from ``at``.

        Returns the number of records and the position after them, or (0, ``at``) if there is no run.
        """

    def drain(self) -> Generator[Warn | None, object, None]:
        """Replays the held back records in steps. Yields None where other code may run, and warnings for the log."""


NewRecordRuns = Callable[[S, Replay], RecordRuns]
"""Makes the ``RecordRuns`` of a shard for one load, from the shard and the replay of one record."""


def at_once(steps: BatchSteps[object]) -> Generator[Deferred[object] | None, object, object]:
    """Runs long work at once, without threads."""
    yield None
    return finish(steps)


class ShardLoad(Generic[S]):
    """One load of a log, in steps. It ends with one call of ``on_end`` (the log's end) or ``on_failure``.

    ``awaited`` is the promise that the load waits for.
    """

    def __init__(
        self,
        log: ShardLog,
        start_offset: int,
        steps: Generator[Deferred[object] | None, object, int],
        on_end: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.awaited: Deferred[object] | None = None
        self._log = log
        self._start_offset = start_offset
        self._steps: Generator[Deferred[object] | None, object, int] | None = steps
        self._on_end = on_end
        self._on_failure = on_failure

    def cancel(self) -> None:
        """Ends the load: the shard was unloaded or replaced."""
        self._steps = None

    @property
    def has_little_to_load(self) -> bool:
        try:
            return self._log.high_watermark - self._start_offset <= LITTLE_RECORDS
        except (KafkaError, StorageError):
            return True  # the first step reports the error

    def load_step(self) -> bool:
        """Runs one step of the load and returns whether it continues."""
        if self._steps is None:
            return False
        awaited, self.awaited = self.awaited, None
        try:
            self.awaited = self._steps.send(None if awaited is None else awaited.value)
        except StopIteration as end:
            self._steps = None
            self._on_end(end.value)
            return False
        except (KafkaError, StorageError) as error:
            self._steps = None
            self._on_failure(error)
            return False
        return True


class Loader(Generic[S]):
    """Loads one log into a shard once."""

    def __init__(
        self, shard: S, name: str, new_runs: NewRecordRuns[S] | None = None, long_work: LongWork = at_once
    ) -> None:
        self._shard = shard
        self._replay = _replay_of(shard, name)
        self._runs = None if new_runs is None else new_runs(shard, self._replay)
        self._long_work = long_work
        self._name = name
        self._transactional: TransactionalShard | None = shard if isinstance(shard, TransactionalShard) else None

    def take_log(
        self, log: ShardLog, offset: int, step_bytes: int = LOAD_STEPS.size
    ) -> Generator[Deferred[object] | None, object, int]:
        """Replays the log from ``offset`` to its end and returns the end. Raises the errors of the log."""
        while True:
            data = log.read_bytes(offset, step_bytes)
            before = offset
            for position, header in scan(data):
                if header.last_offset < offset:
                    raise CorruptRecord(
                        f"a batch has the base offset {header.base_offset}, although {offset} is the next offset. Stop "
                        "the broker, and run `odradek log check`"
                    )
                offset = header.last_offset + 1
                if not crc_is_valid(data, position, header):
                    raise CorruptRecord(
                        f"the checksum of the batch at offset {header.base_offset} is wrong. Stop the broker, and run "
                        "`odradek log check`"
                    )
                if header.is_control:
                    yield from self.take_marker(data, position, header)
                else:
                    yield from self.take(data, position, header, before)
            if offset == before:
                break
        yield from self.finish()
        return offset

    def take(self, data: bytes, pos: int, header: BatchHeader, first_offset: int) -> Load:
        """Replays the records of one batch from ``first_offset`` on. Raises CorruptRecord."""
        packed = memoryview(data)[pos + HEADER_BYTES : pos + header.size_in_bytes]
        small = decompress_small(header.compression, packed) if header.compression else bytes(packed)
        if small is not None:
            yield from self._take_records(Plain(small, len(small)), header, first_offset)
        else:
            yield from self._long_work(self._take_large(packed, header, first_offset))

    def _take_large(self, packed: memoryview, header: BatchHeader, first_offset: int) -> BatchSteps[None]:
        records = yield from decompress_in_steps(header.compression, packed)
        yield from self._take_records(records, header, first_offset)

    def _take_records(self, records: Plain, header: BatchHeader, first_offset: int) -> Generator[None, object, None]:
        payload, size = records
        left, at = header.record_count, 0
        if left * MIN_RECORD_BYTES > size:
            raise CorruptRecord(
                f"the batch at offset {header.base_offset} has {left} records, which cannot fit into {size} bytes"
            )
        runs = self._runs
        in_runs = not header.is_transactional and header.base_offset >= first_offset
        count = since = 0
        while left:
            if runs is not None:
                count, at = runs.take(payload, at, min(left, ROWS_AT_ONCE)) if in_runs else (0, at)
                if not count or runs.is_full:
                    yield from self.finish()
            if count:
                since += count
            else:
                at = self._take_one(payload, at, header, first_offset)
                since += _ROWS_LIKE_ONE
            left -= count or 1
            if since >= ROWS_AT_ONCE:
                since = 0
                yield
        if at != size:
            raise CorruptRecord(f"the batch at offset {header.base_offset} has {size - at} bytes after its last record")
        yield

    def take_marker(self, data: bytes, pos: int, header: BatchHeader) -> Load:
        """Replays a control batch. Raises CorruptRecord."""
        if self._transactional is None:
            return
        control = read_control(data, pos, header)
        if control is None or control.kind not in {ABORT, COMMIT}:
            return
        yield from self.finish()
        try:
            yield from self._transactional.end_transaction(header.producer_id, commit=control.kind == COMMIT)
        except Exception:
            log.exception("%s: the replay of the marker at offset %d failed", self._name, header.base_offset)
            self._shard.skipped["an error"] += 1

    def finish(self) -> Generator[None, object, None]:
        """Replays the records that are still held back."""
        if self._runs is not None:
            for warning in self._runs.drain():
                if warning is not None:
                    log.warning("%s: %s", self._name, warning.text)
                yield

    def _take_one(self, payload: bytes | mmap, at: int, header: BatchHeader, first_offset: int) -> int:
        try:
            at, _, delta, key, value, _ = read_record(payload, at)
        except IndexError as error:
            raise CorruptRecord(f"the records of the batch at offset {header.base_offset} are cut off") from error
        except OverlongVarint as error:
            raise CorruptRecord(f"the records of the batch at {header.base_offset} are malformed: {error}") from error
        offset = header.base_offset + delta
        if offset >= first_offset:
            if key is None:
                self._shard.skipped["no key"] += 1
            elif header.is_transactional:
                self._replay_transactional(offset, key, value, header.producer_id)
            else:
                self._replay(offset, key, value)
        return at

    def _replay_transactional(self, offset: int, key: bytes, value: bytes | None, producer_id: int) -> None:
        skipped = self._shard.skipped
        if self._transactional is None:
            skipped["a transactional record, but this coordinator has no transactions"] += 1
            return
        try:
            self._transactional.replay_transactional(offset, SimpleRecord(key, value), producer_id)
        except Exception:
            log.exception("%s: the replay of the record at offset %d failed", self._name, offset)
            skipped["an error"] += 1


def _replay_of(shard: CoordinatorShard, name: str) -> Replay:
    """Returns the replay of one record. It is not a method: ``RecordRuns`` keep it and would form a cycle with the
    loader."""

    def replay(offset: int, key: bytes, value: bytes | None) -> None:
        try:
            shard.replay(offset, SimpleRecord(key, value))
        except Exception:
            log.exception("%s: the replay of the record at offset %d failed", name, offset)
            shard.skipped["an error"] += 1

    return replay


def call_on_loaded(shard: CoordinatorShard, now_ms: int, name: str) -> ResultSteps[object]:
    """Calls ``on_loaded``. After a failure the shard stays: a new one would fail in the same way."""
    try:
        made = shard.on_loaded(now_ms)
        return made if isinstance(made, Result) else (yield from made)
    except Exception:
        log.exception("%s: the work after the load failed", name)
        return Result()
