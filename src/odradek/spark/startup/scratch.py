"""A temporary directory of this process, and the removal of directories of killed processes.

A lock on a file in the directory shows that its process is alive: the kernel releases the lock when the process ends. A
process id is not enough: two containers can share a temporary directory and do not see each other's processes.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: without these locks, each process removes only its own directory
    pass

PREFIX = "odradek-spark-"
LOCK = "lock"
_locks: list[int] = []
"""The descriptors of our locks, open until the process ends."""


def make_scratch() -> Path:
    """Creates a directory that only this user can enter and that is removed at exit.

    It also removes the directories of killed processes.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        _remove_orphaned(old)
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    _lock(made)
    atexit.register(_remove_own, made, os.getpid())
    return made


def _lock(directory: Path) -> None:
    """Creates the lock file. The file gets its final name only after it is locked.

    On a file system without locks there is no lock file, and no other process removes the directory.
    """
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
    _locks.append(handle)


def _remove_orphaned(directory: Path) -> None:
    """Removes the directory of another process of this user if that process has ended."""
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
    except OSError:  # its process is alive
        return
    finally:
        os.close(handle)


def _remove_own(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child inherits the exit callbacks
        shutil.rmtree(directory, ignore_errors=True)
