"""``odradek.Consumer`` with ``group_protocol=consumer`` against a broker: sharing, patterns, static members, faults."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire, eventually, make_broker, unique
from support.member import Member
from support.publish import publish

import odradek.aio
from odradek import Admin, Broker, Consumer, TopicPartition
from odradek.client import NewTopic
from odradek.client.consumer.errors import CommitFailed, UnreleasedInstance
from odradek.core.errors import KafkaError

# Heartbeats come often, so that no test waits for one.
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
    reason="Apache Kafka 4.0 brought version 1 of the heartbeat, with patterns and member ids of the client's own",
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


class Told:
    """Callbacks that note who had to do what."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []

    def callbacks(self) -> dict[str, Any]:
        def noting(what: str) -> Callable[[list[TopicPartition]], None]:
            return lambda partitions: self.note(what, [tp.partition for tp in partitions])

        return {f"on_{what}": noting(what) for what in ("assigned", "revoked", "lost")}

    def note(self, what: str, partitions: list[int]) -> None:
        if partitions:  # as in Java, whoever joins may hear of nothing before its first partitions
            self.events.append((what, partitions))


def read(one: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    def more() -> bool:
        found.extend((r.partition, r.offset) for r in one.poll(0.2).records())
        return len(found) >= count

    eventually(more, within_s=40)
    return found


def share(consumers: list[Consumer], partitions: int = 4) -> bool:
    """Polls each; whether they have all partitions between them, nobody too many."""
    for one in consumers:
        one.poll(0.02)
    sets = [one.assignment() for one in consumers]
    sizes = [len(found) for found in sets]
    return sum(sizes) == len(set().union(*sets)) == partitions and max(sizes) - min(sizes) <= 1


def described(bootstrap: str, group: str) -> Any:
    with Wire(bootstrap) as wire:
        return wire.call(69, wire.newest(69), {"group_ids": [group], "include_authorized_operations": False}).groups[0]


@pytest.mark.claim(45, 63)
def test_a_member_reads_all_commits_and_goes_on_there(
    quick: RunningBroker, admin: Admin, consumer: Make, filled: str, group: str
) -> None:
    one, told = consumer(), Told()
    one.subscribe([filled], **told.callbacks())
    assert described(quick.bootstrap, group).members == ()  # before the first poll
    assert sorted(read(one, 20)) == [(p, n) for p in range(4) for n in range(5)]
    one.commit()
    found = described(quick.bootstrap, group)
    assert (found.group_state, found.assignor_name) == ("Stable", "uniform")
    assert [member.subscribed_topic_names for member in found.members] == [(filled,)]
    assert {tp.partition: c.offset for tp, c in admin.list_group_offsets(group).items()} == dict.fromkeys(range(4), 5)
    one.close()
    assert told.events == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3])]
    assert described(quick.bootstrap, group).members == ()
    publish(quick.bootstrap, filled, ["more"], partition=2)
    again = consumer()
    again.subscribe([filled])
    assert read(again, 1) == [(2, 5)]


@pytest.mark.claim(26, 59, 64)
def test_members_share_give_up_at_their_commit_and_take_over(consumer: Make, filled: str) -> None:
    one, told = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000), Told()
    one.subscribe([filled], **told.callbacks())
    read(one, 20)
    two = consumer()
    two.subscribe([filled])
    eventually(lambda: share([one, two]), within_s=40)
    assert two.poll(0.2).num_rows == 0  # what was given up had been committed first
    (given_up,) = [numbers for what, numbers in told.events if what == "revoked"]
    assert given_up == sorted(tp.partition for tp in two.assignment())
    one.close()
    eventually(lambda: share([two]), within_s=40)
    assert two.poll(0.2).num_rows == 0


@pytest.mark.claim(56)
def test_partitions_added_and_subscriptions_changed(admin: Admin, consumer: Make, filled: str) -> None:
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
def test_the_coordinator_resolves_a_text_the_client_a_compiled_pattern(
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
def test_an_ill_pattern_and_an_unknown_assignor_are_told_and_end_the_membership(consumer: Make, filled: str) -> None:
    one = consumer()
    one.subscribe(pattern="(")
    for _ in range(2):
        with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
            eventually(lambda: one.poll(0.1), within_s=20)
    two = consumer(group_remote_assignor="mine")
    two.subscribe([filled])
    with pytest.raises(KafkaError, match=r"UNSUPPORTED_ASSIGNOR.*uniform"):
        eventually(lambda: two.poll(0.1), within_s=20)


def test_the_assignor_asked_for_plans(consumer: Make, quick: RunningBroker, filled: str, group: str) -> None:
    one, two = consumer(group_remote_assignor="range"), consumer(group_remote_assignor="range")
    for each in (one, two):
        each.subscribe([filled])
    eventually(lambda: share([one, two]), within_s=40)
    assert described(quick.bootstrap, group).assignor_name == "range"
    numbers = sorted(sorted(tp.partition for tp in each.assignment()) for each in (one, two))
    assert numbers == [[0, 1], [2, 3]]


@pytest.mark.behaviour(43)
def test_a_static_member_comes_back_without_a_rebalance(
    quick: RunningBroker, consumer: Make, filled: str, group: str
) -> None:
    one, other, told = consumer(group_instance_id="one"), consumer(group_instance_id="other"), Told()
    one.subscribe([filled])
    other.subscribe([filled], **told.callbacks())
    eventually(lambda: share([one, other]), within_s=40)
    owned, events = one.assignment(), list(told.events)
    epoch = described(quick.bootstrap, group).group_epoch
    thief = consumer(group_instance_id="one")
    thief.subscribe([filled])
    with pytest.raises(UnreleasedInstance, match="'one'"):
        eventually(lambda: thief.poll(0.1), within_s=20)
    one.close()
    again = consumer(group_instance_id="one")
    again.subscribe([filled])
    eventually(lambda: (again.poll(0.05), other.poll(0.05), again.assignment() == owned)[2], within_s=40)
    assert (told.events, described(quick.bootstrap, group).group_epoch) == (events, epoch)


@pytest.mark.parametrize("other", [pytest.param("consumer", marks=before_4), "classic"])
def test_beside_members_of_another_client(
    quick: RunningBroker, consumer: Make, filled: str, group: str, other: str
) -> None:
    """librdkafka under either protocol; a classic member is served by the same group."""
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
def test_on_the_callers_own_loop(quick: RunningBroker, filled: str, group: str) -> None:
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


# --- faults: odradek's own broker, in which they can be made ------------------------------------------------------

TP = TopicPartition("t", 0)


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Broker]:
    """A broker whose faults are ours, with ten records in the one partition of topic t."""
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


@pytest.mark.behaviour(28)
def test_a_stale_epoch_is_tried_again_and_resets_nothing(faulty: Broker, member: Make) -> None:
    one = member(auto_offset_reset="none")
    one.commit({TP: 4})
    faulty.faults.error("OffsetFetch", "STALE_MEMBER_EPOCH", times=2)
    one.subscribe(["t"])
    assert read(one, 6)[0] == (0, 4)
    faulty.faults.error("OffsetCommit", "STALE_MEMBER_EPOCH", times=2)
    one.commit()
    assert len(faulty.faults.fired) == 4
    assert one.committed([TP])[TP].offset == 10  # type: ignore[union-attr]


@pytest.mark.parametrize("code", ["FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"])
def test_a_fenced_member_loses_all_joins_again_and_goes_on_at_the_commit(
    faulty: Broker, member: Make, code: str
) -> None:
    one, told = member(), Told()
    one.subscribe(["t"], **told.callbacks())
    read(one, 10)
    one.commit({TP: 7})
    faulty.faults.error("ConsumerGroupHeartbeat", code)
    assert read(one, 3)[:3] == [(0, 7), (0, 8), (0, 9)]
    assert told.events[:3] == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]


def test_heartbeats_that_fail_for_a_while_change_nothing(faulty: Broker, member: Make) -> None:
    one, told = member(), Told()
    one.subscribe(["t"], **told.callbacks())
    read(one, 10)
    for code in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"):
        faulty.faults.error("ConsumerGroupHeartbeat", code)
    faulty.faults.disconnect("ConsumerGroupHeartbeat", when="after")
    eventually(lambda: (one.poll(0.05), len(faulty.faults.fired) == 4)[1], within_s=20)
    one.commit()
    assert told.events == [("assigned", [0])]


@pytest.mark.claim(72, 75)
def test_a_member_that_does_not_poll_is_out_and_its_commit_fails(faulty: Broker, member: Make) -> None:
    one, told = member(max_poll_interval_ms=1_500), Told()
    one.subscribe(["t"], **told.callbacks())
    read(one, 10)
    eventually(lambda: not described(faulty.bootstrap_servers, "g").members)
    with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
        one.commit()
    assert read(one, 10)[0] == (0, 0)
    assert told.events == [("assigned", [0]), ("lost", [0]), ("assigned", [0])]
    one.commit()
    assert one.committed([TP])[TP].offset == 10  # type: ignore[union-attr]


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


@pytest.mark.claim(31)
def test_a_broker_restart_loses_and_repeats_nothing(faulty: Broker, member: Make) -> None:
    one, told = member(), Told()
    one.subscribe(["t"], **told.callbacks())
    read(one, 10)
    faulty.kill()
    faulty.start()
    publish(faulty.bootstrap_servers, "t", map(str, range(10, 20)), partition=0)
    assert read(one, 10) == [(0, n) for n in range(10, 20)]
    one.commit()
    assert one.committed([TP])[TP].offset == 20  # type: ignore[union-attr]
    assert told.events == [("assigned", [0])]


@pytest.mark.claim(55)
def test_a_topic_made_anew_is_given_up_and_taken(faulty: Broker, member: Make) -> None:
    one, told = member(), Told()
    one.subscribe(["t"], **told.callbacks())
    read(one, 10)
    one.commit()
    with Admin(faulty.bootstrap_servers) as admin:
        admin.delete_topics(["t"])
        eventually(lambda: (one.poll(0.05), one.assignment() == set())[1], within_s=20)
        admin.create_topics([NewTopic("t", 1, 1)])
    publish(faulty.bootstrap_servers, "t", ["a", "b"], partition=0)
    assert read(one, 2) == [(0, 0), (0, 1)]
    assert [what for what, _ in told.events] == ["assigned", "revoked", "assigned"]
