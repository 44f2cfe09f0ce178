"""The lag of groups, and its table in the layout of Kafka's own tool."""

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
