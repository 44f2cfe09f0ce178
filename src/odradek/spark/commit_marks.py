"""The mark in the metadata of a query's group commits: whose commit it is, and which reset it acknowledges."""

from __future__ import annotations

from odradek.core.ids import NO_EPOCH, OffsetAndMetadata

MARK = "odradek-spark:1:"


def mark_commit(
    offset: int,
    reset_id: str = "",
    instead_of: OffsetAndMetadata | None = None,
    *,
    leader_epoch: int = NO_EPOCH,
    query: str = "",
) -> OffsetAndMetadata:
    """A commit of ours; with a reset id it acknowledges that reset. Another's at the same offset lends its epoch."""
    if instead_of is not None and instead_of.offset == offset:
        leader_epoch = instead_of.leader_epoch
    parts = [str(offset), reset_id, query]
    return OffsetAndMetadata(offset, leader_epoch, MARK + ":".join(parts).rstrip(":"))


def mark_of(commit: OffsetAndMetadata) -> str | None:
    """None for a commit of somebody else; else the reset id it acknowledges, empty where it acknowledges none."""
    if not commit.metadata.startswith(MARK):
        return None
    offset, reset_id, _ = _parts(commit)
    # A tool may carry metadata over to another offset: then the mark is a lie.
    return reset_id if offset == str(commit.offset) else None


def other_query(commit: OffsetAndMetadata | None, query: str) -> str:
    """Which other query's commit this is; empty where it is none's, or either id is not known."""
    if commit is None or mark_of(commit) is None:
        return ""
    found = _parts(commit)[2]
    return found if query and found != query else ""


def _parts(commit: OffsetAndMetadata) -> list[str]:
    """Of a mark: the offset, the reset id and the query, the last two maybe empty."""
    return [*commit.metadata.removeprefix(MARK).split(":", 2), "", ""][:3]
