"""``odradek pipeline replay``: what would be read, as a table, and what came of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.cli.options import columns, read_properties
from odradek.cli.pipeline_ingest import check_pyspark, names, pairs
from odradek.cli.terminal import EXIT_OK, CommandError, note, progress, waiting

if TYPE_CHECKING:
    from odradek.pipelines.ingesting import Target
    from odradek.pipelines.replaying import Found, Replayed, Topic


@dataclasses.dataclass(frozen=True)
class Asked:
    """The command line, as it was given."""

    bootstrap: str
    selection: Mapping[str, Any]
    allow_missing: bool
    output: str | None
    to_topic: str | None
    table: Mapping[str, Any]
    keep: tuple[bool, bool]
    again: bool
    dry_run: bool
    options: Sequence[str]
    master: str
    conf: Sequence[str]
    as_json: bool
    command_config: Path | None


def run_replay_command(asked: Asked) -> int:
    """Returns the exit code. Raises OdradekError."""
    check_pyspark()
    from odradek.pipelines.ingesting import start_spark
    from odradek.pipelines.replaying import Replay, Selection, find, run_replay
    from odradek.spark.options import parse_options

    options = _options(asked)
    into = _into(asked)
    chosen = Selection(
        **dict(asked.selection) | {"topics": names(asked.selection["topics"])},
        allow_missing=asked.allow_missing,
    )
    given = {"kafka.bootstrap.servers": asked.bootstrap, "subscribe": "any", **options}
    config = parse_options(given, streaming=False).client
    with waiting("looking at the cluster"):
        found = find(config, chosen)
    if asked.dry_run or not asked.as_json:
        _show(asked, found)
    if asked.dry_run or into is None:
        return EXIT_OK
    conf = pairs(asked.conf, "--conf")
    job = Replay(asked.bootstrap, found, into, options, asked.again)
    workers = ThreadPoolExecutor(1, "replay")
    try:
        with progress("replaying", 0 if asked.as_json else found.offsets, "records") as advance:
            done = workers.submit(run_replay, job, lambda: start_spark(asked.master, conf), advance).result()
    finally:
        workers.shutdown(wait=False, cancel_futures=True)
    _tell(asked, done)
    return EXIT_OK


def _options(asked: Asked) -> dict[str, str]:
    options = {"kafka.client.id": "odradek-pipeline"}
    if asked.command_config is not None:
        options |= {f"kafka.{name}": value for name, value in read_properties(asked.command_config).items()}
    return options | pairs(asked.options, "--option")


def _into(asked: Asked) -> Target | Topic | None:
    from odradek.pipelines.ingesting import Target, make_values
    from odradek.pipelines.replaying import Topic

    if asked.output is not None and asked.to_topic is not None:
        raise CommandError("say where to: either --output (a table) or --to-topic")
    if asked.to_topic is not None:
        return Topic(asked.to_topic, *asked.keep)
    if any(asked.keep):
        raise CommandError("--keep-partitions and --keep-timestamps are for --to-topic")
    if asked.output is None:
        if not asked.dry_run:
            raise CommandError("say where to: --output (a table) or --to-topic; or --dry-run to see what would be read")
        return None
    table = asked.table
    target = Target(
        output=asked.output,
        table_format=table["table_format"],
        values=make_values(table["value_format"], table["schema"], **table["columns"]),
        partition_by=names(table["partition_by"]),
        on_bad=table["on_bad"],
        storage_options=pairs(table["storage_options"], "--storage-option"),
    )
    target.check()
    return target


def _show(asked: Asked, found: Found) -> None:
    if asked.as_json:
        ranges = [
            {"topic": tp.topic, "partition": tp.partition, "from": low, "to": high} for tp, low, high in found.ranges
        ]
        note(json.dumps({"offsets": found.offsets, "ranges": ranges, "missing": list(found.gone), **_read_json(found)}))
        return
    if found.ranges:
        rows = [(tp.topic, str(tp.partition), str(low), str(high), f"{high - low:,}") for tp, low, high in found.ranges]
        note(columns(("TOPIC", "PARTITION", "FROM", "TO", "RECORDS"), rows, right=frozenset({1, 2, 3, 4})))
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


def _tell(asked: Asked, done: Replayed) -> None:
    where = asked.output or asked.to_topic
    if asked.as_json:
        note(json.dumps({"into": where, **dataclasses.asdict(done)}))
        return
    if done.already:
        note(f"Nothing was added: {where} holds this replay's {done.rows:,} records already (--again adds them again).")
        return
    note(f"{done.rows:,} records into {where} ({done.seconds:.1f} s).")
    if done.bad:
        note(f"{done.bad:,} of them have a value that could not be read: see columns error and raw.")
