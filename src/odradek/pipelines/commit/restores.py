"""Which entry of a Delta table's log its rows belong to: a RESTORE takes rows back, and keeps the notes. Pure.

A RESTORE (by Spark or any other writer) makes the content of an earlier version the newest one. It does not take back
the ``txn`` actions, in which the table's state is. So the state that counts is the one of the restored version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class VersionCommit:
    """What a version's commit says. ``is_entry``: it has a state of ours. ``restored``: the version that it restored;
    None if it is no RESTORE."""

    is_entry: bool
    restored: int | None = None


@dataclass(frozen=True)
class HeldVersion:
    """Where the state is that belongs to the table's rows. ``at``: the version with this state; None: it is unknown,
    because commits were removed from the log. ``by``: the newest RESTORE that took entries back, as its version and the
    version that it restored; None: there is none, so the newest version has the state."""

    at: int | None
    by: tuple[int, int] | None = None


def held_version(newest: int, read: Callable[[int], VersionCommit | None]) -> HeldVersion:
    """Returns where the state is. ``read`` returns the commit of a version; None if it was removed from the log.

    The walk follows each RESTORE to the version that it restored, up to the newest entry that is found there.
    """
    by, version = _walk(newest, read)
    if by is None or version is None:
        return HeldVersion(newest if by is None and version is not None else version, by)
    # A RESTORE to a version that has all entries takes nothing back.
    unrestored = _newest_entry(newest, read)
    if unrestored is None:
        return HeldVersion(None, by)
    return HeldVersion(newest) if unrestored == version else HeldVersion(version, by)


def _walk(newest: int, read: Callable[[int], VersionCommit | None]) -> tuple[tuple[int, int] | None, int | None]:
    """Returns the newest RESTORE, and the version of the entry that is held: 0 if there is none, None if unknown."""
    by: tuple[int, int] | None = None
    version = newest
    while True:
        commit = read(version)
        if commit is None:
            return by, None
        if commit.is_entry:
            return by, version
        if commit.restored is not None:
            if not 0 <= commit.restored < version:
                return by, None
            by = by or (version, commit.restored)
            version = commit.restored
        elif version == 0:
            return by, 0
        else:
            version -= 1


def _newest_entry(newest: int, read: Callable[[int], VersionCommit | None]) -> int | None:
    """Returns the version of the newest entry, taken back or not; 0 if there is none, None if unknown."""
    for version in range(newest, -1, -1):
        commit = read(version)
        if commit is None:
            return None
        if commit.is_entry:
            return version
    return 0
