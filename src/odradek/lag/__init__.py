"""How far groups are behind, and the table that shows it as Kafka's own tool does."""

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
