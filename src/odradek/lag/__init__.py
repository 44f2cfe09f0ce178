"""The lag of groups, its table in the layout of Kafka's own tool, and plans of group resets."""

from odradek.lag.describe import describe

__all__ = ["describe"]
