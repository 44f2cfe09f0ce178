"""EndTxn while ``__consumer_offsets`` still loads: its reply waits, because a reader would not find the offsets yet."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.brokers import Wire, eventually
from support.transactions import RawProducer, create_topic, state_of

import odradek
from odradek.broker.partitions.partition import Partition
from odradek.coordinator_runtime.loader import ShardLoad
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import END_TXN, FIND_COORDINATOR, OFFSET_FETCH, TXN_OFFSET_COMMIT

NAME, GROUP, TOPIC = "tx", "group", "t"
CONFIG = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
QUIET_S = 0.5


class HeldLoads:
    """The loads of groups do not end before ``release``."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._released = threading.Event()
        load_step = ShardLoad.load_step

        def held(load: ShardLoad[Any]) -> bool:
            is_held = cast(Partition, load._log).topic == OFFSETS_TOPIC and not self._released.is_set()
            return True if is_held else load_step(load)

        patch.setattr(ShardLoad, "load_step", held)

    def release(self) -> None:
        self._released.set()


def find_group(wire: Wire) -> bool:
    asked = {"key_type": 0, "coordinator_keys": [GROUP]}
    (row,) = wire.call(FIND_COORDINATOR, 4, asked).coordinators
    return bool(row.error_code == 0)


def commit_offset(producer: RawProducer, offset: int) -> str:
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": 0, "committed_metadata": ""}
    message = {"group_id": GROUP, "generation_id": -1, "member_id": "", "group_instance_id": None}
    message |= {"topics": [{"name": TOPIC, "partitions": [row]}]} | producer.identity
    (topic,) = producer.wire.call(TXN_OFFSET_COMMIT, 5, message).topics
    return str(topic.partitions[0].error_code.name)


def committed(wire: Wire) -> int:
    """The offset in a reply to OffsetFetch that does not require stable offsets; -2 while the groups load."""
    asked = {"group_id": GROUP, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    asked |= {"member_id": None, "member_epoch": -1}
    (group,) = wire.call(OFFSET_FETCH, 9, {"groups": [asked], "require_stable": False}).groups
    return int(group.topics[0].partitions[0].committed_offset) if group.error_code == 0 else -2


def send_end(producer: RawProducer) -> int:
    return producer.wire.send(END_TXN, 5, producer.identity | {"committed": True})


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[odradek.Broker]:
    with odradek.Broker(tmp_path / "data", CONFIG, in_thread=True) as running:
        yield running


@pytest.fixture
def producer(broker: odradek.Broker) -> RawProducer:
    """The producer of an open transaction with a record and an offset."""
    with Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, TOPIC)
        eventually(lambda: find_group(wire))
        eventually(lambda: committed(wire) == -1)
        producer = RawProducer(wire, NAME).started()
        assert producer.send(TOPIC, "a") == "none"
        assert commit_offset(producer, 7) == "none"
        return producer


def test_the_reply_to_end_txn_waits_for_the_load_of_groups(
    broker: odradek.Broker, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stop()
    held = HeldLoads(monkeypatch)
    broker.start()
    with Wire(broker.bootstrap_servers) as wire, Wire(broker.bootstrap_servers) as reader:
        producer.wire = wire
        eventually(lambda: state_of(reader, NAME) == "Ongoing")
        number = send_end(producer)
        eventually(lambda: state_of(reader, NAME) == "PrepareCommit")
        assert not wire.has_reply(QUIET_S)
        assert committed(reader) == -2
        held.release()
        assert wire.receive(END_TXN, 5, number).error_code == 0
        assert committed(reader) == 7
        assert state_of(reader, NAME) == "CompleteCommit"


def test_a_stop_during_the_load_answers_end_txn_with_not_coordinator(
    broker: odradek.Broker, producer: RawProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stop()
    with monkeypatch.context() as patch:
        HeldLoads(patch)
        broker.start()
        with Wire(broker.bootstrap_servers) as wire, Wire(broker.bootstrap_servers) as other:
            producer.wire = wire
            eventually(lambda: state_of(other, NAME) == "Ongoing")
            number = send_end(producer)
            eventually(lambda: state_of(other, NAME) == "PrepareCommit")
            broker.stop()
            assert wire.receive(END_TXN, 5, number).error_code.name == "not_coordinator"
    broker.start()
    with Wire(broker.bootstrap_servers) as wire:
        eventually(lambda: state_of(wire, NAME) == "CompleteCommit")
        assert committed(wire) == 7
