"""``odradek zookeeper describe``: offsets, lag and owners, with the values of Kafka's ConsumerOffsetChecker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import EXIT_FAILED, note, note_table, print_json, warning_lines
from odradek.cli.zookeeper.scope import AllGroups, Groups, KafkaLine, Topics, ZooKeeperLine, chosen_groups

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.zookeeper.store import OffsetStore

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper describe --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper describe --all-groups -z zk-1:2181,zk-2:2181/kafka --json"
)
_HEAD = ("TOPIC", "PARTITION", "OFFSET", "LOG-END", "LAG", "OWNER", "MODIFIED")


@dataclass(frozen=True, kw_only=True)
class DescribeLine(KafkaLine):
    """The options of the command."""

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
        names = chosen_groups(store, line.group, line.all_groups)
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
        note_table(table_or_blocks(_HEAD, cells, right=frozenset({1, 2, 3, 4})), title)
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
