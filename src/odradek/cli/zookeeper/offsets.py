"""``odradek zookeeper describe`` and ``compare``: groups' offsets with lag and owners, and beside those in Kafka."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, note_table, print_json, progress, warning_lines
from odradek.cli.zookeeper.scope import (
    AllGroups,
    Groups,
    KafkaLine,
    Names,
    Topics,
    ZooKeeperLine,
    check_scope,
    chosen_groups,
    group_names,
    named_groups,
    warn_of_invalid,
)

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.core.ids import TopicPartition
    from odradek.zookeeper.store import InvalidZnode, OffsetStore

    Row = tuple[str, TopicPartition, int | None, int | None]

DESCRIBE_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper describe --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper describe --all-groups -z zk-1:2181,zk-2:2181/kafka --json"
)
_DESCRIBE_HEAD = ("TOPIC", "PARTITION", "OFFSET", "LOG-END", "LAG", "OWNER", "MODIFIED")


@dataclass(frozen=True, kw_only=True)
class DescribeLine(KafkaLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None
    all_groups: AllGroups = False
    topic: Topics = None


@of_fields(ZooKeeperLine)
def describe(line: DescribeLine) -> None:
    """Show the offsets of groups in ZooKeeper, with owners, and with lag if -b names the brokers.

    Every znode without a valid offset is listed with the reason, and so is an offset outside its log. In both cases
    the exit code is 1.
    """
    with line.store() as store, line.optional_admin() as admin:
        names = chosen_groups(store, named_groups(line), line.all_groups)
        descriptions = [_describe(store, admin, name, line.topic) for name in names]
    if line.as_json:
        print_json(descriptions, indent=2)
    else:
        for one in descriptions:
            _show(one, line.topic)
        if not descriptions:
            note("No groups.")
    if any(one["invalid"] for one in descriptions):
        raise typer.Exit(EXIT_FAILED)


def _describe(store: OffsetStore, admin: Admin | None, group: str, topics: list[str] | None) -> dict[str, object]:
    from odradek.core.ids import TopicPartition
    from odradek.zookeeper.bounds import cluster_logs
    from odradek.zookeeper.members import read_members

    stored = store.read(group, topics)
    owners = read_members(store.connection, group).owners if store.layout.is_kafkas else {}
    shown = stored.offsets.keys() | {tp for tp in owners if topics is None or tp.topic in topics}
    invalid = [{"path": one.path, "reason": one.reason} for one in stored.invalid]
    ends: Mapping[TopicPartition, int] = {}
    if admin is not None:
        counts = cluster_logs(admin, shown).partition_counts
        shown |= {TopicPartition(topic, n) for topic, count in counts.items() for n in range(count)}
        logs = cluster_logs(admin, shown)
        ends = {tp: log.end for tp, log in logs.logs.items()}
        problems = logs.problems(stored.next_offsets())
        invalid += [{"path": stored.offsets[tp].path, "reason": reason} for tp, reason in sorted(problems.items())]
    rows = []
    for tp in sorted(shown):
        one, end = stored.offsets.get(tp), ends.get(tp)
        rows.append({
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": one.offset if one else None,
            "log_end_offset": end,
            "lag": end - one.offset if one and end is not None else None,
            "owner": owners.get(tp),
            "modified_ms": one.modified_ms if one else None,
        })  # fmt: skip
    return {"group": group, "partitions": rows, "invalid": invalid}


def _show(one: Mapping[str, Any], topics: list[str] | None) -> None:
    cells = [
        (*("-" if cell is None else str(cell) for cell in list(row.values())[:-1]), _time(row["modified_ms"]))
        for row in one["partitions"]
    ]
    title = f"Group {one['group']}"
    if cells:
        note_table(table_or_blocks(_DESCRIBE_HEAD, cells, right=frozenset({1, 2, 3, 4})), title)
    else:
        of = f" of topic {', '.join(topics)}" if topics else ""
        note(f"{title}: no offsets{of} in ZooKeeper.")
    for invalid in one["invalid"]:
        warning_lines(f"{invalid['path']}: {invalid['reason']}")


def _time(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    try:
        return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # beyond Python's calendar
        return f"{milliseconds} ms"


COMPARE_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper compare --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper compare --all-groups -z 127.0.0.1:2181 -b 127.0.0.1:9092 --json"
)
_COMPARE_HEAD = ("GROUP", "TOPIC", "PARTITION", "ZOOKEEPER", "KAFKA", "DIFFERENCE")


@dataclass(frozen=True, kw_only=True)
class CompareLine(KafkaLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None
    all_groups: AllGroups = False


@of_fields(ZooKeeperLine)
def compare(line: CompareLine) -> None:
    """Show the offsets of groups in both stores. The exit code is 1 if an offset differs or is invalid.

    A positive difference: Kafka is ahead. --all-groups: all groups in ZooKeeper.
    """
    check_scope(named_groups(line), line.all_groups)
    rows: list[Row] = []
    invalid: list[InvalidZnode] = []
    with line.admin("Kafka has the other offsets") as admin, line.store() as store:
        names = (
            sorted(store.groups()) if line.all_groups else group_names(named_groups(line))
        )  # a group may be in Kafka only
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
            note_table(table_or_blocks(_COMPARE_HEAD, cells, right=frozenset({2, 3, 4, 5})))
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
