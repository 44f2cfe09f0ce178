"""The columns of the terminal's tables, and the text of their cells. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from odradek.core.counts import counted
from odradek.monitor.web.formats import UNKNOWN, moment, number, rate, shown_name, span
from odradek.text.printable import printable

Json = Mapping[str, Any]
GAP = 2
_STATUS_STYLES = {"OK": "good", "WARN": "warn", "NOTFOUND": "quiet"}
_SCALES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


class Cell(NamedTuple):
    """``style``: "", good, warn, bad or quiet."""

    text: str
    style: str = ""


class Column(NamedTuple):
    """``sort``: the sort of a first press of ``key``; "" for a column that sorts nothing. ``width``: in cells; 0 for
    the column that takes the rest."""

    title: str
    width: int
    cell: Callable[[Json], Cell]
    key: str = ""
    sort: str = ""
    is_number: bool = True


def count_within(value: float | None, width: int) -> str:
    """Formats a count; one that is too wide gets a unit: 12.3M."""
    text = number(value)
    if value is None or len(text) <= width:
        return text
    size, unit = next(one for one in _SCALES if abs(value) >= one[0])
    return f"{value / size:.1f}{unit}"


def status_cell(status: str | None) -> Cell:
    return Cell(status or UNKNOWN, _STATUS_STYLES.get(status or "", "bad") if status else "quiet")


def _count(field: str, width: int, style: str = "") -> Callable[[Json], Cell]:
    """Returns the cell of a count. ``style`` is that of counts above 0."""

    def cell(row: Json) -> Cell:
        value = row.get(field)
        return Cell(count_within(value, width), style if value else "" if value is not None else "quiet")

    return cell


def _span(field: str) -> Callable[[Json], Cell]:
    return lambda row: Cell(span(row.get(field)), "quiet" if row.get(field) is None else "")


def _rate(field: str) -> Callable[[Json], Cell]:
    return lambda row: Cell(rate(row.get(field)), "quiet" if not row.get(field) else "")


def _moment(field: str) -> Callable[[Json], Cell]:
    return lambda row: Cell(moment(row.get(field)).removesuffix(" UTC"), "quiet" if row.get(field) is None else "")


def _partitions(row: Json) -> Cell:
    stale = row.get("stale_partitions")
    return Cell(f"{number(row.get('partitions'))}{'*' if stale else ''}", "bad" if stale else "")


GROUPS = (
    Column("Group", 0, lambda row: Cell(printable(shown_name(row["group"]))), "n", "name", is_number=False),
    Column("Status", 8, lambda row: status_cell(row.get("status")), "s", "-status", is_number=False),
    Column("State", 11, lambda row: Cell(row.get("state") or UNKNOWN), is_number=False),
    Column("Lag", 11, _count("lag", 11), "l", "-lag"),
    Column("Time lag", 9, _span("time_lag_ms"), "t", "-time_lag"),
    Column("Read/s", 8, _rate("records_per_second"), "r", "-records_per_second"),
    Column("Clear in", 9, _span("clear_ms"), "c", "-clear"),
    Column("Findings", 9, _count("findings", 9, "warn"), "f", "-findings"),
    Column("Lost", 8, _count("lost", 8, "bad"), "o", "-lost"),
    Column("Partitions", 11, _partitions, "p", "-partitions"),
    Column("First expiry, UTC", 19, _moment("expires_ms"), "e", "expires"),
    Column("Newest commit, UTC", 19, _moment("newest_commit_ms"), "m", "-newest_commit"),
)
"""The groups, with the columns of the page. A narrow terminal shows the first ones. A ``*`` behind the partitions: some
are stale."""


def partition_name(row: Json) -> str:
    return f"{row['topic']}-{row['partition']}"


PARTITIONS = (
    Column("Partition", 0, lambda row: Cell(printable(partition_name(row))), is_number=False),
    Column("Status", 8, lambda row: status_cell(row.get("status")), is_number=False),
    Column("Lag", 11, _count("lag", 11)),
    Column("Time lag", 9, _span("time_lag_ms")),
    Column("Committed", 13, _count("committed_offset", 13)),
    Column("Log end", 13, _count("log_end_offset", 13)),
    Column("Read/s", 8, _rate("records_per_second")),
    Column("Clear in", 9, _span("clear_ms")),
    Column("Lost", 8, _count("lost", 8, "bad")),
    Column("Expires, UTC", 19, _moment("expires_ms")),
    Column("Newest commit, UTC", 19, _moment("commit_ms")),
)
FINDINGS = (
    Column("Kind", 17, lambda row: Cell(row["kind"].replace("_", " "), "warn"), is_number=False),
    Column("Certainty", 9, lambda row: Cell(row["certainty"]), is_number=False),
    Column("From, UTC", 19, _moment("from_ms"), is_number=False),
    Column("What", 0, lambda row: Cell(printable(row["text"])), is_number=False),
)
PROOF = (
    Column("Record", 12, lambda row: Cell(f"{row['record_partition']}:{row['record_offset']}"), is_number=False),
    Column("Kind", 16, lambda row: Cell("deletion" if row["is_tombstone"] else row["kind"]), is_number=False),
    Column("Written, UTC", 19, _moment("record_ms"), is_number=False),
    Column("Committed offset", 16, _count("committed_offset", 16)),
    Column("Generation", 10, _count("generation", 10)),
    Column("Members", 7, _count("member_count", 7)),
    Column("", 0, lambda row: Cell("")),
)


def fitting(columns: Sequence[Column], width: int, least: int = 20) -> list[tuple[Column, int]]:
    """Returns the first columns that fit into ``width`` cells, with their widths. The column that takes the rest gets
    ``least`` cells or more, as far as there are so many."""
    shown: list[Column] = []
    used = 0
    for column in columns:
        more = (column.width or least) + (GAP if shown else 0)
        if shown and used + more > width:
            break
        shown.append(column)
        used += more
    rest = max(1, width - sum(one.width for one in shown) - GAP * (len(shown) - 1))
    return [(one, min(one.width, width) if one.width else rest) for one in shown]


def turned(sort: str, first: str) -> str:
    """Returns the sort after a press of a column's key: ``first``, or the other order if it is sorted by it."""
    if sort.removeprefix("-") != first.removeprefix("-"):
        return first
    return sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"


def state_text(source: str, state: Json, now_ms: int) -> Cell:
    """Returns the line on the state of the view."""
    trouble = state.get("trouble")
    if trouble is not None:
        since, past = moment(trouble["since_ms"]), span(max(0, now_ms - trouble["since_ms"]) // 1000 * 1000)
        reason = printable(trouble["text"])
        return Cell(f"{source}: no up-to-date view since {since} ({past}), trying again: {reason}", "bad")
    if not state.get("ready"):
        read = state.get("entries", 0)
        return Cell(f"{source}: reading the offsets topic, {counted(read, 'entry')} so far", "quiet")
    parts = [counted(state["groups"], "group"), counted(state["partitions"], "partition")]
    parts.append(f"polled {moment(state['polled_ms'])}")
    if state.get("source") == "fetch":
        parts.append("committed offsets are looked up, the offsets topic is not read")
    if unreadable := state.get("unreadable_entries"):
        parts.append(f"{counted(unreadable, 'entry')} of the offsets topic cannot be read")
    text = f"{source}: {', '.join(parts)}"
    stale = [*state.get("stale_logs", {}).items()]
    stale += [(f"offsets topic {name}", reason) for name, reason in state.get("stale_sources", {}).items()]
    if not stale:
        return Cell(text)
    name, reason = stale[0]
    more = f" and {number(len(stale) - 1)} more" if len(stale) > 1 else ""
    return Cell(f"{text}; stale: {printable(name)} ({printable(reason)}){more}", "warn")
