"""The transactional ids of one partition of ``__transaction_state``: requests, replay, timeouts, expiry.

The state table is in ``transitions``. Rules:

* A record of this log is the whole state of one transactional id. Only ``replay`` changes ``transactions``.
* A decision (PrepareCommit, PrepareAbort) is final when its record is committed. Then it is announced as ``Markers``;
  the broker writes the markers and reports ``MarkersWritten``. A load announces the decision of each incomplete
  transaction again.
* EndTxn gets its reply when the transaction is complete, or earlier: once each partition without a marker is offline or
  refuses the marker.
* Each bad request gets the error of Apache Kafka 4.3 and changes nothing. A request whose record is too large for a
  batch is refused in the same way.
* A transaction of many partitions is read and written in steps.
* ``last_producers`` has each producer's identity before its newest epoch, for repeated InitProducerId requests. It is
  not durable.
* A record of version 0 has no field for the client's version. So at level 0 of transaction.version a request whose
  record needs this field is refused (UNSUPPORTED_VERSION). As in Kafka, further requests of the transactional id then
  get CONCURRENT_TRANSACTIONS. Kafka refuses them until it loads the partition again. Here the refusal ends with the
  transaction's timeout, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeVar, cast

from odradek.codecs.transaction_state import (
    Decoded,
    Transaction,
    TransactionRecord,
    TransactionState,
    UnreadableTransaction,
    decode,
    encode_key,
    encode_value,
    encode_value_in_steps,
    stored_value,
)
from odradek.core.effects import (
    Announce,
    Block,
    Complete,
    Effect,
    LogEntry,
    Park,
    Request,
    Result,
    ResultOrSteps,
    ResultSteps,
    SetTimer,
    SimpleRecord,
    Warn,
    most_bytes,
)
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_PRODUCER, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, PartitionKey, ProducerIdentity
from odradek.core.pace import PART_RECORDS, STEP_WORK, Pace, in_parts
from odradek.core.state_machines.tables import RequestTable
from odradek.transactions import transitions
from odradek.transactions.checks import (
    Action,
    LevelTooLow,
    check_end,
    is_listed,
    may_continue,
    verified,
    verified_in_steps,
)
from odradek.transactions.config import TransactionConfig
from odradek.transactions.messages import (
    AddPartitions,
    DescribedTransaction,
    DescribeTransaction,
    EndTransaction,
    EndTxnKey,
    InitProducerId,
    ListedTransaction,
    ListedTransactions,
    ListTransactions,
    Markers,
    MarkersDelayed,
    MarkersWritten,
    ProducerReply,
    TransactionalRequest,
    VerifyPartitions,
)
from odradek.transactions.transitions import CAN_EXPIRE, EPOCH_PER_TRANSACTION, MAX_EPOCH, PREPARED, is_exhausted

R = TypeVar("R")
TIMEOUTS, EXPIRY = "timeouts", "expiry"
AGAIN_MS = 1_000
"""The time from the refused end of a transaction to the next announcement of its markers."""
_END_BYTES = 16
"""The bytes by which the record of a decision may be longer than the last record of the open transaction."""


class _Again(NamedTuple):
    """The key of the timer that announces the markers of a transactional id again."""

    transactional_id: str


class _Decision(NamedTuple):
    """A decision. ``epoch`` is the epoch of the markers.

    ``last_epoch`` is the new epoch in ``last_producers``: the producer's epoch before the decision, or -1 for a fence
    below version 2. With None the entry stays. ``version`` is the client's version of the protocol. For a fence it is
    the level of transaction.version, or 0 if this level is below 2.
    """

    commit: bool
    epoch: int
    last_epoch: int | None
    version: int


class TransactionShard:
    """The shard of transactional ids. The contract is in coordinator_runtime/shard.

    ``new_producer_id`` returns an unused id and raises KafkaError if there is none now. ``version`` returns the level
    of the feature ``transaction.version``, ``batch_bytes`` the largest number of bytes of records in a batch, 0 if that
    is unknown.
    """

    reads: ClassVar[tuple[type, ...]] = (VerifyPartitions, DescribeTransaction, ListTransactions)

    def __init__(
        self,
        config: TransactionConfig,
        new_producer_id: Callable[[], int],
        version: Callable[[], int],
        batch_bytes: Callable[[], int],
    ) -> None:
        self.config = config
        self.transactions: dict[str, Transaction] = {}
        self.last_producers: dict[str, ProducerIdentity] = {}
        self.skipped: Counter[str] = Counter()
        self._ongoing: dict[str, None] = {}
        self._blocked: dict[str, int] = {}
        """Transactional ids that are refused because a request needed a record of version 1 at level 0; each with the
        end of the refusal (ms)."""
        self._new_producer_id = new_producer_id
        self._version = version
        self._batch_bytes = batch_bytes
        self.requests = table = RequestTable()
        table.add(InitProducerId, self._init)
        table.add(AddPartitions, self._add)
        table.add(VerifyPartitions, self._verify)
        table.add(EndTransaction, self._end)
        table.add(MarkersWritten, self._on_markers_written)
        table.add(MarkersDelayed, self._on_markers_delayed)
        table.add(DescribeTransaction, self._describe)
        table.add(ListTransactions, self._list)
        self._handlers = table.by_type

    def handle(self, now_ms: int, request: Request[R]) -> ResultOrSteps[R]:
        try:
            result = self._handlers[type(request)](now_ms, request)
        except KafkaError as error:
            return _refusal(request, error)
        return result if isinstance(result, Result) else _refused_in_steps(request, result)

    def reply_to_dropped(self, request: Request[object], error: ErrorCode) -> object:
        return request.error_reply(error)

    def on_refused(self, now_ms: int, entries: Sequence[LogEntry], error: ErrorCode) -> Result[None]:
        """Replies to a parked EndTxn whose decision was refused.

        If the end of a transaction was refused, its markers are announced and so reported again later.
        """
        out: Result[None] = Result()
        for transactional_id in [changed for entry in entries for changed in self.changes_of(entry)]:
            out.effects.append(Complete(EndTxnKey(transactional_id), ProducerReply(error)))
            if transactional_id in self.transactions and self.transactions[transactional_id].state in PREPARED:
                out.effects.append(SetTimer(_Again(transactional_id), now_ms + AGAIN_MS))
        return out

    def _announce_again(self, transactional_id: str) -> Result[None]:
        current = self.transactions.get(transactional_id)
        if current is None or current.state not in PREPARED:
            return Result()
        return Result(effects=[Announce(Markers.of(transactional_id, current))])

    def changes_of(self, entry: LogEntry) -> Collection[Hashable]:
        """Returns the transactional id of a record."""
        if isinstance(entry, TransactionRecord):
            return (entry.transactional_id,)
        decoded = decode(entry.key, entry.value) if isinstance(entry, SimpleRecord) else None
        return () if decoded is None or isinstance(decoded, UnreadableTransaction) else (decoded[0],)

    def reply_limit_ms(self, request: Request[object]) -> int:
        """Returns the timeout of the transactional id: as in Kafka, its records are replicated in this time, or the
        request gets COORDINATOR_NOT_AVAILABLE."""
        if isinstance(request, ListTransactions):
            return self.config.max_timeout_ms
        current = self.transactions.get(cast(TransactionalRequest, request).transactional_id)
        return self.config.max_timeout_ms if current is None else current.timeout_ms

    def shown_to(self, request: Request[object]) -> Collection[Hashable] | None:
        return (
            None if isinstance(request, ListTransactions) else (cast(TransactionalRequest, request).transactional_id,)
        )

    def _write(
        self,
        transactional_id: str,
        after: Transaction,
        make: Callable[[TransactionRecord], Result[R]],
        *,
        reserved_bytes: int = 0,
        last: ProducerIdentity | None = None,
    ) -> ResultOrSteps[R]:
        """Returns the result that ``make`` returns for the record of ``after``; works in steps if ``after`` has many
        partitions.

        ``make`` may change state that is not durable. Raises KafkaError (UNKNOWN_SERVER_ERROR, as in Kafka), here or in
        the steps, if a batch cannot hold the record and ``reserved_bytes`` more.
        """
        version = min(self._version(), 1)
        if len(after.partitions) > STEP_WORK:
            return self._write_in_steps(transactional_id, after, make, reserved_bytes, last)
        value = encode_value(after, version)
        return make(self._record(transactional_id, stored_value(after, version), value, reserved_bytes, last))

    def _write_in_steps(
        self,
        transactional_id: str,
        after: Transaction,
        make: Callable[[TransactionRecord], Result[R]],
        reserved_bytes: int,
        last: ProducerIdentity | None,
    ) -> ResultSteps[R]:
        version = min(self._version(), 1)
        value = yield from encode_value_in_steps(after, version)
        return make(self._record(transactional_id, stored_value(after, version), value, reserved_bytes, last))

    def _record(
        self,
        transactional_id: str,
        stored: Transaction,
        value: bytes,
        reserved_bytes: int,
        last: ProducerIdentity | None,
    ) -> TransactionRecord:
        record = TransactionRecord(encode_key(transactional_id), value, None, transactional_id, stored, last)
        limit = self._batch_bytes()
        if limit and most_bytes(record) + reserved_bytes > limit:
            raise KafkaError(
                ErrorCode.unknown_server_error,
                f"the record of transactional id {transactional_id!r} with {len(stored.partitions):,} partitions is "
                "larger than max.message.bytes of __transaction_state",
            )
        return record

    def _check_level(self, now_ms: int, transactional_id: str, transaction: Transaction) -> None:
        """Raises KafkaError if the level of transaction.version is too low for the record of ``transaction``.

        In this case later requests of the transactional id are refused, too, for the transaction's timeout.
        """
        if transaction.client_version and not self._version():
            self._blocked[transactional_id] = now_ms + transaction.timeout_ms
            raise LevelTooLow(transactional_id, transaction)

    # --- InitProducerId ---------------------------------------------------------------------------------------

    def _init(self, now_ms: int, request: InitProducerId) -> ResultOrSteps[ProducerReply]:
        if not request.transactional_id:
            return Result(ProducerReply(ErrorCode.invalid_request))
        if not 0 < request.timeout_ms <= self.config.max_timeout_ms:
            return Result(ProducerReply(ErrorCode.invalid_transaction_timeout))
        current = self.transactions.get(request.transactional_id)
        if current is None:
            current = transitions.new_transaction(self._new_producer_id(), request.timeout_ms, now_ms)
        if current.state in PREPARED or request.transactional_id in self._blocked:
            return Result(ProducerReply(ErrorCode.concurrent_transactions))
        last = self.last_producers.get(request.transactional_id, NO_PRODUCER)
        if request.expected is not None and not may_continue(current, last, request.expected):
            return Result(ProducerReply(ErrorCode.producer_fenced))
        if current.state is TransactionState.ONGOING:
            reply = ProducerReply(ErrorCode.concurrent_transactions)
            return self._fence(now_ms, request.transactional_id, current, reply)
        return self._start_epoch(now_ms, request, current)

    def _start_epoch(self, now_ms: int, request: InitProducerId, current: Transaction) -> ResultOrSteps[ProducerReply]:
        producer_id, epoch, last_epoch = self._next_epoch(request, current)
        after = transitions.initialized(current, producer_id, epoch, request.timeout_ms, now_ms)
        # At level 0 the record loses the version of the last transaction. Kafka refuses the request for ever instead.

        reply = ProducerReply(producer=ProducerIdentity(producer_id, epoch))
        return self._write(
            request.transactional_id,
            after,
            lambda record: Result(reply, [record]),
            last=ProducerIdentity(current.producer_id, last_epoch),
        )

    def _next_epoch(self, request: InitProducerId, current: Transaction) -> tuple[int, int, int]:
        """Returns the producer id, its new epoch, and the epoch for ``last_producers``. Raises KafkaError."""
        expected = request.expected
        epoch = current.producer_epoch
        is_current = expected is None or expected.producer_epoch == epoch
        if is_exhausted(epoch):
            if not is_current:
                raise KafkaError(ErrorCode.unknown_server_error, f"producer {current.producer_id} has no more epochs")
            return self._new_producer_id(), 0, NO_PRODUCER_EPOCH if expected is None else epoch
        if expected is None:
            return current.producer_id, epoch + 1, NO_PRODUCER_EPOCH
        if is_current or epoch == NO_PRODUCER_EPOCH:
            return current.producer_id, epoch + 1, epoch
        last_epoch = self.last_producers.get(request.transactional_id, NO_PRODUCER).producer_epoch
        if expected.producer_epoch == last_epoch:  # a repeated request whose reply was lost
            return current.producer_id, epoch, last_epoch
        raise KafkaError(
            ErrorCode.producer_fenced,
            f"epoch {expected.producer_epoch} of producer {current.producer_id} is not the current epoch {epoch}",
        )

    def _fence(
        self, now_ms: int, transactional_id: str, current: Transaction, reply: ProducerReply | None = None
    ) -> ResultOrSteps[ProducerReply]:
        """Aborts the open transaction under a new epoch, so that its producer can write no more."""
        version, last_epoch = self._version(), current.producer_epoch
        if version < EPOCH_PER_TRANSACTION:
            version, last_epoch = 0, NO_PRODUCER_EPOCH
        epoch = min(current.producer_epoch + 1, MAX_EPOCH)
        return self._prepare(
            now_ms, transactional_id, current, _Decision(False, epoch, last_epoch, version), Result(reply)
        )

    # --- partitions -------------------------------------------------------------------------------------------

    def _add(self, now_ms: int, request: AddPartitions) -> ResultOrSteps[ErrorCode]:
        if request.transactional_id in self._blocked:
            return Result(ErrorCode.concurrent_transactions)
        error = self._partition_error(request.transactional_id, request.producer)
        if error is not ErrorCode.none:
            return Result(error)
        current = self.transactions[request.transactional_id]
        if len(request.partitions) > STEP_WORK:
            return self._add_in_steps(now_ms, request, current)
        if current.state is TransactionState.ONGOING and current.partitions.issuperset(request.partitions):
            return Result(ErrorCode.none)
        return self._write_added(now_ms, request, current)

    def _add_in_steps(self, now_ms: int, request: AddPartitions, current: Transaction) -> ResultSteps[ErrorCode]:
        is_new = current.state is not TransactionState.ONGOING
        pace = Pace()
        for partition in request.partitions:
            if is_new or partition not in current.partitions:
                steps = self._write_added(now_ms, request, current)
                return steps if isinstance(steps, Result) else (yield from steps)
            if pace.spend():
                yield None
        return Result(ErrorCode.none)

    def _write_added(self, now_ms: int, request: AddPartitions, current: Transaction) -> ResultOrSteps[ErrorCode]:
        after = transitions.with_partitions(current, request.partitions, request.client_version, now_ms)
        self._check_level(now_ms, request.transactional_id, after)
        return self._write(
            request.transactional_id,
            after,
            lambda record: Result(ErrorCode.none, [record]),
            reserved_bytes=_END_BYTES,  # otherwise the transaction could not end
        )

    def _verify(self, now_ms: int, request: VerifyPartitions) -> ResultOrSteps[Mapping[PartitionKey, ErrorCode]]:
        error = self._partition_error(request.transactional_id, request.producer)
        if error is not ErrorCode.none:
            return Result(request.error_reply(error))
        members = self.transactions[request.transactional_id].partitions
        if len(request.partitions) > STEP_WORK:
            return verified_in_steps(request.partitions, members)
        return Result({partition: verified(partition, members) for partition in request.partitions})

    def _partition_error(self, transactional_id: str, producer: ProducerIdentity) -> ErrorCode:
        if not transactional_id:
            return ErrorCode.invalid_request
        current = self.transactions.get(transactional_id)
        if current is None or current.producer_id != producer.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if current.producer_epoch != producer.producer_epoch:
            return ErrorCode.producer_fenced
        return ErrorCode.concurrent_transactions if current.state in PREPARED else ErrorCode.none

    # --- the end of a transaction -----------------------------------------------------------------------------

    def _end(self, now_ms: int, request: EndTransaction) -> ResultOrSteps[ProducerReply]:
        if not request.transactional_id:
            return Result(ProducerReply(ErrorCode.invalid_request))
        current = self.transactions.get(request.transactional_id)
        if current is None:
            return Result(ProducerReply(ErrorCode.invalid_producer_id_mapping))
        action = check_end(current, request, is_blocked=request.transactional_id in self._blocked)
        if action is Action.REPEATED:
            producer = ProducerIdentity()
            if request.client_version >= EPOCH_PER_TRANSACTION:
                producer = ProducerIdentity(current.producer_id, current.producer_epoch)
            return Result(ProducerReply(producer=producer))
        if isinstance(action, ErrorCode):
            return Result(ProducerReply(action))
        decision = _Decision(request.commit, current.producer_epoch, None, 0)
        if request.client_version >= EPOCH_PER_TRANSACTION:
            epoch = current.producer_epoch
            decision = _Decision(request.commit, min(epoch + 1, MAX_EPOCH), epoch, request.client_version)
        out: Result[ProducerReply] = Result(effects=[Park(EndTxnKey(request.transactional_id), is_limited=True)])
        return self._prepare(now_ms, request.transactional_id, current, decision, out)

    def _prepare(
        self, now_ms: int, transactional_id: str, current: Transaction, decision: _Decision, out: Result[ProducerReply]
    ) -> ResultOrSteps[ProducerReply]:
        """Adds the record of a decision and its announcement to ``out``."""
        commit, epoch, last_epoch, version = decision
        next_producer_id = NO_PRODUCER_ID
        if version >= EPOCH_PER_TRANSACTION and is_exhausted(current.producer_epoch):
            next_producer_id = self._new_producer_id()
        after = transitions.prepared(
            current, commit=commit, epoch=epoch, next_producer_id=next_producer_id, client_version=version,
            now_ms=now_ms,
        )  # fmt: skip
        self._check_level(now_ms, transactional_id, after)

        def make(record: TransactionRecord) -> Result[ProducerReply]:
            out.records.append(record)
            out.effects.append(Announce(Markers.of(transactional_id, after)))
            return out

        last = None if last_epoch is None else ProducerIdentity(current.producer_id, last_epoch)
        return self._write(transactional_id, after, make, last=last)

    def _on_markers_written(self, now_ms: int, request: MarkersWritten) -> ResultOrSteps[ErrorCode]:
        current = self._decided(request.transactional_id, request.producer)
        if current is None:  # a repeated report, or a report to an earlier shard
            return Result(ErrorCode.none)
        after = transitions.completed(current, now_ms)
        effects: list[Effect] = [Complete(EndTxnKey(request.transactional_id), self._end_reply(after))]
        return self._write(request.transactional_id, after, lambda record: Result(ErrorCode.none, [record], effects))

    def _on_markers_delayed(self, now_ms: int, request: MarkersDelayed) -> Result[ErrorCode]:
        current = self._decided(request.transactional_id, request.producer)
        if current is None:
            return Result(ErrorCode.none)
        reply = self._end_reply(transitions.completed(current, now_ms))
        return Result(ErrorCode.none, effects=[Complete(EndTxnKey(request.transactional_id), reply)])

    @staticmethod
    def _end_reply(after: Transaction) -> ProducerReply:
        return ProducerReply(producer=ProducerIdentity(after.producer_id, after.producer_epoch))

    def _decided(self, transactional_id: str, producer: ProducerIdentity) -> Transaction | None:
        """Returns the incomplete transaction whose decision was announced with this producer, or None."""
        current = self.transactions.get(transactional_id)
        if current is None or current.state not in PREPARED:
            return None
        return current if producer == (current.producer_id, current.producer_epoch) else None

    # --- descriptions -----------------------------------------------------------------------------------------

    def _describe(self, now_ms: int, request: DescribeTransaction) -> Result[DescribedTransaction]:
        if not request.transactional_id:
            return Result(DescribedTransaction(ErrorCode.invalid_request))
        current = self.transactions.get(request.transactional_id)
        if current is None:
            return Result(DescribedTransaction(ErrorCode.transactional_id_not_found))
        return Result(DescribedTransaction(transaction=current))

    def _list(self, now_ms: int, request: ListTransactions) -> ResultSteps[ListedTransactions]:
        listed: list[ListedTransaction] = []
        pace = Pace()
        for transactional_id, transaction in list(self.transactions.items()):
            if is_listed(transaction, request, now_ms):
                listed.append(ListedTransaction(transactional_id, transaction.producer_id, transaction.state))
            if pace.spend():
                yield None
        return Result(ListedTransactions(transactions=listed))

    # --- the log ----------------------------------------------------------------------------------------------

    def replay(self, offset: int, record: SimpleRecord) -> None:
        if isinstance(record, TransactionRecord):
            self.apply((record.transactional_id, record.transaction))
            if record.last_producer is not None:
                self.last_producers[record.transactional_id] = record.last_producer
        else:
            self.apply(decode(record.key, record.value))

    def apply(self, decoded: Decoded) -> None:
        """Applies a decoded record."""
        if isinstance(decoded, UnreadableTransaction):
            self.skipped[decoded.reason] += 1
            return
        transactional_id, transaction = decoded
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self.last_producers.pop(transactional_id, None)
            self._ongoing.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if transaction.state is TransactionState.ONGOING:
            self._ongoing[transactional_id] = None
        else:
            self._ongoing.pop(transactional_id, None)

    def replay_block(self, offset: int, block: Block) -> None:
        for number, record in enumerate(block.records()):
            self.replay(offset + number, record)

    def on_loaded(self, now_ms: int) -> ResultSteps[None]:
        """Sets the timers, and announces the decisions of incomplete transactions again.

        A crash may have come before their markers.
        """
        out: Result[None] = Result(
            effects=[
                SetTimer(TIMEOUTS, now_ms + self.config.abort_interval_ms),
                SetTimer(EXPIRY, now_ms + self.config.removal_interval_ms),
            ]
        )
        pace = Pace()
        for transactional_id, transaction in list(self.transactions.items()):
            if transaction.state in PREPARED:
                out.effects.append(Announce(Markers.of(transactional_id, transaction)))
            if pace.spend():
                yield None
        return out

    def catch_up(self, now_ms: int) -> Result[None]:
        return Result()

    # --- timers -----------------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> ResultOrSteps[None]:
        if isinstance(key, _Again):
            return self._announce_again(key.transactional_id)
        if key == TIMEOUTS:
            return self._abort_timed_out(now_ms)
        return self._remove_expired(now_ms)

    def _abort_timed_out(self, now_ms: int) -> ResultSteps[None]:
        """Aborts at most PART_RECORDS transactions. A timer that is due at once aborts the next ones.

        Also ends the refusals whose time has passed.
        """
        out: Result[None] = Result(effects=[SetTimer(TIMEOUTS, now_ms + self.config.abort_interval_ms)])
        pace = Pace()
        for transactional_id in list(self._ongoing):
            current = self.transactions[transactional_id]
            if current.start_ms + current.timeout_ms < now_ms:
                try:
                    fenced = self._fence(now_ms, transactional_id, current)
                    part = fenced if isinstance(fenced, Result) else (yield from fenced)
                except KafkaError:  # no new producer id now, or no room for the record: the next search tries again
                    continue
                self._blocked.pop(transactional_id, None)
                out.records += part.records
                out.effects += part.effects
            if len(out.records) >= PART_RECORDS:
                out.effects.append(SetTimer(TIMEOUTS, now_ms))
                break
            if pace.spend():
                yield None
        for transactional_id in [key for key, until_ms in self._blocked.items() if until_ms < now_ms]:
            del self._blocked[transactional_id]
        return out

    def _remove_expired(self, now_ms: int) -> ResultSteps[None]:
        out: Result[None] = Result(effects=[SetTimer(EXPIRY, now_ms + self.config.removal_interval_ms)])
        return (yield from in_parts(self._tombstones(now_ms - self.config.id_expiration_ms), out))

    def _tombstones(self, before_ms: int) -> Iterator[SimpleRecord | None]:
        for transactional_id, transaction in list(self.transactions.items()):
            is_expired = transaction.state in CAN_EXPIRE and transaction.last_update_ms <= before_ms
            is_expired = is_expired and transactional_id not in self._blocked
            yield SimpleRecord(encode_key(transactional_id), None) if is_expired else None

    # --- events and notices -----------------------------------------------------------------------------------

    def on_work(self, now_ms: int, key: Hashable, value: object) -> Result[None]:
        return Result()

    def on_event(self, now_ms: int, event: object) -> Result[None]:
        return Result()

    def on_notice(self, notice: object) -> None:
        """Does nothing: a partition of a deleted topic is dropped when its marker is due."""

    def on_clock_jumped(self, by_ms: int) -> None:
        """Does nothing: the times of this state are those of the records, as in Kafka."""


def _refused_in_steps(request: Request[R], steps: ResultSteps[R]) -> ResultSteps[R]:
    try:
        return (yield from steps)
    except KafkaError as error:
        return _refusal(request, error)


def _refusal(request: Request[R], error: KafkaError) -> Result[R]:
    effects: list[Effect] = [Warn(error.warning)] if isinstance(error, LevelTooLow) else []
    return Result(request.error_reply(error.code), effects=effects)
