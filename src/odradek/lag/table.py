"""Tables in the layout of Kafka's tools, so that whoever reads or parses those reads these."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.client.model import GroupListing
from odradek.core.ids import TopicPartition
from odradek.lag.describe import GroupLag, LagRow

_HEAD = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
)  # fmt: skip
_NARROWEST = 15
_REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


def format_table(rows: Sequence[LagRow]) -> str:
    """The table of ``kafka-consumer-groups --describe``, header first, without a closing line feed; '' for no rows.

    Columns are as wide as there: GROUP, TOPIC, CONSUMER-ID and HOST at least 15 and as wide as their widest value.
    """
    if not rows:
        return ""
    lines = [_HEAD, *(tuple("-" if value is None else str(value) for value in row) for row in rows)]
    wide = {column: max(_NARROWEST, *(len(line[column]) for line in lines)) for column in (0, 1, 6, 7)}
    widths = [wide[0], wide[1], 10, 15, 15, 15, wide[6], wide[7]]
    return "\n".join(
        " ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]) for line in lines
    )


def notice(group: str, state: str) -> str | None:
    """What Kafka's tool says on stderr beside the table, if anything."""
    if state == "Empty":
        return f"Consumer group '{group}' has no active members."
    if state in _REBALANCING:
        return f"Warning: Consumer group '{group}' is rebalancing."
    return None


def lost_notices(found: GroupLag) -> list[str]:
    """A line for each partition where lag counts from the log start, since the committed offset lies below it."""
    committed = {TopicPartition(row.topic, row.partition): row.current_offset or 0 for row in found.rows}
    return [
        f"Warning: {tp}: group '{found.group}' committed {committed[tp]}, but the log now starts at {start}: "
        f"{start - committed[tp]} records are gone unread; LAG counts from {start}."
        for tp, start in sorted(found.lost.items())
    ]


def format_groups(groups: Sequence[GroupListing]) -> str:
    """The table of ``kafka-consumer-groups --list --type --state``, without a closing line feed."""
    width = max([_NARROWEST, *(len(row.group_id) for row in groups)]) + 10
    lines = [("GROUP", "TYPE", "STATE")]
    lines += [(row.group_id, row.type.capitalize() or "-", row.state or "-") for row in groups]
    return "\n".join(f"{group:<{width}} {kind:<20} {state}" for group, kind, state in lines)
