"""``odradek pipeline replay``: what would be read, as a table, and what came of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from odradek.cli.options import columns, named_values
from odradek.cli.pipeline_options import ReplayOptions, check_pyspark, names
from odradek.cli.terminal import EXIT_OK, CommandError, note, note_table, print_json, progress, waiting

if TYPE_CHECKING:
    from odradek.pipelines.ingest_job import Target
    from odradek.pipelines.replay_job import Found, Replayed, Topic


def run_replay_command(asked: ReplayOptions) -> int:
    """Returns the exit code. Raises OdradekError."""
    check_pyspark()
    from odradek.pipelines.ingest_job import Target, start_spark
    from odradek.pipelines.replay_job import Replay, Selection, find, run_replay
    from odradek.spark.options import parse_options

    options = asked.source_options()
    into = _into(asked, options)
    chosen = Selection(
        names(asked.topics),
        asked.offsets,
        asked.start,
        asked.end,
        asked.read_by,
        asked.since,
        asked.until,
        asked.allow_missing,
    )
    given = {"kafka.bootstrap.servers": asked.bootstrap, "subscribe": "any", **options}
    config = parse_options(given, streaming=False).client
    with waiting("looking at the cluster"):
        found = find(config, chosen)
    if asked.dry_run or not asked.as_json:
        _show(asked, found)
    if asked.dry_run or into is None:
        return EXIT_OK
    conf = named_values(asked.conf, "--conf")
    table = into if isinstance(into, Target) else None
    job = Replay(asked.bootstrap, found, into, options, asked.again)
    workers = ThreadPoolExecutor(1, "replay")
    try:
        with progress("replaying", 0 if asked.as_json else found.offsets, "records") as advance:
            running = workers.submit(run_replay, job, lambda: start_spark(asked.master, conf, table), advance)
            done = running.result()
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    _tell(asked, done)
    return EXIT_OK


def _into(asked: ReplayOptions, options: Mapping[str, str]) -> Target | Topic | None:
    from odradek.pipelines.replay_job import Topic

    if asked.output is not None and asked.to_topic is not None:
        raise CommandError("say where to: either --output (a table) or --to-topic")
    if asked.to_topic is not None:
        producer = named_values(asked.producer_option, "--producer-option")
        topic = Topic(asked.to_topic, asked.keep_partitions, asked.keep_timestamps, producer=producer)
        topic.options({"kafka.bootstrap.servers": asked.bootstrap, **options})
        return topic
    if asked.keep_partitions or asked.keep_timestamps:
        raise CommandError("--keep-partitions and --keep-timestamps are for --to-topic")
    if asked.producer_option:
        raise CommandError("--producer-option is for --to-topic")
    if asked.output is None:
        if not asked.dry_run:
            raise CommandError("say where to: --output (a table) or --to-topic; or --dry-run to see what would be read")
        return None
    target = asked.target(asked.output)
    target.check()
    return target


def _show(asked: ReplayOptions, found: Found) -> None:
    if asked.as_json:
        ranges = [
            {"topic": tp.topic, "partition": tp.partition, "from": low, "to": high} for tp, low, high in found.ranges
        ]
        print_json({"offsets": found.offsets, "ranges": ranges, "missing": list(found.gone), **_read_json(found)})
        return
    if found.ranges:
        rows = [(tp.topic, str(tp.partition), str(low), str(high), f"{high - low:,}") for tp, low, high in found.ranges]
        note_table(columns(("TOPIC", "PARTITION", "FROM", "TO", "RECORDS"), rows, right=frozenset({1, 2, 3, 4})))
    for line in _read_lines(found):
        note(line)
    for line in found.gone:
        note(f"Missing: {line}")
    note(f"{found.offsets:,} records at most, in {len(found.ranges)} ranges (TO is not included).")


def _read_lines(found: Found) -> list[str]:
    from odradek.pipelines.ranges import iso

    lines = []
    for tp, read in found.read.items():
        went = f"; it went back {read.rewinds} times" if read.rewinds > 1 else "; it went back once"
        first, last = f"{read.first.offset} ({iso(read.first.at_ms)})", f"{read.last.offset} ({iso(read.last.at_ms)})"
        lines.append(f"{tp}: committed {first}, then up to {last}{went if read.rewinds else ''}")
    return lines


def _read_json(found: Found) -> dict[str, Any]:
    if not found.read:
        return {}
    read = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "first": one.first._asdict(),
            "last": one.last._asdict(),
            "rewinds": one.rewinds,
        }
        for tp, one in found.read.items()
    ]
    return {"read": read}


def _tell(asked: ReplayOptions, done: Replayed) -> None:
    where = asked.output or asked.to_topic
    if asked.as_json:
        print_json({"into": where, **dataclasses.asdict(done)})
        return
    if done.already:
        note(f"Nothing was added: {where} holds this replay's {done.rows:,} records already (--again adds them again).")
        if done.by_names:
            note(
                "An earlier version of odradek added them, which noted the names of topics alone: where one was deleted"
                " and created again since then, its new records are not in the table."
            )
        return
    note(f"{done.rows:,} records into {where} ({done.seconds:.1f} s).")
    if done.bad:
        note(f"{done.bad:,} of them have a value that could not be read: see columns error and raw.")
