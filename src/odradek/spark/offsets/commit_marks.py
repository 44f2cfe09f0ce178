"""The mark in the metadata of a query's group commits: offset, id of the acknowledged reset, id of the query, output.

Only commits for a table have its output, so that the pipeline of another table can name it.
"""

from __future__ import annotations

from odradek.core.ids import NO_EPOCH, OffsetAndMetadata
from odradek.lag.reset_mark import QUERY_MARK as MARK

_MOST_OUTPUT = 500


def mark_commit(
    offset: int,
    reset_id: str = "",
    instead_of: OffsetAndMetadata | None = None,
    *,
    leader_epoch: int = NO_EPOCH,
    query: str = "",
) -> OffsetAndMetadata:
    """Returns a marked commit; with a reset id it acknowledges that reset.

    ``instead_of``: the commit to replace. If it has the same offset, the new commit takes its leader epoch.
    """
    if instead_of is not None and instead_of.offset == offset:
        leader_epoch = instead_of.leader_epoch
    parts = [str(offset), reset_id, query]
    return OffsetAndMetadata(offset, leader_epoch, MARK + ":".join(parts).rstrip(":"))


def mark_of(commit: OffsetAndMetadata) -> str | None:
    """Returns the reset id that a marked commit acknowledges, empty if none; None for a commit without a valid mark."""
    if not commit.metadata.startswith(MARK):
        return None
    offset, reset_id, *_ = _parts(commit)
    # A tool may copy metadata to a commit of another offset: then the mark is not valid.
    return reset_id if offset == str(commit.offset) else None


def other_query(commit: OffsetAndMetadata | None, query: str) -> str:
    """Returns the id of another query that made this commit; empty if none did or one of the ids is unknown."""
    if commit is None or mark_of(commit) is None:
        return ""
    found = _parts(commit)[2]
    return found if query and found != query else ""


def is_of_query(commit: OffsetAndMetadata, query: str) -> bool:
    """Returns whether the query with this id made this commit; False if one of the ids is unknown."""
    return query != "" and mark_of(commit) is not None and _parts(commit)[2] == query


def with_output(commit: OffsetAndMetadata, output: str) -> OffsetAndMetadata:
    """Returns a marked commit that names the output of its query, shortened at its start if it is long."""
    offset, reset_id, query, _ = _parts(commit)
    return commit._replace(metadata=MARK + ":".join((offset, reset_id, query, output[-_MOST_OUTPUT:])))


def output_of(commit: OffsetAndMetadata) -> str:
    """Returns the output that a marked commit names; empty if it names none."""
    return "" if mark_of(commit) is None else _parts(commit)[3]


def is_output(commit: OffsetAndMetadata, output: str) -> bool:
    """Returns whether a marked commit names this output."""
    return output_of(commit) == output[-_MOST_OUTPUT:]


def is_of_table(commit: OffsetAndMetadata, output: str, *, is_read: bool) -> bool:
    """Returns whether a commit is of a run of the table ``output``. ``is_read``: the table has read the topic; then a
    commit for any table counts, because this one may be a copy of that one."""
    return is_output(commit, output) or (is_read and output_of(commit) != "")


def other_output(commit: OffsetAndMetadata, output: str) -> str:
    """Returns another output that a marked commit names; empty if it names none or this one."""
    found = output_of(commit)
    return "" if found == output[-_MOST_OUTPUT:] else found


def _parts(commit: OffsetAndMetadata) -> list[str]:
    """Returns a mark's offset, reset id, query and output; the last three may be empty."""
    return [*commit.metadata.removeprefix(MARK).split(":", 3), "", "", ""][:4]
