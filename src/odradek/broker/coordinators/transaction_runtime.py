"""The runtime of transactional ids, which ``transaction_coordinator`` registers. Its log is ``__transaction_state``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from odradek.broker.coordinators.remote_calls import LocalPartitions, WriteMarkers
from odradek.broker.coordinators.transaction_markers import OverdueMarkers, PendingMarkers
from odradek.broker.coordinators.transaction_runs import TransactionRuns
from odradek.coordinator_runtime.runtime import Environment, Runtime
from odradek.core.deferred import Deferred
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode
from odradek.core.ids import TRANSACTION_TOPIC, PartitionKey
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import Markers, MarkersDelayed, MarkersWritten
from odradek.transactions.shard import TransactionShard

if TYPE_CHECKING:
    from odradek.broker.coordinators.kinds import AcrossBrokers
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.catalog.delta import Delta
    from odradek.coordinator_runtime.shard_log import ShardLog

R = TypeVar("R")


class TransactionRuntime(Runtime[TransactionShard]):
    """The runtime of transactional ids. ``markers`` writes the markers of each decision that a shard announces.

    ``overdue``: the rules of a lone broker for markers that are refused for long. ``across``: how transactions reach
    the other brokers of a cluster; then the argument ``markers`` writes those for the logs of this broker.
    """

    def __init__(
        self,
        config: TransactionConfig,
        environment: Environment,
        *,
        new_producer_id: Callable[[], int],
        version: Callable[[], int],
        markers: WriteMarkers,
        overdue: OverdueMarkers | None = None,
        across: AcrossBrokers | None = None,
    ) -> None:
        self.config = config
        super().__init__(
            TRANSACTION_TOPIC,
            lambda batch_bytes: TransactionShard(config, new_producer_id, version, batch_bytes),
            environment,
            TransactionRuns,
        )
        self.local_markers = markers
        """Writes markers into the logs of this broker."""
        local = LocalPartitions(self.ask, self.partition_of)
        self.partitions_of_transactions: PartitionsOfTransactions = local
        self.markers = markers
        self._across = across
        if across is not None:
            self.markers, self.partitions_of_transactions = across.markers(markers), across.partitions(local)
        self._overdue = overdue
        self._call_at = environment.call_at
        self._pending: dict[tuple[int, str], PendingMarkers] = {}

    def ask(self, transactional_id: str, request: Request[R]) -> Deferred[R]:
        """Passes a request to the shard of a transactional id. An empty id is refused in any state of the broker."""
        if not transactional_id:
            return Deferred.of(request.error_reply(ErrorCode.invalid_request))
        return self.submit(self.partition_of(transactional_id), request)

    def on_announced(self, index: int, value: Markers) -> None:
        """Writes the markers of a decision. A load may announce the same decision again."""
        overdue_ms = value.decided_ms + self.config.max_timeout_ms
        pending = PendingMarkers(self.markers, value, self.epoch(index), overdue_ms, self._overdue)
        key = index, value.transactional_id
        self._forget(key)
        self._pending[key] = pending
        self._write(key, pending)
        if self.markers.reply_ms is not None and pending.left:
            self._call_at(self.clock() + self.markers.reply_ms, lambda: self._note_delay(key, pending))

    def _write(self, key: tuple[int, str], pending: PendingMarkers) -> None:
        if self._pending.get(key) is pending:
            self.start(pending.write(self.clock(), lambda: self._on_written(key, pending)))

    def _on_written(self, key: tuple[int, str], pending: PendingMarkers) -> None:
        """Reports the markers, or tries the missing ones again later."""
        if self._pending.get(key) is not pending:
            return
        index, transactional_id = key
        if not pending.left:
            del self._pending[key]
            self.submit(index, MarkersWritten(transactional_id, pending.markers.producer))
        elif not pending.is_noted:  # a group coordinator that has failed begins its load in this tick
            pending.is_noted = True  # many markers may fail in this tick
            self.call_soon(lambda: self._try_later(key, pending))

    def _try_later(self, key: tuple[int, str], pending: PendingMarkers) -> None:
        if self._pending.get(key) is not pending:
            return
        pending.is_noted = False
        if pending.are_held():
            self._note_delay(key, pending)
        at_ms = pending.next_attempt_ms(self.clock())
        if at_ms is not None:
            self._call_at(at_ms, lambda: self._write(key, pending) if pending.is_due(at_ms) else None)

    def _note_delay(self, key: tuple[int, str], pending: PendingMarkers) -> None:
        """Reports once that markers are late: the producer gets its reply."""
        if self._pending.get(key) is pending and not pending.is_delayed:
            pending.is_delayed = True
            index, transactional_id = key
            self.submit(index, MarkersDelayed(transactional_id, pending.markers.producer))

    def on_metadata_update(self, delta: Delta) -> None:
        """What waits for a former leader of a partition follows the next one. The image shows it already."""
        if self._across is not None:
            self._across.on_metadata_update(delta)

    def unmarked_partitions(self, transactional_id: str) -> Collection[PartitionKey] | None:
        """Returns the partitions that still need the marker of a decision; None if no decision is pending."""
        pending = self._pending.get((self.partition_of(transactional_id), transactional_id))
        return None if pending is None else pending.left

    def load(self, index: int, partition: ShardLog, leader_epoch: int) -> None:
        """A shard that continues in a newer term does not announce its decisions again: they take the new epoch."""
        super().load(index, partition if self._across is None else self._across.log(partition), leader_epoch)
        for key, pending in self._pending.items():
            if key[0] == index:
                pending.begin_term(self.epoch(index))

    def _end_term(self, index: int) -> None:
        """Removes the shard and forgets its decisions: the next load announces them again."""
        for key in [key for key in self._pending if key[0] == index]:
            self._forget(key)
        super()._end_term(index)

    def _forget(self, key: tuple[int, str]) -> None:
        pending = self._pending.pop(key, None)
        if pending is not None:
            pending.cancel()
