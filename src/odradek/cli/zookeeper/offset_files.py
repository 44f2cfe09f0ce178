"""``odradek zookeeper export`` and ``import``: files of offsets, in the form of Kafka's tools."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, print_json, progress, writing_out
from odradek.cli.undo_file import write_new
from odradek.cli.zookeeper.delete import check_topic
from odradek.cli.zookeeper.scope import (
    AllGroups,
    Execute,
    Groups,
    KafkaLine,
    Names,
    Topics,
    UndoFile,
    ZooKeeperLine,
    chosen_groups,
    named_groups,
    refuse_live_members,
    warn_of_invalid,
)
from odradek.cli.zookeeper.write_plan import WriteLine, carry_out, changes_of
from odradek.core.counts import counted
from odradek.text.encodings import text_of_file
from odradek.text.output_file import problem_of

EXPORT_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper export --all-groups --output offsets.txt -z 127.0.0.1:2181\n"
    "  odradek zookeeper export --group billing -z 127.0.0.1:2181"
)


@dataclass(frozen=True, kw_only=True)
class ExportLine(ZooKeeperLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None
    all_groups: AllGroups = False
    topic: Topics = None
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file, which must not exist. Default: standard output.")
    ] = None


@of_fields(ZooKeeperLine)
def export(line: ExportLine) -> None:
    """Write the offsets of groups to a file that `odradek zookeeper import` and Kafka's ImportZkOffsets read.

    A znode without a valid offset is not in the file. It is listed on standard error, or in the output of --json, and
    the exit code is 1.
    """
    from odradek.zookeeper.export_file import format_offsets

    if line.as_json and line.output is None:
        raise CommandError("--json reports on the file of --output: give --output, or leave out --json")
    if line.output is not None and (problem := problem_of(line.output)):
        raise CommandError(f"--output {line.output}: {problem}")
    with line.store() as store:
        names = chosen_groups(store, named_groups(line), line.all_groups)
        if line.all_groups:
            names = list(store.groups())  # the file of Kafka's tool has ZooKeeper's order
        with progress("Reading", len(names), "groups") as advance:
            exported = []
            for name in names:
                exported.append(store.read(name, line.topic))
                advance(1)
        for topic in line.topic or ():
            check_topic(store, exported, topic)
    text = format_offsets(exported)
    invalid = [one for stored in exported for one in stored.invalid]
    count = sum(len(stored.offsets) for stored in exported)
    filled = sum(bool(stored.offsets) for stored in exported)
    if line.output is None:
        with writing_out():
            sys.stdout.write(text)
            sys.stdout.flush()
    else:
        write_new(line.output, text, "--output", lambda why: f"--output {line.output}: {why}")
        if line.as_json:
            listed = [{"path": one.path, "reason": one.reason} for one in invalid]
            print_json({"file": str(line.output), "groups": len(names), "offsets": count, "invalid": listed}, indent=2)
        else:
            note(f"Wrote {counted(count, 'offset')} of {counted(filled, 'group')} to {line.output}.")
    if not line.as_json:
        warn_of_invalid(invalid)
    if invalid:
        raise typer.Exit(EXIT_FAILED)


IMPORT_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper import --file offsets.txt -z 127.0.0.1:2181\n"
    "  odradek zookeeper import --file offsets.txt --execute -z 127.0.0.1:2181 -b 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class ImportLine(KafkaLine):
    """The options of the command."""

    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="A line PATH:OFFSET for each offset.")]
    execute: Execute = False
    undo_file: UndoFile = None


@of_fields(ZooKeeperLine)
def import_file(line: ImportLine) -> None:
    """Write the offsets of a file in one transaction, if every line is valid.

    Shows the offsets before and after. With --execute, writes the previous offsets to an undo file, which this command
    can read, and then the new offsets. With -b, offsets outside their logs are refused, too. Groups with live members
    are refused: the members would write their own offsets again.
    """
    from odradek.zookeeper.export_file import parse_offsets

    text = text_of_file(line.file, "--file")
    offsets = parse_offsets(text, line.layout(), f"--file {line.file}")
    by_group: dict[str, dict[tuple[str, int], int]] = {}
    for one, offset in offsets.items():
        by_group.setdefault(one.group, {})[one.tp] = offset
    with line.store() as store:
        _refuse_outside_logs(line, by_group)
        refuse_live_members(store, sorted(by_group))
        changes = [change for group, wanted in by_group.items() for change in changes_of(store, group, wanted)]
        carry_out(store, changes, WriteLine(line.execute, line.undo_file, line.as_json, line.undo_command))


def _refuse_outside_logs(line: ImportLine, by_group: dict[str, dict[tuple[str, int], int]]) -> None:
    from odradek.core.ids import TopicPartition
    from odradek.zookeeper.bounds import cluster_logs

    with line.optional_admin() as admin:
        if admin is None:
            return
        for group, wanted in by_group.items():
            offsets = {TopicPartition(*tp): offset for tp, offset in wanted.items()}
            for problem in cluster_logs(admin, offsets).problems(offsets).values():
                raise CommandError(f"--file {line.file}: group {group}: {problem}", EXIT_FAILED)
