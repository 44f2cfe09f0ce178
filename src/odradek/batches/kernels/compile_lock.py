"""A lock between the processes of a user on a computer, so that only one of them at a time compiles a kernel."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from contextlib import suppress

_WAIT_S = 0.05
_LONGEST_WAIT_S = 60.0
"""After this time a process compiles without the lock, so a lock that no process releases costs time only."""
_held: set[CompileLock] = set()


def private_directory() -> str | None:
    """Returns a directory for kernels in the temporary directory; None if there is no private one, as on Windows.

    Only this user may write to it, because code in it is executed.
    """
    if not hasattr(os, "getuid"):
        return None
    path = os.path.join(tempfile.gettempdir(), f"odradek-numba-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except OSError:
        return None
    is_private = status.st_uid == os.getuid() and status.st_mode & 0o170777 == 0o040700
    return path if is_private and os.access(path, os.W_OK) else None


class CompileLock:
    """``name`` says what is compiled. Without a lock file, as on Windows, each process gets the lock at once.

    A process to which ``fd`` is passed holds the lock, too, until it ends.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.fd: int | None = None

    def acquire(self, *, wait: bool = True) -> bool:
        """Returns whether this process may compile now.

        With ``wait`` the result is always True: after the longest wait, a process may compile without the lock.
        """
        directory = private_directory()
        if directory is None or sys.platform == "win32":
            return True
        try:
            fd = os.open(os.path.join(directory, f"{self._name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        if not _lock(fd, _LONGEST_WAIT_S if wait else 0.0):
            os.close(fd)
            return wait
        self.fd = fd
        _held.add(self)
        return True

    def release(self) -> None:
        """Releases the lock, if this process has it."""
        if self.fd is not None:
            _held.discard(self)
            os.close(self.fd)
            self.fd = None


def _lock(fd: int, longest_wait_s: float) -> bool:
    if sys.platform == "win32":
        return True
    import fcntl

    pause = threading.Event()
    deadline_s = time.monotonic() + longest_wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline_s:
                return False
            pause.wait(_WAIT_S)
        else:
            return True


def _forget_after_fork() -> None:
    """Releases the locks in a forked child, which would otherwise hold them until it ends. The parent keeps them."""
    for lock in list(_held):
        with suppress(OSError):
            lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
