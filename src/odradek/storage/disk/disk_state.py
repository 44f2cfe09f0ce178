"""The state of a log towards the disk: online, offline, or with a failed write that waits for space."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path
from typing import Protocol

from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.disk.descriptors import is_exhausted
from odradek.storage.disk.write_failures import WriteFailures, is_passing

_log = logging.getLogger("odradek.storage")


class Writer(Protocol):
    """The log whose reads and writes may fail."""

    def try_write(self) -> None:
        """Tries whether the failed write would succeed now. Raises OSError."""

    def forget_files(self) -> None:
        """Drops the open files: the log will not use them again."""


class DiskState:
    """Answers failed reads and writes of one log.

    ``offline``: the reason why the log can be neither written nor read, or None.

    ``failed_bytes``: the size of the write that failed; 0 while writes succeed. Then the active segment's file may have
    a torn end, which readers never see because it is above ``Segment.size``. The next write cuts it first.

    ``failures``: the failed writes of the data directory, which tries them again.
    """

    __slots__ = ("_path", "_read_failed", "_writer", "closed", "failed_bytes", "failures", "offline")

    def __init__(self, path: Path, writer: Writer) -> None:
        self.offline: str | None = None
        self.closed = False
        self.failed_bytes = 0
        self.failures: WriteFailures | None = None
        self._path = path
        self._writer: Writer = weakref.proxy(writer)  # without a cycle, a log that is not used ends at once
        self._read_failed = False

    def check_online(self) -> None:
        """Raises KafkaError (KAFKA_STORAGE_ERROR) if the log is offline."""
        if self.offline is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self._path.name} {self.offline}")

    def close(self, state: str) -> None:
        """Ends all reads and writes. ``state`` is the reason, unless the log is offline already."""
        self.closed = True
        self.offline = self.offline or state
        self._writer.forget_files()

    def fail(self, action: str, error: OSError, size: int = 1) -> KafkaError:
        """Notes a failed write of ``size`` bytes. Returns the error of the request.

        After a passing error the log has cut the torn end, or cuts it before the next write. After any other error it
        is offline, and the broker's process ends.
        """
        failures = self.failures
        if failures is None:
            failures = self.failures = WriteFailures()
        if self.offline is None and is_passing(error):
            self.failed_bytes = max(self.failed_bytes, size)
            failures.begin(self, self._path, action, error, self._writer.try_write)
            return KafkaError(ErrorCode.kafka_storage_error, f"{self._path.name}: {action} failed: {error}")
        if self.offline is None:
            self.offline = f"is offline because {action} failed: {error}"
            self._writer.forget_files()
            failures.end(self._path, self.offline)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self._path.name} {self.offline}")

    def fail_read(self, action: str, error: OSError) -> KafkaError:
        """Returns the error of a failed read. The log stays online; the first failure is one line."""
        if not is_exhausted(error) and not self._read_failed:
            self._read_failed = True
            _log.error("%s: %s failed; it is tried again at the next request: %s", self._path, action, error)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self._path.name}: {action} failed: {error}")

    def fail_late(self, error: OSError) -> None:
        """Reports a failed read of a slice."""
        if self.offline is None and not self.closed:
            self.fail_read("read", error)
