"""The state of a log towards the disk: online, offline, or with a failed write that waits for space."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.descriptors import is_exhausted
from odradek.storage.write_failures import WriteFailures, is_passing

if TYPE_CHECKING:
    from collections.abc import Callable

    from odradek.storage.producers import Producers
    from odradek.storage.segment import Segment

_log = logging.getLogger("odradek.storage")
_LONGEST_PROBE = 1 << 20


class LogState:
    """The base class of ``LogTransactions`` and ``Log`` with the answers to failed reads and writes.

    ``failed_bytes``: the size of the write that failed; 0 while writes succeed. Then the active segment's file may have
    a torn end, which readers never see because it is above ``Segment.size``. The next write cuts it first.

    ``failures``: the failed writes of the data directory, which tries them again.
    """

    __slots__ = ("_read_failed", "closed", "failed_bytes", "failures", "offline", "path")

    path: Path
    closed: bool
    offline: str | None
    failed_bytes: int
    failures: WriteFailures | None
    _read_failed: bool

    if TYPE_CHECKING:  # these are in ``LogTransactions`` and ``Log``
        producers: Producers
        recovery_point: int
        defer_flush: Callable[[Callable[[], None]], None] | None
        _segments: list[Segment]

        def flush_closed(self, end_offset: int) -> None: ...

    def _check_online(self) -> None:
        if self.offline is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name} {self.offline}")

    def _forget_files(self, state: str) -> None:
        self.offline = state
        self.producers.end_snapshot()
        self.producers.rebuild = None
        for segment in self._segments:
            segment.forget()

    def _fail(self, action: str, error: OSError, size: int = 1) -> KafkaError:
        """Notes a failed write of ``size`` bytes. Returns the error of the request.

        After a passing error the log has cut the torn end, or cuts it before the next write. After any other error it
        is offline, and the broker's process ends.
        """
        failures = self.failures
        if failures is None:
            failures = self.failures = WriteFailures()
        if self.offline is None and is_passing(error):
            self.failed_bytes = max(self.failed_bytes, size)
            failures.begin(self, self.path, action, error, self._try_write)
            return KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name}: {action} failed: {error}")
        if self.offline is None:
            self._forget_files(f"is offline because {action} failed: {error}")
            failures.end(self.path, str(self.offline))
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name} {self.offline}")

    def _fail_read(self, action: str, error: OSError) -> KafkaError:
        """Returns the error of a failed read. The log stays online; the first failure is one line."""
        if not is_exhausted(error) and not self._read_failed:
            self._read_failed = True
            _log.error("%s: %s failed; it is tried again at the next request: %s", self.path, action, error)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name}: {action} failed: {error}")

    def _fail_late(self, error: OSError) -> None:
        """Reports a failed read of a slice."""
        if self.offline is None and not self.closed:
            self._fail_read("read", error)

    def failed_search(self, error: OSError) -> KafkaError:
        """Returns the error of a search by time that could not read a segment."""
        return self._fail_read("find timestamp", error)

    def _cut_torn_end(self) -> None:
        """Removes the bytes of a failed append. Raises OSError."""
        self._segments[-1].cut_torn_end()

    def _try_write(self) -> None:
        """Cuts the torn end, and tries whether the failed write would succeed now. Raises OSError.

        The bytes of the trial are cut at once. If the process is killed before that, recovery cuts them.
        """
        if self.offline is not None or not self.failed_bytes:
            return
        self._cut_torn_end()
        active = self._segments[-1]
        if active.size:
            active.try_append(min(self.failed_bytes, _LONGEST_PROBE))
        active.save_indexes()
        self.failed_bytes = 0
        if self.recovery_point < active.base_offset:  # the sync of a closed segment may be the write that has failed
            end = active.base_offset
            if self.defer_flush is None:
                self.flush_closed(end)
            else:
                self.defer_flush(lambda: self.flush_closed(end))
