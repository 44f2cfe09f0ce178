"""Reading a shard's log back, record by record, or faster where its tenant knows how.

A tenant whose log holds millions of records that look alike hands in what takes them in by runs (``Runs``). Every other
record, and any with something unusual in it, is replayed by itself, in its place in the log.

``Loader.take`` and ``finish`` are generators: between their steps others work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from mmap import mmap
from typing import Any, Generic, Protocol, TypeVar

from odradek.batches.compression import Plain, decompress_in_steps, decompress_small
from odradek.batches.header import HEADER_BYTES, MIN_RECORD_BYTES, BatchHeader
from odradek.batches.rows import read_record
from odradek.batches.steps import Steps, finish
from odradek.coordinator.shard import Shard
from odradek.core.deferred import Deferred
from odradek.core.effects import Record
from odradek.core.errors import CorruptRecord

log = logging.getLogger("odradek.broker")

ROWS_AT_ONCE = 2000
"""So many records are looked at between two yields: about a millisecond's work."""
_ROWS_LIKE_ONE = 4
"""A record that stands in no run takes as long as so many that do."""

S = TypeVar("S", bound=Shard)

Load = Generator[Deferred[Any] | None, Any, None]
"""``None``: others may work; a promise: there is nothing to do before it is resolved."""
LongWork = Callable[[Steps[Any]], Generator[Deferred[Any] | None, Any, Any]]
"""As ``broker.workers.Workers.run``."""
Replay = Callable[[int, bytes, bytes | None], None]
"""Replays one record: offset (-1: not known), key, value. What cannot be taken in is counted; it never raises."""


class Runs(Protocol):
    """Runs of records that look alike. What they say may be held back for a while, but not beyond other records.

    Loading in runs comes to the same as replaying record by record.
    """

    @property
    def is_full(self) -> bool:
        """Whether so much is held back that it has to be replayed before more is taken."""

    def take(self, payload: bytes | mmap, at: int, most: int) -> tuple[int, int]:
        """Takes in a run that begins at ``at``: (records taken, position behind them); (0, ``at``): there is none."""

    def drain(self) -> Generator[None, Any, None]:
        """Replays what is held back; at each yield others may work."""


NewRuns = Callable[[S, str, Replay], Runs]
"""Makes ``Runs`` of a machine, for one load. It gets the log's name, to be shown, and what replays one record."""


def at_once(steps: Steps[Any]) -> Generator[Deferred[Any] | None, Any, Any]:
    """Long work where there are no threads for it."""
    yield None
    return finish(steps)


class Loader(Generic[S]):
    """One reading of one log into a machine."""

    def __init__(
        self, machine: S, name: str, new_runs: NewRuns[S] | None = None, long_work: LongWork = at_once
    ) -> None:
        self._machine = machine
        self._replay = _replay_of(machine, name)
        self._runs = None if new_runs is None else new_runs(machine, name, self._replay)
        self._long_work = long_work

    def take(self, data: bytes, pos: int, header: BatchHeader, first_offset: int) -> Load:
        """Takes in one batch, as far as it is not below ``first_offset``. Raises CorruptRecord."""
        packed = memoryview(data)[pos + HEADER_BYTES : pos + header.size_in_bytes]
        small = decompress_small(header.compression, packed) if header.compression else bytes(packed)
        if small is not None:
            yield from self._take_records(Plain(small, len(small)), header, first_offset)
        else:
            yield from self._long_work(self._take_large(packed, header, first_offset))

    def _take_large(self, packed: memoryview, header: BatchHeader, first_offset: int) -> Steps[None]:
        records = yield from decompress_in_steps(header.compression, packed)
        yield from self._take_records(records, header, first_offset)

    def _take_records(self, records: Plain, header: BatchHeader, first_offset: int) -> Generator[None, Any, None]:
        payload, size = records
        left, at = header.record_count, 0
        if left * MIN_RECORD_BYTES > size:
            raise CorruptRecord(f"{left} records cannot fit into {size} bytes at offset {header.base_offset}")
        runs = self._runs
        in_runs = not header.is_transactional and header.base_offset >= first_offset
        count = since = 0
        while left:
            if runs is not None:
                count, at = runs.take(payload, at, min(left, ROWS_AT_ONCE)) if in_runs else (0, at)
                if not count or runs.is_full:
                    yield from runs.drain()
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
            raise CorruptRecord(f"{size - at} bytes behind the last record at {header.base_offset}")
        yield

    def finish(self) -> Generator[None, Any, None]:
        """Replays what is still held back."""
        if self._runs is not None:
            yield from self._runs.drain()

    def _take_one(self, payload: bytes | mmap, at: int, header: BatchHeader, first_offset: int) -> int:
        try:
            at, _, delta, key, value, _ = read_record(payload, at)
        except IndexError as error:
            raise CorruptRecord(f"the records at offset {header.base_offset} are cut off") from error
        offset = header.base_offset + delta
        if offset >= first_offset:
            if key is None:
                self._machine.skipped["no key"] += 1
            elif header.is_transactional:
                self._machine.skipped["transactional records are not supported yet"] += 1
            else:
                self._replay(offset, key, value)
        return at


def _replay_of(machine: Shard, name: str) -> Replay:
    """Not a method: who takes in runs keeps it, and would keep the loader in a cycle."""

    def replay(offset: int, key: bytes, value: bytes | None) -> None:
        try:
            machine.replay(offset, Record(key, value))
        except Exception:
            log.exception("%s: the record at %d cannot be taken in", name, offset)
            machine.skipped["an error"] += 1

    return replay
