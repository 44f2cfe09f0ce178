"""Failed writes of a data directory: which errors pass by themselves, who tries again, and what the broker prints.

* A **passing** error leaves the file as it was before the write, once its torn end is cut: the disk is full (ENOSPC), a
  quota (EDQUOT) or the limit of a file's size (EFBIG) is reached, or no file can be opened (EMFILE, ENFILE). Reads go
  on. Writes fail until one succeeds again.
* After any other error (EIO, EROFS), and after **a failed sync**, the content of the disk is unknown: the kernel may
  have dropped the pages that it could not write, and the next sync of the same file reports success. So the log is
  offline, and ``on_end`` ends the process. The next start checks each batch after the recovery point.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Hashable
from pathlib import Path

from odradek.storage.disk.descriptors import is_exhausted

_log = logging.getLogger("odradek.storage")

RETRY_S = 1.0
"""The time between two attempts of ``WriteFailures.retry``."""
_PASSING = frozenset({errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)})


class SyncFailed(OSError):
    """A sync of a file or directory failed, so the content on the disk is unknown."""


def lacks_room(error: OSError) -> bool:
    """Returns whether an error means a limit: of the disk, a quota, a file or open files."""
    return error.errno in _PASSING or is_exhausted(error)


def is_passing(error: OSError) -> bool:
    """Returns whether a later write can succeed, and the failed write has left nothing but a torn end of a file."""
    return not isinstance(error, SyncFailed) and lacks_room(error)


def _remedy(error: OSError) -> str:
    if is_exhausted(error):
        return "raise the limit of open files (ulimit -n, fs.file-max)"
    return "raise the limit of a file's size (ulimit -f)" if error.errno == errno.EFBIG else "free space on this disk"


def free_bytes(path: Path) -> int | None:
    """Returns the free bytes of the disk with ``path``; None if they are unknown."""
    if sys.platform == "win32":
        return None
    try:
        status = os.statvfs(path if path.exists() else path.parent)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


class WriteFailures:
    """The writes of one data directory that have failed and are not made up for.

    The first failure is one warning. ``retry`` tries all of them again, and logs one line when none is left. The owner
    calls it every ``RETRY_S`` from ``on_begin`` until it returns False. ``on_begin`` and ``on_end`` may be called in
    any thread. ``on_end`` gets the reason why the broker cannot go on.
    """

    def __init__(self) -> None:
        self.on_begin: Callable[[], object] = lambda: None
        self.on_end: Callable[[str], object] | None = None
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._affected: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def attempt(self, path: Path, write: Callable[[], None]) -> None:
        """Writes a small file. After a passing error ``write`` is called again until it succeeds. Any other error ends
        the broker."""
        try:
            write()
        except OSError as error:
            if is_passing(error):
                self.begin(path, path, "write", error, write)
            else:
                self.end(path, f"cannot be written: {error}")

    def begin(self, key: Hashable, path: Path, action: str, error: OSError, retry: Callable[[], None]) -> None:
        """Notes a passing failure. ``retry`` raises OSError while the write cannot be made."""
        is_first = not self._affected
        self._waiting[key] = retry
        self._affected.add(key)
        if is_first:
            free = free_bytes(path)
            _log.warning(
                "%s: %s failed: %s (errno %s, %s bytes free): reads go on, writes get KAFKA_STORAGE_ERROR and are "
                "tried again until they succeed; %s",
                path, action, error.strerror or error, error.errno, "unknown" if free is None else free, _remedy(error),
            )  # fmt: skip
            self.on_begin()

    def end(self, path: Path, reason: str) -> None:
        """Reports a failure after which the broker cannot go on."""
        if self.on_end is None:
            _log.error("%s %s", path, reason)
        else:
            self.on_end(f"{path} {reason}")

    def retry(self) -> bool:
        """Tries the failed writes again, up to the first that fails. Returns whether some are left.

        The one that fails is the last of the next attempts: a long write, or a file at its limit, must not keep others
        that would succeed from being tried.
        """
        for key, retry in tuple(self._waiting.items()):
            try:
                retry()
            except OSError as error:
                if is_passing(error):
                    if self._waiting.get(key) is retry:
                        self._waiting[key] = self._waiting.pop(key)
                    return True
                self._waiting.pop(key, None)
                self.end(Path(error.filename or ""), f"cannot be written: {error}")
                return bool(self._waiting)
            if self._waiting.get(key) is retry:  # otherwise the attempt has failed in another way, and waits again
                del self._waiting[key]
        affected, self._affected = len(self._affected), set()
        if affected:
            _log.info("writes succeed again; %d logs or files were affected", affected)
        return False
