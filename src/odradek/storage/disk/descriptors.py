"""File descriptors of log files: their limit and the order in which they are closed.

A broker can have more log files than a process may open. A log file is opened at its first use. It is closed when
descriptors become scarce or when it was not used for some time, and opened again at its next use.

The descriptors of the process have three uses:

* The last ones (``SPARE_DESCRIPTORS``, at most a quarter) are for files that are open only briefly: checkpoints,
  directories, modules.
* Log files use at most half of all descriptors, and none of the spare ones for long: when a log file exceeds one of
  these limits, the least recently used log files are closed.
* Connections use the rest (``broker/front_end/transport``). Log files are closed for them, down to ``KEPT_FOR_LOGS``
  open files.
"""

from __future__ import annotations

import errno
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar

try:
    import resource
except ImportError:  # Windows, where no broker runs
    pass

T = TypeVar("T")

SPARE_DESCRIPTORS = 256
KEPT_FOR_LOGS = 256
"""The number of open log files that are not closed for connections; a quarter of all descriptors if that is less."""
CLOSE_ON_EXEC: int = getattr(os, "O_CLOEXEC", 0)
_CLOSED_AT_ONCE = 8
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


def is_exhausted(error: OSError) -> bool:
    """Returns whether an error means that no descriptor was free. The file itself is not damaged."""
    return error.errno in _EXHAUSTED


def process_limit() -> int:
    """Returns the limit of the process's descriptors; -1 for no limit."""
    if sys.platform == "win32":
        return -1
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Descriptor:
    """An open file. It is closed with the last reference to this object, so its number is not used after the close."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class Reopenable(Protocol):
    """A file that may be closed at any time, because its next use opens it again."""

    used: bool
    """Each use sets it to True."""

    def release(self) -> None:
        """Closes the file."""


class Descriptors:
    """The open log files. Thread-safe.

    ``limit`` returns the limit of descriptors, as ``process_limit`` does. ``kept``: see ``KEPT_FOR_LOGS``.
    """

    def __init__(self, limit: Callable[[], int] = process_limit, *, kept: int = KEPT_FOR_LOGS) -> None:
        self._limit = limit
        self._kept = kept
        self._open: OrderedDict[int, weakref.ref[Reopenable]] = OrderedDict()
        self._lock = RLock()  # the garbage collector may remove an entry during any call

    def __len__(self) -> int:
        return len(self._open)

    def is_spare(self, descriptor: int) -> bool:
        """Returns whether a new descriptor is a spare one. The system always assigns the lowest free number."""
        most = self._limit()
        return most >= 0 and descriptor >= most - min(SPARE_DESCRIPTORS, most // 4)

    def open(self, user: Reopenable, path: Path, flags: int) -> Descriptor:
        """Opens a file for ``user`` and releases it later if descriptors become scarce. Raises OSError."""
        opened = Descriptor(self.attempt(lambda: os.open(path, flags, 0o644)))
        self.add(user, opened.number)
        return opened

    def add(self, user: Reopenable, number: int) -> None:
        """Adds ``user``, which has opened descriptor ``number``."""
        most = self._limit()
        if self.is_spare(number):
            self.close_oldest(_CLOSED_AT_ONCE)
        elif 0 <= most <= 2 * len(self._open):
            self.close_oldest(1)
        user.used = True
        with self._lock:
            self._open[id(user)] = weakref.ref(user)

    def remove(self, user: Reopenable) -> None:
        """Removes ``user``, which is closed or must stay open."""
        with self._lock:
            self._open.pop(id(user), None)

    def attempt(self, call: Callable[[], T]) -> T:
        """Returns the result of ``call``. If ``call`` finds no free descriptor, closes log files and calls it again.

        Raises the error of ``call`` if no log file is open any more.
        """
        while True:
            try:
                return call()
            except OSError as error:
                if not is_exhausted(error) or not self.close_oldest(_CLOSED_AT_ONCE):
                    raise

    def close_oldest(self, count: int, *, least: int = 0) -> int:
        """Closes up to ``count`` files, the least recently used first; at least ``least`` stay open.

        Returns the number of closed files.
        """
        closed = 0
        with self._lock:
            for _ in range(2 * len(self._open)):  # in the second round no file counts as used
                if closed >= count or len(self._open) <= least:
                    break
                key, reference = self._open.popitem(last=False)
                user = reference()
                if user is None:
                    continue
                if user.used:
                    user.used = False
                    self._open[key] = reference
                else:
                    user.release()
                    closed += 1
        return closed

    def close_unused(self) -> int:
        """Closes the files that were not used since the last call. Returns their number.

        Files that have been closed since then count, too."""
        closed = 0
        with self._lock:
            for key, reference in tuple(self._open.items()):
                user = reference()
                if user is None or not user.used:
                    self._open.pop(key, None)
                    closed += 1
                    if user is not None:
                        user.release()
                else:
                    user.used = False
        return closed

    def make_room(self) -> bool:
        """Closes a few log files for a connection. Returns whether it closed any."""
        most = self._limit()
        kept = self._kept if most < 0 else min(self._kept, most // 4)
        return self.close_oldest(_CLOSED_AT_ONCE, least=kept) > 0

    def has_room(self) -> bool:
        """Returns whether a file can be opened without use of the last half of the spare descriptors.

        Closes log files if necessary.
        """
        most = self._limit()
        try:
            number = os.open(os.devnull, os.O_RDONLY | CLOSE_ON_EXEC)
            os.close(number)
        except OSError as error:
            if not is_exhausted(error):
                raise
            number = most
        last = most - min(SPARE_DESCRIPTORS, most // 4) // 2
        return 0 <= number < last or most < 0 or self.close_oldest(_CLOSED_AT_ONCE) == _CLOSED_AT_ONCE


SHARED = Descriptors()
"""The open log files of this process, shared by its brokers."""
