"""One partition as the broker serves it: its log, its leader epoch, and who waits for its next bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.batches.steps import Steps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.append_info import AppendInfo
from odradek.storage.log import Log
from odradek.storage.segment import Slice

if TYPE_CHECKING:
    from odradek.broker.purgatory import ParkedFetch

_BATCH_LENGTH = struct.Struct(">i")
_LOG_OVERHEAD = 12


class Partition:
    """A partition this broker leads.

    ``log`` is ``None`` where its files could not be opened: then everything asked of it answers
    KAFKA_STORAGE_ERROR, and other partitions go on.
    """

    __slots__ = ("_log", "_now_ms", "_waiters", "failure", "index", "leader_epoch", "replica_count", "topic")

    def __init__(
        self,
        topic: str,
        index: int,
        log: Log | None,
        now_ms: Callable[[], int],
        *,
        leader_epoch: int = 0,
        replica_count: int = 1,
        failure: str = "",
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.replica_count = replica_count
        self.failure = failure
        self._waiters: set[ParkedFetch] | None = None
        self._log = log
        self._now_ms = now_ms

    @property
    def waiters(self) -> set[ParkedFetch]:
        """Fetches that wait for bytes. Most partitions never have one."""
        if self._waiters is None:
            self._waiters = set()
        return self._waiters

    @property
    def log(self) -> Log:
        """Raises KafkaError (KAFKA_STORAGE_ERROR) where there is none."""
        if self._log is None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.topic}-{self.index}: {self.failure}")
        return self._log

    @property
    def max_message_bytes(self) -> int:
        return self.log.config.max_message_bytes

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    def produce(self, data: bytes) -> AppendInfo | Steps[AppendInfo]:
        """Appends a client's batch; what takes long is left to the steps that are returned.

        Raises KafkaError; nothing was written then.
        """
        info = self.log.begin_append(data, now_ms=self._now_ms, leader_epoch=self.leader_epoch)
        if not isinstance(info, AppendInfo):
            return self._produce_later(info, len(data))
        if self._waiters and not info.duplicate:
            self._tell(len(data))
        return info

    def _produce_later(self, steps: Steps[AppendInfo], size: int) -> Steps[AppendInfo]:
        info = yield from steps
        if self._waiters and not info.duplicate:
            self._tell(size)
        return info

    def append(self, data: bytes) -> AppendInfo:
        """Appends a coordinator's batch. Raises KafkaError; nothing was written then."""
        info = self.log.append(data, now_ms=self._now_ms(), leader_epoch=self.leader_epoch, origin="coordinator")
        if self._waiters:
            self._tell(len(data))
        return info

    def _tell(self, size: int) -> None:
        for waiter in tuple(self.waiters):
            waiter.arrived(size)

    def wake_all(self) -> None:
        """Sends every waiting fetch to look again: the partition is gone or changed under it."""
        for waiter in tuple(self._waiters or ()):
            waiter.wake()

    def check_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR where the log is offline, which its offsets would not tell."""
        if self.log.offline is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.topic}-{self.index} {self.log.offline}")

    def check_epoch(self, epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (behaviour 52); −1 asks for no check."""
        if epoch in (-1, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"leader epoch {epoch} is over; {self.leader_epoch} reigns")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"leader epoch {epoch} is not known here yet")

    def read(self, offset: int, max_bytes: int, *, committed: bool, min_one: bool) -> Slice:
        """Batches up to the high watermark, with ``committed`` up to the last stable offset. Raises KafkaError."""
        log = self.log
        limit = log.last_stable_offset if committed else log.high_watermark
        return log.read(offset, max_bytes, max_offset=limit, min_one=min_one)

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds ``offset`` on, at least one; empty at the end of the log.

        Replicas may lack the last ones: a coordinator reads them, and waits with its answers.
        """
        data = self.log.read(offset, max_bytes, max_offset=self.log.log_end_offset).bytes()
        end = at = 0
        while at + _LOG_OVERHEAD <= len(data):
            at += _BATCH_LENGTH.unpack_from(data, at + 8)[0] + _LOG_OVERHEAD
            if at <= len(data):
                end = at
        return data if end == len(data) else data[:end]
