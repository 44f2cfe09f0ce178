"""``odradek zookeeper import``: writes the offsets of a file of Kafka's ExportZkOffsets, all of them or none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.terminal import EXIT_FAILED, CommandError
from odradek.cli.zookeeper.scope import Execute, KafkaLine, UndoFile, ZooKeeperLine, refuse_live_members
from odradek.cli.zookeeper.write_plan import WriteLine, carry_out, changes_of
from odradek.text.encodings import encoding_problem

EPILOG = (
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

    try:
        text = line.file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"--file {line.file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CommandError(f"--file {line.file}: {encoding_problem(error.object)}") from None
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
