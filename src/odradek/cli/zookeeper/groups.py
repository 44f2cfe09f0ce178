"""``odradek zookeeper groups`` and ``owners``: the groups in ZooKeeper, and whether each partition has a live owner.

The checks of ``owners`` are those of Kafka's VerifyConsumerRebalance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, note_table, print_json, progress, warning_lines
from odradek.cli.zookeeper.scope import (
    Groups,
    KafkaLine,
    Names,
    ZooKeeperLine,
    group_names,
    known_groups,
    named_groups,
    warn_of_invalid,
)

if TYPE_CHECKING:
    from odradek.core.ids import TopicPartition

GROUPS_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper groups -z 127.0.0.1:2181/kafka\n"
    "  odradek zookeeper groups --path '/storm/{group}/partition_{partition}' --path-topic orders \\\n"
    "      --json-field offset -z 127.0.0.1:2181 --json"
)


@of_fields(ZooKeeperLine)
def groups(line: ZooKeeperLine) -> None:
    """List the groups in ZooKeeper with the numbers of their topics, offsets, invalid znodes and live members."""
    from odradek.zookeeper.members import read_members

    rows = []
    with line.store() as store:
        names = sorted(store.groups())
        with progress("Reading", len(names), "groups") as advance:
            for name in names:
                stored = store.read(name)
                live = read_members(store.connection, name).live() if store.layout.is_kafkas else []
                topics = len({tp.topic for tp in stored.offsets})
                rows.append((name, topics, len(stored.offsets), len(stored.invalid), len(live)))
                advance(1)
    head = ("group", "topics", "offsets", "invalid", "members")
    if line.as_json:
        print_json([dict(zip(head, row, strict=True)) for row in rows], indent=2)
    elif rows:
        cells = [tuple(map(str, row)) for row in rows]
        note_table(table_or_blocks(tuple(name.upper() for name in head), cells, right=frozenset({1, 2, 3, 4})))
        if broken := [name for name, _, _, invalid, _ in rows if invalid]:
            layout = " with the same --path and --json-field" if line.path or line.json_field else ""
            warning_lines(f"odradek zookeeper describe {broken[0]}{layout} gives the reason of each invalid znode")
    else:
        note("No groups.")


OWNERS_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper owners --group billing -z 127.0.0.1:2181\n"
    "  odradek zookeeper owners --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092 --json"
)


@dataclass(frozen=True, kw_only=True)
class OwnersLine(KafkaLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None


@of_fields(ZooKeeperLine)
def owners(line: OwnersLine) -> None:
    """Show the live members of groups and the owner of each partition; the exit code is 1 if a check fails.

    The partitions of topics come from -b, or from /brokers/topics of this ZooKeeper.
    """
    from odradek.zookeeper.members import broker_partitions, check_owners, read_members

    group_names(named_groups(line))
    checked = []
    with line.store() as store, line.optional_admin() as admin:
        names = known_groups(store, named_groups(line))
        if admin is not None:
            described = admin.describe_topics().values()
            partitions = {topic.name: [p.partition for p in topic.partitions] for topic in described}
        else:
            partitions = broker_partitions(store.connection)
            if not partitions:
                raise CommandError(
                    "no broker has registered topics in this ZooKeeper (/brokers/topics), so their partitions are not "
                    "known: name Kafka's brokers with -b HOST:PORT"
                )
        for name in names:
            members = read_members(store.connection, name)
            checked.append((members, check_owners(members, partitions)))
    if line.as_json:
        print_json([
            {
                "group": members.group,
                "members": members.live(),
                "partitions": [
                    {"topic": r.tp.topic, "partition": _known(r.tp), "owner": r.owner, "problem": r.problem or None}
                    for r in rows
                ],
                "invalid": [{"path": one.path, "reason": one.reason} for one in members.invalid],
            }
            for members, rows in checked
        ], indent=2)  # fmt: skip
    else:
        for members, rows in checked:
            note(f"Group {members.group}: members: {', '.join(members.live()) or 'none'}")
            if rows:
                cells = [(row.tp.topic, _number(row.tp), row.owner or "-", row.problem or "ok") for row in rows]
                note_table(table_or_blocks(("TOPIC", "PARTITION", "OWNER", "CHECK"), cells, right=frozenset({1})))
            warn_of_invalid(list(members.invalid))
    if any(members.invalid or any(row.problem for row in rows) for members, rows in checked):
        raise typer.Exit(EXIT_FAILED)


def _known(tp: TopicPartition) -> int | None:
    """Returns the partition's number; None in the row of a topic that does not exist."""
    return tp.partition if tp.partition >= 0 else None


def _number(tp: TopicPartition) -> str:
    return "-" if _known(tp) is None else str(tp.partition)
