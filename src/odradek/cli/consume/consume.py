"""``odradek consume``: prints records, or writes JSON lines, CSV or Parquet; alone or as a group's member.

A member commits records after they are written. After a kill, the group reads some records again and skips none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.command_config import client_settings, without_values
from odradek.cli.consume.newest_records import newest
from odradek.cli.consume.options import ConsumeLine
from odradek.cli.consume.record_filter import RecordFilter
from odradek.cli.consume.record_outputs import Destination, Sink, open_sink, write_to
from odradek.cli.consume.start import RecordPosition, check_order, position_of, ranges_of
from odradek.cli.options import check_bootstrap, check_visible, parse_partitions
from odradek.cli.records import formats
from odradek.cli.records.record_csv import NotText
from odradek.cli.records.record_lines import Batch
from odradek.cli.records.schema_values import (
    REGISTRY_OPTION,
    REGISTRY_PREFIX,
    Undecoded,
    registry_client,
    shown_url,
)  # fmt: skip
from odradek.cli.suggestions import with_suggestions
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, warning_lines
from odradek.core.counts import counted
from odradek.core.ids import RESET_POLICIES
from odradek.text.output_file import is_standard_output, is_terminal, problem_of

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.config import ClientConfig
    from odradek.client.consumer import Consumer
    from odradek.client.consumer.records import Polled
    from odradek.core.ids import OffsetAndMetadata, TopicPartition
    from odradek.registry.values import RegistryDecoder

POLL_S = 0.5
POLL_RECORDS = 10_000
FETCH_BYTES = 4 << 20
PATIENCE_S = 60.0
"""The seconds for which a member without partitions waits for some, unless --follow is given."""
_ISOLATIONS = ("read_committed", "read_uncommitted")


class _Request(NamedTuple):
    """The checked command line. ``start`` is None with a group, where --from is a reset policy. ``stop``: --to."""

    line: ConsumeLine
    topic: str
    to: Destination
    filter: RecordFilter
    start: RecordPosition | None
    stop: RecordPosition | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read: only those that are written or compared."""
        times = ("timestamp",) if self.line.tail is not None else ()
        return tuple(dict.fromkeys((*self.to.columns, *self.filter.columns, *times)))


def run_consume(line: ConsumeLine) -> int:
    """Runs the command. Returns the exit code. Raises OdradekError."""
    request = _checked(line)
    try:
        with without_values(line.command_config):
            return _consume_without_group(request) if line.group is None else _consume_as_member(request)
    except NotText as refused:
        if isinstance(refused, Undecoded) and refused.is_decodable_later:
            raise CommandError(f"{refused}. When it answers, {_way_on(line, refused)}", EXIT_FAILED) from None
        raise CommandError(f"{refused}, or {_way_past(line, refused)}", EXIT_FAILED) from None


def _way_on(line: ConsumeLine, refused: NotText) -> str:
    """Returns the remedy if the refused record can be read later: the group has not committed it."""
    if line.group is not None:
        return "run the same command"
    return f"read on with: {_reading_from(line, refused, refused.offset)}"


def _way_past(line: ConsumeLine, refused: NotText) -> str:
    """Returns the remedy for a reader that does not need the refused record."""
    from odradek.cli.undo_file import pasted

    if line.group is None:
        return f"read what follows with: {_reading_from(line, refused, refused.offset + 1)}"
    place, after = f"{refused.topic}:{refused.partition}", str(refused.offset + 1)
    reset = ("--group", line.group, "--topic", place, "--to-offset", after, "--execute")
    here = {"b": line.bootstrap, "command_config": line.command_config}
    return "move the group past it with: " + pasted("odradek", "groups", "reset", *reset, **here)


def _reading_from(line: ConsumeLine, refused: NotText, offset: int) -> str:
    from odradek.cli.undo_file import pasted

    form = ("--json",) if line.as_json else ("--format", line.form or "csv") if not line.schema_registry else ()
    registry = (REGISTRY_OPTION, shown_url(line.schema_registry)) if line.schema_registry else ()
    words = ("odradek", "consume", f"{refused.topic}:{refused.partition}", "--from", str(offset), *form, *registry)
    return pasted(*words, b=line.bootstrap, command_config=line.command_config)


def _checked(line: ConsumeLine) -> _Request:
    """Checks the command line before a connection opens. Raises CommandError."""
    topic = line.topic
    check_bootstrap(line.bootstrap)
    parse_partitions([topic], "")
    if line.isolation not in (None, *_ISOLATIONS):
        raise CommandError(f"isolation level {line.isolation!r}: expected {' or '.join(_ISOLATIONS)}")
    if line.group:
        check_visible(line.group, "--group")
    if line.group == "":
        raise CommandError("--group: a group's name cannot be empty")
    if line.from_beginning and line.start not in (None, "earliest"):
        raise CommandError(f"--from-beginning and --from {line.start}: give one of them")
    if line.tail is not None:
        for name, given in (("--from", line.start), ("--group", line.group), ("--max-records", line.most)):
            if given is not None:
                raise CommandError(f"--tail {line.tail} ends at the log end, and has no {name}: omit one of them")
    chosen = RecordFilter.of(line.key, line.grep)
    if chosen.is_active and line.group is not None:
        raise CommandError("--key and --grep leave out records, which --group would commit as read: omit --group")
    if line.schema_registry is not None and line.grep is not None:
        raise CommandError(
            f"--grep compares the encoded bytes: omit it, and send the output of {REGISTRY_OPTION} to grep"
        )
    start = None if line.group is not None else position_of(line.start or "earliest")
    return _Request(line, topic, _destination(line, topic), chosen, start, _stop(line, start))


def _stop(line: ConsumeLine, start: RecordPosition | None) -> RecordPosition | None:
    """Returns the position of --to. Raises CommandError."""
    if line.stop is None:
        return None
    for name, given in (("--follow", line.follow), ("--group", start is None)):
        if given:
            raise CommandError(f"--to {line.stop} ends the command, and has no {name}: omit one of them")
    stop = position_of(line.stop, "--to")
    if line.stop == "earliest":
        raise CommandError("--to earliest: nothing lies before it: give a later end")
    if start is not None:
        check_order(start, stop)
    return stop


def _destination(line: ConsumeLine, topic: str) -> Destination:
    """Returns the destination of the records. Raises CommandError."""
    if line.output is not None and line.output.is_dir():  # before the packages of a format
        raise CommandError(f"--output {line.output}: {problem_of(line.output)}")
    if line.as_json and line.form not in (None, "json"):
        raise CommandError(f"--json and --format {line.form}: give one of them")
    given = "json" if line.as_json else line.form
    if line.output is not None and is_standard_output(line.output) and sys.stdout.isatty():
        line = replace(line, output=None)  # messages may go there, too
    is_stream = line.output is None or formats.is_stream(line.output)
    default = "lines" if is_stream else "parquet"
    form = formats.format_of(line.output, given, "--output", default)
    if form.name == "parquet" and (line.output is None or is_terminal(line.output)):
        raise CommandError("--format parquet: give --output FILE; Parquet is not for the terminal")
    if line.as_json and line.output is not None:
        named = formats.format_of(line.output, None, "--output", "json").name if line.output.suffix else "json"
        if named != "json":
            raise CommandError(f"--output {line.output} is written as {named}: omit --json, or give another extension")
    return Destination(
        topic,
        line.output,
        form.name,
        names_form=formats.is_default(line.output, given),
        grows=line.follow and form.name != "parquet",
        decoder=_decoder(line),
    )


def _decoder(line: ConsumeLine) -> RegistryDecoder | None:
    """Returns the decoder of --schema-registry. Raises ConfigError."""
    if line.schema_registry is None:
        return None
    from odradek.registry.values import RegistryDecoder

    return RegistryDecoder(registry_client(line.schema_registry, line.command_config))


# --- without a group --------------------------------------------------------------------------------------------


def _consume_without_group(request: _Request) -> int:
    from odradek.client.group.config import ConsumerConfig
    from odradek.client.reader import PartitionReader

    line = request.line
    level = ConsumerConfig.of(_settings(request)).isolation_level
    with _admin(request) as admin, with_suggestions(admin):
        assert request.start is not None
        ranges = ranges_of(admin, request.topic, request.start, level, follow=line.follow, stop=request.stop)
        config = admin.config
    seen = chosen = 0

    def count(batches: Iterable[Batch]) -> Iterator[Batch]:
        nonlocal seen
        for batch in batches:
            seen += batch.num_rows
            yield batch

    def read(tp: TopicPartition, first: int, end: int) -> Iterator[Batch]:
        reader = PartitionReader(config, tp, request.columns, level)
        return request.filter.chosen(count(reader.read_batches(first, end)))

    if line.follow and line.tail is None:
        return _follow(request, config, {tp: first for tp, (first, _) in ranges.items()})
    total = sum(max(0, end - first) for first, end in ranges.values())
    most = line.most if line.tail is None else line.tail
    if line.tail is not None:
        batches = newest(read, ranges, line.tail)
    else:
        batches = (batch for tp, (first, end) in ranges.items() if first < end for batch in read(tp, first, end))
    if line.follow:
        return _follow(request, config, {tp: end for tp, (_, end) in ranges.items()}, batches)

    def text(written: int) -> str:
        begin = f"Reading {request.topic}: {seen:,} of at most {total:,} records so far"
        return f"{begin}, {written:,} chosen" if request.filter.is_active else begin

    with open_sink(request.to, _expected(request, total), text) as sink:
        for batch in _at_most(batches, most):
            write_to(sink, batch)
            chosen += batch.num_rows
    if not chosen and (given := _conditions(line)):
        warning_lines(f"No record of {request.topic} fits {given}: {counted(seen, 'record')} read.")
    return 0


def _conditions(line: ConsumeLine) -> str:
    """Returns the options that leave records out. Without a line about them, no output looks like a fault."""
    given = (
        ("--key", line.key),
        ("--grep", line.grep),
        ("--from", line.start if line.stop else None),
        ("--to", line.stop),
    )
    return " and ".join(f"{name} {text!r}" for name, text in given if text is not None)


def _expected(request: _Request, total: int) -> int:
    """Returns the number of records that a progress bar expects; 0 if a filter makes it unknown."""
    if request.filter.is_active:
        return 0
    most = request.line.most if request.line.tail is None else request.line.tail
    return total if most is None else min(total, most)


def _follow(
    request: _Request, config: ClientConfig, starts: Mapping[TopicPartition, int], before: Iterable[Batch] = ()
) -> int:
    """Writes the batches in ``before``, and then the records from ``starts`` on, until it is interrupted."""
    from odradek.client.consumer import Consumer

    settings = _settings(request) | {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
    left = request.line.most

    def text(written: int) -> str:
        return f"Waiting for records of {request.topic}: {written:,} written so far; Ctrl-C ends the command."

    with open_sink(request.to, left or 0, text) as sink, Consumer(settings) as consumer:
        consumer.assign(starts)
        for tp, offset in starts.items():
            consumer.seek(tp, offset)
        try:
            for batch in before:
                write_to(sink, batch)
            while left is None or left > 0:
                for batch in _at_most(request.filter.chosen(_batches(consumer.poll(POLL_S))), left):
                    write_to(sink, batch)
                    left = None if left is None else left - batch.num_rows
                sink.written()
        except KeyboardInterrupt:
            return 0  # the normal end with --follow
    return 0


# --- as a member ------------------------------------------------------------------------------------------------


def _settings(request: _Request) -> dict[str, object]:
    """Returns the consumer's settings. The properties file overrides the command's defaults; options override both."""
    from odradek.client.group.config import ConsumerConfig

    # As with every option, the command line says what it does: a group only joins, and commits, with --group.
    known = {one.name for one in fields(ConsumerConfig)} - {"group_id", "bootstrap_servers"}
    known -= {"group_instance_id"} if request.line.group is None else set()
    given = client_settings(
        request.line.command_config, known, named_elsewhere={"group.id": "--group"},
        elsewhere=REGISTRY_PREFIX if request.line.schema_registry else None,
    )  # fmt: skip
    own = {
        "client_id": "odradek-cli", "max_poll_records": POLL_RECORDS, "max_partition_fetch_bytes": FETCH_BYTES,
        "bootstrap_timeout_ms": 0, "columns": request.columns,
    }  # fmt: skip
    chosen = {} if request.line.isolation is None else {"isolation_level": request.line.isolation}
    return (
        own
        | {name.replace(".", "_"): value for name, value in given.items()}
        | chosen
        | {"bootstrap_servers": request.line.bootstrap}
    )


def _admin(request: _Request) -> Admin:
    """Returns an Admin for the first look-ups, with shorter default timeouts. Raises ConfigError."""
    from odradek.client.admin import Admin
    from odradek.client.group.config import ConsumerConfig

    quick = {"default_api_timeout_ms": 5_000, "socket_connection_setup_timeout_ms": 4_000}
    settings = quick | _settings(request)
    settings.pop("group_instance_id", None)  # a look-up is no member
    return Admin(ConsumerConfig.of(settings).client())


def _consume_as_member(request: _Request) -> int:
    from odradek.client.consumer import Consumer

    line, start = request.line, request.line.start or "earliest"
    topics, single = parse_partitions([request.topic], "")
    if single:
        raise CommandError(f"{request.topic}: a group assigns whole topics: omit the partitions, or omit --group")
    if start not in RESET_POLICIES and not start.startswith("by_duration:"):
        raise CommandError(
            f"--from {start}: with --group, it says where to begin in partitions without a commit ("
            f"{', '.join(RESET_POLICIES)}, by_duration:P1D); use `odradek groups reset` to move a group"
        )
    with _admin(request) as admin, with_suggestions(admin):
        admin.partitions(topics[0])  # fails at once if the cluster or the topic is missing; a member would wait
    settings = _settings(request) | {"group_id": line.group, "enable_auto_commit": False}
    with Consumer(settings | {"auto_offset_reset": start}) as consumer, ExitStack() as stack:
        has_partitions = False

        def text(written: int) -> str:
            if not has_partitions:
                return f"{request.topic}: group {line.group} has not assigned a partition to this member yet."
            return f"Reading {request.topic} as a member of group {line.group}: {written:,} records written so far."

        sink = stack.enter_context(open_sink(request.to, line.most or 0, text))
        written: dict[TopicPartition, OffsetAndMetadata] = {}

        def give_up(partitions: Iterable[TopicPartition]) -> None:
            theirs = {tp: written.pop(tp) for tp in partitions if tp in written}
            if theirs and sink.written():
                consumer.commit(theirs)

        def note_partitions(partitions: Iterable[TopicPartition]) -> None:
            nonlocal has_partitions
            has_partitions = has_partitions or any(True for _ in partitions)

        consumer.subscribe(
            topics,
            on_assigned=note_partitions,
            on_revoked=give_up,
            on_lost=lambda lost: [written.pop(tp, None) for tp in lost],
        )
        try:
            code = _member_loop(request, consumer, sink, written)
        except KeyboardInterrupt:
            code = 0 if line.follow else 130
        stack.close()  # a file is complete now, so its records can be committed
        if written:
            consumer.commit(written)
    return code


def _member_loop(
    request: _Request, consumer: Consumer, sink: Sink, written: dict[TopicPartition, OffsetAndMetadata]
) -> int:
    """Polls and writes records. Keeps ``written`` at the offsets below which all records are written."""
    left = request.line.most
    ends: dict[TopicPartition, int] = {}
    until_s = time.monotonic() + PATIENCE_S
    while left is None or left > 0:
        polled = consumer.poll(POLL_S)
        if left is not None and polled.num_rows > left:
            _seek_to_unused(consumer, polled, left)
        done = 0
        try:
            for batch in _at_most(_batches(polled), left):
                write_to(sink, batch)
                done += batch.num_rows
        except NotText as refused:
            _seek_to_unused(consumer, polled, done + refused.row)
            written |= {tp: _offset_to_commit(polled.next_offsets[tp], consumer.position(tp)) for tp in polled}
            if sink.written():
                consumer.commit(written)
            raise
        left = None if left is None else left - done
        now = {tp: _offset_to_commit(polled.next_offsets[tp], consumer.position(tp)) for tp in polled}
        written |= now
        if now and sink.written():
            consumer.commit_async(now)
        if request.line.follow:
            continue
        own = consumer.assignment()
        if not own and time.monotonic() > until_s:
            note(f"This member gets no partition of {request.topic}: group {request.line.group} has enough members.")
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


# --- batches -----------------------------------------------------------------------------------------------


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
