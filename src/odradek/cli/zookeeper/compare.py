"""``odradek zookeeper compare``: the offsets of groups in ZooKeeper beside those in Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, note_table, print_json, progress
from odradek.cli.zookeeper.scope import (
    AllGroups,
    Groups,
    KafkaLine,
    ZooKeeperLine,
    check_scope,
    group_names,
    warn_of_invalid,
)

if TYPE_CHECKING:
    from odradek.core.ids import TopicPartition
    from odradek.zookeeper.store import InvalidZnode

    Row = tuple[str, TopicPartition, int | None, int | None]

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper compare --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper compare --all-groups -z 127.0.0.1:2181 -b 127.0.0.1:9092 --json"
)
_HEAD = ("GROUP", "TOPIC", "PARTITION", "ZOOKEEPER", "KAFKA", "DIFFERENCE")


@dataclass(frozen=True, kw_only=True)
class CompareLine(KafkaLine):
    """The options of the command."""

    group: Groups = None
    all_groups: AllGroups = False


@of_fields(ZooKeeperLine)
def compare(line: CompareLine) -> None:
    """Show the offsets of groups in both stores. The exit code is 1 if an offset differs or is invalid.

    A positive difference: Kafka is ahead. --all-groups: all groups in ZooKeeper.
    """
    check_scope(line.group, line.all_groups)
    rows: list[Row] = []
    invalid: list[InvalidZnode] = []
    with line.admin("Kafka has the other offsets") as admin, line.store() as store:
        names = store.groups() if line.all_groups else group_names(line.group)  # a group may be in Kafka only
        with progress("Comparing", len(names), "groups") as advance:
            for name in names:
                stored = store.read(name)
                invalid += stored.invalid
                ours, kafkas = stored.next_offsets(), admin.list_group_offsets(name)
                if not (ours or kafkas or stored.invalid or line.all_groups):
                    raise CommandError(
                        f"neither ZooKeeper nor Kafka has an offset of group {name}: odradek zookeeper groups and "
                        "odradek groups list show the groups"
                    )
                rows += [
                    (name, tp, ours.get(tp), kafkas[tp].offset if tp in kafkas else None)
                    for tp in sorted(ours.keys() | kafkas.keys())
                ]
                advance(1)
    if line.as_json:
        print_json({
            "equal": all(ours == kafkas for *_, ours, kafkas in rows) and not invalid,
            "offsets": [
                {"group": group, "topic": tp.topic, "partition": tp.partition, "zookeeper": ours, "kafka": kafkas}
                for group, tp, ours, kafkas in rows
            ],
            "invalid": [{"path": one.path, "reason": one.reason} for one in invalid],
        }, indent=2)  # fmt: skip
    else:
        cells = [
            (group, tp.topic, str(tp.partition), _cell(ours), _cell(kafkas), _difference(ours, kafkas))
            for group, tp, ours, kafkas in rows
        ]
        if cells:
            note_table(table_or_blocks(_HEAD, cells, right=frozenset({2, 3, 4, 5})))
        else:
            note("Neither store has an offset.")
        warn_of_invalid(invalid)
    if invalid or any(ours != kafkas for *_, ours, kafkas in rows):
        raise typer.Exit(EXIT_FAILED)


def _cell(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _difference(ours: int | None, kafkas: int | None) -> str:
    if ours is None or kafkas is None:
        return "only Kafka" if ours is None else "only ZooKeeper"
    return "equal" if ours == kafkas else f"{kafkas - ours:+d}"
