"""Files in memory on a disk that fills up after a number of changes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from support.memory_files import MemoryFiles


class FullDisk(MemoryFiles):
    """After ``fill_after(n)``, ``n`` more changes succeed. Then each change that may need space raises an error until
    ``make_room``, and each refused append leaves half of its bytes. Removals, truncations and renames back to an
    earlier name need no space. ``refused`` has the paths of refused changes.
    """

    def __init__(self, now_ms: int = 0, number: int = errno.ENOSPC) -> None:
        super().__init__(now_ms)
        self.refused: list[Path] = []
        self.only: Callable[[Path], bool] = lambda path: True
        self.changes = 0
        self._left_names: set[Path] = set()
        self._number = number
        self._left: int | None = None

    def fill_after(self, changes: int) -> None:
        self._left = changes

    def make_room(self) -> None:
        self._left = None

    def claim(self, path: Path) -> None:
        """Counts a change that needs space. Raises OSError on the full disk."""
        if not self.only(path):
            return
        self.changes += 1
        if self._left is None:
            return
        if self._left:
            self._left -= 1
            return
        self.refused.append(path)
        raise OSError(self._number, os.strerror(self._number), str(path))

    def charge(self, path: Path, data: bytearray, new: bytes) -> None:
        try:
            self.claim(path)
        except OSError:
            data += new[: len(new) // 2]
            raise
        super().charge(path, data, new)

    def find(self, path: Path, *, create: bool) -> bytearray:
        if create and path not in self.data:
            self.claim(path)
        return super().find(path, create=create)

    def rename(self, source: Path, target: Path) -> None:
        if target not in self._left_names:
            self.claim(source)
        self._left_names.add(source)
        super().rename(source, target)

    def make_dirs(self, directory: Path, *, private: bool = False) -> None:
        if directory not in self.directories:
            self.claim(directory)
        super().make_dirs(directory, private=private)
