"""A temporary directory of this process, and the removal of those whose processes were killed.

A lock on a file in the directory says that its process lives, as the kernel lets go of it with the process. A process's
number would not do: two containers that share a temporary directory do not see each other's processes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

if sys.platform != "win32":  # without these locks nothing is removed but by the process itself
    import fcntl

PREFIX = "odradek-spark-"
LOCK = "lock"
_held: list[int] = []
"""Descriptors of our locks, open as long as the process lives."""


def make_scratch() -> Path:
    """A new directory that only this user can enter, removed at exit; those of killed processes are removed now."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_left(old)
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    _hold(made)
    atexit.register(_remove_own, made, os.getpid())
    return made


def _hold(directory: Path) -> None:
    """Locks a file that appears under its name only with the lock on it. A directory without the file stays."""
    if sys.platform == "win32":
        return
    new = directory / f"{LOCK}.new"
    handle = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks
        os.close(handle)
        new.unlink(missing_ok=True)
        return
    new.rename(directory / LOCK)
    _held.append(handle)


def _remove_left(directory: Path) -> None:
    """Removes the directory of another process of ours if that has ended."""
    if sys.platform == "win32":
        return
    try:
        handle = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # no lock, or another user's
        return
    try:
        if os.fstat(handle).st_uid == os.geteuid():
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
    except OSError:  # its process lives
        return
    finally:
        os.close(handle)


def _remove_own(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a child that was forked inherits what is to be done at exit
        shutil.rmtree(directory, ignore_errors=True)
