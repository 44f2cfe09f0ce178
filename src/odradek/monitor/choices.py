"""The names of what a user chooses: the source of the commits, and the finest lines of the metrics."""

from __future__ import annotations

SOURCES = ("auto", "topic", "fetch")
GRANULARITIES = ("auto", "group", "topic", "partition")
