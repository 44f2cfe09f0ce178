"""The mark in a commit that makes a streaming query continue from the committed offset. Pure functions.

A stored commit does not name the client that sent it, and an OffsetFetch reply has no commit time. So a group reset for
a streaming query has a mark in the commit's metadata: ``odradek-reset:1:<offset>:<topic id>``. A reset has it only on
request, because some programs decode the metadata of their commits and refuse any other. The offset and the id
distinguish the original commit from a copy: MirrorMaker copies the metadata to another cluster, where the topic has
another id. The id is optional, since brokers before 2.8 have no topic ids.
"""

from __future__ import annotations

from uuid import UUID

from odradek.core.ids import OffsetAndMetadata

MARK = "odradek-reset:1:"
QUERY_MARK = "odradek-spark:1:"
"""The prefix of the metadata in commits of queries with ``format("odradek")`` (``spark/offsets/commit_marks``)."""


def mark_reset(offset: int, topic_id: UUID | None = None) -> OffsetAndMetadata:
    """Returns a commit with the mark."""
    return OffsetAndMetadata(offset, metadata=f"{MARK}{offset}" + ("" if topic_id is None else f":{topic_id}"))


def asks_for_reset(commit: OffsetAndMetadata, topic_id: UUID | None) -> bool:
    """Returns whether a commit has the mark for its own offset and for the topic with this id.

    A mark without an id fits any topic. If ``topic_id`` is None, any id in the mark fits.
    """
    if not commit.metadata.startswith(MARK):
        return False
    # confluent-kafka for Python sends metadata with the NUL of its C string.
    offset, _, named = commit.metadata.removesuffix("\0").removeprefix(MARK).partition(":")
    return offset == str(commit.offset) and (not named or topic_id is None or named == str(topic_id))
