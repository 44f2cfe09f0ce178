"""``odradek zookeeper delete``: deletes the offsets of groups without live members, in all topics or in some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import CommandError, note, note_table, print_json
from odradek.cli.undo_file import write_undo
from odradek.cli.zookeeper.scope import (
    Execute,
    Groups,
    Names,
    Topics,
    UndoFile,
    ZooKeeperLine,
    group_names,
    known_groups,
    named_groups,
    refuse_live_members,
    warn_of_invalid,
)
from odradek.core.counts import counted

if TYPE_CHECKING:
    from odradek.zookeeper.store import OffsetStore, StoredOffsets

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper delete --group old-job -z 127.0.0.1:2181\n"
    "  odradek zookeeper delete --group billing --topic orders --execute -z 127.0.0.1:2181"
)


@dataclass(frozen=True, kw_only=True)
class DeleteLine(ZooKeeperLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None
    topic: Topics = None
    execute: Execute = False
    undo_file: UndoFile = None


@of_fields(ZooKeeperLine)
def delete(line: DeleteLine) -> None:
    """Delete groups without live members from ZooKeeper, or their offsets of some topics.

    Shows the offsets. With --execute, writes them to an undo file, then deletes each group in one transaction. In
    Kafka's layout, znodes without a valid offset are deleted, too, and listed: an undo file cannot contain them.
    """
    from odradek.zookeeper.export_file import format_offsets

    group_names(named_groups(line))
    with line.store() as store:
        names = known_groups(store, named_groups(line))
        refuse_live_members(store, names)
        groups = [store.read(name, line.topic) for name in names]
        for topic in line.topic or ():
            check_topic(store, groups, topic)
        rows = [
            (one.group, tp.topic, str(tp.partition), str(stored.offset))
            for one in groups
            for tp, stored in one.offsets.items()
        ]
        if not line.as_json:
            if rows:
                note_table(
                    table_or_blocks(("GROUP", "TOPIC", "PARTITION", "OFFSET"), sorted(rows), right=frozenset({2, 3}))
                )
            warn_of_invalid([invalid for one in groups for invalid in one.invalid])
        undo, deleted = None, []
        if line.execute:
            undo = write_undo(format_offsets(groups), line.undo_file, "txt")
            for name in names:
                deleted += store.delete(name, line.topic)
    if line.as_json:
        print_json({"executed": line.execute, "undo_file": str(undo) if undo else None, "deleted": deleted}, indent=2)
    elif undo is None:
        note("Nothing was deleted: add --execute.")
    else:
        note(f"Deleted {counted(len(deleted), 'znode')}.")
        note(f"Undo: {line.undo_command(undo)}")


def check_topic(store: OffsetStore, stored: list[StoredOffsets], topic: str) -> None:
    """Raises CommandError for a topic in which ZooKeeper has no offset and no owner of these groups."""
    groups = [one.group for one in stored]
    paths = [f"/consumers/{group}/{kind}/{topic}" for group in groups for kind in ("offsets", "owners")]
    has_znodes = store.layout.is_kafkas and any(store.connection.get_many(paths))
    if not has_znodes and not any(tp.topic == topic for one in stored for tp in one.offsets):
        raise CommandError(
            f"ZooKeeper has no offsets of topic {topic} of group {', '.join(groups)}: odradek zookeeper describe shows "
            "the topics"
        )
