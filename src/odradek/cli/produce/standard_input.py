"""Standard input that says once that a command waits for it, while a read of it blocks."""

from __future__ import annotations

import io
import select
from collections.abc import Callable
from typing import BinaryIO

from odradek.cli.progress_lines import progress_lines


class AwaitedInput(io.BufferedIOBase):
    """An input whose first long read prints ``line()`` to stderr. None: this read needs no line."""

    def __init__(self, source: BinaryIO, line: Callable[[], str | None]) -> None:
        self._source = source
        self._line = line
        self._is_said = False

    def read1(self, size: int = -1, /) -> bytes:
        """Reads what is there; waits for at least one byte, or the end."""
        if self._is_said or is_readable(self._source) or self._line() is None:
            return self._read1(size)
        with progress_lines(self._said_once):
            return self._read1(size)

    def _read1(self, size: int) -> bytes:
        data: bytes = self._source.read1(size)  # type: ignore[attr-defined]  # files of bytes have it
        return data

    def _said_once(self) -> str | None:
        """Returns the line the first time that the read blocks. The thread of the lines calls it."""
        if self._is_said or is_readable(self._source):  # a busy machine has not run the reading thread yet
            return None
        self._is_said = True
        return self._line()

    def read(self, size: int | None = -1, /) -> bytes:
        return self._source.read(-1 if size is None else size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._source.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def close(self) -> None:
        self._source.close()
        super().close()


def is_readable(source: BinaryIO) -> bool:
    """Returns whether the system has bytes or the end of this input. False if it cannot tell, as on Windows."""
    try:
        return bool(select.select([source], [], [], 0)[0])
    except (OSError, ValueError):  # Windows selects sockets only; a file in memory has no descriptor
        return False
