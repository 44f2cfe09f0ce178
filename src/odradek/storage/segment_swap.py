"""Replacement of segments by a cleaned segment.

The file names show the progress. So after a crash, the next start finishes or undoes the replacement
(``storage/recovery``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from odradek.storage.files import Files
from odradek.storage.recovery import CLEANED_SUFFIX, SWAP_SUFFIX
from odradek.storage.segment import DELETED_SUFFIX, SUFFIXES, Segment, file_name

_log = logging.getLogger("odradek.storage")


def swap(files: Files, directory: Path, base_offset: int, replaced: Sequence[Segment]) -> list[Path]:
    """Renames the files and returns the files of the replaced segments for removal. Raises OSError.

    It renames each log file before its indexes, because a start removes indexes without a log file.
    """
    names = set(files.list(directory))
    stale = [name for name in names if name.endswith(CLEANED_SUFFIX) and int(name.split(".")[0]) < base_offset]
    for name in stale:  # if these files were left, a start after a crash would undo this swap
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
    """Syncs the new names to the disk and removes the old files. The next start removes files that remain."""
    try:
        files.sync_dir(directory)
        for path in doomed:
            files.remove(path)
    except OSError as error:
        _log.warning("%s: replaced files could not be removed: %s", directory, error)


def discard_cleaned(files: Files, directory: Path) -> None:
    """Removes the files of an interrupted cleaning. Raises OSError."""
    for name in files.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(directory / name)
