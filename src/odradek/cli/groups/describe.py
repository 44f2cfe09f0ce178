"""``odradek groups describe``: the committed offsets of groups, and their lag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.cli.groups.scope import AllGroups, Groups, check_scope, chosen_groups
from odradek.cli.options import (
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    table_or_blocks,
    terminal_columns,
)
from odradek.cli.terminal import note_table, print_json, progress, warning_lines
from odradek.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from odradek.lag.describe import LagRow

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups describe --group flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups describe --group a --group b -b broker-1:9092,broker-2:9092 --json"
)


def describe(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the committed offsets of groups and their lag, as kafka-consumer-groups --describe does.

    CURRENT-OFFSET is the next record to read. LAG is the number of records from there to the end of the log. "-"
    stands for a missing value.
    """
    from odradek import lag

    check_scope(group, all_groups)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        names = chosen_groups(admin, group, all_groups)
        with progress("Describing", len(names), "groups") as advance:
            found = []
            for name in names:
                found.append(lag.describe(admin, name))
                advance(1)
    if as_json:
        print_json([_as_json(one) for one in found], indent=2)
        return
    for one in found:
        notice = lag.notice(one.group, one.state)
        if notice is not None:
            warning_lines("", notice)
        if one.rows:
            note_table(_table(one.rows), "")
        for line in lag.lost_notices(one):
            warning_lines(line)


def _table(rows: Sequence[LagRow]) -> str:
    """Returns a table in Kafka's layout; on a narrow terminal, the group's name and a table with fewer columns."""
    from odradek import lag

    table, width = lag.format_table(rows), terminal_columns()
    if width is None or all(len(line) <= width for line in table.splitlines()):
        return table
    head = ("TOPIC", "PARTITION", "CURRENT", "LOG-END", "LAG", "CLIENT-ID")
    cells = [
        tuple("-" if cell is None else str(cell) for cell in (*row[1:6], row.client_id))
        for row in sorted(rows, key=lambda row: (row.topic, row.partition))
    ]
    return f"Group {printable(rows[0].group)}\n{table_or_blocks(head, cells, right=frozenset({1, 2, 3, 4}))}"


def _as_json(one: Any) -> dict[str, Any]:
    rows = [{name: value for name, value in row._asdict().items() if name != "group"} for row in one.rows]
    for row in rows:
        lost = {tp.partition: start for tp, start in one.lost.items() if tp.topic == row["topic"]}
        if row["partition"] in lost:
            row["log_start_offset"] = lost[row["partition"]]
    return {"group": one.group, "state": one.state, "partitions": rows}
