"""Files in memory, for tests: failures on demand, kill -9, and power cuts.

A file has the bytes that a process reads, and those that a disk keeps. A sync of the file makes them equal. A directory
has names that a process finds, and those that a disk keeps: a sync of the directory makes these equal. So a file that
was synced is gone after a power cut if its name was not.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from odradek.storage.disk.files import Buffer, Mapped
from odradek.storage.disk.write_failures import SyncFailed


class Crash(BaseException):
    """The simulated crash of a test. The program must not catch it."""


class MemoryBytes(bytearray):
    """The bytes of a file. ``synced``: the bytes on the disk. Those before ``changed_from`` are equal."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(data)
        self.synced = bytearray(data)
        self.changed_from = len(data)

    def note_change(self, position: int) -> None:
        self.changed_from = min(self.changed_from, position)

    def sync(self) -> None:
        start = self.changed_from
        self.synced[start:] = self[start:]
        self.changed_from = len(self)

    def __deepcopy__(self, memo: dict[int, object]) -> MemoryBytes:
        copy = memo[id(self)] = MemoryBytes(bytes(self))
        copy.synced, copy.changed_from = bytearray(self.synced), self.changed_from
        return copy

    def after_power_cut(self, kept: float) -> MemoryBytes:
        """Returns the bytes on the disk. ``kept``: the part of the unsynced bytes at the end that is there, too."""
        rest = self[len(self.synced) :] if self.changed_from >= len(self.synced) else b""
        return MemoryBytes(bytes(self.synced + rest[: int(len(rest) * kept)]))


class MemoryDirectory:
    """A directory. ``synced``: its names on the disk."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray | MemoryDirectory] = {}


class NameChange(NamedTuple):
    """A name that a directory gets, or loses (``node`` is None), and that the disk does not know yet."""

    directory: MemoryDirectory
    name: str
    node: bytearray | MemoryDirectory | None

    def apply(self) -> None:
        if self.node is None:
            self.directory.synced.pop(self.name, None)
        else:
            self.directory.synced[self.name] = self.node


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
        _note_change(data, size)
        del data[size:]

    def sync(self) -> None:
        data = self.open()
        self._owner.check_sync(self.path)
        if isinstance(data, MemoryBytes):
            data.sync()

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
    * ``fail_read``, ``fail_write``, ``fail_sync``: reads, writes or syncs of paths for which the predicate is true
      raise EIO;
    * ``tear_after(n)``: the next append writes only its first ``n`` bytes and raises ``Crash``;
    * ``crash_after(n)``: after ``n`` more changes, including syncs, the next change raises ``Crash``;
    * ``power_cut``: what was not synced is gone, bytes and names.

    Written bytes survive a crash, as the page cache survives kill -9. The root is always on the disk, and so are
    directories in which a test puts a file without making them.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self.data: dict[Path, bytearray] = {}
        self.modified: dict[Path, int] = {}
        self.directories: set[Path] = set()
        self.free_bytes: int | None = None
        self.fail_read: Callable[[Path], bool] = lambda path: False
        self.fail_write: Callable[[Path], bool] = lambda path: False
        self.fail_sync: Callable[[Path], bool] = lambda path: False
        self.now_ms = now_ms
        self.syncs: list[Path] = []
        self.appends: list[Path] = []
        self.opened: weakref.WeakSet[MemoryFile] = weakref.WeakSet()
        self._locks: set[Path] = set()
        self._tear: int | None = None
        self._steps: int | None = None
        self._nodes: dict[Path, MemoryDirectory] = {}
        self._changes: list[tuple[NameChange, ...]] = []

    # failures

    def tear_after(self, size: int) -> None:
        self._tear = size

    def crash_after(self, steps: int) -> None:
        self._steps = steps

    def crash(self) -> None:
        """Ends the simulated process: releases its locks."""
        self._locks = set()
        self._tear = self._steps = None

    def power_cut(self, kept: Callable[[], float] = lambda: 0.0) -> None:
        """Ends the process, and keeps only what is on the disk.

        ``kept``: returns the part of the unsynced changes that the disk has nevertheless, from 0 to 1: for the names,
        of which the disk has the first ones in the order of the changes, and for each file, at whose end bytes were
        appended. A disk may write before a sync, so a program must be right with every part.
        """
        self.crash()
        for change in self._changes[: int(len(self._changes) * kept())]:
            for one in change:
                one.apply()
        self._changes = []
        roots = [(path, node) for path, node in self._nodes.items() if path == path.parent]
        self.data, self._nodes, self.directories = {}, {}, set()
        modified, self.modified = self.modified, {}
        after: dict[int, bytearray] = {}  # a file that has two names on the disk is one file
        while roots:
            path, directory = roots.pop()
            self._nodes[path] = directory
            self.directories.add(path)
            for name, node in directory.synced.items():
                if isinstance(node, MemoryDirectory):
                    roots.append((path / name, node))
                    continue
                if id(node) not in after:
                    after[id(node)] = node.after_power_cut(kept()) if isinstance(node, MemoryBytes) else node
                directory.synced[name] = self.data[path / name] = after[id(node)]
                self.modified[path / name] = modified.get(path / name, self.now_ms)

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
        _note_change(data, len(data))
        if self._tear is not None:
            keep, self._tear = self._tear, None
            data += new[:keep]
            raise Crash
        if self.fail_write(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
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

    def __deepcopy__(self, memo: dict[int, object]) -> MemoryFiles:
        """Returns a copy of the disk and of the page cache, without open files, for a test that goes on in two ways."""
        copy = MemoryFiles(self.now_ms)
        copy.data, copy._nodes, copy._changes = deepcopy((self.data, self._nodes, self._changes), memo)
        copy.modified, copy.directories = dict(self.modified), set(self.directories)
        copy.free_bytes = self.free_bytes
        return copy

    # names

    def _node(self, path: Path) -> MemoryDirectory:
        """Returns a directory. One that was never made is on the disk."""
        node = self._nodes.get(path)
        if node is None:
            node = self._nodes[path] = MemoryDirectory()
            if path != path.parent:
                self._node(path.parent).synced[path.name] = node
        return node

    def _change(self, *changes: tuple[Path, bytearray | MemoryDirectory | None]) -> None:
        """Notes that names have changed together."""
        self._changes.append(tuple(NameChange(self._node(path.parent), path.name, node) for path, node in changes))

    def _sync_names(self, directory: Path) -> None:
        node = self._nodes.get(directory)
        kept = []
        for change in self._changes:
            if any(one.directory is node for one in change):
                for one in change:
                    one.apply()
            else:
                kept.append(change)
        self._changes = kept

    def find(self, path: Path, *, create: bool) -> bytearray:
        if path not in self.data:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self.step()
            self.data[path] = MemoryBytes()
            self.modified[path] = self.now_ms
            self._change((path, self.data[path]))
        return self.data[path]

    # the operations of ``Files``

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
        fresh = MemoryBytes()
        self.charge(path, fresh, data)
        if sync:
            self.check_sync(path)
            fresh.sync()
        self.data[path] = fresh
        self._change((path, fresh))
        if sync:
            self._sync_names(path.parent)

    def overwrite(self, path: Path, data: bytes) -> None:
        kept = self.find(path, create=False)
        self.step()
        _note_change(kept, 0)
        kept[: len(data)] = data

    def list(self, directory: Path) -> list[str]:
        start = f"{directory}/"
        inside = {str(path)[len(start) :].split("/", 1)[0] for path in self.data if str(path).startswith(start)}
        return sorted(inside | {path.name for path in self.directories if path.parent == directory != path})

    def exists(self, path: Path) -> bool:
        return path in self.data or path in self.directories

    def size(self, path: Path) -> int:
        return len(self.read(path))

    def modified_ms(self, path: Path) -> int:
        return self.modified[path]

    def set_modified_ms(self, path: Path, modified_ms: int) -> None:
        self.modified[path] = modified_ms

    def is_private(self, path: Path) -> bool:
        """Returns True: files in memory have no modes."""
        return True

    def make_private(self, directory: Path) -> None:
        """Does nothing: files in memory have no modes."""

    def make_dirs(self, directory: Path, *, private: bool = False) -> None:
        for path in reversed((directory, *directory.parents)):
            if path not in self.directories:
                self.directories.add(path)
                if path == path.parent:
                    self._node(path)
                elif path not in self._nodes:
                    self._nodes[path] = MemoryDirectory()
                    self._change((path, self._nodes[path]))

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        if source in self.data:
            self._change((source, None), (target, self.data[source]))
        elif source in self.directories:
            self._change((source, None), (target, self._node(source)))
        for names in (self.data, self.modified, self._nodes):
            _move(names, source, target)
        moved = {path for path in self.directories if path == source or source in path.parents}
        self.directories = (self.directories - moved) | {_moved(path, source, target) for path in moved}

    def remove(self, path: Path) -> None:
        if path in self.directories or path in self.data:
            self.step()
        if path in self.directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
            self.directories.discard(path)
            self._nodes.pop(path, None)
            self._change((path, None))
        if self.data.pop(path, None) is not None:
            self._change((path, None))
        self.modified.pop(path, None)

    def sync_dir(self, directory: Path) -> None:
        self.check_sync(directory)
        self._sync_names(directory)

    def has_room(self) -> bool:
        return True

    def lock(self, path: Path) -> MemoryLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        return MemoryLock(self._locks, path)


def _note_change(data: bytearray, position: int) -> None:
    if isinstance(data, MemoryBytes):
        data.note_change(position)


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path != source else target


def _move(names: dict[Path, Any], source: Path, target: Path) -> None:
    inside = f"{source}/"
    for path in [path for path in names if path == source or str(path).startswith(inside)]:
        names[_moved(path, source, target)] = names.pop(path)
