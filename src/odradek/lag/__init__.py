"""The lag of groups, its table in the layout of Kafka's own tool, and plans of group resets."""

from odradek.lag.describe import GroupLag, LagRow, describe, lag_rows, lag_table
from odradek.lag.table import format_groups, format_table, lost_notices, notice

__all__ = [
    "GroupLag",
    "LagRow",
    "describe",
    "format_groups",
    "format_table",
    "lag_rows",
    "lag_table",
    "lost_notices",
    "notice",
]
