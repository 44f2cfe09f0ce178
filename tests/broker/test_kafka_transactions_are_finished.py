"""Partition directories that Apache Kafka 4.3 wrote until a kill -9, with transactions in every state.

``tests/oracle/record_prepared_transactions.py`` has recorded them. Our broker finds them at its start. It writes the
markers of the decided transactions, and aborts the open transactions, whose timeout has passed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.transactions import RawProducer, create_topic, find_coordinator, read, state_of

import odradek
from odradek.batches.rows import iter_records
from odradek.codecs.transaction_state import TransactionState, decode
from odradek.wire.api_keys import FIND_COORDINATOR, OFFSET_FETCH

RECORDED = Path(__file__).parent.parent / "data" / "kafka-prepared-transactions"
FOREVER = str(2**31 - 1)
CONFIG = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "log.retention.ms": "-1",  # the recorded directories are old by now
    "offsets.retention.minutes": FOREVER,
    "transactional.id.expiration.ms": FOREVER,
}
RECORDED_STATES = {
    "empty": "EMPTY", "open": "ONGOING", "committed": "COMPLETE_COMMIT", "aborted": "COMPLETE_ABORT",
    "prepared-commit": "PREPARE_COMMIT", "prepared-abort": "PREPARE_ABORT",
}  # fmt: skip
FINAL_STATES = {
    "committed": "CompleteCommit", "aborted": "CompleteAbort", "prepared-commit": "CompleteCommit",
    "prepared-abort": "CompleteAbort", "open": "CompleteAbort",
}  # fmt: skip
"""The transactions ``open-0`` and ``open-2`` have a timeout of a minute. So the broker aborts them."""
VISIBLE = ("committed", "prepared-commit")
LEVELS = (0, 2)


def take_over(broker: odradek.Broker, data: Path) -> None:
    """Replaces the new partition directories of the broker by the recorded ones."""
    with Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, "t", 2)
        find_coordinator(wire, "x")
        for key_type in (0, 1):
            asked = {"key_type": key_type, "coordinator_keys": ["x"]}
            eventually(lambda: wire.call(FIND_COORDINATOR, 4, asked).coordinators[0].error_code == 0)  # noqa: B023
    broker.kill()
    for recorded in RECORDED.iterdir():
        target = data / recorded.name
        for old in target.iterdir():
            if old.name != "partition.metadata":  # this file has the topic id of the catalogue
                old.unlink()
        for file in recorded.iterdir():
            if file.name != "partition.metadata":
                shutil.copy(file, target)
    broker.start()


def fetched(wire: Wire, group: str) -> int | str:
    """The committed offset of partition 0, or the name of the error."""
    asked: dict[str, Any] = {"group_id": group, "topics": [{"name": "t", "partition_indexes": [0]}]}
    asked |= {"member_id": None, "member_epoch": -1}
    (found,) = wire.call(OFFSET_FETCH, 9, {"groups": [asked], "require_stable": True}).groups
    if found.error_code != 0:
        return str(found.error_code.name)
    (row,) = found.topics[0].partitions
    return int(row.committed_offset) if row.error_code == 0 else str(row.error_code.name)


def test_the_directories_have_every_state() -> None:
    found: dict[str, TransactionState] = {}
    for row in iter_records((RECORDED / "__transaction_state-0" / f"{0:020}.log").read_bytes()):
        decoded = decode(row.key, row.value)
        assert isinstance(decoded, tuple)
        assert decoded[1] is not None
        found[decoded[0]] = decoded[1].state
    expected = {f"{name}-{level}": state for level in LEVELS for name, state in RECORDED_STATES.items()}
    assert {name: state.name for name, state in found.items()} == expected
    for partition in (0, 1):
        data = (RECORDED / f"t-{partition}" / f"{0:020}.log").read_bytes()
        assert sum(row.is_control for row in iter_records(data)) == 4, "only the completed ones have their markers"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_start_finishes_the_transactions_of_apache_kafka(tmp_path: Path, *, restarted: bool) -> None:
    data = tmp_path / "data"
    with odradek.Broker(data, CONFIG) as broker:
        take_over(broker, data)
        if restarted:  # the kill may come before the broker has finished the transactions
            broker.kill()
            broker.start()
        with Wire(broker.bootstrap_servers) as wire:
            for level in LEVELS:
                for name, state in FINAL_STATES.items():
                    eventually(lambda: state_of(wire, f"{name}-{level}") == state)  # noqa: B023
            expected = [f"{name}-{level}" for name in VISIBLE for level in LEVELS]
            assert [sorted(read(wire, "t", partition)) for partition in (0, 1)] == [sorted(expected)] * 2
            assert len(read(wire, "t", committed=False)) == len(LEVELS) * len(FINAL_STATES)
            for level in LEVELS:
                for name in FINAL_STATES:
                    found = fetched(wire, f"{name}-{level}")
                    assert found == (7 if name in VISIBLE else -1), name
            for name in [*FINAL_STATES, "empty"]:
                for level in LEVELS:
                    producer = RawProducer(wire, f"{name}-{level}", level=level).started()
                    if level == 0:
                        producer.add("t")
                    assert producer.send("t", f"again {name}-{level}") == "none"
                    assert producer.end() == "none"
            again = [value for value in read(wire, "t") if value.startswith("again")]
            assert len(again) == len(LEVELS) * (len(FINAL_STATES) + 1)


def test_a_repeated_end_of_a_prepared_transaction_gets_its_result(tmp_path: Path) -> None:
    """The producer got no reply from Apache Kafka and repeats its request to this broker."""
    data = tmp_path / "data"
    with odradek.Broker(data, CONFIG) as broker:
        take_over(broker, data)
        with Wire(broker.bootstrap_servers) as wire:
            for level in LEVELS:
                for name, commit in (("prepared-commit", True), ("prepared-abort", False)):
                    producer = RawProducer(wire, f"{name}-{level}", level=level)
                    state = recorded_state(producer.transactional_id)
                    producer.producer_id = state.producer_id
                    producer.epoch = state.producer_epoch - (1 if level == 2 else 0)
                    eventually(lambda: state_of(wire, f"{name}-{level}").startswith("Complete"))  # noqa: B023
                    assert producer.end(commit=not commit) == "invalid_txn_state"
                    assert producer.end(commit=commit) == "none"


def recorded_state(name: str) -> Any:
    rows = iter_records((RECORDED / "__transaction_state-0" / f"{0:020}.log").read_bytes())
    found = [decode(row.key, row.value) for row in rows]
    return [each[1] for each in found if isinstance(each, tuple) and each[0] == name][-1]
