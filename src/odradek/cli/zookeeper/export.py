"""``odradek zookeeper export``: writes a file with groups' offsets, byte for byte like Kafka's ExportZkOffsets."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, print_json, progress, writing_out
from odradek.cli.undo_file import write_new
from odradek.cli.zookeeper.scope import AllGroups, Groups, Topics, ZooKeeperLine, chosen_groups, warn_of_invalid
from odradek.core.counts import counted
from odradek.text.output_file import problem_of

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper export --all-groups --output offsets.txt -z 127.0.0.1:2181\n"
    "  odradek zookeeper export --group billing -z 127.0.0.1:2181"
)


@dataclass(frozen=True, kw_only=True)
class ExportLine(ZooKeeperLine):
    """The options of the command."""

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
        names = chosen_groups(store, line.group, line.all_groups)
        with progress("Reading", len(names), "groups") as advance:
            exported = []
            for name in names:
                exported.append(store.read(name, line.topic))
                advance(1)
    text = format_offsets(exported)
    invalid = [one for stored in exported for one in stored.invalid]
    count = sum(len(stored.offsets) for stored in exported)
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
            note(f"Wrote {counted(count, 'offset')} of {counted(len(names), 'group')} to {line.output}.")
    if not line.as_json:
        warn_of_invalid(invalid)
    if invalid:
        raise typer.Exit(EXIT_FAILED)
