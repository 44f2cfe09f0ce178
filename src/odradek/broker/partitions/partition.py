"""A partition of the broker: its log, its registration, and the requests that wait for its high watermark.

``apply`` brings every change of the registration here. The high watermark is either the log's end, which each append
moves, or it is held: then ``move_high_watermark`` sets it. It is held with several replicas, and on a node that does
not lead. An append wakes the waiting fetches (broker/partitions/purgatory) unless the high watermark is held;
``move_high_watermark`` wakes them, the produce requests that wait for replicas, and the partition's coordinator.

What follows from other replicas is not decided here. The methods below "several replicas" say what is so with one, and
``broker/replication/replicated_partition`` has its own ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from odradek.batches.header import LOG_OVERHEAD, size_of_batch
from odradek.batches.steps import BatchSteps
from odradek.broker.partitions.partition_roles import (
    PartitionRole,
    RoleStep,
    is_older,
    role_of,
    steps_of,
)
from odradek.broker.partitions.purgatory import Wake
from odradek.broker.partitions.watermark_waits import Wait, WatermarkWaits
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH, EndTransactionMarker, FetchingReplica
from odradek.storage.appends import AppendInfo
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.storage.producers.verification import VerificationGuard

if TYPE_CHECKING:
    from odradek.broker.partitions.purgatory import ParkedFetch
    from odradek.catalog.registrations import PartitionRegistration


class Partition:
    """A partition whose log this broker has.

    It gets ``log=None`` if the files of its log could not be opened. Requests that need the log then get
    KAFKA_STORAGE_ERROR. Other partitions are not affected.

    ``open_log``: the log, None while it is not open; ``log`` raises then, with ``failure``, which says why. ``now_ms``:
    the clock of records. ``registration``: the newest that was applied; None before the first. ``is_replicated``: it
    has several replicas.
    ``is_held``: the high watermark is set by ``move_high_watermark``; otherwise it is the log end offset.
    ``move_high_watermark`` calls ``on_high_watermark`` with the partition's index. An append does not call it.
    """

    __slots__ = (
        "_epoch_start", "_waiters", "failure", "index", "is_held", "is_replicated", "leader_epoch", "now_ms",
        "on_high_watermark", "open_log", "registration", "role", "topic", "watermark_waits",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        index: int,
        log: Log | None,
        now_ms: Callable[[], int],
        *,
        leader_epoch: int = 0,
        failure: str = "",
    ) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.failure = failure
        self._waiters: dict[ParkedFetch, None] | None = None
        self.role = PartitionRole.NEW
        self.registration: PartitionRegistration | None = None
        self.is_replicated = self.is_held = False
        self._epoch_start = 0
        self.watermark_waits: WatermarkWaits | None = None
        """The requests that wait for the high watermark, made for the first one."""
        self.on_high_watermark: Callable[[int], object] | None = None
        self.open_log = log
        self.now_ms = now_ms

    # --- the registration ---------------------------------------------------------------------------------------

    def apply(self, registration: PartitionRegistration, node_id: int, steady_ms: int) -> PartitionRole:
        """Applies a registration: role, leader epoch, replicas and ISR. Returns the node's role in the partition.

        ``steady_ms``: the time of the clock of the fetches of followers. An older registration is ignored. A broker
        that stops leading completes the waiting requests. A new leader of several replicas holds the high watermark
        where it is, until ``move_high_watermark`` knows it. Raises KafkaError (KAFKA_STORAGE_ERROR) if the log cannot
        note the leader epoch; role and epoch are new nevertheless.
        """
        present = self.registration
        if present is not None and is_older(registration, present):
            return self.role
        role = role_of(registration, node_id)
        begins = role is not self.role or registration.leader_epoch > self.leader_epoch
        steps = steps_of(f"{self.topic}-{self.index}", self.role, role) if begins else ()
        self.registration, self.role, self.leader_epoch = registration, role, registration.leader_epoch
        self.is_replicated = len(registration.replicas) > 1
        self._hold_or_release()
        for step in steps:
            self.run_step(step)
        return role

    def _begin_epoch(self) -> None:
        log = self.open_log
        if log is not None:  # otherwise the log begins the epoch when it is opened
            self._epoch_start = log.log_end_offset
            log.producer_snapshots.continue_rebuild()
            log.assign_epoch(self.leader_epoch)

    def _hold_or_release(self) -> None:
        """Decides whether the high watermark is held, after a change of the registration or with an opened log."""
        log = self.open_log
        if self.registration is None or log is None or self.role is PartitionRole.REMOVED:
            return
        holds = self.is_replicated or self.role is not PartitionRole.LEADER
        if holds and not self.is_held:
            self.is_held, log.high_watermark = True, log.high_watermark
        elif self.is_held and not holds:
            self.move_high_watermark(None)

    def remove(self, error: ErrorCode) -> None:
        """Ends the service of a deleted topic. Requests that wait for the high watermark get ``error``."""
        steps_of(f"{self.topic}-{self.index}", self.role, PartitionRole.REMOVED)
        self.role = PartitionRole.REMOVED
        self.end_waits(error)

    @property
    def first_epoch(self) -> int:
        """The leader epoch that the log begins when it is opened: a follower's log gets its epochs with its records."""
        return self.leader_epoch if self.role is PartitionRole.LEADER else NO_EPOCH

    def check_end_known(self) -> None:
        """Raises OFFSET_NOT_AVAILABLE if a new leader does not know yet which of its records are committed (KIP-207).

        That is so until the high watermark has reached the start of its leader epoch.
        """
        if self.is_held and self.role is PartitionRole.LEADER and self.high_watermark < self._epoch_start:
            raise KafkaError(
                ErrorCode.offset_not_available,
                f"the high watermark {self.high_watermark} of {self.topic}-{self.index} is below the start of leader "
                f"epoch {self.leader_epoch}, {self._epoch_start}",
            )

    # --- the log ------------------------------------------------------------------------------------------------

    @property
    def waiters(self) -> dict[ParkedFetch, None]:
        """Fetches that wait for bytes, in their order. The dict is made at its first use, because most partitions never
        need it."""
        if self._waiters is None:
            self._waiters = {}
        return self._waiters

    @property
    def log(self) -> Log:
        """Raises KafkaError (KAFKA_STORAGE_ERROR) if the log could not be opened."""
        if self.open_log is None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.topic}-{self.index}: {self.failure}")
        return self.open_log

    def adopt(self, log: Log, high_watermark: int = 0) -> None:
        """Sets the log, which is open now. ``high_watermark``: the last known one, if the high watermark is held."""
        self.open_log, self.failure = log, ""
        self._epoch_start = log.log_end_offset
        self._hold_or_release()
        if self.is_held:
            log.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)

    def reconfigure(self, settings: LogConfig) -> None:
        """Applies new settings of the topic to the open log."""
        self.log.config = settings

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

    def produce(self, data: bytes, guard: VerificationGuard | None = None) -> AppendInfo | BatchSteps[AppendInfo]:
        """Appends a client's batch. Returns steps if the append takes long.

        ``guard``: see ``Producers.begin_verification``. After a KafkaError, nothing is written.
        """
        info = self.log.begin_append(data, now_ms=self.now_ms, leader_epoch=self.leader_epoch, guard=guard)
        if not isinstance(info, AppendInfo):
            return self._produce_later(info, len(data))
        if self._waiters and not info.duplicate:
            self._wake_produced(len(data))
        return info

    def _produce_later(self, steps: BatchSteps[AppendInfo], size: int) -> BatchSteps[AppendInfo]:
        info = yield from steps
        if self._waiters and not info.duplicate:
            self._wake_produced(size)
        return info

    def _wake_produced(self, size: int) -> None:
        """Informs the waiting fetches of a batch. While a transaction is open, the last stable offset does not move."""
        if self.is_held:
            self._wake_arrived(0, 0, size)
        else:
            self._wake_arrived(size, 0 if self.log.producers.open_transactions else size, size)

    def append(self, data: bytes) -> AppendInfo:
        """Appends a coordinator's batch. If it raises KafkaError, nothing is written.

        As in Kafka it is written even if too few replicas are in sync: the coordinator waits for the high watermark.
        """
        log = self.log
        stable = log.last_stable_offset if self._waiters else -1
        info = log.append(data, now_ms=self.now_ms(), leader_epoch=self.leader_epoch, origin="coordinator")
        if self._waiters:
            is_stable = stable == info.base_offset and not log.producers.open_transactions
            self._wake_appended(len(data), len(data) if is_stable else None, stable)
        return info

    def append_marker(self, marker: EndTransactionMarker) -> AppendInfo:
        """Ends a producer's transaction. If it raises KafkaError, nothing is written."""
        log = self.log
        if self.is_replicated:
            self.check_in_sync()
        stable = log.last_stable_offset if self._waiters else -1
        info = log.append_marker(marker, now_ms=self.now_ms(), leader_epoch=self.leader_epoch)
        if self._waiters:
            self._wake_appended(self._bytes_between(info.base_offset, log.log_end_offset), None, stable)
        return info

    def _wake_appended(self, size: int, stable_bytes: int | None, stable_offset: int) -> None:
        """Informs the waiting fetches of a batch. ``stable_bytes``: None for those from ``stable_offset`` on."""
        if self.is_held:
            self._wake_arrived(0, 0, size)
        else:
            self._wake_arrived(
                size, self._stable_bytes_from(stable_offset) if stable_bytes is None else stable_bytes, size
            )

    def move_high_watermark(self, offset: int | None) -> None:
        """Sets the high watermark to ``offset``, the end of what all replicas in the ISR have. ``None``: it is the log
        end offset, and each append moves it."""
        log = self.log
        before, stable = log.high_watermark, log.last_stable_offset
        log.high_watermark = None if offset is None else min(offset, log.log_end_offset)
        self.is_held = offset is not None
        readable_bytes = self._bytes_between(before, log.high_watermark)
        if self.watermark_waits is not None:
            self.watermark_waits.pass_offset(log.high_watermark, self.result_of_waits())
        if self.on_high_watermark is not None:
            self.on_high_watermark(self.index)
        is_stable = stable == before and log.last_stable_offset == log.high_watermark
        self._wake_arrived(readable_bytes, readable_bytes if is_stable else self._stable_bytes_from(stable), 0)
        if offset is None and self.watermark_waits is not None:
            # These requests wait for records that the log has lost.
            self.watermark_waits.end_all(ErrorCode.not_leader_or_follower)

    def _bytes_between(self, start: int, end: int) -> int:
        if start >= end:
            return 0
        log = self.log
        if start < max(log.active.base_offset, log.log_start_offset):
            return sys.maxsize  # a fetch before the active segment does not wait
        return log.read(start, sys.maxsize, max_offset=end).size

    def _stable_bytes_from(self, stable_offset: int) -> int:
        """Returns the bytes from an earlier last stable offset to the current one."""
        return self._bytes_between(stable_offset, self.log.last_stable_offset)

    def _wake_arrived(self, readable_bytes: int, stable_bytes: int, appended_bytes: int) -> None:
        """Informs the waiting fetches of new bytes. Each fetch counts those that it awaits."""
        sizes = readable_bytes, stable_bytes, appended_bytes  # in the order of ``Wake``
        for waiter in tuple(self._waiters or ()):
            if size := sizes[waiter.awaits]:
                waiter.count_readable(size)

    def wait_for(self, offset: int, end: Callable[[ErrorCode], None]) -> Wait | None:
        """Calls ``end`` with NONE when the high watermark reaches ``offset``, or before that with an error.

        Returns the wait, or None if ``end`` was called already.
        """
        if self.role is PartitionRole.REMOVED or self.open_log is None:
            is_gone = self.role is PartitionRole.REMOVED
            end(ErrorCode.unknown_topic_or_partition if is_gone else ErrorCode.kafka_storage_error)
            return None
        reached = self.high_watermark >= offset
        if reached or not self.is_held or self.role is not PartitionRole.LEADER:
            end(self.result_of_waits() if reached else ErrorCode.not_leader_or_follower)
            return None
        if self.watermark_waits is None:
            self.watermark_waits = WatermarkWaits()
        return self.watermark_waits.add(offset, end)

    def wake_fetches(self) -> None:
        """Completes all waiting fetches, because the partition was deleted or changed."""
        for waiter in tuple(self._waiters or ()):
            waiter.wake(Wake.ROLE_CHANGE)

    def end_waits(self, error: ErrorCode) -> None:
        """Completes all waiting requests of a partition that is no longer served: produce requests get ``error``."""
        if self.watermark_waits is not None:
            self.watermark_waits.end_all(error)
        self.wake_fetches()

    def check_online(self) -> None:
        """Raises KafkaError (KAFKA_STORAGE_ERROR) if the log is offline. The log's offsets can still be read then."""
        if self.log.disk.offline is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.topic}-{self.index} {self.log.disk.offline}")

    def check_epoch(self, epoch: int) -> None:
        """Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH; −1 skips the check (docs/offset-behaviours.md, 52)."""
        if epoch in (-1, self.leader_epoch):
            return
        if epoch < self.leader_epoch:
            raise KafkaError(
                ErrorCode.fenced_leader_epoch,
                f"leader epoch {epoch} is older than the current epoch {self.leader_epoch}",
            )
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"this broker does not know leader epoch {epoch} yet")

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Reads whole batches from the batch with ``offset`` on: at least one, or b"" at the end of the log.

        It also reads records above the high watermark. A coordinator delays its replies until replicas have them.
        """
        data = self.log.read(offset, max_bytes, max_offset=self.log.log_end_offset).bytes()
        end = at = 0
        while at + LOG_OVERHEAD <= len(data):
            at += size_of_batch(data, at)
            if at <= len(data):
                end = at
        return data if end == len(data) else data[:end]

    # --- several replicas: what is so with one ------------------------------------------------------------------

    def run_step(self, step: RoleStep) -> None:
        """Does a part of a transition. A partition with one replica follows no other node."""
        if step is RoleStep.END_WAITS:
            self.end_waits(ErrorCode.not_leader_or_follower)
        elif step is RoleStep.BEGIN_EPOCH:
            self._begin_epoch()

    def check_in_sync(self) -> None:
        """Raises NOT_ENOUGH_REPLICAS if the ISR is smaller than min.insync.replicas, never with one replica.

        For appends that wait for replicas: markers, and acks=-1."""

    def result_of_waits(self) -> ErrorCode:
        """Returns the result of a request whose records are below the high watermark.

        It is an error if the ISR has become too small meanwhile, as in Kafka."""
        return ErrorCode.none

    @property
    def low_watermark(self) -> int:
        """The least log start of the replicas outside of the fence: the records below it are deleted everywhere."""
        return self.log_start_offset

    def wait_for_deletion(self, offset: int, end: Callable[[int | ErrorCode], None]) -> Callable[[], None]:
        """Calls ``end`` once: with the low watermark when it has reached ``offset``, or before that with an error.

        Returns a function that ends the wait without a call. With one replica, the low watermark is there at once.
        """
        end(self.low_watermark)
        return lambda: None

    def check_follower(self, broker_id: int, leader_epoch: int) -> None:
        """Raises KafkaError if a broker is no follower of this partition. It may become one by a record that only one
        of the two brokers has, so the code lets it try again. ``leader_epoch``: that of its fetch, −1 without one.

        One replica has no followers: ``ReplicatedPartition`` knows some.
        """
        code = ErrorCode.not_leader_or_follower if leader_epoch < 0 else ErrorCode.unknown_leader_epoch
        raise KafkaError(code, f"broker {broker_id} has no replica of {self.topic}-{self.index} here")

    def note_fetch(self, replica: FetchingReplica, offset: int, log_start: int, now_ms: int) -> None:
        """Notes what a follower has, as its fetch says, before any later append. ``now_ms``: of a clock that never
        jumps. Raises KafkaError for a fetch of a former incarnation."""

    def nearest_replica(self, broker_ids: Collection[int], offset: int) -> int | None:
        """Returns which of these brokers a consumer should read from ``offset`` on; None if it is this one."""
        return None
