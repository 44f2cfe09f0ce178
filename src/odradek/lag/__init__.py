"""The lag of groups, its table in the layout of Kafka's own tool, and plans of group resets."""

from odradek.lag.describe import GroupLag, LagRow, describe, lag_rows, lag_table
from odradek.lag.table import beyond_notices, format_groups, format_table, lost_notices, notice

__all__ = [
    "GroupLag",
    "LagRow",
    "beyond_notices",
    "describe",
    "format_groups",
    "format_table",
    "lag_rows",
    "lag_table",
    "lost_notices",
    "notice",
]
