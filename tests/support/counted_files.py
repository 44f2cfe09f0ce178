"""Files of logs that count what is read of them, and what is cut off."""

from __future__ import annotations

import os
from pathlib import Path

from odradek.storage.disk.descriptors import CLOSE_ON_EXEC
from odradek.storage.disk.files import OsFile, OsFiles


class CountedFiles(OsFiles):
    """``reads``: the names of the files and the sizes in bytes of all reads at a position. ``cuts``: the bytes that
    each truncation has removed."""

    def __init__(self) -> None:
        self.reads: list[tuple[str, int]] = []
        self.cuts: list[int] = []

    @property
    def read_bytes(self) -> int:
        return sum(size for _, size in self.reads)

    def lazy(self, path: Path, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_APPEND | CLOSE_ON_EXEC | (os.O_CREAT if create else 0)
        return _CountedFile(self, path, flags)


class _CountedFile(OsFile):
    def __init__(self, files: CountedFiles, path: Path, flags: int) -> None:
        super().__init__(path, flags, files.descriptors)
        self._reads, self._cuts = files.reads, files.cuts

    def pread(self, position: int, size: int) -> bytes:
        data = super().pread(position, size)
        self._reads.append((self.path.name, len(data)))
        return data

    def truncate(self, size: int) -> None:
        self._cuts.append(self.size - size)
        super().truncate(size)
