"""``odradek.Consumer`` with faults, with members of other clients, and on the caller's event loop."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import eventually
from support.insides import engine_of
from support.member import Member

import odradek.aio
from odradek import Admin, Broker, Consumer, OffsetAndMetadata, TopicPartition
from odradek.client import NewTopic
from odradek.client.group.classic_coordination import ClassicCoordination
from odradek.client.group.errors import CommitFailed, RetriableCommitFailed
from odradek.net.connection import BrokerConnection

QUICK = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 50, "heartbeat_interval_ms": 100,
         "default_api_timeout_ms": 30_000}  # fmt: skip
TP = TopicPartition("t", 0)


@pytest.fixture
def faulty() -> Iterator[Broker]:
    """A broker for fault injection, with ten records in the one partition of topic t."""
    with Broker(config={"group.min.session.timeout.ms": "300"}) as broker:
        broker.create_topic("t", 1)
        send(broker.bootstrap_servers, 10)
        yield broker


def send(bootstrap: str, count: int, start: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    for number in range(start, start + count):
        producer.produce("t", str(number), partition=0)
    assert producer.flush(20) == 0


def consumer(broker: Broker, **settings: Any) -> Consumer:
    return Consumer(broker.bootstrap_servers, **({"group_id": "g", "enable_auto_commit": False} | QUICK | settings))


def read(one: Consumer, count: int) -> list[int]:
    found: list[int] = []
    eventually(lambda: (found.extend(r.offset for r in one.poll(0.2).records()), len(found) >= count)[1], within_s=30)
    return found


@pytest.mark.claim(33, part="ab")
def test_an_asynchronous_commit_is_not_retried(faulty: Broker) -> None:
    answers: list[tuple[int, type | None]] = []

    def answered(offsets: dict[TopicPartition, OffsetAndMetadata], error: Exception | None) -> None:
        answers.append((offsets[TP].offset, type(error) if error else None))

    with consumer(faulty) as one:
        one.assign([TP])
        read(one, 10)
        one.commit({TP: 1})
        faulty.faults.error("OffsetCommit", "NOT_COORDINATOR", times=1)
        one.commit_async({TP: 5}, answered)
        one.commit_async({TP: 10}, answered)
        one.commit({})
        assert answers == [(5, RetriableCommitFailed), (10, None)]
        assert len(faulty.faults.fired) == 1
        assert one.committed([TP])[TP] == OffsetAndMetadata(10)
        # An older offset fails after a newer one was committed: a retry would overwrite the newer one.
        faulty.faults.error("OffsetCommit", "NOT_COORDINATOR", times=1)
        one.commit_async({TP: 5}, answered)
        one.commit({})
        assert answers[2:] == [(5, RetriableCommitFailed)]
        assert one.committed([TP])[TP] == OffsetAndMetadata(10)
        # The broker is down: the callback gets one error, and the restarted broker gets no retry.
        faulty.kill()
        one.commit_async({TP: 7}, answered)
        eventually(lambda: (one.poll(0.1), len(answers) > 3)[1])
        faulty.start()
        assert one.committed([TP])[TP] == OffsetAndMetadata(10)
        one.commit({})
        assert answers[3:] == [(7, RetriableCommitFailed)]


@pytest.mark.claim(36)
@pytest.mark.claim(31, part=True)
def test_a_sync_commit_at_the_end_stores_the_position_although_an_async_commit_failed(faulty: Broker) -> None:
    errors: list[Exception | None] = []
    with consumer(faulty, max_poll_records=5) as one:
        one.assign([TP])
        try:
            read(one, 5)
            one.commit_async(callback=lambda _, error: errors.append(error))
            eventually(lambda: (one.commit({}), errors)[1])
            read(one, 5)
            faulty.faults.error("OffsetCommit", "NOT_COORDINATOR", times=2)
            one.commit_async(callback=lambda _, error: errors.append(error))
        finally:
            one.commit()
        assert errors[0] is None
        assert isinstance(errors[1], RetriableCommitFailed)
        assert one.committed([TP])[TP] == OffsetAndMetadata(10, 0)


@pytest.mark.claim(74, part="a")
@pytest.mark.claim(26, part="c")
@pytest.mark.claim(72, 75, part=True)
def test_a_member_that_does_not_poll_is_removed_and_its_commit_fails(faulty: Broker) -> None:
    lost: list[TopicPartition] = []
    with consumer(faulty, max_poll_interval_ms=300) as one, Admin(faulty.bootstrap_servers) as admin:
        one.subscribe(["t"], on_lost=lost.extend)
        read(one, 10)
        eventually(lambda: not admin.describe_groups(["g"])["g"].members)
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            one.commit()
        assert (lost, admin.list_group_offsets("g")) == ([], {})
        assert read(one, 10)[0] == 0
        assert lost == [TP]
        one.commit()
        assert admin.list_group_offsets("g")[TP].offset == 10


def test_a_consumer_that_is_closed_while_it_joins_leaves_the_group(
    faulty: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group would wait for it until its session ends. It leaves over another connection: Apache Kafka reads nothing
    behind a JoinGroup that waits for the other members."""
    used: dict[ClassicCoordination, BrokerConnection] = {}
    coordinator = ClassicCoordination._coordinator

    async def noted(self: ClassicCoordination) -> BrokerConnection:
        used[self] = await coordinator(self)
        return used[self]

    with consumer(faulty) as first, Admin(faulty.bootstrap_servers) as admin:
        first.subscribe(["t"])
        read(first, 10)
        monkeypatch.setattr(ClassicCoordination, "_coordinator", noted)
        second = consumer(faulty)
        second.subscribe(["t"])

        def members() -> int:
            second.poll(0.1)
            return len(admin.describe_groups(["g"])["g"].members)

        eventually(lambda: members() == 2, within_s=30)  # the first one does not join again: it does not poll
        joining = engine_of(second).group
        assert isinstance(joining, ClassicCoordination)
        joined_over = used[joining]
        second.close()
        assert len(admin.describe_groups(["g"])["g"].members) == 1
        assert used[joining] is not joined_over


@pytest.mark.claim(74, part="b")
def test_slow_work_needs_a_higher_limit(faulty: Broker) -> None:
    """One second of work: a limit of half a second ends the membership, a limit of ten seconds does not."""
    for limit_ms, stays in ((500, False), (10_000, True)):
        settings = {"group_id": f"g{limit_ms}", "max_poll_interval_ms": limit_ms}
        with consumer(faulty, **settings) as one, Admin(faulty.bootstrap_servers) as admin:
            one.subscribe(["t"])
            read(one, 10)
            time.sleep(1)
            assert len(admin.describe_groups([settings["group_id"]])[settings["group_id"]].members) == stays
            if stays:
                one.commit()
                assert one.committed([TP])[TP].offset == 10


@pytest.mark.claim(73)
@pytest.mark.claim(71, part=True)
def test_heartbeats_continue_without_polls(faulty: Broker) -> None:
    with consumer(faulty, session_timeout_ms=1_000) as one, Admin(faulty.bootstrap_servers) as admin:
        one.subscribe(["t"])
        read(one, 10)
        faulty.faults.error("Heartbeat", "COORDINATOR_LOAD_IN_PROGRESS", times=2)
        eventually(lambda: len(faulty.faults.fired) == 2)
        faulty.faults.delay("Heartbeat", 0.01, times=12)  # counts the heartbeats of more than one session timeout
        eventually(lambda: len(faulty.faults.fired) == 14)
        assert len(admin.describe_groups(["g"])["g"].members) == 1
        one.commit()


@pytest.mark.claim(31, 38, part=True)
def test_a_broker_restart_loses_and_repeats_no_record(faulty: Broker) -> None:
    with consumer(faulty) as one:
        one.subscribe(["t"])
        assert read(one, 10) == list(range(10))
        faulty.kill()
        faulty.start()
        send(faulty.bootstrap_servers, 10, 10)
        assert read(one, 10) == list(range(10, 20))
        one.commit()
        assert one.committed([TP])[TP].offset == 20


def test_offsets_stored_with_the_results_give_exactly_once(faulty: Broker) -> None:
    store = sqlite3.connect(":memory:")
    store.execute("create table results (value text)")
    store.execute("create table offsets (next integer)")
    store.execute("insert into offsets values (0)")
    store.commit()
    for crash_at in (3, 8, None):
        with consumer(faulty, group_id=None, max_poll_records=2) as one:
            one.assign([TP])
            one.seek(TP, store.execute("select next from offsets").fetchone()[0])
            for record in one:
                store.execute("insert into results values (?)", ((record.value or b"").decode(),))
                if record.offset == crash_at:
                    store.rollback()
                    break
                store.execute("update offsets set next = ?", (record.next_offset,))
                store.commit()
                if record.offset == 9:
                    break
    assert [int(value) for (value,) in store.execute("select value from results")] == list(range(10))


@pytest.mark.claim(59)
@pytest.mark.claim(64, 66, 70, part=True)
@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_members_of_other_clients_share_with_ours(
    bootstrap: str, admin: Admin, publish: Any, topic: str, group: str, client: str
) -> None:
    admin.create_topics([NewTopic(topic, 5, 1)])
    publish(topic, dict.fromkeys(range(5), 4))
    seen: set[tuple[int, int]] = set()
    settings = QUICK | {"group_id": group, "partition_assignment_strategy": "range", "session_timeout_ms": 6_000}
    with Consumer(bootstrap, **settings) as ours, Member(client, bootstrap, group, topic) as other:
        ours.subscribe([topic])

        def together() -> bool:
            seen.update((r.partition, r.offset) for r in ours.poll(0.1).records())
            mine = {tp.partition for tp in ours.assignment()}
            return len(mine) in (2, 3) and mine | other.assigned == set(range(5)) and not mine & other.assigned

        eventually(together, within_s=60)
        other.leave()

        def alone() -> bool:
            seen.update((r.partition, r.offset) for r in ours.poll(0.1).records())
            return len(ours.assignment()) == 5

        eventually(alone, within_s=60)
        assert seen | set(other.records) == {(p, n) for p in range(5) for n in range(4)}


def test_an_async_consumer_reads_and_commits_on_the_caller_s_loop(bootstrap: str, filled: str, group: str) -> None:
    async def main() -> None:
        assigned: list[TopicPartition] = []

        async def on_assigned(partitions: list[TopicPartition]) -> None:
            await asyncio.sleep(0)
            assigned.extend(partitions)

        async with odradek.aio.Consumer(bootstrap, group_id=group, **QUICK) as one:
            await one.subscribe([filled], on_assigned=on_assigned)
            rows = 0
            async with asyncio.timeout(30):
                while rows < 20:
                    rows += (await one.poll(0.5)).num_rows
            assert len(assigned) == 2
            await one.commit()
            found = await one.committed(assigned)
            assert {tp: commit.offset for tp, commit in found.items() if commit} == dict.fromkeys(assigned, 10)
            await one.seek(assigned[0], 4)
            assert await one.lag() == {assigned[0]: 6, assigned[1]: 0}

    asyncio.run(main())
