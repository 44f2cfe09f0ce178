"""TxnOffsetCommit on a real broker: every version, with the transaction's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.brokers import Wire, eventually, unique
from support.peers import Peer, serving
from support.transactions import RawProducer, create_topic, find_coordinator

from odradek.broker.server import BrokerServer
from odradek.core.effects import Result
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker
from odradek.storage.log import Log
from odradek.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)

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
    message |= {"topics": [{"name": topic, "partitions": rows}]} | producer.identity | how
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
def test_the_offsets_of_a_transaction_are_unstable_until_its_end(
    wire: Wire, made: str, group: str, version: int, outcome: str
) -> None:
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
def test_from_version_5_on_the_broker_adds_the_group(
    wire: Wire, made: str, group: str, version: int, error: str
) -> None:
    """Before version 5 the producer must add the group with AddOffsetsToTxn. In this test it does not."""
    producer = producer_of(wire, 2 if version >= 5 else 0)
    producer.add(made) if version < 5 else producer.send(made, "a")
    assert commit(producer, group, made, 0, version=version) == {0: error}
    assert producer.end() == "none"
    assert fetched(wire, group, made, 0) == {0: 5 if error == "none" else -1}


def test_a_second_commit_in_a_transaction_replaces_the_first(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    assert commit(producer, group, made, 0, offset=1, version=5) == {0: "none"}
    assert commit(producer, group, made, 0, offset=2, version=5) == {0: "none"}
    plain = {"partition_index": 1, "committed_offset": 9, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    wire.call(OFFSET_COMMIT, 9, message | {"topics": [{"name": made, "partitions": [plain]}]})
    assert producer.end() == "none"
    assert fetched(wire, group, made, 0, 1) == {0: 2, 1: 9}


def test_partitions_and_topics_that_do_not_exist_are_refused(wire: Wire, made: str, group: str) -> None:
    producer = producer_of(wire, 2)
    assert commit(producer, group, made, 7, 0, version=5) == {7: "unknown_topic_or_partition", 0: "none"}
    assert commit(producer, group, "absent", 0, version=5) == {0: "unknown_topic_or_partition"}
    assert commit(producer, "", "absent", 0, version=5) == {0: "unknown_topic_or_partition"}
    assert commit(producer, "", made, 0, version=5) == {0: "invalid_group_id"}


def test_fenced_and_unknown_producers_are_refused(wire: Wire, made: str, group: str) -> None:
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


def test_a_producer_that_is_fenced_in_its_transaction_is_refused(wire: Wire, made: str, group: str) -> None:
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


def test_an_unused_transactional_id_is_refused(wire: Wire, made: str, group: str) -> None:
    producer = RawProducer(wire, unique("tx"))
    find_coordinator(wire, producer.transactional_id)
    producer.producer_id, producer.epoch = 77, 0
    eventually(lambda: commit(producer, group, made, 0, version=5) == {0: "invalid_producer_id_mapping"})


# --- a marker between the verification and the append -----------------------------------------------------------


class Setup:
    """A broker on this loop. Its group shard can be kept busy."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        self.peer = Peer(broker)
        self.is_busy = False
        self.identity: dict[str, Any] = {"transactional_id": "tx"}

    async def begin(self) -> None:
        asked = {"key_type": 1, "coordinator_keys": ["tx"]}
        await self.peer.ask(FIND_COORDINATOR, 4, asked)
        init = {"transactional_id": "tx", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
        for _ in range(1000):
            reply = await self.peer.ask(INIT_PRODUCER_ID, 4, init)
            if reply.error_code == 0:
                break
            await asyncio.sleep(0.005)
        self.identity |= {"producer_id": reply.producer_id, "producer_epoch": reply.producer_epoch}

    async def add(self) -> None:
        reply = await self.peer.ask(ADD_OFFSETS_TO_TXN, 3, self.identity | {"group_id": "g"})
        assert reply.error_code == 0

    async def commit(self, version: int = 3, **how: Any) -> str:
        row = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": ""}
        message = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}
        message |= {"topics": [{"name": "t", "partitions": [row]}]} | self.identity | how
        reply = await Peer(self.broker).ask(TXN_OFFSET_COMMIT, version, message)
        return str(reply.topics[0].partitions[0].error_code.name)

    async def end(self) -> str:
        reply = await Peer(self.broker).ask(END_TXN, 4, self.identity | {"committed": True})
        return str(reply.error_code.name)

    def keep_busy(self) -> None:
        """Occupies the group shard until ``is_busy`` is False."""
        self.is_busy = True

        def steps(machine: Any, now_ms: int) -> Any:
            while self.is_busy:
                yield None
            return Result()

        self.broker.groups.drivers[0].step(steps)

    @property
    def log(self) -> Log:
        found = self.broker.partition(OFFSETS_TOPIC, 0)
        assert found is not None
        return found.log


def run_with_setup(directory: Path, scenario: Callable[[Setup], Any]) -> None:
    async def whole() -> None:
        async with serving(directory) as broker, asyncio.timeout(60):
            setup = Setup(broker)
            await setup.begin()
            await scenario(setup)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(whole())


def test_a_commit_after_the_marker_of_its_transaction_begins_no_other_transaction(tmp_path: Path) -> None:
    """Before version 5 the epoch stays the same, so only the coordinator knows that the transaction has ended."""

    async def scenario(setup: Setup) -> None:
        await setup.add()
        assert await setup.commit() == "none"
        assert len(setup.log.producers.open_transactions) == 1
        setup.keep_busy()
        end = asyncio.create_task(setup.end())
        while not any(isinstance(entry, tuple) for entry in setup.broker.groups.drivers[0]._waiting or ()):
            await asyncio.sleep(0)  # the marker waits
        late = asyncio.create_task(setup.commit())
        await asyncio.sleep(0.02)
        setup.is_busy = False
        assert (await end, await late) == ("none", "invalid_txn_state")
        assert not setup.log.producers.open_transactions

    run_with_setup(tmp_path, scenario)


def test_a_marker_between_the_verification_and_the_commit_ends_the_guard(tmp_path: Path) -> None:
    async def scenario(setup: Setup) -> None:
        await setup.add()
        setup.keep_busy()
        marker = EndTransactionMarker(setup.identity["producer_id"], 0, 0, False, 0)  # a tool's marker
        written = setup.broker.groups.write_marker(0, marker)
        late = asyncio.create_task(setup.commit())
        await asyncio.sleep(0.02)
        setup.is_busy = False
        assert await late == "invalid_txn_state"
        assert written.value is ErrorCode.none
        assert not setup.log.producers.open_transactions
        assert await setup.commit() == "none", "the next commit is verified again"
        assert await setup.end() == "none"

    run_with_setup(tmp_path, scenario)


@pytest.mark.parametrize("version", [3, 5])
def test_refused_verifications_are_forgotten(tmp_path: Path, version: int) -> None:
    """Otherwise requests with many producer ids would fill the memory, and the broker would free it only after a
    day."""

    async def scenario(setup: Setup) -> None:
        for number in range(100):
            error = await setup.commit(version, producer_id=10_000 + number)
            assert error == "invalid_producer_id_mapping"
        assert await setup.commit(version, producer_epoch=7) == "invalid_producer_epoch"
        assert await setup.commit(3) == "invalid_txn_state", "the group is not in the transaction"
        assert not len(setup.log.producers.verifications or ())
        await setup.add()
        assert await setup.commit(version) == "none"

    run_with_setup(tmp_path, scenario)
