"""Tables in the layout of ``kafka-consumer-groups``, for people and scripts that know this layout."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.client.model import GroupListing
from odradek.core.counts import plural, was
from odradek.core.ids import TopicPartition
from odradek.lag.describe import GroupLag, LagRow
from odradek.text.printable import printable

_HEAD = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
_NARROWEST = 15
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


def format_table(rows: Sequence[LagRow]) -> str:
    """Returns the table of ``kafka-consumer-groups --describe``, without a line feed at the end. Without rows it is ''.

    The widths are those of Kafka's tool: GROUP, TOPIC, CONSUMER-ID and HOST have the width of their widest value, at
    least 15. Control characters in names appear as escapes.
    """
    if not rows:
        return ""
    lines = [_HEAD, *(tuple("-" if value is None else printable(str(value)) for value in row) for row in rows)]
    wide = {column: max(_NARROWEST, *(len(line[column]) for line in lines)) for column in (0, 1, 6, 7)}
    widths = [wide[0], wide[1], 10, 15, 15, 15, wide[6], wide[7]]
    return "\n".join(
        " ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )


def notice(group: str, state: str) -> str | None:
    """Returns the line that Kafka's tool writes to stderr for this state, or None."""
    group = printable(group)
    if state == "Empty":
        return f"Consumer group '{group}' has no active members."
    if state in _REBALANCING:
        return f"Warning: Consumer group '{group}' is rebalancing."
    return None


def lost_notices(group_lag: GroupLag) -> list[str]:
    """Returns a line for each partition whose committed offset is below the log start offset."""
    committed = {TopicPartition(row.topic, row.partition): row.current_offset or 0 for row in group_lag.rows}
    lines = []
    for tp, start in sorted(group_lag.lost.items()):
        gone = start - committed[tp]
        lines.append(
            f"Warning: {printable(str(tp))}: group '{printable(group_lag.group)}' committed {committed[tp]}, "
            f"but the log now starts at {start}: {gone} {plural(gone, 'record')} {was(gone)} deleted unread; "
            f"LAG counts from {start}."
        )
    return lines


def beyond_notices(group_lag: GroupLag) -> list[str]:
    """Returns a line for each partition whose committed offset is beyond the end of its log: its lag is below 0."""
    return [
        f"Warning: {printable(f'{row.topic}-{row.partition}')}: group '{printable(group_lag.group)}' committed "
        f"{row.current_offset}, beyond the end of the log at {row.log_end_offset}: LAG is below 0."
        for row in sorted(group_lag.rows, key=lambda row: (row.topic, row.partition))
        if row.lag is not None and row.lag < 0
    ]


def format_groups(groups: Sequence[GroupListing]) -> str:
    """Returns the table of ``kafka-consumer-groups --list --type --state``, without a line feed at the end."""
    lines = [("GROUP", "TYPE", "STATE")]
    lines += [
        (printable(row.group_id), printable(row.type.capitalize()) or "-", printable(row.state) or "-")
        for row in groups
    ]
    width = max(_NARROWEST, *(len(line[0]) for line in lines)) + 10
    return "\n".join(f"{group:<{width}} {kind:<20} {state}" for group, kind, state in lines)


def shown_time(lag_ms: int | None) -> str:
    """Returns a time lag for people: ``-``, ``0s``, ``250ms``, ``1h 5m``."""
    if lag_ms is None:
        return "-"
    if 0 < lag_ms < 1000:
        return f"{lag_ms}ms"
    parts = []
    left = lag_ms // 1000
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"
