"""``odradek pipeline replay``: shows the ranges, runs the replay and prints its result."""

from __future__ import annotations

import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from odradek.cli.option_fields import flag
from odradek.cli.options import check_bootstrap, columns
from odradek.cli.pipeline.options import ReplayLine, check_pyspark
from odradek.cli.pipeline.query_runs import check_master_of, unreadable_line
from odradek.cli.terminal import EXIT_OK, CommandError, note, note_table, print_json, progress, spinner, warning_lines
from odradek.core.counts import counted, was
from odradek.text.units import span_ms

if TYPE_CHECKING:
    from odradek.pipelines.replays.input import Replayed, ReplayRanges


def run_replay_command(request: ReplayLine) -> int:
    """Runs the command; returns the exit code. Raises OdradekError."""
    check_bootstrap(request.bootstrap_servers)
    _check_bounds(request)
    check_pyspark()
    from odradek.pipelines.formats.target import Target
    from odradek.pipelines.queries import start_spark
    from odradek.pipelines.replays.job import destination, find_ranges, replay_of, run_replay

    check_master_of(request)
    request = dataclasses.replace(request, options=request.source_options())
    into = destination(request, partial(flag, ReplayLine))
    with spinner("checking the cluster"):
        ranges = find_ranges(request, into)
    if request.dry_run or not request.as_json:
        _show(request, ranges)
    if request.dry_run or into is None:
        return EXIT_OK
    writer = into.writer if isinstance(into, Target) else ""
    job = replay_of(request, ranges, into)
    workers = ThreadPoolExecutor(1, "replay")
    try:
        with progress("replaying", 0 if request.as_json else ranges.offsets, "records") as advance:
            running = workers.submit(
                run_replay, job, lambda: start_spark(request.master, request.conf, writer), advance
            )
            done = running.result()
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    for line in done.missing:
        if not request.as_json and line not in ranges.gone:
            note(f"Missing: {line}")
    _print_result(request, done)
    return EXIT_OK


def _check_bounds(request: ReplayLine) -> None:
    """Raises CommandError for a span in place of a bound, and for times of commits without a group.

    A replay is known by its bounds, so that a second run adds nothing twice: a span moves with each run."""
    for option, text in (("--from", request.start), ("--to", request.end)):
        if text is not None and (span := span_ms(text.removeprefix("-"))) is not None:
            moment = datetime.fromtimestamp((time.time_ns() // 1_000_000 - span) // 1000, UTC)
            raise CommandError(
                f"{option} {text!r}: a span moves with each run, and the next run would add records twice: give the "
                f"time, for example {moment:%Y-%m-%dT%H:%M:%S}"
            )
    if request.start.isdigit() and request.end.isdigit() and int(request.start) > int(request.end):
        raise CommandError(f"--from {request.start} is after --to {request.end}: give the smaller offset with --from")
    given = [name for name, text in (("--since", request.since), ("--until", request.until)) if text is not None]
    if given and request.read_by is None:
        raise CommandError(
            f"{given[0]} is a time of a group's commits: add --read-by GROUP, or bound the records with --from and --to"
        )


def _show(request: ReplayLine, replayed: ReplayRanges) -> None:
    from odradek.pipelines.replays.input import is_time

    if request.as_json:
        ranges = [
            {"topic": tp.topic, "partition": tp.partition, "from": low, "to": high} for tp, low, high in replayed.ranges
        ]
        print_json(
            {"offsets": replayed.offsets, "ranges": ranges, "missing": list(replayed.gone), **_read_json(replayed)}
        )
        return
    if replayed.ranges:
        rows = [
            (tp.topic, str(tp.partition), str(low), str(high), f"{high - low:,}") for tp, low, high in replayed.ranges
        ]
        note_table(columns(("TOPIC", "PARTITION", "FROM", "TO", "RECORDS"), rows, right=frozenset({1, 2, 3, 4})))
    for line in _read_lines(replayed):
        note(line)
    for line in replayed.gone:
        note(f"Missing: {line}")
    if request.read_by is not None and not replayed.ranges and not replayed.gone:
        between = "Between these commits" if replayed.read else f"Up to {request.until}"
        note(
            f"{between}, group {request.read_by} has read nothing. What a group read before its oldest commit is not"
            " known: choose the records with --from and --to."
        )
    note(
        f"{counted(replayed.offsets, 'record')} at most, in {counted(len(replayed.ranges), 'range')} (TO is excluded)."
    )
    if not replayed.offsets and request.read_by is None and is_time(request.start, "start"):
        warning_lines(f"Warning: there is no record at or after --from {request.start}.")
    if is_time(request.start, "start") or is_time(request.end, "end"):
        note(
            "A time means the first offset with this time or a later one. Where a topic's times are not in order, "
            "these offsets can have records of other times, and lack some of these times."
        )


def _read_lines(replayed: ReplayRanges) -> list[str]:
    from odradek.lag.reset import datetime_text

    lines = []
    for tp, read in replayed.read.items():
        rewinds = f"; {read.rewinds} rewinds" if read.rewinds > 1 else "; 1 rewind"
        first, last = (
            f"{read.first.offset} ({datetime_text(read.first.at_ms)})",
            f"{read.last.offset} ({datetime_text(read.last.at_ms)})",
        )
        lines.append(f"{tp}: committed {first}, then up to {last}{rewinds if read.rewinds else ''}")
    return lines


def _read_json(replayed: ReplayRanges) -> dict[str, object]:
    if not replayed.read:
        return {}
    read = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "first": one.first._asdict(),
            "last": one.last._asdict(),
            "rewinds": one.rewinds,
        }
        for tp, one in replayed.read.items()
    ]
    return {"read": read}


def _print_result(request: ReplayLine, done: Replayed) -> None:
    where = request.output or request.table or request.to_topic
    if request.as_json:
        fields = dataclasses.asdict(done)
        print_json({"into": where} | {name: value for name, value in fields.items() if value is not None})
        return
    if done.already and done.transactions is not None:
        note(f"Nothing was added: {where} already has this replay's records (--again adds them again).")
        return
    if done.already:
        note(
            f"Nothing was added: {where} already has this replay's {counted(done.rows, 'record')}"
            " (--again adds them again)."
        )
        if done.by_names:
            note(
                "An earlier version of odradek added them, which identified topics only by name: if a topic was deleted"
                " and created again since then, its new records are not in the table."
            )
        return
    in_transactions = "" if done.transactions is None else f", in {counted(done.transactions, 'transaction')}"
    note(f"{counted(done.rows, 'record')} into {where}{in_transactions} ({done.seconds:.1f} s).")
    if done.earlier:
        note(f"{done.earlier:,} of the {counted(done.offsets, 'offset')} {was(done.earlier)} done by earlier runs.")
    if done.bad:
        note(unreadable_line(done.bad, done.rows, request.value_format, request.framing, request.on_bad))
