"""The output of ``odradek groups describe``: Kafka's table, with times, totals and an order on request, or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli import options
from odradek.cli.options import table_or_blocks
from odradek.cli.terminal import NO_NAME, note, note_table, warning_lines
from odradek.core.counts import counted
from odradek.text.printable import printable

if TYPE_CHECKING:
    from odradek.core.ids import TopicPartition
    from odradek.lag.describe import GroupLag, LagRow

SORTS = ("member", "lag", "time", "topic")
"""The orders of rows. ``member`` is that of Kafka's tool."""


class GroupWithTimes(NamedTuple):
    """A group's lag. ``times``: the lag in ms of each partition, None if it is not wanted."""

    lag: GroupLag
    times: Mapping[TopicPartition, int | None] | None = None

    @property
    def total(self) -> int | None:
        """The sum of the known lags, in records; None if no lag is known. A commit beyond the log's end adds 0."""
        return total_of([None if row.lag is None else max(row.lag, 0) for row in self.lag.rows])

    @property
    def total_text(self) -> str:
        """The total, its number of partitions, and the number of those that the total does not tell the lag of."""
        rows = self.lag.rows
        known = [row.lag for row in rows if row.lag is not None]
        unread = sum(row.current_offset is None for row in rows)
        endless = len(rows) - len(known) - unread
        beyond = sum(lag < 0 for lag in known)
        parts = [
            _total_text(self.total) + (f" in {counted(len(known), 'partition')}" if known else ""),
            f"{counted(unread, 'partition')} without a commit" if unread else "",
            f"{counted(endless, 'partition')} without a known log end" if endless else "",
            f"{counted(beyond, 'commit')} beyond the log's end {'counts' if beyond == 1 else 'count'} as 0"
            if beyond else "",
        ]  # fmt: skip
        return "; ".join(part for part in parts if part)

    def time_of(self, row: LagRow) -> int | None:
        """Returns the lag of a row in ms, or None."""
        from odradek.core.ids import TopicPartition as Tp

        return None if self.times is None else self.times.get(Tp(row.topic, row.partition))

    def rows(self, sort: str) -> list[LagRow]:
        """Returns the rows in an order of ``SORTS``, the largest lag first; rows without a value are last."""
        rows = list(self.lag.rows)
        if sort == "topic":
            return sorted(rows, key=lambda row: (row.topic, row.partition))
        if sort == "lag":
            return sorted(rows, key=lambda row: (row.lag is None, -(row.lag or 0), row.topic, row.partition))
        if sort == "time":
            return sorted(
                rows, key=lambda row: ((ms := self.time_of(row)) is None, -(ms or 0), row.topic, row.partition)
            )
        return rows


def total_of(lags: Sequence[int | None]) -> int | None:
    """Returns the sum of the values that are known; None if there is none."""
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _total_text(total: int | None) -> str:
    return "-" if total is None else f"{total:,}"


def in_order(groups: Sequence[GroupWithTimes], sort: str) -> list[GroupWithTimes]:
    """Returns the groups in their order: with ``lag`` and ``time`` the group that is most behind is first."""
    if sort == "lag":
        return sorted(groups, key=lambda one: (one.total is None, -(one.total or 0), one.lag.group))
    if sort == "time":
        worst = {one.lag.group: max([ms or 0 for ms in (one.times or {}).values()], default=0) for one in groups}
        return sorted(groups, key=lambda one: (-worst[one.lag.group], one.lag.group))
    return list(groups)


def print_groups(groups: Sequence[GroupWithTimes], sort: str, *, totals: bool) -> None:
    """Prints the tables of groups, the notices of Kafka's tool, and the totals if they are wanted."""
    from odradek.lag import table as lag

    for one in groups:
        if notice := lag.notice(one.lag.group, one.lag.state):
            warning_lines("", notice)
        if one.lag.rows:
            note_table(_table(one, sort), "")
        elif one.lag.state not in ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"):
            warning_lines(f"Consumer group '{printable(one.lag.group)}' has no committed offsets.")
        for line in lag.lost_notices(one.lag):
            warning_lines(line)
        if totals and one.lag.rows:
            for line in lag.beyond_notices(one.lag):  # with the totals alone: stderr is else that of Kafka's tool
                warning_lines(line)
            note(f"Total lag of {one.lag.group or NO_NAME}: {one.total_text}.")
    if totals and len(groups) > 1:
        note(
            "", f"Total lag of {counted(len(groups), 'group')}: {_total_text(total_of([one.total for one in groups]))}."
        )


def _table(one: GroupWithTimes, sort: str) -> str:
    """Returns a table in Kafka's layout; on a narrow terminal, the group's name and a table with fewer columns."""
    from odradek.lag import table as lag
    from odradek.lag.table import shown_time

    rows, width = one.rows(sort), options.terminal_columns()
    timed = one.times is not None
    if timed:
        head = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "TIME-LAG", "CONSUMER-ID",
                "HOST", "CLIENT-ID")  # fmt: skip
        cells = [(*_cells(row[:6]), shown_time(one.time_of(row)), *_cells(row[6:9])) for row in rows]
        table = table_or_blocks(head, cells, right=frozenset({2, 3, 4, 5, 6}))
    else:
        table = lag.format_table(rows)
    if width is None or all(len(line) <= width for line in table.splitlines()):
        return table
    short = ("TOPIC", "PARTITION", "CURRENT", "LOG-END", "LAG", *(("TIME-LAG",) if timed else ()), "CLIENT-ID")
    ordered = rows if sort != "member" else one.rows("topic")
    cells = [
        (*_cells(row[1:6]), *((shown_time(one.time_of(row)),) if timed else ()), *_cells([row.client_id]))
        for row in ordered
    ]
    right = frozenset(range(1, len(short) - 1))
    return f"Group {printable(rows[0].group)}\n{table_or_blocks(short, cells, right=right)}"


def _cells(values: Sequence[object]) -> tuple[str, ...]:
    return tuple("-" if value is None else str(value) for value in values)


def as_json(one: GroupWithTimes, sort: str) -> dict[str, object]:
    """Returns a group for JSON. ``total_lag`` counts records, or is None; ``time_lag_ms`` is there with --time."""
    starts = {(tp.topic, tp.partition): start for tp, start in one.lag.lost.items()}
    rows = []
    for row in one.rows(sort):
        shown = {name: value for name, value in row._asdict().items() if name != "group"}
        if one.times is not None:
            shown["time_lag_ms"] = one.time_of(row)
        if (row.topic, row.partition) in starts:
            shown["log_start_offset"] = starts[row.topic, row.partition]
        rows.append(shown)
    return {"group": one.lag.group, "state": one.lag.state, "total_lag": one.total, "partitions": rows}
