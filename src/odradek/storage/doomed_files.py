"""Files that are to be removed after a delay, on a disk that may be full."""

from __future__ import annotations

from pathlib import Path

from odradek.storage.files import Files
from odradek.storage.write_failures import is_passing


def rename_or_remove(files: Files, path: Path, doomed: Path) -> list[Path]:
    """Renames a file that is to be removed later. Returns its new name in a list, or an empty list.

    A full disk may have no room for a longer name. Then it removes the file; readers keep it open. Raises OSError."""
    try:
        files.rename(path, doomed)
    except OSError as error:
        if not is_passing(error):
            raise
        files.remove(path)
        return []
    return [doomed]
