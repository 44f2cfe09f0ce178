"""Runs the group coordinator's shards, one per partition of ``__consumer_offsets`` that this broker leads.

What the broker does with it::

    runtime = Runtime(GroupConfig(...), call_soon=..., call_at=..., clock=...)
    runtime.partition_count = 50            # once __consumer_offsets exists; None before
    runtime.load(index, partition)          # for each partition led here; again after it came back
    runtime.unload(index)                   # no longer led here, or the topic was deleted
    runtime.on_topics_deleted(["flights"])  # their committed offsets get tombstones
    runtime.on_clock_moved()                # after a clock that users can move was moved

and what a handler does::

    runtime.submit(runtime.group_partition(group_id), OffsetCommit(...))  # -> Deferred[OffsetCommitReply]

``call_soon(callback)`` runs the callback after those that are ready now. ``call_at(at_ms, callback)`` runs it when
``clock()`` (milliseconds since 1970) has reached ``at_ms`` and returns something with ``cancel()``. Both call on
the one thread that everything here runs on; asyncio and the simulator alike supply them.

``partition`` is anything that satisfies ``OffsetsPartition`` below. ``submit`` never raises for what a client can
cause: a partition that is not here gives NOT_COORDINATOR, one still being read COORDINATOR_LOAD_IN_PROGRESS.

Rules
* Records of all requests of one tick go to the partition as one batch, are replayed, and then the replies go out.
* A failed append answers those requests with the error as Kafka maps it, and rebuilds the shard from its log.
* What cannot be read in the log is skipped, counted and warned about; it never stops a load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from odradek.broker.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import partition_for_group
from odradek.groups.config import GroupConfig
from odradek.groups.messages import Request


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Appended(Protocol):
    """What an append tells: the offset its first record got."""

    @property
    def base_offset(self) -> int: ...


class OffsetsPartition(Protocol):
    """A partition of ``__consumer_offsets``, as far as the runtime needs it."""

    @property
    def max_message_bytes(self) -> int:
        """The topic's ``max.message.bytes``: no batch handed to ``append`` is longer."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, data: bytes) -> Appended:
        """Stores one batch as leader. Raises KafkaError or StorageError; then nothing was stored."""

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds ``offset`` on, at least one; empty at the end of the log."""


class Runtime:
    """See the module's docstring."""

    def __init__(
        self,
        config: GroupConfig,
        *,
        call_soon: Callable[[Callable[[], None]], object],
        call_at: Callable[[int, Callable[[], None]], Cancellable],
        clock: Callable[[], int],
    ) -> None:
        self.config = config
        self.clock = clock
        self.partition_count: int | None = None
        self._call_soon = call_soon
        self._call_at = call_at

    def group_partition(self, group_id: str) -> int:
        """The partition of ``__consumer_offsets`` that keeps this group; -1 while the topic does not exist."""
        return -1 if self.partition_count is None else partition_for_group(group_id, self.partition_count)

    def load(self, index: int, partition: OffsetsPartition) -> None:
        """Reads the partition's log, in steps; afterwards its groups are served."""

    def unload(self, index: int) -> None:
        """Forgets the shard; requests that wait in it are answered NOT_COORDINATOR."""

    def submit(self, index: int, request: Request) -> Deferred[Any]:
        """Handles a request; the promise holds the reply that belongs to it (see groups/messages)."""
        return Deferred.of(request.failed(ErrorCode.not_coordinator))

    def loaded(self) -> list[int]:
        """Partitions that this runtime serves or is reading, in order."""
        return []

    def on_topics_deleted(self, topics: list[str]) -> None:
        """Deletes what groups have committed for these topics."""

    def on_clock_moved(self) -> None:
        """Fires the timers that became due because the clock was moved."""
