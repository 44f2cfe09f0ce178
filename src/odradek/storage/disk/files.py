"""The file system interface of the log, and the real file system (tests have one in memory).

Both raise ``OSError``; ``Log`` turns it into Kafka's storage error.

A file of a log is opened at its first use and can be closed between uses (``storage/disk/descriptors``). ``Files.lazy``
and ``Files.lazy_view`` do not open it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from odradek.storage.disk.descriptors import CLOSE_ON_EXEC, SHARED, Descriptor, Descriptors
from odradek.storage.disk.write_failures import SyncFailed

try:
    import fcntl
except ImportError:  # Windows, where no broker runs
    pass

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Mapped = bytes | bytearray | memoryview | mmap.mmap
_OTHERS = 0o077
"""The bits of a mode that give rights to others than the owner."""


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

    def is_private(self, path: Path) -> bool:
        """Returns whether only its owner may use a file or a directory."""

    def make_private(self, directory: Path) -> None:
        """Takes the rights of others away: from the files in a directory, then from the directory."""

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

    @property
    def is_open(self) -> bool:
        """Whether the file has a descriptor now."""
        return self._held is not None

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


def _close_to_others(path: Path | str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & _OTHERS:
        os.chmod(path, mode & ~_OTHERS)


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

    def is_private(self, path: Path) -> bool:
        return not path.stat().st_mode & _OTHERS

    def make_private(self, directory: Path) -> None:
        with suppress(FileNotFoundError), os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed meanwhile
                    if entry.is_file(follow_symlinks=False):
                        _close_to_others(entry.path)
            _close_to_others(directory)

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
