"""The state of a producer's transaction: the allowed calls, and the consequences of error codes. No clock, no socket.

The engine asks ``ProducerTransaction`` before each call, and reports the replies to it. States and allowed calls:

| state | calls |
|---|---|
| UNINITIALIZED, INITIALIZING | init |
| READY | begin |
| OPEN | send, send_offsets, commit, abort |
| COMMITTING | commit; abort only before the EndTxn request is sent |
| ABORTING, FAILED | abort |
| FATAL | none: each call raises the error |

Two protocols: at transaction.version 2 brokers add the partitions of Produce and TxnOffsetCommit to the transaction,
and each EndTxn returns the producer's next epoch. Below version 2, the producer adds the partitions first, and after an
abort the producer needs a new epoch, so that a late batch of the aborted transaction is refused. The version
changes only between two transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from odradek.client.errors import IllegalState, error_for
from odradek.client.producer.errors import ProducerFenced, TransactionAbortable, TransactionFatal
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_PRODUCER, ProducerIdentity, TopicPartition
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

BROKER_ADDS_PARTITIONS = 2
"""The transaction.version from which brokers add partitions by themselves."""


class TransactionPhase(Enum):
    UNINITIALIZED = "not initialized"
    INITIALIZING = "initializing"
    READY = "ready"
    OPEN = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FAILED = "in a failed transaction"
    FATAL = "fenced or failed"


class TransactionCall(Enum):
    INIT = "init_transactions()"
    BEGIN = "begin_transaction()"
    SEND = "send()"
    SEND_OFFSETS = "send_offsets_to_transaction()"
    COMMIT = "commit_transaction()"
    ABORT = "abort_transaction()"


class Consequence(Enum):
    """The consequence of an error code for the transaction."""

    RETRY = "retry"
    FIND_COORDINATOR = "find coordinator"
    ABORTABLE = "abortable"
    FENCED = "fenced"
    FATAL = "fatal"


_ALLOWED: dict[TransactionPhase, frozenset[TransactionCall]] = {
    TransactionPhase.UNINITIALIZED: frozenset({TransactionCall.INIT}),
    TransactionPhase.INITIALIZING: frozenset({TransactionCall.INIT}),
    TransactionPhase.READY: frozenset({TransactionCall.BEGIN}),
    TransactionPhase.OPEN: frozenset(
        {TransactionCall.SEND, TransactionCall.SEND_OFFSETS, TransactionCall.COMMIT, TransactionCall.ABORT}
    ),
    TransactionPhase.COMMITTING: frozenset({TransactionCall.COMMIT}),
    TransactionPhase.ABORTING: frozenset({TransactionCall.ABORT}),
    TransactionPhase.FAILED: frozenset({TransactionCall.ABORT}),
    TransactionPhase.FATAL: frozenset(),
}
_REMEDY = {
    TransactionPhase.UNINITIALIZED: "call init_transactions() first",
    TransactionPhase.INITIALIZING: "init_transactions() has no answer yet; call it again",
    TransactionPhase.READY: "call begin_transaction() first",
    TransactionPhase.OPEN: "call commit_transaction() or abort_transaction() first",
    TransactionPhase.COMMITTING: "the commit has no answer yet and may have succeeded: call commit_transaction() again",
    TransactionPhase.ABORTING: "the abort has no answer yet: call abort_transaction() again",
    TransactionPhase.FAILED: "call abort_transaction() first",
}
_FENCED = frozenset({ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced})
_COORDINATOR = frozenset({ErrorCode.coordinator_not_available, ErrorCode.not_coordinator})
_ABORTABLE: dict[int, frozenset[ErrorCode]] = {
    INIT_PRODUCER_ID: frozenset(),
    FIND_COORDINATOR: frozenset({ErrorCode.group_authorization_failed, ErrorCode.transaction_abortable}),
    ADD_PARTITIONS_TO_TXN: frozenset({
        ErrorCode.topic_authorization_failed, ErrorCode.operation_not_attempted, ErrorCode.unknown_producer_id,
        ErrorCode.transaction_abortable, ErrorCode.invalid_topic_exception, ErrorCode.unknown_server_error,
    }),
    ADD_OFFSETS_TO_TXN: frozenset({
        ErrorCode.unknown_producer_id, ErrorCode.group_authorization_failed, ErrorCode.transaction_abortable,
    }),
    TXN_OFFSET_COMMIT: frozenset({
        ErrorCode.group_authorization_failed, ErrorCode.fenced_instance_id, ErrorCode.transaction_abortable,
        ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.stale_member_epoch,
        ErrorCode.offset_metadata_too_large, ErrorCode.invalid_commit_offset_size,
        ErrorCode.topic_authorization_failed,
    }),
    END_TXN: frozenset({ErrorCode.unknown_producer_id, ErrorCode.transaction_abortable}),
}  # fmt: skip


def consequence_of(api_key: int, code: ErrorCode) -> Consequence:
    """Returns the consequence of an error code in the reply of an API. As in Java's producer, a code without a
    rule is fatal, but abortable in the reply to Produce."""
    if api_key == PRODUCE:
        # INVALID_PRODUCER_EPOCH may only mean that the transaction timed out: the abort shows whether the producer is
        # fenced.
        if code is ErrorCode.producer_fenced:
            return Consequence.FENCED
        fatal = (ErrorCode.transactional_id_authorization_failed, ErrorCode.cluster_authorization_failed)
        return Consequence.FATAL if code in (*fatal, ErrorCode.unsupported_version) else Consequence.ABORTABLE
    if code in _COORDINATOR:
        return Consequence.FIND_COORDINATOR
    if code in _ABORTABLE[api_key]:
        return Consequence.ABORTABLE
    if code.retriable:
        return Consequence.RETRY
    return Consequence.FENCED if code in _FENCED else Consequence.FATAL


class ProducerTransaction:
    """One producer's transactions, one after the other. The engine's lock guards it."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = TransactionPhase.UNINITIALIZED
        self.producer = NO_PRODUCER
        self.version = 0
        """The transaction.version of the current transaction."""
        self.failure: KafkaError | None = None
        self._added: set[TopicPartition] = set()
        self._groups: set[str] = set()
        self._is_begun = False  # whether the coordinator may know of this transaction
        self._has_sent = False  # whether this producer itself may have added something
        self._end_is_sent = False
        self._end_is_answered = False
        self._needs_epoch = False
        self._is_shared = False  # whether other producers write into this transaction
        self._epoch_was_shared = False  # whether other producers have used this epoch, in this transaction or before

    # --- the caller's calls -----------------------------------------------------------------------------------

    def check(self, call: TransactionCall) -> None:
        """Raises the error of a failed or fenced producer, or IllegalState with the state and the remedy."""
        if call in _ALLOWED[self.state]:
            return
        if call is TransactionCall.ABORT and self.state is TransactionPhase.COMMITTING and not self._end_is_sent:
            return
        failed = self.state is TransactionPhase.FAILED and call in (
            TransactionCall.SEND,
            TransactionCall.SEND_OFFSETS,
            TransactionCall.COMMIT,
        )
        if self.failure is not None and (failed or self.state is TransactionPhase.FATAL):
            raise self.failure.kept()
        raise IllegalState(f"{call.value}: the producer is {self.state.value}: {self._remedy(call)}")

    def check_send(self) -> None:
        """As ``check``. Also refuses an epoch whose sequences other producers have used in an earlier transaction."""
        self.check(TransactionCall.SEND)
        if self.needs_epoch_to_share():
            raise IllegalState(
                "send(): other producers wrote into an earlier transaction, and below transaction.version 2 the epoch "
                "is still the same: call share_transaction([]) first"
            )

    def _remedy(self, call: TransactionCall) -> str:
        if self.state is TransactionPhase.READY and call is TransactionCall.INIT:
            return "init_transactions() is called once; go on with begin_transaction()"
        return _REMEDY[self.state]

    @property
    def is_open(self) -> bool:
        """Whether a transaction has to be aborted before the producer is closed."""
        return self.state in (TransactionPhase.OPEN, TransactionPhase.FAILED) or (
            self.state is TransactionPhase.COMMITTING and not self._end_is_sent
        )

    @property
    def may_send(self) -> bool:
        """Whether batches may be sent, for the first time or again."""
        return self.state is TransactionPhase.OPEN or (
            self.state is TransactionPhase.COMMITTING and not self._end_is_sent
        )

    def init(self) -> None:
        self.check(TransactionCall.INIT)
        self.state = TransactionPhase.INITIALIZING

    def on_initialized(self, producer: ProducerIdentity) -> None:
        self.producer, self.state = producer, TransactionPhase.READY

    def begin(self, version: int) -> None:
        self.check(TransactionCall.BEGIN)
        self.state, self.version = TransactionPhase.OPEN, version
        self.failure = None
        self._added.clear()
        self._groups.clear()
        self._is_begun = self._is_shared = self._has_sent = False
        self._end_is_sent = self._end_is_answered = self._needs_epoch = False

    def end(self, *, commit: bool) -> None:
        """Starts a commit or abort: no record is accepted any more."""
        self.check(TransactionCall.COMMIT if commit else TransactionCall.ABORT)
        if commit:
            self.state = TransactionPhase.COMMITTING
            return
        if self.state is not TransactionPhase.ABORTING:
            self._needs_epoch = self.version < BROKER_ADDS_PARTITIONS
        self.state = TransactionPhase.ABORTING

    # --- the engine's requests --------------------------------------------------------------------------------

    def partitions_to_add(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions that have to be added before their batches are sent."""
        return [] if self.version >= BROKER_ADDS_PARTITIONS else [tp for tp in wanted if tp not in self._added]

    def must_add_group(self, group_id: str) -> bool:
        return self.version < BROKER_ADDS_PARTITIONS and group_id not in self._groups

    def needs_epoch_to_share(self) -> bool:
        """Returns whether other producers, which start at sequence 0, need a new epoch. At version 2 each
        transaction has its own epoch."""
        return self.version < BROKER_ADDS_PARTITIONS and self._epoch_was_shared and not self._is_shared

    def on_new_epoch(self, producer: ProducerIdentity) -> None:
        """Notes another epoch of the producer, before the first request of this transaction."""
        self.producer, self._epoch_was_shared = producer, False

    def on_shared(self) -> None:
        self._is_shared = self._epoch_was_shared = True
        self._is_begun = True  # other producers' records need an EndTxn, too

    def on_send(self) -> None:
        """Notes a request that adds partitions, records or offsets to the transaction, before it is sent."""
        self._is_begun = self._has_sent = True

    def on_added(self, partitions: Iterable[TopicPartition] = (), group_id: str | None = None) -> None:
        self._added.update(partitions)
        if group_id is not None:
            self._groups.add(group_id)

    def end_request(self) -> bool:
        """Returns whether EndTxn has to be sent. After this call the transaction may have ended.

        EndTxn is not repeated after its reply: a later InitProducerId may have raised the epoch, even if the reply to
        InitProducerId was lost."""
        if self._is_begun:
            self._end_is_sent = True
        return self._is_begun and not self._end_is_answered

    def on_end_reply(self) -> None:
        self._end_is_answered = True

    def needs_epoch(self) -> bool:
        """Returns whether the abort has to be followed by InitProducerId."""
        return self._needs_epoch and self._is_begun

    def is_no_transaction(self, code: ErrorCode) -> bool:
        """Returns whether an abort's error means that the coordinator had no transaction, because no request to add
        partitions or offsets succeeded."""
        nothing = not self._added and not self._groups and self.version < BROKER_ADDS_PARTITIONS
        return code is ErrorCode.invalid_txn_state and self.state is TransactionPhase.ABORTING and nothing

    def is_empty_share(self, code: ErrorCode) -> bool:
        """Returns whether a commit's error means that no producer has added anything to the shared transaction. At
        version 2 each transaction has its own epoch, so the code cannot be about another transaction."""
        alone = self._is_shared and not self._has_sent and self.version >= BROKER_ADDS_PARTITIONS
        return code is ErrorCode.invalid_txn_state and self.state is TransactionPhase.COMMITTING and alone

    def on_end(self, producer: ProducerIdentity) -> bool:
        """Notes the end of the transaction. Returns whether the producer has another identity, whose sequences start at
        0."""
        is_new = producer.producer_id >= 0 and producer != self.producer
        if is_new:
            self.on_new_epoch(producer)
        self.state, self.failure = TransactionPhase.READY, None
        return is_new

    # --- failures ---------------------------------------------------------------------------------------------

    def fail(self, consequence: Consequence, code: ErrorCode, text: str, cause: Exception | None = None) -> KafkaError:
        """Notes a failure and returns the error for the caller. The first failure of a transaction stays, unless a
        fatal one follows. Every failure of an initialization or an abort is fatal."""
        if consequence is Consequence.FENCED:
            error: KafkaError = ProducerFenced(self.transactional_id)
        elif consequence is Consequence.FATAL or self.state in (
            TransactionPhase.INITIALIZING,
            TransactionPhase.ABORTING,
        ):
            consequence = Consequence.FATAL
            error = TransactionFatal(code, f"{text}: close this producer and make a new one")
        else:
            error = TransactionAbortable(text)
        error.__cause__ = cause or (None if consequence is Consequence.FENCED else error_for(code, text))
        if self.state is TransactionPhase.FATAL and self.failure is not None:
            return self.failure
        if consequence is not Consequence.ABORTABLE:
            self.state, self.failure = TransactionPhase.FATAL, error
        elif self.state is not TransactionPhase.FAILED or self.failure is None:
            self.state, self.failure = TransactionPhase.FAILED, error
        return self.failure if self.failure is not None else error
