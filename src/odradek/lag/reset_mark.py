"""The mark of a commit that asks a query to go on from its offset. Pure.

An OffsetCommit does not say who made it, and OffsetFetch does not say when. So a reset that is meant for a streaming
query says so itself, in the commit's metadata: ``odradek-reset:1:<offset>:<topic id>``. The offset and the id tell a
copy from the original: MirrorMaker carries the metadata of a commit over to another cluster, where the topic has
another id. The id may be left out, since brokers before 2.8 have none.
"""

from __future__ import annotations

from uuid import UUID

from odradek.core.ids import OffsetAndMetadata

MARK = "odradek-reset:1:"


def mark_reset(offset: int, topic_id: UUID | None = None) -> OffsetAndMetadata:
    """A commit that asks for it."""
    return OffsetAndMetadata(offset, metadata=f"{MARK}{offset}" + ("" if topic_id is None else f":{topic_id}"))


def asks_for_reset(commit: OffsetAndMetadata, topic_id: UUID | None) -> bool:
    """Whether a commit asks for it, in the topic of this id (None: not known)."""
    if not commit.metadata.startswith(MARK):
        return False
    offset, _, named = commit.metadata.removeprefix(MARK).partition(":")
    return offset == str(commit.offset) and (not named or topic_id is None or named == str(topic_id))
