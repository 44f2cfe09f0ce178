"""The state of idempotent and transactional producers in a log. ``storage/producers/states`` has their snapshots.

Rules for each producer id:
* The state has the last five batches. A batch with the epoch, first and last sequence of one of them is a duplicate:
  its reply has the offsets of the first append (behaviour 55).
* An epoch below the current epoch is INVALID_PRODUCER_EPOCH.
* A new epoch starts with sequence 0. Within an epoch each batch continues the sequence of the previous one (0 follows
  2^31-1). Otherwise the error is OUT_OF_ORDER_SEQUENCE_NUMBER.
* A producer without state may start with any sequence, because retention or expiry may have removed its state.
  Exception: with transaction.version 2, a transactional producer starts with sequence 0 (``Verifications``).
* The first offset of an open transaction limits the last stable offset until the transaction's marker. Open
  transactions are in the order of their first offsets, because appends begin them in this order.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from odradek.batches.header import BatchHeader
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_PRODUCER_EPOCH, EndTransactionMarker
from odradek.core.pace import Pace
from odradek.storage.disk.files import Files
from odradek.storage.producers.states import (
    MAX_SEQUENCE,
    BatchMetadata,
    ProducerState,
    SnapshotCorrupt,
    SnapshotSteps,
    decode_snapshot_in_steps,
    encode_snapshot,
    snapshot_offsets,
    snapshot_path,
)
from odradek.storage.producers.verification import Guard, Verifications
from odradek.storage.segments.index_digests import NO_DIGEST, LogDigest, decode_digests

MAX_PRODUCER_EPOCH = 0x7FFF
STRICT_EPOCHS_VERSION = 2
"""The first transaction.version whose markers have an epoch above the epoch of the transaction."""
_NONE_OPEN: Mapping[int, int] = MappingProxyType({})


class Producers:
    """The producer states of one log, from its batches below ``end_offset``."""

    __slots__ = (
        "_files",
        "_last_snapshot",
        "_open_transactions",
        "_read_to",
        "_snapshot",
        "_states",
        "_unreplicated",
        "digests",
        "directory",
        "end_offset",
        "first_unstable_offset",
        "rebuild",
        "verifications",
    )

    def __init__(self, directory: Path, files: Files) -> None:
        self.directory = directory
        self.end_offset = 0
        self._files = files
        self._states: dict[int, ProducerState] = {}
        self._open_transactions: OrderedDict[int, int] | None = None  # most logs never have a transaction
        self._unreplicated: list[tuple[int, int]] | None = None
        self._last_snapshot = -1
        self._snapshot: SnapshotSteps | None = None
        self.digests = NO_DIGEST
        """The digests in the loaded snapshot."""
        self.verifications: Verifications | None = None
        self.first_unstable_offset: int | None = None
        """The first offset of the oldest transaction that is open, or whose marker is not below the high watermark."""
        self._read_to: int | None = None
        self.rebuild: Generator[None, None, None] | None = None
        """The steps that are left of a rebuild of the states, after a truncation of the log."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._states.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction by producer id, in the order of the offsets."""
        return _NONE_OPEN if self._open_transactions is None else self._open_transactions

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction, or None."""
        return next(iter(self.open_transactions.values()), None)

    def _note_first_unstable(self) -> None:
        first = self.first_open_offset
        if self._unreplicated:
            waiting = self._unreplicated[0][0]
            first = waiting if first is None else min(first, waiting)
        if self._read_to is not None:
            first = self._read_to if first is None else min(first, self._read_to)
        self.first_unstable_offset = first

    def begin_unstable(self, offset: int | None) -> None:
        """Makes all records from ``offset`` on unstable, because their states are not known yet. None ends that."""
        self._read_to = offset
        self._note_first_unstable()

    def await_replicas(self, first_offset: int, last_offset: int) -> None:
        """Keeps an ended transaction unstable until its marker, at ``last_offset``, is below the high watermark."""
        if self._unreplicated is None:
            self._unreplicated = []
        insort(self._unreplicated, (first_offset, last_offset))
        self._note_first_unstable()

    def on_high_watermark(self, high_watermark: int) -> None:
        """Ends the wait of transactions whose markers are below the high watermark."""
        if self._unreplicated:
            self._unreplicated = [waiting for waiting in self._unreplicated if waiting[1] >= high_watermark]
            self._note_first_unstable()

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            return None
        for batch in state.batches:
            if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return None

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, supports_epoch_bump: bool
    ) -> Guard:
        """Returns the guard to pass to ``Log.begin_append`` with a batch whose transaction the coordinator confirms.

        Returns None if the producer has an open transaction with this epoch here: then no confirmation is necessary.
        ``supports_epoch_bump``: the client has transaction.version 2. Raises KafkaError: INVALID_PRODUCER_EPOCH.
        """
        state = self._states.get(producer_id)
        if state is not None:
            if producer_epoch < state.epoch:
                raise _old_epoch(producer_id, producer_epoch, state.epoch)
            if state.is_in_transaction(producer_epoch):
                return None
        if self.verifications is None:
            self.verifications = Verifications()
        return self.verifications.begin(producer_id, producer_epoch, sequence, supports_epoch_bump=supports_epoch_bump)

    def end_verification(self, producer_id: int, producer_epoch: int, guard: Guard) -> None:
        """Forgets a verification that the coordinator has refused for good.

        The epochs of a producer share their guard. The refusal of an old epoch does not end a new epoch's verification.
        """
        if self.verifications is not None:
            self.verifications.end(producer_id, producer_epoch, guard)

    def check_verified(self, producer_id: int, producer_epoch: int, guard: Guard) -> None:
        """Checks that the first batch of a transaction is verified. ``check`` refuses an old epoch.

        Raises KafkaError: INVALID_TXN_STATE.
        """
        state = self._states.get(producer_id)
        if state is not None and (producer_epoch < state.epoch or state.is_in_transaction(producer_epoch)):
            return
        if self.verifications is None or not self.verifications.is_valid(producer_id, guard):
            raise KafkaError(
                ErrorCode.invalid_txn_state, f"the batch of producer {producer_id} is in no known transaction"
            )

    def check(self, header: BatchHeader, *, sequences: bool) -> None:
        """Checks whether the batch may be appended. ``sequences=False``: a coordinator's batch, without sequences.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            if sequences and self.verifications is not None:
                self.verifications.check_sequence(header, is_first=True)
            return
        epoch = header.producer_epoch
        if epoch < state.epoch:
            raise _old_epoch(header.producer_id, epoch, state.epoch)
        if header.is_control:
            return
        if sequences:
            if self.verifications is not None:
                self.verifications.check_sequence(header, is_first=not state.batches)
            self._check_sequence(state, header)
        if state.transaction_start >= 0 and not header.is_transactional:
            raise KafkaError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has an open transaction and sent a batch without a transaction",
            )

    def _check_sequence(self, state: ProducerState, header: BatchHeader) -> None:
        first = header.base_sequence
        if state.epoch == NO_PRODUCER_EPOCH:
            return
        if header.producer_epoch != state.epoch:
            if first != 0:
                raise KafkaError(
                    ErrorCode.out_of_order_sequence_number,
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} with sequence {first}, not 0",
                )
            return
        last = state.last_sequence
        if first != last + 1 and not (first == 0 and last == MAX_SEQUENCE):
            raise KafkaError(
                ErrorCode.out_of_order_sequence_number,
                f"sequence {first} of producer {header.producer_id} does not follow {last}",
            )

    def check_marker(self, marker: EndTransactionMarker) -> None:
        """Checks whether the marker may be appended.

        With transaction.version 2 the marker's epoch is above the producer's. The epochs may be equal in two cases: the
        producer has no open transaction, so the marker repeats a written one (KIP-1228); or the epoch is the largest.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        state = self._states.get(marker.producer_id)
        if state is None:
            return
        epoch = marker.producer_epoch
        is_strict = marker.transaction_version >= STRICT_EPOCHS_VERSION
        is_repeated = state.transaction_start < 0 or epoch == MAX_PRODUCER_EPOCH
        if epoch < state.epoch or (is_strict and epoch == state.epoch and not is_repeated):
            raise KafkaError(
                ErrorCode.invalid_producer_epoch,
                f"a marker with epoch {epoch} cannot end the transaction of producer {marker.producer_id}, "
                f"whose epoch is {state.epoch} (transaction.version {marker.transaction_version})",
            )
        if marker.coordinator_epoch < state.coordinator_epoch:
            raise KafkaError(
                ErrorCode.transaction_coordinator_fenced,
                f"coordinator epoch {marker.coordinator_epoch} of a marker for producer {marker.producer_id} is older "
                f"than {state.coordinator_epoch}",
            )

    def apply(self, header: BatchHeader, base_offset: int, max_timestamp: int) -> None:
        """Applies a batch of the log at ``base_offset``."""
        state = self._state_to_change(header.producer_id)
        last_offset = base_offset + header.last_offset_delta
        state.add(
            header.producer_epoch,
            BatchMetadata(header.last_sequence, last_offset, header.last_offset_delta, max_timestamp),
        )
        if header.is_transactional and state.transaction_start < 0:
            state.transaction_start = base_offset
            if self._open_transactions is None:
                self._open_transactions = OrderedDict()
            self._open_transactions[header.producer_id] = base_offset
            self._note_first_unstable()
        if self.verifications is not None and header.is_transactional:
            self.verifications.note(header)

    def _state_to_change(self, producer_id: int) -> ProducerState:
        """Returns the state of a producer, a new one for an unknown producer. A snapshot in progress encodes a known
        state first."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id)
            if self._snapshot is not None:
                state.snapshot_id = self._snapshot.id
        elif self._snapshot is not None:
            self._snapshot.keep(state)
        return state

    def apply_marker(self, header: BatchHeader, coordinator_epoch: int) -> int | None:
        """Ends a transaction with its COMMIT or ABORT marker. Returns its first offset; None if none was open."""
        state = self._state_to_change(header.producer_id)
        if state.epoch != header.producer_epoch:
            state.batches.clear()
            state.epoch = header.producer_epoch
        state.coordinator_epoch = coordinator_epoch
        state.last_timestamp = header.max_timestamp
        state.transaction_start = -1
        first_offset = None
        if self._open_transactions:
            first_offset = self._open_transactions.pop(header.producer_id, None)
            self._note_first_unstable()
        if self.verifications is not None:
            self.verifications.note(header)
        return first_offset

    def expire(self, now_ms: int, expiration_ms: int) -> Generator[None, None, int]:
        """Removes producers without a batch or marker for ``expiration_ms`` and without an open transaction, in steps.

        Also removes expired verifications. Returns the number of removed producers.
        """
        gone = yield from self.expire_states(now_ms, expiration_ms)
        if self.verifications is not None:
            yield from self.verifications.expire(now_ms, expiration_ms)
        return gone

    def expire_states(self, now_ms: int, expiration_ms: int) -> Generator[None, None, int]:
        """Does the same as ``expire``, without the verifications."""
        gone = 0
        pace = Pace()
        for state in tuple(self._states.values()):
            is_due = state.transaction_start < 0 and now_ms - state.last_timestamp >= expiration_ms
            if is_due and self._states.get(state.producer_id) is state:
                del self._states[state.producer_id]
                gone += 1
            if pace.spend():
                yield
        return gone

    def clear(self, end_offset: int) -> None:
        self._states = {}
        self.end_snapshot()
        self._open_transactions = self._unreplicated = None
        self.first_unstable_offset = None
        self.end_offset = end_offset

    def restart(self, offset: int) -> None:
        """Forgets all producers and a rebuild of their states: the log begins again, empty, at ``offset``."""
        self.rebuild = self.verifications = None
        self.clear(offset)
        self.begin_unstable(None)

    # snapshots

    def save(self, *, sync: bool, digests: LogDigest = NO_DIGEST) -> Path | None:
        """Writes the snapshot at ``end_offset`` and returns its path; None if it exists already or the log is empty."""
        self.end_snapshot()
        if self.end_offset <= self._last_snapshot or not self.end_offset:
            return None
        path = snapshot_path(self.directory, self.end_offset)
        self._files.write(path, encode_snapshot(self._states.values(), digests), sync=sync)
        self._last_snapshot = self.end_offset
        return path

    def save_again(self) -> None:
        """Makes the next ``save`` write the snapshot even if it exists, because the digests have changed."""
        self._last_snapshot = -1

    def save_in_steps(self, digests: LogDigest = NO_DIGEST) -> Generator[None, None, None] | None:
        """Returns the steps that write the snapshot at the present ``end_offset``, without a sync.

        Batches and markers may change the states between two steps. ``clear``, ``save`` and ``end_snapshot`` end the
        steps. Returns None if the log is empty, the snapshot exists or another one is under way. The steps raise
        OSError.
        """
        if self._snapshot is not None or self.end_offset <= self._last_snapshot or not self.end_offset:
            return None
        snapshot = self._snapshot = SnapshotSteps(self._states.values(), self.end_offset, digests)
        return self._write_snapshot(snapshot)

    def end_snapshot(self) -> None:
        """Ends the steps of a snapshot before it is written."""
        self._snapshot = None

    def _write_snapshot(self, snapshot: SnapshotSteps) -> Generator[None, None, None]:
        path = snapshot_path(self.directory, snapshot.offset)
        temporary = path.with_name(path.name + ".tmp")
        try:
            for _ in snapshot.encode():
                yield
                if self._snapshot is not snapshot:
                    return
            self._files.remove(temporary)
            file = self._files.open(temporary, create=True)
            try:
                for part in snapshot.parts:
                    file.append([part])
                    yield
                    if self._snapshot is not snapshot:
                        return
            finally:
                file.close()
            self._files.rename(temporary, path)
            self._last_snapshot = max(self._last_snapshot, snapshot.offset)
        except OSError:
            self._files.remove(temporary)
            raise
        finally:
            if self._snapshot is snapshot:
                self._snapshot = None

    def snapshots(self) -> list[int]:
        """Returns the offsets of the snapshot files in ascending order."""
        return snapshot_offsets(self._files.list(self.directory))

    def load(
        self, first_offset: int, log_end_offset: int, now_ms: int, expiration_ms: int, *, newest: int | None = None
    ) -> Generator[None, None, None]:
        """Loads the newest readable snapshot up to the log's end, or up to offset ``newest``, in steps.

        It removes snapshots after the log's end and corrupt snapshots.

        The caller reads the log from ``end_offset`` on. Without a snapshot this is ``first_offset``, the first offset
        on disk. Unlike in Kafka, a snapshot below the log start is used: its state is still valid.
        """
        self.clear(first_offset)
        self.begin_unstable(first_offset)
        self.digests = NO_DIGEST
        self._last_snapshot = -1
        for offset in reversed(self.snapshots()):
            path = snapshot_path(self.directory, offset)
            if offset > log_end_offset:
                self._files.remove(path)
                continue
            if newest is not None and offset > newest:
                continue
            try:
                data = self._files.read(path)
                states = yield from decode_snapshot_in_steps(data)
            except SnapshotCorrupt:
                self._files.remove(path)
                continue
            self.digests = decode_digests(data)
            self._states = {state.producer_id: state for state in states}
            opened = sorted((state for state in states if state.transaction_start >= 0), key=_transaction_start)
            if opened:
                self._open_transactions = OrderedDict((state.producer_id, state.transaction_start) for state in opened)
            self.end_offset = self._last_snapshot = offset
            self.begin_unstable(offset)
            break
        yield from self.expire_states(now_ms, expiration_ms)

    def remove_snapshot(self, offset: int) -> None:
        self._files.remove(snapshot_path(self.directory, offset))

    def remove_stray_snapshots(self, base_offsets: set[int], names: Iterable[str]) -> None:
        """Removes snapshots without a segment, except the newest one if it is after the start of all segments.

        This newest one is from a clean stop. ``names`` are the names of all files in the directory.
        """
        offsets = snapshot_offsets(names)
        newest_segment = max(base_offsets, default=-1)
        for offset in offsets:
            if offset not in base_offsets and not (offset == offsets[-1] and offset > newest_segment):
                self.remove_snapshot(offset)

    def remove_snapshots_from(self, offset: int) -> None:
        """Removes snapshots at and after ``offset`` after a truncation."""
        for snapshot_offset in self.snapshots():
            if snapshot_offset >= offset:
                self.remove_snapshot(snapshot_offset)
        self._last_snapshot = max(self.snapshots(), default=-1)


def _old_epoch(producer_id: int, epoch: int, current: int) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_producer_epoch,
        f"epoch {epoch} of producer {producer_id} is older than the current epoch {current}",
    )


def _transaction_start(state: ProducerState) -> int:
    return state.transaction_start
