"""TxnOffsetCommit on a real broker: every version, with the transaction's coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import Wire, eventually, unique
from support.transactions import RawProducer, create_topic, find_coordinator

from odradek.wire.api_keys import FIND_COORDINATOR, JOIN_GROUP, OFFSET_COMMIT, OFFSET_FETCH, TXN_OFFSET_COMMIT

UNSTABLE = "unstable_offset_commit"


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connected:
        yield connected


@pytest.fixture
def made(wire: Wire, topic: str) -> str:
    create_topic(wire, topic, 3)
    return topic


@pytest.fixture
def group(wire: Wire) -> str:
    made = unique("group")
    eventually(
        lambda: (
            wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [made]}).coordinators[0].error_code == 0
        )
    )
    eventually(lambda: fetched(wire, made, "t", 0) == {0: -1})
    return made


def producer_of(wire: Wire, level: int) -> RawProducer:
    return RawProducer(wire, unique("tx"), level=level).started()


def commit(
    producer: RawProducer, group: str, topic: str, *partitions: int, offset: int = 5, version: int, **how: Any
) -> dict[int, str]:
    """Returns the error of each partition."""
    rows = [
        {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": "m"}
        for index in partitions
    ]
    message = {"group_id": group, "generation_id": -1, "member_id": "", "group_instance_id": None}
    message |= {"topics": [{"name": topic, "partitions": rows}]} | producer._identity | how
    (answer,) = producer.wire.call(TXN_OFFSET_COMMIT, version, message).topics
    assert answer.name == topic
    return {row.partition_index: row.error_code.name for row in answer.partitions}


def fetched(wire: Wire, group: str, topic: str, *partitions: int) -> dict[int, Any]:
    asked = {"group_id": group, "topics": [{"name": topic, "partition_indexes": list(partitions)}]}
    asked |= {"member_id": None, "member_epoch": -1}
    (found,) = wire.call(OFFSET_FETCH, 9, {"groups": [asked], "require_stable": True}).groups
    if found.error_code != 0:
        return {}
    return {
        row.partition_index: row.committed_offset if row.error_code == 0 else row.error_code.name
        for row in found.topics[0].partitions
    }


@pytest.mark.parametrize("outcome", ["commit", "abort"])
@pytest.mark.parametrize("version", range(6))
def test_the_offsets_of_a_transaction(wire: Wire, made: str, group: str, version: int, outcome: str) -> None:
    producer = producer_of(wire, 2 if version >= 5 else 0)
    if version < 5:
        assert producer.add_offsets(group) == "none"
    assert commit(producer, group, made, 0, 2, version=version) == {0: "none", 2: "none"}
    assert fetched(wire, group, made, 0, 1, 2) == {0: UNSTABLE, 1: -1, 2: UNSTABLE}
    assert producer.end(commit=outcome == "commit") == "none"
    offset = 5 if outcome == "commit" else -1
    assert fetched(wire, group, made, 0, 1, 2) == {0: offset, 1: -1, 2: offset}


@pytest.mark.parametrize(("version", "error"), [(0, "invalid_txn_state"), (3, "invalid_txn_state"),
                                                (4, "transaction_abortable"), (5, "none")])  # fmt: skip
def test_a_group_that_was_not_added(wire: Wire, made: str, group: str, version: int, error: str) -> None:
    """From version 5 on the broker adds it."""
    producer = producer_of(wire, 2 if version >= 5 else 0)
    producer.add(made) if version < 5 else producer.send(made, "a")
    assert commit(producer, group, made, 0, version=version) == {0: error}
    assert producer.end() == "none"
    assert fetched(wire, group, made, 0) == {0: 5 if error == "none" else -1}


def test_a_second_commit_needs_no_verification(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    assert commit(producer, group, made, 0, offset=1, version=5) == {0: "none"}
    assert commit(producer, group, made, 0, offset=2, version=5) == {0: "none"}
    plain = {"partition_index": 1, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    wire.call(OFFSET_COMMIT, 9, message | {"topics": [{"name": made, "partitions": [plain]}]})
    assert producer.end() == "none"
    assert fetched(wire, group, made, 0, 1) == {0: 2, 1: 9}


def test_partitions_and_topics_that_do_not_exist(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    assert commit(producer, group, made, 7, 0, version=5) == {7: "unknown_topic_or_partition", 0: "none"}
    assert commit(producer, group, "absent", 0, version=5) == {0: "unknown_topic_or_partition"}
    assert commit(producer, "", "absent", 0, version=5) == {0: "unknown_topic_or_partition"}
    assert commit(producer, "", made, 0, version=5) == {0: "invalid_group_id"}


def test_fenced_and_unknown_producers(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    epoch = producer.epoch
    assert producer.init() == "none"
    for version in (4, 5):
        got = commit(producer, group, made, 0, version=version, producer_epoch=epoch)
        assert got == {0: "invalid_producer_epoch"}
        got = commit(producer, group, made, 0, version=version, producer_id=producer.producer_id + 1)
        assert got == {0: "invalid_producer_id_mapping"}
        assert commit(producer, group, made, 0, version=version, transactional_id="") == {0: "invalid_request"}
    assert fetched(wire, group, made, 0) == {0: -1}


def test_a_fenced_producer_whose_transaction_was_open_here(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    epoch = producer.epoch
    assert commit(producer, group, made, 0, version=5) == {0: "none"}
    producer.started()
    assert commit(producer, group, made, 0, version=5, producer_epoch=epoch) == {0: "invalid_producer_epoch"}
    assert fetched(wire, group, made, 0) == {0: -1}


def test_a_member_of_the_group_is_checked(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    assert commit(producer, group, made, 0, version=5, member_id="m", generation_id=1) == {0: "illegal_generation"}
    join = {
        "group_id": group, "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
        "group_instance_id": "i", "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }  # fmt: skip
    member = wire.call(JOIN_GROUP, 9, join).member_id
    assert commit(producer, group, made, 0, version=5, member_id="m", generation_id=1) == {0: "unknown_member_id"}
    assert commit(producer, group, made, 0, version=5, member_id=member, generation_id=0) == {0: "illegal_generation"}
    assert commit(producer, group, made, 0, version=5, member_id=member, generation_id=1) == {0: "none"}
    assert commit(producer, group, made, 0, version=2, member_id="m", generation_id=1) == {0: "none"}, "no member in v2"


def test_an_unused_transactional_id(wire: Wire, made: str, group: str) -> None:
    producer = RawProducer(wire, unique("tx"))
    find_coordinator(wire, producer.transactional_id)
    producer.producer_id, producer.epoch = 77, 0
    eventually(lambda: commit(producer, group, made, 0, version=5) == {0: "invalid_producer_id_mapping"})
