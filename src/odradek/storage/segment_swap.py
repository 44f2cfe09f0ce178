"""A cleaned segment takes the place of those that it was made of.

The names of the files say how far that has come, so a start after a crash finishes or undoes it (storage/recovery).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from odradek.storage.files import Files
from odradek.storage.recovery import CLEANED_SUFFIX, SWAP_SUFFIX
from odradek.storage.segment import DELETED_SUFFIX, SUFFIXES, Segment, file_name

_log = logging.getLogger("odradek.storage.log")


def swap(files: Files, directory: Path, base_offset: int, replaced: Sequence[Segment]) -> list[Path]:
    """Renames the files; returns those of the replaced segments, which are to be removed. Raises OSError.

    The log file goes first each time: without it the others count for nothing at the next start.
    """
    names = set(files.list(directory))
    stale = [name for name in names if name.endswith(CLEANED_SUFFIX) and int(name.split(".")[0]) < base_offset]
    for name in stale:  # a start would take them for a sign that this swap had not begun
        files.remove(directory / name)
    fresh = [file_name(base_offset, suffix) for suffix in SUFFIXES]
    fresh = [name for name in fresh if name + CLEANED_SUFFIX in names]
    for name in fresh:
        files.rename(directory / (name + CLEANED_SUFFIX), directory / (name + SWAP_SUFFIX))
    doomed = []
    for segment in replaced:
        segment.removed = True
        segment.forget()
        for name in (file_name(segment.base_offset, suffix) for suffix in SUFFIXES):
            if name in names:
                files.rename(directory / name, directory / (name + DELETED_SUFFIX))
                doomed.append(directory / (name + DELETED_SUFFIX))
    for name in fresh:
        files.rename(directory / (name + SWAP_SUFFIX), directory / name)
    return doomed


def remove_files(files: Files, directory: Path, doomed: Sequence[Path]) -> None:
    """The new names have to be on the disk before the old files go. A file that stays goes at the next start."""
    try:
        files.sync_dir(directory)
        for path in doomed:
            files.remove(path)
    except OSError as error:
        _log.warning("%s: files that are to go are still there: %s", directory, error)


def discard_cleaned(files: Files, directory: Path) -> None:
    """Removes what an interrupted cleaning has written. Raises OSError."""
    for name in files.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(directory / name)
