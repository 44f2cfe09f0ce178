"""Why a broker refuses the commit of a pipeline or a query, and the right that the user lacks."""

from __future__ import annotations

from typing import NamedTuple


class CommitRefusal(NamedTuple):
    """The reason why offsets could not be committed, and the remedy."""

    why: str
    remedy: str


TABLE_ID_PREFIX = "odradek-table-"
"""The transactional ids of tables whose commits are fenced begin with this."""


def missing_right(error: Exception, group: str) -> CommitRefusal | None:
    """Returns what the user may not do, and the right to give; None if the error is another one. An error of a
    transaction has the code of the reply only in its text."""
    text = str(error)
    if "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in text:
        return CommitRefusal(
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED: the user may not use the table's transactional id, which fenced "
            "commits need",
            f"Allow the user Write and Describe on transactional ids with the prefix {TABLE_ID_PREFIX}",
        )
    if "GROUP_AUTHORIZATION_FAILED" in text:
        return CommitRefusal(
            f"GROUP_AUTHORIZATION_FAILED: the user may not use group {group}", f"Allow the user Read on group {group}"
        )
    if "TOPIC_AUTHORIZATION_FAILED" in text:
        named = text.partition("TOPIC_AUTHORIZATION_FAILED: ")[2]
        return CommitRefusal(
            f"TOPIC_AUTHORIZATION_FAILED: the user may not read the topics, or commit their offsets to group {group}"
            + (f" ({named})" if named else ""),
            "Allow the user Read on the topics",
        )
    return None
