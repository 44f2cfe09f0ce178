"""The warning about commits of other tools that a query overwrites."""

from __future__ import annotations

from odradek.core.ids import TopicPartition
from odradek.spark.offsets import plan


def test_the_line_about_commits_of_others_begins_with_the_remedy() -> None:
    """Before, it had 60 words, and the remedy was at their end."""
    tp = TopicPartition("t", 0)
    said = plan.overwritten_message("g", {tp: 0}, {tp: 160})
    assert said.startswith("to read from a commit of another tool, add --mark to `odradek groups reset`, or set ")
    assert said.endswith(f"{tp} at 0 (now 160)")
    assert len(said.split()) < 40
