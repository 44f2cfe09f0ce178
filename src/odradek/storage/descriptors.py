"""Descriptors of log files: how many are open, and which are closed first.

A broker has more log files than the system lets a process open. A log file is opened when it is first used. It is
closed when descriptors run short or when it has not been used for a while, and opened again at the next use.

The descriptors of the process have three users:

* the last ones (``SPARE_DESCRIPTORS``, a quarter at most) are for files that are open for a moment: checkpoints,
  directories, modules;
* log files have at most half of all; they are closed, the least recently used first, so that they stay out of the
  spare ones;
* connections have the rest (``broker/transport``). Open log files make room for them, down to ``KEPT_FOR_LOGS``.
"""

from __future__ import annotations

import errno
import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar

T = TypeVar("T")

SPARE_DESCRIPTORS = 256
KEPT_FOR_LOGS = 256
"""So many open log files, or a quarter of all descriptors if that is less, connections do not push out."""
_CLOSED_AT_ONCE = 8
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


def is_exhausted(error: OSError) -> bool:
    """Whether an error says that no descriptor was left. Nothing is wrong with the file then."""
    return error.errno in _EXHAUSTED


def _limit() -> int:
    """How many descriptors the process may have; -1 for any number."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_spare(descriptor: int) -> bool:
    """Whether a new descriptor is one of the last: the system always gives the least that is free."""
    most = _limit()
    return most >= 0 and descriptor >= most - min(SPARE_DESCRIPTORS, most // 4)


class Descriptor:
    """An open file. It is closed when nothing refers to this object, so no number is used after it was given back."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.number)


class Reopenable(Protocol):
    """A file that may be closed at any time because its next use opens it again."""

    used: bool
    """Set at each use."""

    def release(self) -> None:
        """Closes the file."""


class Descriptors:
    """The log files that are open. For several threads."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, weakref.ref[Reopenable]] = OrderedDict()
        self._lock = RLock()  # an entry may be collected, and removed, inside of any call

    def __len__(self) -> int:
        return len(self._open)

    def open(self, user: Reopenable, path: Path, flags: int) -> Descriptor:
        """Opens a file for ``user``, which is asked to release it when descriptors run short. Raises OSError."""
        opened = Descriptor(self.attempt(lambda: os.open(path, flags, 0o644)))
        self.add(user, opened.number)
        return opened

    def add(self, user: Reopenable, number: int) -> None:
        """``user`` has opened descriptor ``number``."""
        most = _limit()
        if is_spare(number):
            self.close_oldest(_CLOSED_AT_ONCE)
        elif 0 <= most <= 2 * len(self._open):
            self.close_oldest(1)
        user.used = True
        with self._lock:
            self._open[id(user)] = weakref.ref(user)

    def remove(self, user: Reopenable) -> None:
        """``user`` is closed, or must stay open from now on."""
        with self._lock:
            self._open.pop(id(user), None)

    def attempt(self, call: Callable[[], T]) -> T:
        """The result of ``call``. It is called again after others were closed if there was no descriptor for it."""
        while True:
            try:
                return call()
            except OSError as error:
                if not is_exhausted(error) or not self.close_oldest(_CLOSED_AT_ONCE):
                    raise

    def close_oldest(self, count: int, *, least: int = 0) -> int:
        """Closes up to ``count`` files, those first that were not used lately, down to ``least``; returns how many."""
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
        """Closes the files that were not used since the last call; returns how many."""
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
        """Closes a few log files for a connection; whether there were enough of them."""
        most = _limit()
        kept = KEPT_FOR_LOGS if most < 0 else min(KEPT_FOR_LOGS, most // 4)
        return self.close_oldest(_CLOSED_AT_ONCE, least=kept) > 0

    def has_room(self) -> bool:
        """Whether a file can be opened without taking one of the very last descriptors.

        Log files do not count, since they are closed when necessary.
        """
        most = _limit()
        try:
            number = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            os.close(number)
        except OSError as error:
            if not is_exhausted(error):
                raise
            number = most
        last = most - min(SPARE_DESCRIPTORS, most // 4) // 2
        return 0 <= number < last or most < 0 or self.close_oldest(_CLOSED_AT_ONCE) == _CLOSED_AT_ONCE


SHARED = Descriptors()
"""Those of this process, for all its brokers."""
