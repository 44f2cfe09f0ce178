"""``odradek.Consumer`` with ``group_protocol=consumer`` and a broker: assignments, patterns, static members, faults."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, eventually, make_broker, unique
from support.insides import engine_of
from support.member import Member
from support.publish import publish

import odradek.aio
from odradek import Admin, Broker, Consumer, TopicPartition
from odradek.client import NewTopic
from odradek.client.group.errors import CommitFailed, UnreleasedInstance
from odradek.core.errors import KafkaError

# Heartbeats are frequent, so that the tests do not wait for them.
FAST = {
    "group_consumer_min_heartbeat_interval_ms": "100",
    "group_consumer_heartbeat_interval_ms": "100",
    "group_consumer_assignment_interval_ms": "0",
    "group_consumer_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "3000",
}
Make = Callable[..., Consumer]
before_4 = pytest.mark.skipif(
    os.environ.get("ODRADEK_TEST_ORACLE", "").startswith("3."),
    reason="patterns and member ids of the client need version 1 of ConsumerGroupHeartbeat (Apache Kafka 4.0)",
)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    running = make_broker(tmp_path_factory.mktemp("quick"), **FAST)
    running.start()
    yield running
    running.kill()


@pytest.fixture
def admin(quick: RunningBroker) -> Iterator[Admin]:
    with Admin(quick.bootstrap) as made:
        yield made


@pytest.fixture
def filled(quick: RunningBroker, admin: Admin, topic: str) -> str:
    """Four partitions with five records each."""
    admin.create_topics([NewTopic(topic, 4, 1)])
    for partition in range(4):
        publish(quick.bootstrap, topic, [f"{partition}:{n}" for n in range(5)], partition=partition)
    return topic


@pytest.fixture
def consumer(quick: RunningBroker, group: str) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        base = {"group_id": group, "group_protocol": "consumer", "auto_offset_reset": "earliest",
                "enable_auto_commit": False, "fetch_max_wait_ms": 50, "default_api_timeout_ms": 20_000}  # fmt: skip
        made.append(Consumer(quick.bootstrap, **(base | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


class CallbackLog:
    """Callbacks that record their calls."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def callbacks(self) -> dict[str, Any]:
        def recorder(event: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.note(event, [tp.partition for tp in partitions])

        return {f"on_{event}": recorder(event) for event in ("assigned", "revoked", "lost")}

    def note(self, event: str, partitions: list[int]) -> None:
        if partitions:  # as in Java, the callback of a joining member may get an empty list first
            self.events.append((event, partitions))


def read(one: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def more() -> bool:
        found.extend((r.partition, r.offset) for r in one.poll(0.2).records())
        return len(found) >= count

    eventually(more, within_s=40)
    return found


def share(consumers: list[Consumer], partitions: int = 4) -> bool:
    """Polls each consumer. Returns whether they own all partitions without overlap and in equal shares."""
    for one in consumers:
        one.poll(0.02)
    sets = [one.assignment() for one in consumers]
    sizes = [len(found) for found in sets]
    return sum(sizes) == len(set().union(*sets)) == partitions and max(sizes) - min(sizes) <= 1


def described(bootstrap: str, group: str) -> Any:
    with Wire(bootstrap) as wire:
        return wire.call(69, wire.newest(69), {"group_ids": [group], "include_authorized_operations": False}).groups[0]


@pytest.mark.claim(63)
@pytest.mark.claim(45, part="a")
def test_a_member_commits_all_records_and_the_next_member_continues_there(
    quick: RunningBroker, admin: Admin, consumer: Make, filled: str, group: str
) -> None:
    one, log = consumer(), CallbackLog()
    one.subscribe([filled], **log.callbacks())
    assert described(quick.bootstrap, group).members == ()  # before the first poll
    assert sorted(read(one, 20)) == [(p, n) for p in range(4) for n in range(5)]
    one.commit()
    found = described(quick.bootstrap, group)
    assert (found.group_state, found.assignor_name) == ("Stable", "uniform")
    assert [member.subscribed_topic_names for member in found.members] == [(filled,)]
    assert {tp.partition: c.offset for tp, c in admin.list_group_offsets(group).items()} == dict.fromkeys(range(4), 5)
    one.close()
    assert log.events == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
    assert described(quick.bootstrap, group).members == ()
    publish(quick.bootstrap, filled, ["more"], partition=2)
    again = consumer()
    again.subscribe([filled])
    assert read(again, 1) == [(2, 5)]


@pytest.mark.claim(59)
@pytest.mark.claim(26, part="a")
@pytest.mark.claim(64, part="b")
def test_members_share_partitions_and_commit_before_a_revocation(consumer: Make, filled: str) -> None:
    one, log = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000), CallbackLog()
    one.subscribe([filled], **log.callbacks())
    read(one, 20)
    two = consumer()
    two.subscribe([filled])
    eventually(lambda: share([one, two]), within_s=40)
    assert two.poll(0.2).num_rows == 0  # the positions were committed before the revocation
    (revoked,) = [numbers for event, numbers in log.events if event == "revoked"]
    assert revoked == sorted(tp.partition for tp in two.assignment())
    one.close()
    eventually(lambda: share([two]), within_s=40)
    assert two.poll(0.2).num_rows == 0


def test_a_member_that_is_removed_before_it_gives_partitions_up_has_lost_them(
    quick: RunningBroker, consumer: Make, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat during the last commit before ``on_revoked`` says that the group has removed the member. Other
    members may then own all its partitions."""
    one, log = consumer(), CallbackLog()
    one.subscribe([filled], **log.callbacks())
    eventually(lambda: share([one]), within_s=40)
    group: Any = engine_of(one).group
    commit = group.auto_commit_now

    async def commit_of_a_removed_member(timeout_ms: int) -> None:
        await commit(timeout_ms)
        leave = group.membership.leave_request()
        if leave is not None:
            with Wire(quick.bootstrap) as wire:
                wire.call(68, wire.newest(68), leave)
        while not group.lost:
            await asyncio.sleep(0.01)

    monkeypatch.setattr(group, "auto_commit_now", commit_of_a_removed_member)
    two = consumer()
    two.subscribe([filled])
    eventually(lambda: (one.poll(0.02), two.poll(0.02), len(log.events) > 1)[2], within_s=40)
    assert log.events == [("assigned", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3])]
    assert one.assignment() == set()


@pytest.mark.claim(56, part=True)
def test_new_partitions_and_changed_subscriptions_are_assigned(admin: Admin, consumer: Make, filled: str) -> None:
    one = consumer()
    one.subscribe([filled])
    read(one, 20)
    admin.create_partitions({filled: 6})
    eventually(lambda: share([one], 6), within_s=40)
    other = unique("topic")
    admin.create_topics([NewTopic(other, 2, 1)])
    one.subscribe([other])
    eventually(lambda: (one.poll(0.05), {tp.topic for tp in one.assignment()} == {other})[1], within_s=40)
    one.unsubscribe()
    assert one.assignment() == set()


@before_4
def test_the_coordinator_resolves_a_text_pattern_and_the_client_a_compiled_one(
    quick: RunningBroker, admin: Admin, consumer: Make, group: str
) -> None:
    stem = unique("flights")
    admin.create_topics([NewTopic(f"{stem}.a", 1, 1), NewTopic(f"x{stem}.a", 1, 1)])
    one = consumer()
    one.subscribe(pattern=f"{stem}\\..*")
    eventually(lambda: (one.poll(0.05), one.subscription() == {f"{stem}.a"})[1], within_s=40)
    (member,) = described(quick.bootstrap, group).members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((), f"{stem}\\..*")
    one.close()
    two = consumer(metadata_max_age_ms=200)
    two.subscribe(re.compile(f"{stem}\\..*"))
    eventually(lambda: (two.poll(0.05), two.assignment() == {TopicPartition(f"{stem}.a", 0)})[1], within_s=40)
    (member,) = described(quick.bootstrap, group).members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ((f"{stem}.a",), "")
    admin.create_topics([NewTopic(f"{stem}.b", 1, 1)])
    eventually(lambda: (two.poll(0.05), len(two.assignment()) == 2)[1], within_s=40)


@before_4
def test_an_invalid_pattern_or_an_unknown_assignor_ends_the_membership(consumer: Make, filled: str) -> None:
    one = consumer()
    one.subscribe(pattern="(")
    for _ in range(2):
        with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
            eventually(lambda: one.poll(0.1), within_s=20)
    two = consumer(group_remote_assignor="mine")
    two.subscribe([filled])
    with pytest.raises(KafkaError, match=r"UNSUPPORTED_ASSIGNOR.*uniform"):
        eventually(lambda: two.poll(0.1), within_s=20)


def test_the_requested_assignor_makes_the_assignment(
    consumer: Make, quick: RunningBroker, filled: str, group: str
) -> None:
    one, two = consumer(group_remote_assignor="range"), consumer(group_remote_assignor="range")
    for each in (one, two):
        each.subscribe([filled])
    eventually(lambda: share([one, two]), within_s=40)
    assert described(quick.bootstrap, group).assignor_name == "range"
    numbers = sorted(sorted(tp.partition for tp in each.assignment()) for each in (one, two))
    assert numbers == [[0, 1], [2, 3]]


@pytest.mark.behaviour(43, part="ac")
def test_a_static_member_returns_without_a_rebalance(
    quick: RunningBroker, consumer: Make, filled: str, group: str
) -> None:
    one, other, log = consumer(group_instance_id="one"), consumer(group_instance_id="other"), CallbackLog()
    one.subscribe([filled])
    other.subscribe([filled], **log.callbacks())
    eventually(lambda: share([one, other]), within_s=40)
    owned, events = one.assignment(), list(log.events)
    epoch = described(quick.bootstrap, group).group_epoch
    thief = consumer(group_instance_id="one")
    thief.subscribe([filled])
    with pytest.raises(UnreleasedInstance, match="'one'"):
        eventually(lambda: thief.poll(0.1), within_s=20)
    one.close()
    again = consumer(group_instance_id="one")
    again.subscribe([filled])
    eventually(lambda: (again.poll(0.05), other.poll(0.05), again.assignment() == owned)[2], within_s=40)
    assert (log.events, described(quick.bootstrap, group).group_epoch) == (events, epoch)


@pytest.mark.parametrize("other", [pytest.param("consumer", marks=before_4), "classic"])
def test_members_of_another_client_share_the_partitions(
    quick: RunningBroker, consumer: Make, filled: str, group: str, other: str
) -> None:
    """The other member is librdkafka with either protocol: a KIP-848 group serves classic members too."""
    one = consumer()
    one.subscribe([filled])
    seen: set[tuple[int, int]] = set()
    with Member("confluent", quick.bootstrap, group, filled, protocol=other) as guest:

        def together() -> bool:
            seen.update((r.partition, r.offset) for r in one.poll(0.1).records())
            mine = {tp.partition for tp in one.assignment()}
            return len(mine) == 2 and mine | guest.assigned == set(range(4))

        eventually(together, within_s=60)
        guest.leave()

        def alone() -> bool:
            seen.update((r.partition, r.offset) for r in one.poll(0.1).records())
            return len(one.assignment()) == 4 and seen | set(guest.records) == {
                (p, n) for p in range(4) for n in range(5)
            }

        eventually(alone, within_s=60)


@before_4
def test_an_async_consumer_reads_and_commits_on_the_caller_s_loop(
    quick: RunningBroker, filled: str, group: str
) -> None:
    async def main() -> None:
        settings = {"group_id": group, "group_protocol": "consumer", "auto_offset_reset": "earliest"}
        assigned: list[TopicPartition] = []
        async with odradek.aio.Consumer(quick.bootstrap, **settings) as one:

            async def on_assigned(partitions: list[TopicPartition]) -> None:
                await asyncio.sleep(0)
                assigned.extend(partitions)

            await one.subscribe(pattern=filled, on_assigned=on_assigned)
            rows = 0
            async with asyncio.timeout(30):
                while rows < 20:
                    rows += (await one.poll(0.5)).num_rows
            await one.commit()
            assert one.subscription() == {filled}
            assert len(assigned) == 4

    asyncio.run(main())


# --- faults, which only odradek's own broker can inject -----------------------------------------------------------

TP = TopicPartition("t", 0)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Broker]:
    """A broker for fault injection, with ten records in the one partition of topic t."""
    settings = {name.replace("_", "."): value for name, value in FAST.items()}
    with Broker(tmp_path / "data", config=settings) as broker:
        broker.create_topic("t", 1)
        publish(broker.bootstrap_servers, "t", map(str, range(10)), partition=0)
        yield broker


@pytest.fixture
def member(faulty: Broker) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        base = {"group_id": "g", "group_protocol": "consumer", "auto_offset_reset": "earliest",
                "enable_auto_commit": False, "fetch_max_wait_ms": 50, "retry_backoff_ms": 10}  # fmt: skip
        made.append(Consumer(faulty.bootstrap_servers, **(base | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.behaviour(28, part="b")
def test_a_stale_member_epoch_is_retried_without_a_reset(faulty: Broker, member: Make) -> None:
    one = member(auto_offset_reset="none")
    one.commit({TP: 4})
    faulty.faults.error("OffsetFetch", "STALE_MEMBER_EPOCH", times=2)
    one.subscribe(["t"])
    assert read(one, 6)[0] == (0, 4)
    faulty.faults.error("OffsetCommit", "STALE_MEMBER_EPOCH", times=2)
    one.commit()
    assert len(faulty.faults.fired) == 4
    assert one.committed([TP])[TP].offset == 10


@pytest.mark.parametrize("code", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_a_fenced_member_rejoins_and_continues_at_its_commit(faulty: Broker, member: Make, code: str) -> None:
    one, log = member(), CallbackLog()
    one.subscribe(["t"], **log.callbacks())
    read(one, 10)
    one.commit({TP: 7})
    faulty.faults.error("ConsumerGroupHeartbeat", code)
    assert read(one, 3)[:3] == [(0, 7), (0, 8), (0, 9)]
    assert log.events[:3] == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]


def test_transient_heartbeat_errors_do_not_change_the_assignment(faulty: Broker, member: Make) -> None:
    one, log = member(), CallbackLog()
    one.subscribe(["t"], **log.callbacks())
    read(one, 10)
    for code in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"):
        faulty.faults.error("ConsumerGroupHeartbeat", code)
    faulty.faults.disconnect("ConsumerGroupHeartbeat", when="after")
    eventually(lambda: (one.poll(0.05), len(faulty.faults.fired) == 4)[1], within_s=20)
    one.commit()
    assert log.events == [("assigned", [0])]


@pytest.mark.claim(26, part="c")
@pytest.mark.claim(72, 75, part=True)
def test_a_member_that_does_not_poll_is_removed_and_its_commit_fails(faulty: Broker, member: Make) -> None:
    one, log = member(max_poll_interval_ms=1_500), CallbackLog()
    one.subscribe(["t"], **log.callbacks())
    read(one, 10)
    eventually(lambda: not described(faulty.bootstrap_servers, "g").members)
    with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
        one.commit()
    assert read(one, 10)[0] == (0, 0)
    assert log.events == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]
    one.commit()
    assert one.committed([TP])[TP].offset == 10


def test_a_callback_that_raises_is_called_again(member: Make) -> None:
    calls: list[int] = []

    def fails_once(partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        calls.append(len(partitions))
        if len(calls) == 1:
            raise RuntimeError("not ready")

    one = member()
    one.subscribe(["t"], on_assigned=fails_once)
    with pytest.raises(RuntimeError, match="not ready"):
        eventually(lambda: one.poll(0.1))
    assert len(read(one, 10)) == 10
    assert calls == [1, 1]


@pytest.mark.claim(31, part=True)
def test_a_broker_restart_loses_and_repeats_no_record(faulty: Broker, member: Make) -> None:
    one, log = member(), CallbackLog()
    one.subscribe(["t"], **log.callbacks())
    read(one, 10)
    faulty.kill()
    faulty.start()
    publish(faulty.bootstrap_servers, "t", map(str, range(10, 20)), partition=0)
    assert read(one, 10) == [(0, n) for n in range(10, 20)]
    one.commit()
    assert one.committed([TP])[TP].offset == 20
    assert log.events == [("assigned", [0])]


@pytest.mark.claim(55, part=True)
def test_a_recreated_topic_is_revoked_and_assigned_again(faulty: Broker, member: Make) -> None:
    one, log = member(), CallbackLog()
    one.subscribe(["t"], **log.callbacks())
    read(one, 10)
    one.commit()
    with Admin(faulty.bootstrap_servers) as admin:
        admin.delete_topics(["t"])
        eventually(lambda: (one.poll(0.05), one.assignment() == set())[1], within_s=20)
        admin.create_topics([NewTopic("t", 1, 1)])
    publish(faulty.bootstrap_servers, "t", ["a", "b"], partition=0)
    assert read(one, 2) == [(0, 0), (0, 1)]
    assert [event for event, _ in log.events] == ["assigned", "revoked", "assigned"]
