"""The lock of a data directory: only one broker at a time may use it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files, Lock


class DirectoryLock:
    """The lock file has the id of the process that holds the lock, and its address, for the error message of another
    broker."""

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._lock: Lock | None = None

    def acquire(self, address: tuple[str, int] | None = None) -> None:
        """Creates the directory if it is missing, and locks it. Raises StorageError if it is locked or not usable."""
        file = self._path / checkpoints.LOCK
        try:
            self._make_directory()
            self._lock = self._files.lock(file)
        except BlockingIOError:
            raise StorageError(f"{self._path} is held by another broker{_holder(file)}: stop it first") from None
        except FileExistsError:
            raise StorageError(f"{self._path} cannot be used: it is a file, not a directory") from None
        except OSError as error:
            raise StorageError(f"{self._path} cannot be used: {error.strerror or error}") from error
        with suppress(OSError):
            at = f" {address[0]}:{address[1]}" if address is not None else ""
            file.write_text(f"{os.getpid()}{at}\n")

    def _make_directory(self) -> None:
        """Makes the directory and its parents, and syncs their names: otherwise a power cut could remove all of it."""
        missing = [path for path in (self._path, *self._path.parents) if not self._files.exists(path)]
        self._files.make_dirs(self._path, private=True)
        for path in missing:
            self._files.sync_dir(path.parent)

    def release(self) -> None:
        """Releases the lock, if it is held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _holder(file: Path) -> str:
    with suppress(OSError, ValueError):
        process, _, address = file.read_text().strip().partition(" ")
        return f" (process {int(process)}{' at ' + address if address else ''})"
    return ""
