"""Transactions on a real broker, with raw requests at the levels of ``transaction.version``, mostly 0 and 2."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from support.brokers import RunningBroker, Wire, eventually, unique
from support.transactions import (
    RawProducer,
    create_topic,
    describe,
    find_coordinator,
    listed,
    produce,
    produce_all,
    read,
    state_of,
)

from bench.raw import end_offsets
from odradek.batches.rows import iter_records
from odradek.core.ids import TRANSACTION_TOPIC, partition_for_key
from odradek.wire.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
    UPDATE_FEATURES,
    WRITE_TXN_MARKERS,
)

LEVELS = pytest.mark.parametrize("level", [2, 0])


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connected:
        yield connected


@pytest.fixture
def made(wire: Wire, topic: str) -> str:
    create_topic(wire, topic, 2)
    return topic


@pytest.fixture
def name() -> str:
    """An unused transactional id."""
    return unique("tx")


def begun(producer: RawProducer, topic: str, *values: str) -> RawProducer:
    """Sends records to partition 0 in a new transaction."""
    if producer.level == 0:
        assert producer.add(topic) == {0: "none"}
    assert producer.send(topic, *values) == "none"
    return producer


# --- the life of a transaction ------------------------------------------------------------------------------------


@LEVELS
def test_readers_of_committed_records_see_a_transaction_after_its_commit(
    wire: Wire, made: str, name: str, level: int
) -> None:
    producer = begun(RawProducer(wire, name, level=level).started(), made, "a", "b")
    assert state_of(wire, name) == "Ongoing"
    assert read(wire, made) == []
    assert read(wire, made, committed=False) == ["a", "b"]
    epoch = producer.epoch
    assert producer.end() == "none"
    assert read(wire, made) == ["a", "b"], "the reply to EndTxn follows the markers"
    assert state_of(wire, name) == "CompleteCommit"
    assert producer.epoch == epoch + (level == 2)
    begun(producer, made, "c")
    assert read(wire, made) == ["a", "b"]
    assert producer.end() == "none"
    assert read(wire, made) == ["a", "b", "c"]


@LEVELS
def test_readers_of_committed_records_never_see_an_aborted_transaction(
    wire: Wire, made: str, name: str, level: int
) -> None:
    producer = begun(RawProducer(wire, name, level=level).started(), made, "a")
    assert producer.end(commit=False) == "none"
    assert state_of(wire, name) == "CompleteAbort"
    begun(producer, made, "b")
    assert producer.end() == "none"
    assert read(wire, made) == ["b"]
    assert read(wire, made, committed=False)[0] == "a"


@LEVELS
def test_a_new_producer_fences_the_old_one_and_aborts_its_transaction(
    wire: Wire, made: str, name: str, level: int
) -> None:
    zombie = begun(RawProducer(wire, name, level=level).started(), made, "a")
    successor = RawProducer(wire, name, level=level)
    assert successor.init() == "concurrent_transactions"
    successor.started()
    assert (successor.producer_id, successor.epoch) == (zombie.producer_id, zombie.epoch + 2)
    assert zombie.send(made, "b") == "invalid_producer_epoch"
    assert zombie.end() == "producer_fenced"
    assert zombie.end(version=1) == "invalid_producer_epoch"
    assert zombie.add(made) == {0: "producer_fenced"}
    assert zombie.add(made, version=1) == {0: "invalid_producer_epoch"}
    assert zombie.add_offsets("g") == "producer_fenced"
    assert zombie.init(known=(zombie.producer_id, zombie.epoch), version=3) == "invalid_producer_epoch"
    assert zombie.init(known=(zombie.producer_id, zombie.epoch)) == "producer_fenced"
    begun(successor, made, "c")
    assert successor.end() == "none"
    assert read(wire, made) == ["c"]


@LEVELS
def test_a_repeated_end_succeeds(wire: Wire, made: str, name: str, level: int) -> None:
    producer = begun(RawProducer(wire, name, level=level).started(), made, "a")
    identity = producer.producer_id, producer.epoch
    assert producer.end() == "none"
    after = producer.producer_id, producer.epoch
    producer.producer_id, producer.epoch = identity
    assert producer.end() == "none"
    assert (producer.producer_id, producer.epoch) == after
    producer.producer_id, producer.epoch = identity
    assert producer.end(commit=False) == "invalid_txn_state"


def test_an_end_without_a_transaction_is_refused_except_an_abort_at_version_2(wire: Wire, name: str) -> None:
    old = RawProducer(wire, name, level=0).started()
    assert [old.end(), old.end(commit=False)] == ["invalid_txn_state", "invalid_txn_state"]
    new = RawProducer(wire, name).started()
    epoch = new.epoch
    assert new.end() == "invalid_txn_state"
    assert new.end(commit=False) == "none"
    assert new.epoch == epoch + 1
    unknown = RawProducer(wire, unique("tx"))
    find_coordinator(wire, unknown.transactional_id)
    unknown.producer_id, unknown.epoch = 5, 0
    assert unknown.end() == "invalid_producer_id_mapping"


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_transactional_id_and_a_timeout_are_checked(wire: Wire, name: str) -> None:
    assert RawProducer(wire, "").init() == "invalid_request"
    producer = RawProducer(wire, name)
    assert [producer.init(timeout_ms=ms) for ms in (0, 900_001, 900_000)] == [
        "invalid_transaction_timeout", "invalid_transaction_timeout", "none",
    ]  # fmt: skip
    assert [producer.init(known=known) for known in ((-1, 0), (5, -1))] == ["invalid_request", "invalid_request"]


@pytest.mark.parametrize("version", range(4))
def test_no_partition_is_added_if_one_does_not_exist(wire: Wire, made: str, name: str, version: int) -> None:
    producer = RawProducer(wire, name, level=0).started()
    assert producer.add(made, [0, 2, 1], version=version) == {
        0: "operation_not_attempted", 1: "operation_not_attempted", 2: "unknown_topic_or_partition",
    }  # fmt: skip
    assert state_of(wire, name) == "Empty"
    assert producer.add(made, [0, 1], version=version) == {0: "none", 1: "none"}
    assert describe(wire, name).topics == {made: [0, 1]}


def test_one_request_adds_and_verifies_partitions_of_many_transactions(wire: Wire, made: str) -> None:
    adding, verifying = (RawProducer(wire, unique("tx")).started() for _ in range(2))
    assert adding.producer_id != verifying.producer_id
    assert verifying.add(made, [0]) == {0: "none"}

    def row(producer: RawProducer, *, verify_only: bool) -> dict[str, object]:
        return {
            "transactional_id": producer.transactional_id, "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch, "verify_only": verify_only,
            "topics": [{"name": made, "partitions": [0, 1]}],
        }  # fmt: skip

    message = {"transactions": [row(adding, verify_only=False), row(verifying, verify_only=True)]}
    reply = wire.call(ADD_PARTITIONS_TO_TXN, 5, message)
    found = {
        result.transactional_id: [
            part.partition_error_code.name for part in result.topic_results[0].results_by_partition
        ]
        for result in reply.results_by_transaction
    }
    assert found == {
        adding.transactional_id: ["none", "none"],
        verifying.transactional_id: ["none", "transaction_abortable"],
    }
    assert describe(wire, adding.transactional_id).topics == {made: [0, 1]}
    assert describe(wire, verifying.transactional_id).topics == {made: [0]}


# --- verification of produced batches -----------------------------------------------------------------------------


def test_a_batch_for_a_partition_outside_its_transaction_is_refused(wire: Wire, made: str, name: str) -> None:
    producer = RawProducer(wire, name, level=0).started()
    assert [producer.send(made, "a", version=version) for version in (9, 10, 11)] == [
        "invalid_txn_state", "invalid_txn_state", "transaction_abortable",
    ]  # fmt: skip
    assert read(wire, made, committed=False) == []
    assert producer.add(made) == {0: "none"}
    assert producer.send(made, "a") == "none"
    assert producer.send(made, "b", partition=1) == "transaction_abortable"


def test_a_batch_after_the_end_of_its_transaction_begins_no_other_transaction(wire: Wire, made: str, name: str) -> None:
    producer = begun(RawProducer(wire, name, level=0).started(), made, "a")
    assert producer.end() == "none"
    assert producer.send(made, "late") == "transaction_abortable"
    assert read(wire, made, committed=False)[0] == "a"
    assert read(wire, made) == ["a"]


def test_a_batch_with_a_missing_or_wrong_transactional_id_is_refused(wire: Wire, made: str, name: str) -> None:
    producer = RawProducer(wire, name).started()
    data = producer.batch(made, 0, "a")
    assert produce(wire, made, 0, data, None, 12) == "transactional_id_authorization_failed"
    assert produce(wire, made, 0, data, unique("other"), 12) == "invalid_producer_id_mapping"
    assert read(wire, made, committed=False) == []


@LEVELS
def test_all_partitions_of_a_request_are_added_in_one_record(
    wire: Wire, bootstrap: str, topic: str, name: str, level: int
) -> None:
    """Each record of the coordinator contains all partitions of the transaction. With one record per added partition,
    the size of all records would grow with the square of the number of partitions."""
    create_topic(wire, topic, 300)
    producer = RawProducer(wire, name, level=level).started()
    for count in (3, 300):  # few partitions are added at once, many in steps
        before = end_of_transaction_state(bootstrap, name)
        if level == 0:
            producer.add(topic, range(count))
        assert set(producer.send_all(topic, range(count), "a").values()) == {"none"}
        assert end_of_transaction_state(bootstrap, name) == before + 1
        assert producer.end() == "none"
    assert read(wire, topic, 2) == ["a", "a"]
    assert read(wire, topic, 299) == ["a"]


def test_partitions_of_a_request_are_refused_separately(wire: Wire, made: str, name: str) -> None:
    producer = RawProducer(wire, name, level=0).started()
    producer.add(made)
    sent = producer.send_all(made, (0, 1, 2), "a")
    assert sent == {0: "none", 1: "transaction_abortable", 2: "unknown_topic_or_partition"}
    assert read(wire, made, committed=False) == ["a"]


def test_batches_of_two_producers_in_one_request_are_all_refused(wire: Wire, made: str, name: str) -> None:
    one, other = (RawProducer(wire, f"{name}-{number}").started() for number in range(2))
    rows = [(0, one.batch(made, 0, "a")), (1, other.batch(made, 1, "b"))]
    sent = produce_all(wire, made, rows, one.transactional_id, 12)
    assert sent == {0: "invalid_producer_id_mapping", 1: "invalid_producer_id_mapping"}
    assert read(wire, made, committed=False) == []


def end_of_transaction_state(bootstrap: str, transactional_id: str) -> int:
    """The log end offset of the transactional id's partition of ``__transaction_state``."""
    return end_offsets(bootstrap, TRANSACTION_TOPIC, 50)[partition_for_key(transactional_id, 50)]


def test_verification_can_be_disabled(own_broker: Callable[..., RunningBroker], name: str, topic: str) -> None:
    with Wire(own_broker(transaction_partition_verification_enable="false").bootstrap) as wire:
        create_topic(wire, topic)
        producer = RawProducer(wire, name, level=0).started()
        assert producer.send(topic, "a", version=11) == "none"
        assert producer.send(topic, "b", version=12) == "none"


# --- descriptions -------------------------------------------------------------------------------------------------


def test_transactions_are_described_and_listed(wire: Wire, made: str, name: str) -> None:
    assert state_of(wire, name) == "transactional_id_not_found"
    assert state_of(wire, "") == "invalid_request"
    producer = RawProducer(wire, name).started(timeout_ms=7000)
    assert describe(wire, name) == ("none", "Empty", 7000, -1, producer.producer_id, 0, {})
    began_ms = time.time_ns() // 1_000_000
    begun(producer, made, "a")
    described = describe(wire, name)
    assert (described.state, described.topics) == ("Ongoing", {made: [0]})
    assert described.start_ms >= began_ms

    def ids(**filters: object) -> list[str]:
        reply = listed(wire, **filters)
        assert reply.error_code == 0
        return [row.transactional_id for row in reply.transaction_states if row.transactional_id == name]

    assert ids() == ids(state_filters=["Ongoing"]) == ids(transactional_id_pattern=name[:5] + ".*") == [name]
    assert ids(producer_id_filters=[producer.producer_id]) == ids(duration_filter=0) == [name]
    assert ids(state_filters=["Empty"]) == ids(transactional_id_pattern=name[:5]) == []
    assert ids(producer_id_filters=[producer.producer_id + 1]) == ids(duration_filter=3_600_000) == []
    assert listed(wire, state_filters=["Lost", "Dead"]).unknown_state_filters == ("Lost",)
    assert listed(wire, transactional_id_pattern="(").error_code.name == "invalid_regular_expression"


# --- markers by request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_a_tool_can_abort_a_hanging_transaction(wire: Wire, made: str, name: str, version: int) -> None:
    producer = begun(RawProducer(wire, name, level=0).started(), made, "a")
    marker = {
        "producer_id": producer.producer_id, "producer_epoch": producer.epoch, "transaction_result": False,
        "topics": [{"name": made, "partition_indexes": [0, 5]}], "coordinator_epoch": 0, "transaction_version": 0,
    }  # fmt: skip
    (row,) = wire.call(WRITE_TXN_MARKERS, version, {"markers": [marker]}).markers
    assert row.producer_id == producer.producer_id
    assert [part.error_code.name for part in row.topics[0].partitions] == ["none", "unknown_topic_or_partition"]
    begun(RawProducer(wire, unique("tx")).started(), made, "b").end()
    assert read(wire, made) == ["b"], "readers do not wait for the hanging transaction"


# --- the topic and the feature ------------------------------------------------------------------------------------


@pytest.mark.claim(104)
def test_the_topic_is_created_at_the_first_use_with_kafkas_settings(own_broker: Callable[..., RunningBroker]) -> None:
    topic = "__transaction_state"
    every = {"topics": None, "allow_auto_topic_creation": False}
    with Wire(own_broker().bootstrap) as wire:
        assert topic not in {row.name for row in wire.call(METADATA, 4, every).topics}
        assert listed(wire).transaction_states == ()
        assert state_of(wire, "tx") == "not_coordinator"
        assert find_coordinator(wire, "tx") == "none"
        asked = {"topics": [{"name": topic}], "response_partition_limit": 100, "cursor": None}
        (row,) = wire.call(DESCRIBE_TOPIC_PARTITIONS, 0, asked).topics
        assert (row.is_internal, len(row.partitions)) == (True, 50)
        resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
        found = {each.name: each.value for each in wire.call(DESCRIBE_CONFIGS, 4, message).results[0].configs}
    expected = {
        "cleanup.policy": "compact", "compression.type": "uncompressed", "min.insync.replicas": "2",
        "segment.bytes": "104857600", "unclean.leader.election.enable": "false",
    }  # fmt: skip
    assert {setting: found[setting] for setting in expected} == expected


def set_level(wire: Wire, level: int) -> None:
    row = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2 if level < 2 else 1}
    message = {"timeout": 10_000, "feature_updates": [row], "validate_only": False}
    assert wire.call(UPDATE_FEATURES, 2, message).error_code == 0


def test_the_level_changes_while_producers_run(own_broker: Callable[..., RunningBroker], topic: str, name: str) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create_topic(wire, topic)
        producer = begun(RawProducer(wire, name).started(), topic, "a")
        set_level(wire, 1)
        assert producer.end() == "none"
        producer.level = 0
        begun(producer, topic, "b")
        set_level(wire, 2)
        assert producer.end() == "none"
        producer.level = 2
        begun(producer, topic, "c")
        assert producer.end() == "none"
        set_level(wire, 0)
        producer.level = 0
        begun(producer.started(), topic, "d")
        set_level(wire, 2)
        assert producer.end() == "none"
        assert read(wire, topic) == ["a", "b", "c", "d"]


def test_a_producer_of_version_2_at_level_0_waits_for_its_timeout(
    own_broker: Callable[..., RunningBroker], topic: str, name: str
) -> None:
    """Our broker aborts the transaction of such a producer after the timeout. In Apache Kafka its transactional id is
    unusable until a restart, and its open transaction holds back readers."""
    interval = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "50"}
    with Wire(own_broker(**interval).bootstrap) as wire:
        create_topic(wire, topic)
        producer = begun(RawProducer(wire, name).started(timeout_ms=1500), topic, "a")
        set_level(wire, 0)
        assert producer.end() == "unsupported_version"
        assert producer.end() == "concurrent_transactions"
        assert producer.init() == "concurrent_transactions"
        eventually(lambda: state_of(wire, name) == "CompleteAbort")
        producer.level = 0
        begun(producer.started(), topic, "b")
        assert producer.end() == "none"
        assert read(wire, topic) == ["b"]


@pytest.mark.parametrize(("level", "expected"), [(0, 0), (1, 1), (2, 1)])
def test_the_level_decides_the_version_of_records(
    own_broker: Callable[..., RunningBroker], name: str, level: int, expected: int
) -> None:
    running = own_broker(transaction_state_log_num_partitions="1")
    with Wire(running.bootstrap) as wire:
        if level < 2:
            set_level(wire, level)
        RawProducer(wire, name).started()
    log = (running.directory / "data" / "__transaction_state-0" / f"{0:020}.log").read_bytes()
    (record,) = iter_records(log)
    assert record.value is not None
    assert record.value[:2] == expected.to_bytes(2, "big")


# --- time ---------------------------------------------------------------------------------------------------------


@LEVELS
def test_a_transaction_that_exceeds_its_timeout_is_aborted(
    own_broker: Callable[..., RunningBroker], topic: str, name: str, level: int
) -> None:
    with Wire(own_broker(transaction_abort_timed_out_transaction_cleanup_interval_ms="50").bootstrap) as wire:
        create_topic(wire, topic)
        producer = begun(RawProducer(wire, name, level=level).started(timeout_ms=300), topic, "a")
        eventually(lambda: state_of(wire, name) == "CompleteAbort")
        assert producer.send(topic, "b") == "invalid_producer_epoch"
        assert producer.end() == ("invalid_txn_state" if level == 2 else "producer_fenced")
        assert read(wire, topic) == []
        begun(RawProducer(wire, name, level=level).started(), topic, "c").end()
        assert read(wire, topic) == ["c"]


def test_an_unused_id_expires(own_broker: Callable[..., RunningBroker], name: str) -> None:
    settings = {
        "transactional_id_expiration_ms": "200", "transaction_remove_expired_transaction_cleanup_interval_ms": "50",
    }  # fmt: skip
    with Wire(own_broker(**settings).bootstrap) as wire:
        RawProducer(wire, name).started()
        eventually(lambda: state_of(wire, name) == "transactional_id_not_found")


# --- restarts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "kill"])
@LEVELS
def test_an_open_transaction_continues_after_a_restart(
    own_broker: Callable[..., RunningBroker], topic: str, name: str, how: str, level: int
) -> None:
    running = own_broker(transaction_state_log_num_partitions="3")
    with Wire(running.bootstrap) as wire:
        create_topic(wire, topic)
        producer = begun(RawProducer(wire, name, level=level).started(), topic, "a")
    getattr(running, how)()
    running.start()
    with Wire(running.bootstrap) as wire:
        producer.wire = wire
        eventually(lambda: state_of(wire, name) == "Ongoing")
        assert read(wire, topic) == []
        assert producer.send(topic, "b") == "none"
        assert producer.end() == "none"
        assert read(wire, topic) == ["a", "b"]
