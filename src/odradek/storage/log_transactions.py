"""The part of a log that concerns transactions: the last stable offset, aborted and open transactions, verification."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.steps import BatchSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.aborted_index import collect_aborted
from odradek.storage.config import LogConfig
from odradek.storage.index_digests import IndexDigest, LogDigest, SegmentDigest
from odradek.storage.log_state import LogState
from odradek.storage.producer_rebuild import EndedTransaction, rebuild
from odradek.storage.producer_states import STATES_AT_ONCE
from odradek.storage.producers import Producers
from odradek.storage.segment import Segment
from odradek.storage.slice import Slice
from odradek.storage.verification import Guard, Verifications
from odradek.storage.write_failures import SyncFailed


class DescribedProducer(NamedTuple):
    """The state of a producer for DescribeProducers. -1 means unknown, or no open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int


class LogTransactions(LogState):
    """The base class of ``Log`` with the methods for transactions."""

    __slots__ = (
        "_bases", "_cut_batch", "_end_offset", "_high_watermark", "_segments", "config", "has_aborted",
        "log_start_offset", "producers", "run_steps",
    )  # fmt: skip

    config: LogConfig
    producers: Producers
    log_start_offset: int
    has_aborted: bool
    """Whether a segment may have markers of aborted transactions."""
    _segments: list[Segment]
    _bases: list[int]
    _end_offset: int
    _high_watermark: int | None
    _cut_batch: tuple[int, int]
    """A log start offset, and the base offset of the batch that contains it. Both are -1 until they are needed."""
    run_steps: Callable[[Generator[None, None, None]], object] | None
    """Runs long work in steps. If it is None, the work is done at once."""

    @property
    def high_watermark(self) -> int:
        return self._end_offset if self._high_watermark is None else min(self._high_watermark, self._end_offset)

    @high_watermark.setter
    def high_watermark(self, value: int | None) -> None:
        """``None`` makes it equal to the log end offset again."""
        self._high_watermark = value
        self.producers.on_high_watermark(self._end_offset if value is None else value)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        high_watermark = self.high_watermark
        if unstable is None:
            return high_watermark
        if unstable < self.log_start_offset:
            unstable = self._base_of_start()
        return min(unstable, high_watermark)

    def _base_of_start(self) -> int:
        """Returns the base offset of the batch with the log start; the log start itself if the log cannot be read.

        As in Kafka, this base offset is the last stable offset if the log start is inside an open transaction. It may
        be below the log start.
        """
        start = self.log_start_offset
        if self._cut_batch[0] != start:
            try:
                self._cut_batch = start, self.read(start, 1, max_offset=self._end_offset).base_offset
            except KafkaError:
                return start
        return self._cut_batch[1]

    if TYPE_CHECKING:  # these are in ``Log``

        def read(self, offset: int, max_bytes: int, *, max_offset: int | None = None) -> Slice: ...

    @property
    def stable_base_offset(self) -> int:
        """The base offset of the segment with the last stable offset; of the active segment if nothing is unstable."""
        if self.producers.first_unstable_offset is None:
            return self._bases[-1]
        return self._bases[self._number_at(self.last_stable_offset)]

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction by producer id, in the order of the offsets."""
        return self.producers.open_transactions

    def describe_producers(self) -> Iterator[DescribedProducer]:
        """Yields the state of each producer."""
        self.end_rebuild()
        for state in self.producers:
            yield DescribedProducer(
                state.producer_id,
                state.epoch,
                state.last_sequence,
                state.last_timestamp,
                state.coordinator_epoch,
                state.transaction_start,
            )

    def expire_producers(self, now_ms: int) -> Generator[None, None, int]:
        """Removes producers that were not used for producer.id.expiration.ms, in steps. Returns how many."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def _digests(self, *, with_segments: bool = False) -> LogDigest:
        """Returns the digests of the indexes of aborted transactions and, at a clean stop, of the segments. Raises
        OSError."""
        sizes = [SegmentDigest(one.base_offset, one.size, one.next_offset) for one in self._segments if with_segments]
        return LogDigest(self._index_digests(), sizes)

    def _index_digests(self) -> list[IndexDigest]:
        if not self.has_aborted:
            return []
        return [found for segment in self._segments if (found := segment.digest()) is not None]

    def _save_producers(self) -> None:
        """Writes the snapshot of the producers at ``Producers.end_offset``, in steps if there are many.

        Without the snapshot the next start only reads more batches. So after a passing error the next roll writes one.
        """
        self.end_rebuild()
        steps = None
        try:
            if self.run_steps is None or len(self.producers) <= STATES_AT_ONCE:
                self.producers.save(sync=False, digests=self._digests())
            else:
                steps = self.producers.save_in_steps(self._digests())
        except OSError as error:
            failure = self._fail("write a snapshot of the producers", error)
            if self.offline is not None:
                raise failure from error
        if steps is not None and self.run_steps is not None:
            self.run_steps(self._save_in_steps(steps))

    # --- rebuild after a truncation -----------------------------------------------------------------------------

    def _begin_rebuild(self, now_ms: int) -> None:
        self.producers.rebuild = rebuild(
            self.producers, self._segments, self.config, now_ms, on_end=self._await_replicas
        )
        next(self.producers.rebuild, None)  # from here on, records with unknown states are unstable

    def _rest_of_rebuild(self) -> BatchSteps[None]:
        """Runs the steps of the present rebuild. They end early if the log is truncated again or closed."""
        steps = self.producers.rebuild
        while steps is not None and self.producers.rebuild is steps and self.offline is None:
            self._advance_rebuild(steps)
            yield None

    def end_rebuild(self) -> None:
        """Runs the steps that are left of a rebuild. Raises KafkaError."""
        while self.producers.rebuild is not None:
            self._advance_rebuild(self.producers.rebuild)

    def _advance_rebuild(self, steps: Generator[None, None, None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self.producers.rebuild = None
        except OSError as error:
            self.producers.rebuild = None
            raise self._failed_cut(error) from error

    def _failed_cut(self, error: OSError) -> KafkaError:
        """Returns the error of a failed truncation. The log's end or its producers are unknown, so no error passes."""
        return self._fail("truncate", SyncFailed(error.errno, str(error)))

    def _await_replicas(self, ended: EndedTransaction) -> None:
        """If the high watermark is set, the transaction stays unstable until the high watermark has passed its
        marker."""
        if self._high_watermark is not None and ended.entry.last_offset >= self._high_watermark:
            self.producers.await_replicas(ended.entry.first_offset, ended.entry.last_offset)

    def _save_in_steps(self, steps: Generator[None, None, None]) -> Generator[None, None, None]:
        try:
            yield from steps
        except OSError as error:
            if self.offline is None and not self.closed:
                self._fail("write a snapshot of the producers", error)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> Guard:
        """Returns the guard to pass to ``begin_append`` with a batch whose transaction the coordinator has to confirm.

        Returns None if the producer has an open transaction with this epoch here: then no confirmation is necessary.
        ``supports_epoch_bump``: the client has transaction.version 2. Raises KafkaError: INVALID_PRODUCER_EPOCH.
        """
        state = self.producers.get(producer_id)
        if state is not None:
            if producer_epoch < state.epoch:
                raise KafkaError(
                    ErrorCode.invalid_producer_epoch,
                    f"epoch {producer_epoch} of producer {producer_id} is older than the current epoch {state.epoch}",
                )
            if state.is_in_transaction(producer_epoch):
                return None
        if self.producers.verifications is None:
            self.producers.verifications = Verifications()
        return self.producers.verifications.begin(
            producer_id, producer_epoch, sequence, supports_epoch_bump=supports_epoch_bump
        )

    def end_verification(self, producer_id: int, producer_epoch: int, guard: Guard) -> None:
        """Forgets a verification that the coordinator has refused for good.

        The epochs of a producer share their guard. The refusal of an old epoch does not end a new epoch's verification.
        """
        known = self.producers.verifications
        if known is not None:
            known.end(producer_id, producer_epoch, guard)

    def check_verified(self, producer_id: int, producer_epoch: int, guard: Guard) -> None:
        """Checks that the first batch of a transaction is verified. ``Producers.check`` refuses an old epoch.

        ``append`` does this for a client's batch. A coordinator does it itself, right before it makes the batch.
        Raises KafkaError: INVALID_TXN_STATE.
        """
        if not self.config.transaction_partition_verification_enable:
            return
        state = self.producers.get(producer_id)
        if state is not None and (producer_epoch < state.epoch or state.is_in_transaction(producer_epoch)):
            return
        known = self.producers.verifications
        if known is None or not known.is_valid(producer_id, guard):
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"the batch of producer {producer_id} is in no known transaction"
            )

    def aborted_in(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Returns the aborted transactions with records in [``start``, ``end``). Raises OSError."""
        if not self.has_aborted:
            return ()
        return collect_aborted(self._segments[self._number_at(start) :], start, end)

    def aborted_for(self, offset: int, records: Slice) -> Sequence[AbortedTransaction]:
        """Returns the aborted transactions for a reader of ``records`` from ``offset`` on. Raises OSError.

        As in Kafka, the search ends at the offset index's next entry after the records. So a few of the transactions
        may begin after the records.
        """
        if not self.has_aborted:
            return ()
        number = self._number_at(records.base_offset)
        end = self._segments[number].offset_index.first_at_or_after(records.position + records.size)
        if end is None:
            end = self._bases[number + 1] if number + 1 < len(self._bases) else self._end_offset
        return collect_aborted(self._segments[number:], offset, end)

    def _number_at(self, offset: int) -> int:
        """Returns the number of the segment with ``offset``."""
        return max(bisect_right(self._bases, offset) - 1, 0)
