"""The state machine of a producer's transactions: every state × call, and every error code of every request."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from odradek.client.errors import IllegalState
from odradek.client.producer.errors import ProducerFenced, TransactionAbortable, TransactionFatal
from odradek.client.producer.transaction import (
    NO_PRODUCER,
    Consequence,
    ProducerTransaction,
    TransactionCall,
    TransactionPhase,
    consequence_of,
)
from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity, TopicPartition
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = ProducerIdentity(7, 0)
NEXT = ProducerIdentity(7, 1)


def ready() -> ProducerTransaction:
    made = ProducerTransaction("x")
    made.init()
    made.on_initialized(FIRST)
    return made


def opened(version: int = 2) -> ProducerTransaction:
    made = ready()
    made.begin(version)
    made.on_send()
    made.on_added([T0])
    return made


def initializing() -> ProducerTransaction:
    made = ProducerTransaction("x")
    made.init()
    return made


def committing(*, sent: bool) -> ProducerTransaction:
    made = opened()
    made.end(commit=True)
    if sent:
        assert made.end_request()
    return made


def aborting() -> ProducerTransaction:
    made = opened()
    made.end(commit=False)
    return made


def failed() -> ProducerTransaction:
    made = opened()
    made.fail(Consequence.ABORTABLE, ErrorCode.message_too_large, "records were not delivered")
    return made


def fenced() -> ProducerTransaction:
    made = opened()
    made.fail(Consequence.FENCED, ErrorCode.producer_fenced, "")
    return made


STATES: dict[str, tuple[Callable[[], ProducerTransaction], TransactionPhase, str]] = {
    "uninitialized": (lambda: ProducerTransaction("x"), TransactionPhase.UNINITIALIZED, "I....."),
    "initializing": (initializing, TransactionPhase.INITIALIZING, "I....."),
    "ready": (ready, TransactionPhase.READY, ".B...."),
    "open": (opened, TransactionPhase.OPEN, "..SOCA"),
    "delivering": (lambda: committing(sent=False), TransactionPhase.COMMITTING, "....CA"),
    "committing": (lambda: committing(sent=True), TransactionPhase.COMMITTING, "....C."),
    "aborting": (aborting, TransactionPhase.ABORTING, ".....A"),
    "failed": (failed, TransactionPhase.FAILED, "..aaaA"),
    "fenced": (fenced, TransactionPhase.FATAL, "ffffff"),
}
"""By state, what each ``TransactionCall`` does, in order:
``.`` IllegalState; ``a`` TransactionAbortable; ``f`` ProducerFenced; a capital letter: allowed."""


@pytest.mark.parametrize(("name", "call"), list(itertools.product(STATES, TransactionCall)))
def test_each_call_is_allowed_or_refused_by_the_state(name: str, call: TransactionCall) -> None:
    make, state, row = STATES[name]
    transaction = make()
    assert transaction.state is state
    outcome = row[list(TransactionCall).index(call)]
    if outcome.isupper():
        transaction.check(call)
        return
    if outcome == "f":
        with pytest.raises(ProducerFenced, match="'x' is in use by a newer producer"):
            transaction.check(call)
        return
    if outcome == "a" and call is not TransactionCall.SEND_OFFSETS:
        with pytest.raises(TransactionAbortable, match=r"not delivered.*abort_transaction"):
            transaction.check(call)
        return
    if outcome == "a":
        with pytest.raises(TransactionAbortable):
            transaction.check(call)
        return
    with pytest.raises(IllegalState) as raised:
        transaction.check(call)
    text = str(raised.value)
    assert text.startswith(f"{call.value}: the producer is {state.value}: ")
    assert "transaction" in text.rpartition(": ")[2], "the message names the remedy"
    assert transaction.state is state, "a refused call changes nothing"


def test_the_remedy_is_an_allowed_call() -> None:
    for name, (make, state, row) in STATES.items():
        if state is TransactionPhase.FATAL:
            continue
        refused = next(call for call, letter in zip(TransactionCall, row, strict=True) if letter == ".")
        with pytest.raises(IllegalState) as raised:
            make().check(refused)
        remedy = str(raised.value).rpartition(f"{state.value}: ")[2]
        allowed = [call.value for call, letter in zip(TransactionCall, row, strict=True) if letter.isupper()]
        assert any(call in remedy for call in allowed), (name, remedy)


RETRIED = {
    ErrorCode.coordinator_load_in_progress, ErrorCode.request_timed_out, ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas, ErrorCode.unknown_topic_or_partition, ErrorCode.network_exception,
}  # fmt: skip
FENCED = {ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced}
LOOKED_UP = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available}
FATAL = {
    ErrorCode.transactional_id_authorization_failed, ErrorCode.invalid_txn_state, ErrorCode.unsupported_version,
    ErrorCode.invalid_producer_id_mapping, ErrorCode.cluster_authorization_failed, ErrorCode.invalid_request,
}  # fmt: skip
ABORTABLE = {
    INIT_PRODUCER_ID: set[ErrorCode](),
    FIND_COORDINATOR: {ErrorCode.group_authorization_failed, ErrorCode.transaction_abortable},
    ADD_PARTITIONS_TO_TXN: {
        ErrorCode.topic_authorization_failed, ErrorCode.operation_not_attempted, ErrorCode.unknown_producer_id,
        ErrorCode.transaction_abortable,
    },
    ADD_OFFSETS_TO_TXN: {
        ErrorCode.group_authorization_failed, ErrorCode.unknown_producer_id, ErrorCode.transaction_abortable,
    },
    TXN_OFFSET_COMMIT: {
        ErrorCode.group_authorization_failed, ErrorCode.fenced_instance_id, ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation, ErrorCode.transaction_abortable,
    },
    END_TXN: {ErrorCode.unknown_producer_id, ErrorCode.transaction_abortable},
}  # fmt: skip


@pytest.mark.parametrize("api_key", ABORTABLE)
def test_each_error_code_of_each_request_has_the_outcome_of_javas_client(api_key: int) -> None:
    """The codes that Java's TransactionManager handles have the same outcome. No other code means fenced."""
    found = {code: consequence_of(api_key, code) for code in ErrorCode if code is not ErrorCode.none}
    for code, consequence in found.items():
        if code in ABORTABLE[api_key]:
            assert consequence is Consequence.ABORTABLE, code
        elif code in FENCED:
            assert consequence is Consequence.FENCED, code
        elif code in LOOKED_UP:
            assert consequence is Consequence.FIND_COORDINATOR, code
        elif code in RETRIED:
            assert consequence is Consequence.RETRY, code
        elif code in FATAL:
            assert consequence is Consequence.FATAL, code
        else:
            assert consequence is not Consequence.FENCED, code


def test_invalid_producer_epoch_in_a_produce_reply_is_abortable_and_not_yet_fenced() -> None:
    assert consequence_of(PRODUCE, ErrorCode.invalid_producer_epoch) is Consequence.ABORTABLE
    assert consequence_of(PRODUCE, ErrorCode.producer_fenced) is Consequence.FENCED
    assert consequence_of(PRODUCE, ErrorCode.message_too_large) is Consequence.ABORTABLE
    assert consequence_of(PRODUCE, ErrorCode.transactional_id_authorization_failed) is Consequence.FATAL


@pytest.mark.parametrize("consequence", [Consequence.ABORTABLE, Consequence.FENCED, Consequence.FATAL])
@pytest.mark.parametrize("name", STATES)
def test_a_failure_leads_to_the_failed_or_the_fatal_state(name: str, consequence: Consequence) -> None:
    transaction = STATES[name][0]()
    before = transaction.failure
    error = transaction.fail(consequence, ErrorCode.unknown_server_error, "why")
    if name == "fenced":
        assert (error, transaction.state) == (before, TransactionPhase.FATAL), (
            "the first error of a fenced producer stays"
        )
    elif consequence is Consequence.ABORTABLE and name not in {"initializing", "aborting"}:
        assert transaction.state is TransactionPhase.FAILED
        assert type(error) is TransactionAbortable
        assert (error.retriable, error.fatal) == (False, False)
        if name == "failed":
            assert error is before, "the first failure of a transaction stays"
    else:
        assert transaction.state is TransactionPhase.FATAL
        assert type(error) is (ProducerFenced if consequence is Consequence.FENCED else TransactionFatal)
        assert (error.retriable, error.fatal) == (False, True)


def test_a_failure_before_the_end_request_is_aborted_and_forgotten() -> None:
    transaction = committing(sent=False)
    transaction.fail(Consequence.ABORTABLE, ErrorCode.message_too_large, "records were not delivered")
    transaction.end(commit=False)
    assert transaction.end_request()
    assert transaction.on_end(NEXT)
    assert (transaction.state, transaction.failure, transaction.producer) == (TransactionPhase.READY, None, NEXT)
    transaction.begin(2)
    transaction.check(TransactionCall.SEND)


def test_a_transaction_without_a_request_ends_without_one() -> None:
    for commit in (True, False):
        transaction = ready()
        transaction.begin(2)
        transaction.end(commit=commit)
        assert not transaction.end_request()
        assert not transaction.needs_epoch()
        assert not transaction.on_end(NO_PRODUCER)
        assert transaction.state is TransactionPhase.READY


def test_below_version_2_partitions_and_groups_are_added_once_for_each_transaction() -> None:
    transaction = opened(version=1)
    assert transaction.partitions_to_add([T0, T1]) == [T1]
    transaction.on_added([T1])
    assert transaction.partitions_to_add([T0, T1]) == []
    assert transaction.must_add_group("g")
    transaction.on_added(group_id="g")
    assert not transaction.must_add_group("g")
    transaction.end(commit=True)
    transaction.on_end(NO_PRODUCER)
    transaction.begin(1)
    assert transaction.partitions_to_add([T0]) == [T0]
    assert transaction.must_add_group("g")


def test_at_version_2_nothing_is_added_first() -> None:
    transaction = opened(version=2)
    assert transaction.partitions_to_add([T1]) == []
    assert not transaction.must_add_group("g")


def test_only_an_abort_below_version_2_needs_another_epoch() -> None:
    found = {}
    for version, commit in itertools.product((1, 2), (True, False)):
        transaction = opened(version)
        transaction.end(commit=commit)
        transaction.end_request()
        found[version, commit] = transaction.needs_epoch()
    assert found == {(1, True): False, (1, False): True, (2, True): False, (2, False): False}


def test_an_abort_of_nothing_is_no_error_below_version_2() -> None:
    """The only AddPartitionsToTxn was refused or lost: the coordinator may have no transaction."""
    transaction = ready()
    transaction.begin(1)
    transaction.on_send()
    transaction.end(commit=False)
    assert transaction.is_no_transaction(ErrorCode.invalid_txn_state)
    assert not transaction.is_no_transaction(ErrorCode.unknown_server_error)
    for other in (opened(1), opened(2)):
        other.end(commit=False)
        assert not other.is_no_transaction(ErrorCode.invalid_txn_state)


@pytest.mark.parametrize(("name", "is_open", "may_send"), [
    ("uninitialized", False, False), ("ready", False, False), ("open", True, True), ("delivering", True, True),
    ("committing", False, False), ("aborting", False, False), ("failed", True, False), ("fenced", False, False),
])  # fmt: skip
def test_the_state_decides_whether_a_transaction_is_open_and_may_send(name: str, is_open: bool, may_send: bool) -> None:
    transaction = STATES[name][0]()
    assert (transaction.is_open, transaction.may_send) == (is_open, may_send)
