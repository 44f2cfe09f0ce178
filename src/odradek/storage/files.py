"""The file system interface of the log: the real file system, and one in memory that fails on demand.

Both raise ``OSError``; ``Log`` turns it into Kafka's storage error.

A file of a log is opened at its first use and can be closed between uses (``storage/descriptors``). ``Files.lazy`` and
``Files.lazy_view`` do not open it.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from odradek.storage.descriptors import CLOSE_ON_EXEC, SHARED, Descriptor, Descriptors
from odradek.storage.write_failures import SyncFailed

try:
    import fcntl
except ImportError:  # Windows, where no broker runs
    pass

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Mapped = bytes | bytearray | memoryview | mmap.mmap


class File(Protocol):
    """A file that grows at its end."""

    path: Path

    @property
    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Writes all parts at the end, with one system call unless the call writes only some of the bytes."""

    def pread(self, position: int, size: int) -> bytes:
        """Returns ``size`` bytes from ``position``; fewer only at the end of the file."""

    def send(self, socket: int, position: int, size: int) -> int:
        """Writes up to ``size`` bytes from ``position`` to a socket. Returns how many. Not for files in memory."""

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...

    def keep(self) -> None:
        """Keeps the file open while this object exists, so that it can be read after the file is removed."""

    def close(self) -> None: ...


class View(Protocol):
    """The bytes of a whole file that does not change."""

    def data(self) -> Mapped: ...


class Lock(Protocol):
    def release(self) -> None: ...


class Files(Protocol):
    """The operations of a file system that the log uses."""

    def open(self, path: Path, *, create: bool = False) -> File: ...

    def lazy(self, path: Path, *, create: bool = False) -> File:
        """Returns a file that is opened, and with ``create`` also created, at its first use."""

    def lazy_view(self, path: Path) -> View: ...
    def read(self, path: Path) -> bytes: ...
    def view(self, path: Path) -> Mapped:
        """Returns the bytes of the whole file, mapped if possible."""

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Replaces the file atomically. ``sync``: syncs the file and its directory."""

    def overwrite(self, path: Path, data: bytes) -> None:
        """Writes ``data`` over the first bytes of an existing file, without a sync. It needs no space on the disk."""

    def list(self, directory: Path) -> list[str]:
        """Returns the names in a directory, sorted; an empty list if the directory does not exist."""

    def exists(self, path: Path) -> bool: ...
    def size(self, path: Path) -> int: ...
    def modified_ms(self, path: Path) -> int: ...
    def set_modified_ms(self, path: Path, modified_ms: int) -> None: ...
    def make_dirs(self, directory: Path, *, private: bool = False) -> None:
        """Makes a directory and its parents if they do not exist. Only this user may enter a ``private`` one."""

    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None:
        """Removes a file or an empty directory, if it exists."""

    def sync_dir(self, directory: Path) -> None: ...

    def has_room(self) -> bool:
        """Returns whether there are free descriptors for more logs."""

    def lock(self, path: Path) -> Lock:
        """Takes the lock on ``path``, or raises BlockingIOError at once. The lock ends with the process."""


def _no_broker() -> OSError:
    return OSError(errno.ENOSYS, "no broker runs on Windows")


def _sync(number: int, path: Path, *, data_only: bool = False) -> None:
    """Syncs an open file. Raises SyncFailed."""
    try:
        os.fdatasync(number) if data_only and hasattr(os, "fdatasync") else os.fsync(number)
    except OSError as error:
        raise SyncFailed(error.errno, f"sync failed: {error.strerror}", str(path)) from error


class OsFile:
    """A file that is closed with its last reference. So a slice can be sent after the removal of its segment.

    Each call keeps a reference to the descriptor, because another thread may release the file.
    """

    __slots__ = ("__weakref__", "_descriptors", "_flags", "_held", "path", "used")

    def __init__(self, path: Path, flags: int, descriptors: Descriptors) -> None:
        self.path = path
        self.used = False
        self._flags = flags
        self._descriptors = descriptors
        self._held: Descriptor | None = None

    def open(self) -> Descriptor:
        held = self._held = self._descriptors.open(self, self.path, self._flags)
        self._flags &= ~os.O_CREAT  # a later open must not create the file again
        return held

    @property
    def size(self) -> int:
        held = self._held or self.open()
        return os.fstat(held.number).st_size

    def append(self, parts: Sequence[Buffer]) -> None:
        held = self._held or self.open()
        self.used = True
        total = sum(map(len, parts))
        if sys.platform == "win32":
            raise _no_broker()
        written = os.writev(held.number, parts)
        if written < total:
            rest = memoryview(b"".join(parts))
            while written < total:
                written += os.write(held.number, rest[written:])

    def pread(self, position: int, size: int) -> bytes:
        held = self._held or self.open()
        self.used = True
        if sys.platform == "win32":
            raise _no_broker()
        return os.pread(held.number, size, position)

    def send(self, socket: int, position: int, size: int) -> int:
        held = self._held or self.open()
        self.used = True
        if sys.platform == "win32":
            raise _no_broker()
        return os.sendfile(socket, held.number, position, size)

    def truncate(self, size: int) -> None:
        held = self._held or self.open()
        os.ftruncate(held.number, size)

    def sync(self) -> None:
        held = self._held or self.open()
        _sync(held.number, self.path, data_only=True)

    def release(self) -> None:
        self._held = None

    def keep(self) -> None:
        if self._held is None:
            self.open()
        self._descriptors.remove(self)

    def close(self) -> None:
        self._descriptors.remove(self)
        self._held = None

    def __del__(self) -> None:
        if self._held is not None:
            self._descriptors.remove(self)


class OsView:
    """A mapped file. The map has its own descriptor, which is closed with the last reference to the map."""

    __slots__ = ("__weakref__", "_descriptors", "_mapped", "path", "used")

    def __init__(self, path: Path, descriptors: Descriptors) -> None:
        self.path = path
        self.used = False
        self._descriptors = descriptors
        self._mapped: Mapped | None = None

    def data(self) -> Mapped:
        mapped = self._mapped
        if mapped is None:
            mapped = self._map()
        self.used = True
        return mapped

    def _map(self) -> Mapped:
        opened = Descriptor(self._descriptors.attempt(lambda: os.open(self.path, os.O_RDONLY | CLOSE_ON_EXEC)))
        if not os.fstat(opened.number).st_size:
            self._mapped = b""
            return self._mapped
        self._mapped = self._descriptors.attempt(lambda: mmap.mmap(opened.number, 0, access=mmap.ACCESS_READ))
        self._descriptors.add(self, opened.number)
        return self._mapped

    def release(self) -> None:
        self._mapped = None

    def __del__(self) -> None:
        if self._mapped is not None:
            self._descriptors.remove(self)


class OsLock:
    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC, 0o644)
        if sys.platform == "win32":  # no broker runs on Windows
            return
        try:
            # A running Apache Kafka has Java's lock, which flock ignores. So lockf, which does not ignore it, is called
            # first. Its lock is released again: a file system that implements both kinds as one (NFS) would refuse the
            # second kind to the owner of the first.
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        os.close(self._fd)


class OsFiles:
    """The files of the operating system."""

    descriptors: Descriptors = SHARED

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        file = self.lazy(path, create=create)
        file.open()
        return file

    def lazy(self, path: Path, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_APPEND | CLOSE_ON_EXEC | (os.O_CREAT if create else 0)
        return OsFile(path, flags, self.descriptors)

    def lazy_view(self, path: Path) -> OsView:
        return OsView(path, self.descriptors)

    def read(self, path: Path) -> bytes:
        return self.descriptors.attempt(path.read_bytes)

    def view(self, path: Path) -> Mapped:
        return self.lazy_view(path).data()

    def write(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        temporary = path.with_name(path.name + ".tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | CLOSE_ON_EXEC
        opened = Descriptor(self.descriptors.attempt(lambda: os.open(temporary, flags, 0o644)))
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(opened.number, rest) :]
            if sync:
                os.fsync(opened.number)  # a failure concerns only the new file, so it is no ``SyncFailed``
            temporary.replace(path)
        except OSError:
            self.remove(temporary)
            raise
        finally:
            del opened
        if sync:
            self.sync_dir(path.parent)

    def overwrite(self, path: Path, data: bytes) -> None:
        opened = Descriptor(self.descriptors.attempt(lambda: os.open(path, os.O_WRONLY | CLOSE_ON_EXEC)))
        if sys.platform == "win32":
            raise _no_broker()
        os.pwrite(opened.number, data, 0)

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(self.descriptors.attempt(lambda: os.listdir(directory)))
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

    def make_dirs(self, directory: Path, *, private: bool = False) -> None:
        directory.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)

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
        opened = Descriptor(self.descriptors.attempt(lambda: os.open(directory, os.O_RDONLY | CLOSE_ON_EXEC)))
        _sync(opened.number, directory)

    def has_room(self) -> bool:
        return self.descriptors.has_room()

    def lock(self, path: Path) -> OsLock:
        return OsLock(path)


class Crash(BaseException):
    """The simulated crash of a test. The program must not catch it."""


class MemoryFile:
    """A file in memory. Its first use opens it, and also its first use after ``MemoryFiles.release_all``."""

    def __init__(self, owner: MemoryFiles, path: Path, *, create: bool) -> None:
        self.path = path
        self._owner = owner
        self._create = create
        self._held: bytearray | None = None
        self._closed = self._kept = False

    def open(self) -> bytearray:
        if self._closed:
            raise OSError(errno.EBADF, "file is closed", str(self.path))
        if self._held is None:
            self._held = self._owner.find(self.path, create=self._create)
            self._create = False
            self._owner.opened.add(self)
        return self._held

    @property
    def size(self) -> int:
        return len(self.open())

    def append(self, parts: Sequence[Buffer]) -> None:
        self._owner.charge(self.path, self.open(), b"".join(parts))

    def pread(self, position: int, size: int) -> bytes:
        data = self.open()
        self._owner.check_read(self.path)
        return bytes(data[position : position + size])

    def send(self, socket: int, position: int, size: int) -> int:
        raise OSError(errno.EBADF, "a file in memory has no descriptor", str(self.path))

    def truncate(self, size: int) -> None:
        data = self.open()
        self._owner.step()
        del data[size:]

    def sync(self) -> None:
        self.open()
        self._owner.check_sync(self.path)

    def release(self) -> None:
        if not self._kept:
            self._held = None

    def keep(self) -> None:
        self.open()
        self._kept = True

    def close(self) -> None:
        self._closed = True


class MemoryView:
    def __init__(self, owner: MemoryFiles, path: Path) -> None:
        self._owner = owner
        self._path = path

    def data(self) -> Mapped:
        return self._owner.read(self._path)


class MemoryLock:
    def __init__(self, held: set[Path], path: Path) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def release(self) -> None:
        self._held.discard(self._path)


class MemoryFiles:
    """Files in memory with simulated failures.

    * ``free_bytes``: a write that exceeds it writes the part that fits and raises ENOSPC;
    * ``fail_read``, ``fail_sync``: reads or syncs of paths for which the predicate is true raise EIO;
    * ``tear_after(n)``: the next append writes only its first ``n`` bytes and raises ``Crash``;
    * ``crash_after(n)``: after ``n`` more changes, including syncs, the next change raises ``Crash``.

    Written bytes survive a crash, as the page cache survives kill -9.
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
        self.opened: weakref.WeakSet[MemoryFile] = weakref.WeakSet()
        self._locks: set[Path] = set()
        self._tear: int | None = None
        self._steps: int | None = None

    def tear_after(self, size: int) -> None:
        self._tear = size

    def crash_after(self, steps: int) -> None:
        self._steps = steps

    def crash(self) -> None:
        """Ends the simulated process: releases its locks."""
        self._locks.clear()
        self._tear = self._steps = None

    def release_all(self) -> None:
        """Closes every file, as if descriptors had become scarce. The next use opens it again."""
        for file in tuple(self.opened):
            file.release()

    def step(self) -> None:
        """Counts a change, and raises ``Crash`` after ``crash_after``."""
        if self._steps is not None:
            if not self._steps:
                raise Crash
            self._steps -= 1

    def charge(self, path: Path, data: bytearray, new: bytes) -> None:
        self.step()
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
        self.step()
        self.syncs.append(path)
        if self.fail_sync(path):
            raise SyncFailed(errno.EIO, os.strerror(errno.EIO), str(path))

    def find(self, path: Path, *, create: bool) -> bytearray:
        if path not in self.data:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.step()
            self.data[path] = bytearray()
            self.modified[path] = self.now_ms
        return self.data[path]

    def open(self, path: Path, *, create: bool = False) -> MemoryFile:
        file = self.lazy(path, create=create)
        file.open()
        return file

    def lazy(self, path: Path, *, create: bool = False) -> MemoryFile:
        return MemoryFile(self, path, create=create)

    def lazy_view(self, path: Path) -> MemoryView:
        return MemoryView(self, path)

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

    def overwrite(self, path: Path, data: bytes) -> None:
        kept = self.find(path, create=False)
        self.step()
        kept[: len(data)] = data

    def list(self, directory: Path) -> list[str]:
        start = f"{directory}/"
        return sorted({str(path)[len(start) :].split("/", 1)[0] for path in self.data if str(path).startswith(start)})

    def exists(self, path: Path) -> bool:
        return path in self.data or path in self.directories

    def size(self, path: Path) -> int:
        return len(self.read(path))

    def modified_ms(self, path: Path) -> int:
        return self.modified[path]

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        self.modified[path] = modified_ms

    def make_dirs(self, directory: Path, *, private: bool = False) -> None:
        self.directories.update((directory, *directory.parents))

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        inside = f"{source}/"
        for path in [path for path in self.data if path == source or str(path).startswith(inside)]:
            moved = target / path.relative_to(source) if path != source else target
            self.data[moved] = self.data.pop(path)
            self.modified[moved] = self.modified.pop(path)
        if source in self.directories:
            self.directories.discard(source)
            self.directories.add(target)

    def remove(self, path: Path) -> None:
        if path in self.directories or path in self.data:
            self.step()
        if path in self.directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            self.directories.discard(path)
        self.data.pop(path, None)
        self.modified.pop(path, None)

    def sync_dir(self, directory: Path) -> None:
        self.check_sync(directory)

    def has_room(self) -> bool:
        return True

    def lock(self, path: Path) -> MemoryLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        return MemoryLock(self._locks, path)
