"""The file system as the log sees it: the real one, and one in memory that fails on demand.

Errors are ``OSError``, whatever the file system; ``Log`` turns them into Kafka's storage error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview
Mapped = bytes | bytearray | memoryview | mmap.mmap


class File(Protocol):
    """An open file that grows at its end. ``size`` is kept here so that nobody has to ask the kernel."""

    path: Path
    size: int

    def append(self, parts: Sequence[Buffer]) -> None:
        """Writes all parts at the end, with one call to the kernel unless that writes less than it was given."""

    def pread(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``position``; fewer only at the end of the file."""

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """What the log needs of a file system."""

    def open(self, path: Path, *, create: bool = False) -> File: ...
    def read(self, path: Path) -> bytes: ...
    def view(self, path: Path) -> Mapped:
        """The whole file's bytes, mapped where that is possible."""

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Replaces the file as a whole or not at all, and syncs it with its directory."""

    def list(self, directory: Path) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""

    def exists(self, path: Path) -> bool: ...
    def size(self, path: Path) -> int: ...
    def modified_ms(self, path: Path) -> int: ...
    def set_modified_ms(self, path: Path, modified_ms: int) -> None: ...
    def make_dirs(self, directory: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None:
        """Removes a file, or an empty directory; nothing happens when there is none."""

    def sync_dir(self, directory: Path) -> None: ...
    def lock(self, path: Path) -> Lock:
        """Takes the lock on ``path`` or raises BlockingIOError at once; it ends with the process."""


class OsFile:
    """Closes itself with its last user, so a slice handed to a socket outlives the segment's deletion."""

    def __init__(self, path: Path, flags: int) -> None:
        self.path = path
        self._fd = -1
        self._fd = os.open(path, flags, 0o644)
        self.size = os.fstat(self._fd).st_size

    def append(self, parts: Sequence[Buffer]) -> None:
        total = sum(len(part) for part in parts)
        written = os.writev(self._fd, parts)
        if written < total:
            rest = memoryview(b"".join(parts))
            while written < total:
                written += os.write(self._fd, rest[written:])
        self.size += total

    def pread(self, position: int, size: int) -> bytes:
        return os.pread(self._fd, size, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def sync(self) -> None:
        os.fdatasync(self._fd) if hasattr(os, "fdatasync") else os.fsync(self._fd)

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class OsLock:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        os.close(self._fd)


class OsFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        return OsFile(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0))

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def view(self, path: Path) -> Mapped:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                return b""
            return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if sync:
            self.sync_dir(path.parent)

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def make_dirs(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def remove(self, path: Path) -> None:
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            if not path.is_dir():
                raise
            path.rmdir()

    def sync_dir(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: Path) -> OsLock:
        return OsLock(path)


class Crash(BaseException):
    """The machine of a test stops here; nothing in the program may catch it."""


class MemoryFile:
    def __init__(self, owner: MemoryFiles, path: Path, data: bytearray) -> None:
        self.path = path
        self._owner = owner
        self._data = data
        self._closed = False

    @property
    def size(self) -> int:
        return len(self._data)

    @size.setter
    def size(self, value: int) -> None:
        raise AttributeError("size follows the bytes")

    def append(self, parts: Sequence[Buffer]) -> None:
        self._check()
        self._owner.charge(self.path, self._data, b"".join(parts))

    def pread(self, position: int, size: int) -> bytes:
        self._check()
        self._owner.check_read(self.path)
        return bytes(self._data[position : position + size])

    def truncate(self, size: int) -> None:
        self._check()
        del self._data[size:]

    def sync(self) -> None:
        self._check()
        self._owner.check_sync(self.path)

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor", str(self.path))

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", str(self.path))


class MemoryLock:
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """Files in memory that fail when told to.

    * ``free_bytes``: when it is used up, writes stop half-way with ENOSPC;
    * ``fail_read``, ``fail_sync``: paths for which the predicate says true answer EIO;
    * ``tear_after(n)``: the next append keeps only its first ``n`` bytes and raises ``Crash``.

    What was written survives a crash, as the page cache survives kill -9.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.data: dict[Path, bytearray] = {}
        self.modified: dict[Path, int] = {}
        self.directories: set[Path] = set()
        self.free_bytes: int | None = None
        self.fail_read: Callable[[Path], bool] = lambda path: False
        self.fail_sync: Callable[[Path], bool] = lambda path: False
        self.now_ms = now_ms
        self.syncs: list[Path] = []
        self.appends: list[Path] = []
        self._locks: set[Path] = set()
        self._tear: int | None = None

    def tear_after(self, size: int) -> None:
        self._tear = size

    def crash(self) -> None:
        """The process is gone: its locks are free again."""
        self._locks.clear()
        self._tear = None

    def charge(self, path: Path, data: bytearray, new: bytes) -> None:
        self.appends.append(path)
        self.modified[path] = self.now_ms
        if self._tear is not None:
            keep, self._tear = self._tear, None
            data += new[:keep]
            raise Crash
        if self.free_bytes is not None:
            fitting = new[: max(self.free_bytes, 0)]
            self.free_bytes -= len(fitting)
            data += fitting
            if len(fitting) < len(new):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return
        data += new

    def check_read(self, path: Path) -> None:
        if self.fail_read(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def check_sync(self, path: Path) -> None:
        self.syncs.append(path)
        if self.fail_sync(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        if path not in self.data:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.data[path] = bytearray()
            self.modified[path] = self.now_ms
        return MemoryFile(self, path, self.data[path])

    def read(self, path: Path) -> bytes:
        self.check_read(path)
        try:
            return bytes(self.data[path])
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None

    def view(self, path: Path) -> Mapped:
        return self.read(path)

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        fresh = bytearray()
        self.charge(path, fresh, data)
        if sync:
            self.check_sync(path)
        self.data[path] = fresh

    def list(self, directory: Path) -> list[str]:
        names = {path.relative_to(directory).parts[0] for path in self.data if directory in path.parents}
        return sorted(names)

    def exists(self, path: Path) -> bool:
        return path in self.data or path in self.directories

    def size(self, path: Path) -> int:
        return len(self.read(path))

    def modified_ms(self, path: Path) -> int:
        return self.modified[path]

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        self.modified[path] = modified_ms

    def make_dirs(self, directory: Path) -> None:
        self.directories.update((directory, *directory.parents))

    def rename(self, source: Path, target: Path) -> None:
        for path in [path for path in self.data if path == source or source in path.parents]:
            moved = target / path.relative_to(source) if path != source else target
            self.data[moved] = self.data.pop(path)
            self.modified[moved] = self.modified.pop(path)
        if source in self.directories:
            self.directories.discard(source)
            self.directories.add(target)

    def remove(self, path: Path) -> None:
        if path in self.directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            self.directories.discard(path)
        self.data.pop(path, None)
        self.modified.pop(path, None)

    def sync_dir(self, directory: Path) -> None:
        self.check_sync(directory)

    def lock(self, path: Path) -> MemoryLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        return MemoryLock(self._locks, path)
