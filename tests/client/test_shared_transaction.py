"""Producers that write into another producer's transaction: one commit or abort ends it for all of them."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator

import pytest
from support.brokers import unique
from support.transactions import set_version

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import (
    ConsumerGroupMetadata,
    IllegalState,
    NewTopic,
    ProducerFenced,
    TransactionAbortable,
)
from odradek.client.producer import DeliveryFailed, SharedTransaction
from odradek.core.errors import ConfigError


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("shared")
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(name, 2, 1)])
    return name


@pytest.fixture
def owner(bootstrap: str, topic: str) -> Iterator[Producer]:
    with Producer(bootstrap, transactional_id=topic) as made:
        made.init_transactions()
        yield made


@pytest.fixture(params=[0, 1, 2])
def level(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets the cluster's transaction.version for a test. After the test it is 2."""
    set_version(bootstrap, request.param)
    yield request.param
    set_version(bootstrap, 2)


READ_S = 120


def committed(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The values of the committed records. Sends a record ``end`` to each partition and reads until both arrive.

    Reads on until it has at least ``count`` records. ``count`` includes both ``end`` records, the result does not.
    """
    settings = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Producer(bootstrap) as plain:
        for partition in (0, 1):
            plain.send(topic, b"end", partition=partition)
    with Consumer(bootstrap, **settings) as reader:
        reader.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        found: list[bytes | None] = []
        deadline = time.monotonic() + READ_S
        while found.count(b"end") < 2 or len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} records within {READ_S} s"
            for rows in (one for batches in reader.poll(30).values() for one in batches):
                found += rows.column("value").to_pylist()
    return sorted(value for value in found if value is not None and value != b"end")


def shared(owner: Producer, topic: str) -> SharedTransaction:
    owner.begin_transaction()
    made: SharedTransaction = pickle.loads(pickle.dumps(owner.share_transaction(partitions(topic))))
    return made


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def write(bootstrap: str, transaction: SharedTransaction, topic: str, partition: int, *values: bytes) -> None:
    with Producer(bootstrap, shared_transaction=transaction, batch_size=1) as joined:
        for value in values:
            joined.send(topic, value, partition=partition)


def test_records_of_two_joined_producers_and_the_owners_offsets_are_one_transaction(
    bootstrap: str, level: int, owner: Producer, topic: str
) -> None:
    """Below version 2 consecutive transactions have the same producer epoch. Within one epoch, no joined producer may
    begin with sequence 0 again."""
    group = ConsumerGroupMetadata(topic)
    for first in (b"a", b"c"):
        transaction = shared(owner, topic)
        assert transaction.version == level
        write(bootstrap, transaction, topic, 0, first + b"0", first + b"1")
        write(bootstrap, transaction, topic, 1, first + b"2")
        owner.send_offsets_to_transaction({TopicPartition(topic, 0): ord(first)}, group)
        owner.commit_transaction()
    aborted = shared(owner, topic)
    write(bootstrap, aborted, topic, 0, b"x0")
    write(bootstrap, aborted, topic, 1, b"x1")
    owner.abort_transaction()
    assert committed(bootstrap, topic, 6) == [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
    with Admin(bootstrap) as admin:
        assert admin.list_group_offsets(topic)[TopicPartition(topic, 0)].offset == ord("c")


def test_below_version_2_the_owner_shares_again_before_it_sends(bootstrap: str, topic: str) -> None:
    set_version(bootstrap, 1)
    try:
        with Producer(bootstrap, transactional_id=topic) as owner:
            owner.init_transactions()
            write(bootstrap, shared(owner, topic), topic, 0, b"a")
            owner.commit_transaction()
            owner.begin_transaction()
            with pytest.raises(IllegalState, match=r"call share_transaction\(\[\]\) first"):
                owner.send(topic, b"b", partition=0)
            owner.share_transaction([])
            owner.send(topic, b"b", partition=0)
            owner.commit_transaction()
        assert committed(bootstrap, topic, 4) == [b"a", b"b"]
    finally:
        set_version(bootstrap, 2)


def test_an_aborted_transaction_of_joined_producers_alone_blocks_no_reader(
    bootstrap: str, owner: Producer, topic: str
) -> None:
    """The owner itself sends nothing. It ends the transaction nevertheless, because the joined producers may have sent
    records."""
    write(bootstrap, shared(owner, topic), topic, 0, b"x")
    owner.abort_transaction()
    with Admin(bootstrap) as admin:
        assert not [
            one for one in admin.list_transactions() if one.transactional_id == topic and one.state == "Ongoing"
        ]
    assert committed(bootstrap, topic, 2) == []


def test_a_shared_transaction_without_records_is_refused_and_the_next_one_commits(
    bootstrap: str, owner: Producer, topic: str
) -> None:
    write(bootstrap, shared(owner, topic), topic, 0)
    with pytest.raises(TransactionAbortable, match=r"neither records nor offsets.*call abort_transaction\(\)"):
        owner.commit_transaction()
    owner.abort_transaction()
    write(bootstrap, shared(owner, topic), topic, 0, b"a")
    owner.commit_transaction()
    assert committed(bootstrap, topic, 3) == [b"a"]


def test_a_joined_producer_of_an_ended_transaction_is_refused(bootstrap: str, owner: Producer, topic: str) -> None:
    zombie = Producer(bootstrap, shared_transaction=shared(owner, topic))
    zombie.send(topic, b"x", partition=0)
    zombie.flush()
    owner.abort_transaction()
    transaction = shared(owner, topic)
    zombie.send(topic, b"late", partition=0)
    zombie.send(topic, b"late, at a partition that it has not touched", partition=1)
    with pytest.raises(DeliveryFailed, match="INVALID_PRODUCER_EPOCH"):
        zombie.flush()
    zombie.send(topic, b"later", partition=1)
    with pytest.raises(DeliveryFailed, match="INVALID_PRODUCER_EPOCH"):
        zombie.close()
    write(bootstrap, transaction, topic, 0, b"new")
    owner.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(topic))
    owner.commit_transaction()
    assert committed(bootstrap, topic, 3) == [b"new"]


def test_a_newer_owner_fences_the_earlier_one_and_its_joined_producers(
    bootstrap: str, owner: Producer, topic: str
) -> None:
    transaction = shared(owner, topic)
    write(bootstrap, transaction, topic, 0, b"x")
    with Producer(bootstrap, transactional_id=topic) as newer:
        newer.init_transactions()
        with pytest.raises(DeliveryFailed, match="INVALID_PRODUCER_EPOCH"):
            write(bootstrap, transaction, topic, 1, b"y")
        with pytest.raises(ProducerFenced):
            owner.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(topic))
    assert committed(bootstrap, topic, 2) == []


def test_only_an_open_transaction_can_be_shared_and_contradicting_settings_are_refused(
    bootstrap: str, owner: Producer, topic: str
) -> None:
    with pytest.raises(IllegalState, match=r"call begin_transaction\(\) first"):
        owner.share_transaction(partitions(topic))
    transaction = shared(owner, topic)
    with pytest.raises(ConfigError, match="leave it out"):
        Producer(bootstrap, shared_transaction=transaction, transactional_id="other")
    with pytest.raises(ConfigError, match="enable_idempotence"):
        Producer(bootstrap, shared_transaction=transaction, acks=1)
