"""The file that an output option names: a regular file is replaced when it is complete, all else is written through.

A name may be a device (``/dev/full``), a FIFO, a file descriptor (``/dev/stdout``, ``/dev/fd/3``) or a symlink. None of
them may be replaced by a regular file. All commands write their output files with this module.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

_DESCRIPTORS = ("/dev/", "/proc/")


class PositionedStream:
    """A binary stream that knows its position, also if it is a pipe, where ``tell`` fails. Parquet needs the position.

    ``close`` flushes, and leaves the stream open: its owner closes it.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._position = stream, 0
        self.closed = False

    def write(self, data: bytes | memoryview) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            left = left[self._stream.write(left) :]
        self._position += size
        return size

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.flush()
        self.closed = True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True


def is_standard_output(path: Path) -> bool:
    """Returns whether a path is the present standard output: messages of the command must not be mixed with it."""
    return _descriptor_of(path) == 1


def is_terminal(path: Path) -> bool:
    """Returns whether a path is a terminal, such as ``/dev/tty``: control characters in records would act on it."""
    try:
        if not stat.S_ISCHR(path.stat().st_mode):
            return False
        opened = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.isatty(opened)
    finally:
        os.close(opened)


def problem_of(path: Path) -> str | None:
    """Returns why an output file cannot be written, or None. For a check before long work."""
    if path.is_dir():
        return "is a directory, not a file: give a file"
    parent = Path(os.path.realpath(path)).parent
    if not _is_special(path) and not parent.is_dir():
        return f"there is no directory {parent}: make it, or give another path"
    return None


@contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """Yields the binary stream of an output file.

    A regular file, new or old, gets its content at the end of the block: until then readers see the old content, and
    after an error the old content stays. A symlink stays, and its target is written. Raises OSError.
    """
    if _is_special(path):
        with _opened(path) as stream:
            yield stream
            stream.flush()
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{uuid4().hex[:12]}.part")
    try:
        stream = part.open("xb")
    except PermissionError:
        if not target.exists():
            raise
        with target.open("wb") as stream:  # the file may be written, although its folder may not
            yield stream
        return
    try:
        with stream:
            if target.exists():
                shutil.copymode(target, part)
            yield stream
        put_in_place(part, target)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields the binary stream of an output file that must not exist yet; devices and FIFOs are written through.

    The data is on the disk at the end of the block. Raises FileExistsError, OSError.
    """
    if _is_special(path):
        with _opened(path) as stream:
            yield stream
            stream.flush()
        return
    with Path(os.path.realpath(path)).open("xb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


def put_in_place(part: Path, path: Path) -> None:
    """Moves a complete file to its place. If that is a device or a FIFO, writes the content through. Raises OSError."""
    if _is_special(path):
        with part.open("rb") as content, _opened(path) as stream:
            shutil.copyfileobj(content, stream)
        part.unlink()
        return
    target = os.path.realpath(path)
    try:
        os.replace(part, target)
    except OSError:
        if not os.path.ismount(target):
            raise
        with part.open("rb") as content, open(target, "wb") as stream:  # a single file that is mounted, as by Docker
            shutil.copyfileobj(content, stream)
        part.unlink()


def _is_special(path: Path) -> bool:
    """Returns whether a path is anything but a regular file or a free name."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) or os.path.abspath(path).startswith(_DESCRIPTORS)


def _descriptor_of(path: Path) -> int | None:
    """Returns 1 or 2 if a path is the file behind the process's standard output or error."""
    with suppress(OSError):
        given = path.stat()
        for number in (1, 2):
            with suppress(OSError):
                if os.path.samestat(given, os.fstat(number)) and not stat.S_ISDIR(given.st_mode):
                    return number
    return None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Opens a device, a FIFO or a descriptor. A regular file behind a descriptor is continued, not truncated."""
    number = _descriptor_of(path)
    if number is not None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        with os.fdopen(os.dup(number), "wb") as opened:
            yield opened
        return
    with path.open("wb", buffering=1 << 20) as opened:
        yield opened


def sync_directory(path: Path) -> None:
    """Makes renames and removals in a directory durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
