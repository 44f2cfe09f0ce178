"""The common part of ``reset`` and ``import``: shows old and new offsets, writes the undo file, then the offsets."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, note_table, print_json
from odradek.cli.undo_file import write_undo
from odradek.core.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from odradek.zookeeper.store import OffsetChange, OffsetStore, StoredOffsets

SHOWN = 4


class WriteLine(NamedTuple):
    """The options of a command that writes offsets."""

    execute: bool
    undo_file: Path | None
    as_json: bool
    undo_command: Callable[[Path], str]


def changes_of(store: OffsetStore, group: str, offsets: dict[tuple[str, int], int]) -> list[OffsetChange]:
    """Returns the changes after which a group has these offsets. Raises CommandError for an invalid znode."""
    from odradek.core.ids import TopicPartition
    from odradek.zookeeper.layout import GroupPartition
    from odradek.zookeeper.store import OffsetChange

    partitions = [TopicPartition(*tp) for tp in offsets]
    stored = store.read_partitions(group, partitions)
    if stored.invalid:
        one = stored.invalid[0]
        topic = next((tp.topic for tp in partitions if f"/{tp.topic}/" in one.path), partitions[0].topic)
        delete = shlex.join(["odradek", "zookeeper", "delete", "--group", group, "--topic", topic, "--execute"])
        raise CommandError(
            f"{one.path} has no valid offset: {one.reason}: look at it; {delete} deletes it",
            EXIT_FAILED,
        )
    return [OffsetChange(GroupPartition(group, tp), offsets[tp], stored.offsets.get(tp)) for tp in partitions]


def carry_out(store: OffsetStore, changes: Sequence[OffsetChange], asked: WriteLine) -> None:
    """Shows the changes; with --execute, writes the undo file, then all changes in one transaction."""
    if not asked.as_json:
        _show(changes)
    written = [change for change in changes if change.before is None or change.before.offset != change.offset]
    undo: Path | None = None
    if asked.execute and written:
        undo = write_undo(undo_text(written), asked.undo_file, "txt")
        store.write(written)
    if asked.as_json:
        print_json(_as_json(changes, asked.execute, undo), indent=2)
        return
    if not written:
        note("Nothing to write: ZooKeeper has these offsets.")
    elif undo is None:
        note("Nothing was written: add --execute.")
    else:
        note(f"Wrote {counted(len(written), 'offset')}.")
        note_undo(asked.undo_command(undo), written)


def undo_text(changes: Iterable[OffsetChange]) -> str:
    """Returns the text of a file that restores the offsets before these changes."""
    from odradek.zookeeper.export_file import format_offsets

    return format_offsets(_before(changes))


def note_undo(command: str, written: Sequence[OffsetChange]) -> None:
    """Prints the command that undoes the write, and the new offsets, which that command does not remove."""
    if any(change.before is not None for change in written):
        note(f"Undo: {command}")
    new = [
        f"{change.group_partition.tp} of {change.group_partition.group}" for change in written if change.before is None
    ]
    if new:
        more = f" and {len(new) - SHOWN} more" if len(new) > SHOWN else ""
        note(f"New offsets, which no import removes: {', '.join(new[:SHOWN])}{more}")


def _before(changes: Iterable[OffsetChange]) -> list[StoredOffsets]:
    from odradek.zookeeper.store import StoredOffsets

    by_group: dict[str, StoredOffsets] = {}
    for change in changes:
        stored = by_group.setdefault(change.group_partition.group, StoredOffsets(change.group_partition.group, {}))
        if change.before is not None:
            stored.offsets[change.group_partition.tp] = change.before
    return list(by_group.values())


def _show(changes: Sequence[OffsetChange]) -> None:
    cells = [
        (
            change.group_partition.group,
            change.group_partition.tp.topic,
            str(change.group_partition.tp.partition),
            "-" if change.before is None else str(change.before.offset),
            str(change.offset),
        )
        for change in sorted(changes, key=lambda change: change.group_partition)
    ]
    note_table(table_or_blocks(("GROUP", "TOPIC", "PARTITION", "BEFORE", "AFTER"), cells, right=frozenset({2, 3, 4})))


def _as_json(changes: Sequence[OffsetChange], executed: bool, undo: Path | None) -> dict[str, object]:
    rows = [
        {
            "group": change.group_partition.group,
            "topic": change.group_partition.tp.topic,
            "partition": change.group_partition.tp.partition,
            "before": None if change.before is None else change.before.offset,
            "after": change.offset,
        }
        for change in changes
    ]
    return {"executed": executed, "undo_file": str(undo) if undo else None, "offsets": rows}
