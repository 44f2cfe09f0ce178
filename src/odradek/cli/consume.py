"""``odradek consume``: prints records, as JSON lines if requested, or writes Parquet; alone or as a group's member.

A member commits records after they are written. After a kill, the group reads some records again and skips none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from odradek.batches.columns import COLUMNS
from odradek.cli.command_config import read_properties, without_values
from odradek.cli.options import parse_partitions
from odradek.cli.record_lines import (
    JSON_COLUMNS,
    VALUE_COLUMNS,
    Batch,
    json_lines,
    printable_json_lines,
    printable_value_lines,
    value_lines,
    with_null_times,
)
from odradek.cli.terminal import EXIT_FAILED, CommandError, counted, note, progress, warning_lines, writing_out

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.admin import Admin
    from odradek.client.config import ClientConfig
    from odradek.client.consumer import Consumer
    from odradek.client.consumer.records import Polled
    from odradek.core.ids import OffsetAndMetadata, TopicPartition

POLL_S = 0.5
POLL_RECORDS = 10_000
FETCH_BYTES = 4 << 20
PATIENCE_S = 60.0
"""The seconds for which a member without partitions waits for some, unless --follow is given."""
_RESETS = ("earliest", "latest", "none")
_ISOLATIONS = ("read_committed", "read_uncommitted")


@dataclass(frozen=True)
class ConsumeRequest:
    """The command line. ``start``: earliest, latest, an offset, or a time in ISO 8601; with a group, a reset policy.

    ``isolation``: None means the setting of the properties file, or Kafka's default."""

    topic: str
    start: str
    group: str | None
    follow: bool
    most: int | None
    output: Path | None
    as_json: bool
    bootstrap: str
    command_config: Path | None
    isolation: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: only those that are written."""
        if self.output is not None:
            return COLUMNS
        return JSON_COLUMNS if self.as_json else VALUE_COLUMNS


class Sink(Protocol):
    """A destination of records. If ``written`` returns True, the records survive a kill."""

    def write(self, batch: Batch) -> None: ...
    def written(self) -> bool:
        """Returns whether all records passed to ``write`` are written. An open Parquet file returns False."""


def run_consume(request: ConsumeRequest) -> int:
    if request.output is not None and request.as_json:
        raise CommandError("--output writes Parquet: omit --json")
    if request.isolation not in (None, *_ISOLATIONS):
        raise CommandError(f"--isolation {request.isolation}: expected {' or '.join(_ISOLATIONS)}")
    with without_values(request.command_config):
        return _consume_without_group(request) if request.group is None else _consume_as_member(request)


# --- without a group --------------------------------------------------------------------------------------------


def _consume_without_group(request: ConsumeRequest) -> int:
    from odradek.client.consumer.config import ConsumerConfig
    from odradek.client.reader import read_range

    level = ConsumerConfig.of(_settings(request)).isolation_level
    with _admin(request) as admin:
        ranges = _ranges(admin, request, level)
        config = admin.config
    if request.follow:
        return _follow(request, config, {tp: first for tp, (first, _) in ranges.items()})
    total = sum(max(0, end - first) for first, end in ranges.values())
    with _sink(request, total if request.most is None else min(total, request.most)) as sink:
        batches = (
            batch
            for tp, (first, end) in ranges.items()
            if first < end
            for batch in read_range(config, tp, first, end, columns=request.columns, isolation_level=level)
        )
        for batch in _at_most(batches, request.most):
            sink.write(batch)
    return 0


def _ranges(admin: Admin, request: ConsumeRequest, level: str) -> dict[TopicPartition, tuple[int, int]]:
    """Returns for each partition the first offset to read, and the present end for a reader of this isolation level."""
    from odradek.core.errors import ConfigError
    from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, TopicPartition
    from odradek.lag.reset import datetime_ms

    topics, single = parse_partitions([request.topic], "")
    start = request.start
    exact = int(start) if start.isascii() and start.isdigit() else None
    named = {"earliest": EARLIEST, "latest": LATEST}
    try:
        moment = EARLIEST if exact is not None else named[start] if start in named else datetime_ms(start)
    except ConfigError:
        raise CommandError(
            f"--from {start!r}: expected earliest, latest, an offset, or a time such as 2026-01-31T12:00:00 (UTC "
            "unless it has a time zone)"
        ) from None
    chosen = admin.partitions(topics[0]) if topics else [TopicPartition(*one) for one in single]
    starts = admin.list_offsets(dict.fromkeys(chosen, moment), isolation_level=level)
    ends, log_ends = (
        {
            tp: found.offset
            for tp, found in admin.list_offsets(dict.fromkeys(chosen, LATEST), isolation_level=seen).items()
        }
        for seen in (level, "read_uncommitted")
    )
    if exact is not None:
        _warn_of_ends(request, {tp: log_ends[tp] for tp in chosen if exact > log_ends[tp]})
    return {
        tp: (
            ends[tp] if starts[tp].offset == NO_OFFSET else min(max(exact or 0, starts[tp].offset), log_ends[tp]),
            ends[tp],
        )
        for tp in chosen
    }


def _warn_of_ends(request: ConsumeRequest, ends: Mapping[TopicPartition, int]) -> None:
    for tp, end in ends.items():
        what = f"{end} is used" if request.follow else "nothing is read"
        message = f"offset {request.start} of {tp} is outside the log, which ends at {end}: {what}."
        warning_lines(f"Warning: {message}")


def _follow(request: ConsumeRequest, config: ClientConfig, starts: Mapping[TopicPartition, int]) -> int:
    from odradek.client.consumer import Consumer

    settings = _settings(request) | {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    with _sink(request, request.most or 0) as sink, Consumer(settings) as consumer:
        consumer.assign(starts)
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        left = request.most
        try:
            while left is None or left > 0:
                for batch in _at_most(_batches(consumer.poll(POLL_S)), left):
                    sink.write(batch)
                    left = None if left is None else left - batch.num_rows
                sink.written()
        except KeyboardInterrupt:
            return 0  # the normal end with --follow
    return 0


# --- as a member ------------------------------------------------------------------------------------------------


def _settings(request: ConsumeRequest) -> dict[str, Any]:
    """Returns the consumer's settings. The properties file overrides the command's defaults; options override both."""
    given = read_properties(request.command_config) if request.command_config is not None else {}
    own = {
        "client_id": "odradek-cli", "max_poll_records": POLL_RECORDS, "max_partition_fetch_bytes": FETCH_BYTES,
        "bootstrap_timeout_ms": 0, "columns": request.columns,
    }  # fmt: skip
    chosen = {} if request.isolation is None else {"isolation_level": request.isolation}
    return (
        own
        | {name.replace(".", "_"): value for name, value in given.items()}
        | chosen
        | {"bootstrap_servers": request.bootstrap}
    )


def _admin(request: ConsumeRequest) -> Admin:
    """Returns an Admin for the first look-ups, with shorter default timeouts. Raises ConfigError."""
    from odradek.client.admin import Admin
    from odradek.client.consumer.config import ConsumerConfig

    quick = {"default_api_timeout_ms": 5_000, "socket_connection_setup_timeout_ms": 4_000}
    return Admin(ConsumerConfig.of(quick | _settings(request)).client())


def _consume_as_member(request: ConsumeRequest) -> int:
    from odradek.client.consumer import Consumer

    topics, single = parse_partitions([request.topic], "")
    if single:
        raise CommandError(f"{request.topic}: a group assigns whole topics: omit the partitions, or omit --group")
    if request.start not in _RESETS and not request.start.startswith("by_duration:"):
        raise CommandError(
            f"--from {request.start}: with --group, it says where to begin in partitions without a commit ("
            f"{', '.join(_RESETS)}, by_duration:P1D); use `odradek groups reset` to move a group"
        )
    with _admin(request) as admin:
        admin.partitions(topics[0])  # fails at once if the cluster or the topic is missing; a member would wait
    settings = _settings(request) | {"group_id": request.group, "enable_auto_commit": False}
    with Consumer(settings | {"auto_offset_reset": request.start}) as consumer, ExitStack() as stack:
        sink = stack.enter_context(_sink(request, request.most or 0))
        written: dict[TopicPartition, OffsetAndMetadata] = {}

        def give_up(partitions: Iterable[TopicPartition]) -> None:
            theirs = {tp: written.pop(tp) for tp in partitions if tp in written}
            if theirs and sink.written():
                consumer.commit(theirs)

        consumer.subscribe(topics, on_revoked=give_up, on_lost=lambda lost: [written.pop(tp, None) for tp in lost])
        try:
            code = _member_loop(request, consumer, sink, written)
        except KeyboardInterrupt:
            code = 0 if request.follow else 130
        stack.close()  # a file is complete now, so its records can be committed
        if written:
            consumer.commit(written)
    return code


def _member_loop(
    request: ConsumeRequest, consumer: Consumer, sink: Sink, written: dict[TopicPartition, OffsetAndMetadata]
) -> int:
    """Polls and writes records. Keeps ``written`` at the offsets below which all records are written."""
    left = request.most
    ends: dict[TopicPartition, int] = {}
    until_s = time.monotonic() + PATIENCE_S
    while left is None or left > 0:
        polled = consumer.poll(POLL_S)
        if left is not None and polled.num_rows > left:
            _seek_to_unused(consumer, polled, left)
        for batch in _at_most(_batches(polled), left):
            sink.write(batch)
            left = None if left is None else left - batch.num_rows
        now = {tp: _offset_to_commit(polled.next_offsets[tp], consumer.position(tp)) for tp in polled}
        written |= now
        if now and sink.written():
            consumer.commit_async(now)
        if request.follow:
            continue
        own = consumer.assignment()
        if not own and time.monotonic() > until_s:
            note(f"This member gets no partition of {request.topic}: group {request.group} has enough members.")
            return EXIT_FAILED
        if fresh := own - ends.keys():
            ends |= consumer.end_offsets(fresh)
        if own and all(consumer.position(tp) >= ends[tp] for tp in own):
            return 0
    return 0


def _offset_to_commit(after: OffsetAndMetadata, position: int) -> OffsetAndMetadata:
    """Returns the offset to commit: after all records of a poll, or where unused records begin."""
    from odradek.core.ids import OffsetAndMetadata as Committed

    return after if position >= after.offset else Committed(position)


def _seek_to_unused(consumer: Consumer, polled: Polled, count: int) -> None:
    """Gives back all but the first ``count`` records of a poll: moves the positions to the first unused records."""
    from odradek.client.consumer.records import offset_at

    for tp, batches in polled.items():
        for batch in batches:
            if count < batch.num_rows:
                consumer.seek(tp, offset_at(batch, max(count, 0)))
                count = -1
                break
            count -= batch.num_rows


# --- destinations -----------------------------------------------------------------------------------------------


def _batches(polled: Polled) -> Iterator[Batch]:
    """Returns the batches of all partitions, with or without pyarrow."""
    return (batch for batches in polled.values() for batch in batches)


def _at_most(batches: Iterable[Batch], most: int | None) -> Iterator[Batch]:
    for batch in batches:
        if most is None:
            yield batch
            continue
        if most <= 0:
            return
        yield batch.slice(0, most)
        most -= min(most, batch.num_rows)


@contextmanager
def _sink(request: ConsumeRequest, total: int) -> Iterator[Sink]:
    if request.output is None:
        if sys.stdout.isatty():
            yield _TerminalLines(printable_json_lines if request.as_json else printable_value_lines)
        else:
            yield _Lines(json_lines if request.as_json else value_lines)
        return
    pq, schema = _parquet()
    try:
        with (
            pq.ParquetWriter(request.output, schema(COLUMNS)) as writer,
            progress("Reading", total, "records") as advance,
        ):
            file = _Parquet(writer, advance)
            yield file
    except OSError as error:
        raise CommandError(f"--output {request.output}: {error.strerror or error}") from error
    note(f"{counted(file.count, 'record')} of {request.topic} written to {request.output}.")


def _parquet() -> tuple[Any, Any]:
    """Returns pyarrow's module for Parquet and the function that makes schemas. Raises ColumnsMissing."""
    from odradek.batches.row_sets import needs_columns

    with needs_columns("--output"):
        import pyarrow.parquet as pq

        from odradek.batches.arrow_columns import schema

        return pq, schema


class _Lines:
    """Writes a line for each record to a file or a program, with unchanged bytes.

    Flushes each batch, so that a reader sees the lines at once, and the command notices a closed pipe."""

    def __init__(self, lines: Callable[[Batch], bytes]) -> None:
        self._lines = lines

    def write(self, batch: Batch) -> None:
        lines = self._lines(batch)
        with writing_out():
            left = memoryview(lines)
            while left:  # unbuffered: if the reader ends, a write is partial, and the next one fails
                left = left[sys.stdout.buffer.write(left) :]
            sys.stdout.flush()

    def written(self) -> bool:
        return True


class _TerminalLines:
    """Writes lines to a terminal, with escapes: control characters in records must not act on the terminal."""

    def __init__(self, lines: Callable[[Batch], str]) -> None:
        self._lines = lines

    def write(self, batch: Batch) -> None:
        lines = self._lines(batch)
        with writing_out():
            sys.stdout.write(lines)
            sys.stdout.flush()

    def written(self) -> bool:
        return True


class _Parquet:
    def __init__(self, writer: Any, advance: Callable[[int], None]) -> None:
        self._writer, self._advance = writer, advance
        self.count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(with_null_times(batch))
        self.count += batch.num_rows
        self._advance(batch.num_rows)

    def written(self) -> bool:
        return False  # a Parquet file is not readable before its footer
