"""Replacement of segments by a cleaned segment.

The file names show the progress. So after a crash, the next start finishes or undoes the replacement
(``storage/recovery``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from odradek.storage.config import LogConfig
from odradek.storage.disk.files import Files
from odradek.storage.disk.write_failures import SyncFailed
from odradek.storage.recovery.recovery import CLEANED_SUFFIX, SWAP_SUFFIX
from odradek.storage.segments.index import IndexCorrupt
from odradek.storage.segments.segment import DELETED_SUFFIX, SUFFIXES, TXN_INDEX_SUFFIX, Segment, file_name

_log = logging.getLogger("odradek.storage")


def swap(
    files: Files, directory: Path, base_offset: int, replaced: Sequence[Segment], config: LogConfig
) -> tuple[list[Path], Segment]:
    """Renames the files. Returns the files of the replaced segments for removal, and the cleaned segment.

    It renames each log file before its indexes, because a start removes indexes without a log file. Raises OSError,
    IndexCorrupt; then the files have their old names again. If even that fails, it raises SyncFailed.
    """
    names = set(files.list(directory))
    stale = [name for name in names if name.endswith(CLEANED_SUFFIX) and int(name.split(".")[0]) < base_offset]
    for name in stale:  # if these files were left, a start after a crash would undo this swap
        files.remove(directory / name)
    fresh = [file_name(base_offset, suffix) for suffix in SUFFIXES]
    fresh = [name for name in fresh if name + CLEANED_SUFFIX in names]
    old = [file_name(segment.base_offset, suffix) for segment in replaced for suffix in SUFFIXES]
    old = [name for name in old if name in names]
    steps = [(name + CLEANED_SUFFIX, name + SWAP_SUFFIX) for name in fresh]
    steps += [(name, name + DELETED_SUFFIX) for name in old]
    steps += [(name + SWAP_SUFFIX, name) for name in fresh]
    done: list[tuple[str, str]] = []
    try:
        for source, target in steps:
            files.rename(directory / source, directory / target)
            done.append((source, target))
        has_aborted = file_name(base_offset, TXN_INDEX_SUFFIX) in fresh
        cleaned = Segment.load(directory, base_offset, config, files, 0, has_aborted=has_aborted)
    except (OSError, IndexCorrupt):
        _undo(files, directory, done)
        raise
    for segment in replaced:
        segment.removed = True
        segment.forget()
    return [directory / (name + DELETED_SUFFIX) for name in old], cleaned


def _undo(files: Files, directory: Path, done: Sequence[tuple[str, str]]) -> None:
    """Undoes the renames, the last one first, so that a start after a crash finds a state of a replacement."""
    try:
        for source, target in reversed(done):
            if source.endswith(CLEANED_SUFFIX):  # the cleaning is repeated later, so this file is of no use
                files.remove(directory / target)
            else:
                files.rename(directory / target, directory / source)
    except OSError as error:
        raise SyncFailed(error.errno, f"segments are half replaced; the next start completes it: {error}") from error


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
