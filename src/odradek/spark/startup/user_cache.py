"""The folder in which this user's sessions keep files for later sessions."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """Returns odradek's folder in ``XDG_CACHE_HOME``, by default ``~/.cache``. Raises RuntimeError if the user has no
    home directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "odradek"


def make_private(folder: Path) -> bool:
    """Makes the folder, and returns whether only this user can write to it. Raises OSError.

    If another user can write to the folder, that user could add code that this user runs. Without ``os.getuid`` the
    result is True.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)
