"""``odradek.Consumer`` with a broker: reads, positions, commits, resets and groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import eventually
from support.insides import engine_of

from odradek import Admin, Consumer, OffsetAndMetadata, TopicPartition
from odradek.batches.kernels.kernel_loader import wait_for_kernels
from odradek.client import NewTopic, loop
from odradek.client.errors import OffsetOutOfRange, RequestTimedOut
from odradek.client.group.classic_coordination import ClassicCoordination
from odradek.client.group.errors import (
    CommitFailed,
    FencedInstance,
    IllegalState,
    InvalidGroupId,
    NoOffsetForPartition,
    Wakeup,
)
from odradek.core.errors import ConfigError, ErrorCode

Make = Callable[..., Consumer]


@pytest.fixture
def consumer(bootstrap: str, group: str) -> Iterator[Make]:
    """Makes consumers of one group that read from the start of the log. The fixture closes them."""
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        base = {"group_id": group, "auto_offset_reset": "earliest", "default_api_timeout_ms": 20_000,
                "enable_auto_commit": False, "fetch_max_wait_ms": 50, "heartbeat_interval_ms": 200}  # fmt: skip
        made.append(Consumer(bootstrap, **(base | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read(one: Consumer, count: int) -> list[tuple[int, int]]:
    """Polls until ``count`` records are there. Returns their (partition, offset)."""
    found: list[tuple[int, int]] = []

    def more() -> bool:
        found.extend((r.partition, r.offset) for r in one.poll(0.5).records())
        return len(found) >= count

    eventually(more, within_s=30)
    return found


def offsets_of(filled: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(filled, number) for number in numbers]


def test_a_single_member_reads_all_partitions_as_columns(consumer: Make, filled: str) -> None:
    one = consumer()
    one.subscribe([filled])
    polled = eventually(lambda: one.poll(1.0), within_s=30)
    assert set(polled) <= set(offsets_of(filled, 0, 1))
    assert polled.table().schema.names[:2] == ["key", "value"]
    rest = read(one, 20 - polled.num_rows) if polled.num_rows < 20 else []
    assert sorted([(r.partition, r.offset) for r in polled.records()] + rest) == [
        (p, n) for p in (0, 1) for n in range(10)
    ]
    assert one.assignment() == set(offsets_of(filled, 0, 1))
    assert one.lag() == dict.fromkeys(offsets_of(filled, 0, 1), 0)


@pytest.mark.claim(17, 18)
@pytest.mark.claim(29, part=True)
def test_a_poll_moves_the_position_but_not_the_committed_offset(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(max_poll_records=5)
    one.assign([tp])
    assert read(one, 5) == [(0, n) for n in range(5)]
    assert (one.position(tp), one.committed([tp])) == (5, {tp: None})
    heir = consumer()  # as after a crash of the first consumer
    heir.assign([tp])
    assert read(heir, 5)[:5] == [(0, n) for n in range(5)]
    one.commit()
    assert one.committed([tp])[tp] == OffsetAndMetadata(5, 0)
    again = consumer()
    again.assign([tp])
    assert read(again, 5) == [(0, n) for n in range(5, 10)]


@pytest.mark.claim(28)
def test_without_commits_two_runs_read_the_same(consumer: Make, filled: str, admin: Admin, group: str) -> None:
    runs = []
    for _ in range(2):
        one = consumer()
        one.subscribe([filled])
        runs.append(sorted(read(one, 20)))
        one.close()
    assert runs == [[(partition, offset) for partition in range(2) for offset in range(10)]] * 2
    assert admin.list_group_offsets(group) == {}


@pytest.mark.claim(20)
def test_polling_writes_nothing_into_the_offsets_topic(consumer: Make, admin: Admin, filled: str, group: str) -> None:
    one = consumer()
    one.assign(offsets_of(filled, 0, 1))
    one.commit({TopicPartition(filled, 0): 0})
    place = TopicPartition("__consumer_offsets", _partition_of(admin, group))
    before = one.end_offsets([place])[place]
    assert len(read(one, 20)) == 20
    assert one.end_offsets([place])[place] == before
    one.commit()
    assert one.end_offsets([place])[place] == before + 2


def _partition_of(admin: Admin, group: str) -> int:
    from odradek.core.ids import partition_for_group

    return partition_for_group(group, len(admin.partitions("__consumer_offsets")))


@pytest.mark.claim(23, part="abd")
@pytest.mark.claim(22, part=True)
def test_auto_commit_commits_the_records_of_earlier_polls(
    consumer: Make, admin: Admin, filled: str, group: str
) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(enable_auto_commit=True, auto_commit_interval_ms=0, max_poll_records=4)
    one.assign([tp])
    assert read(one, 4) == [(0, n) for n in range(4)]
    committed = admin.list_group_offsets(group).get(tp, OffsetAndMetadata(0))
    assert committed.offset == 0  # as in Java, the consumer may commit its first position, but no record of this poll
    time.sleep(0.3)  # the interval is over, but there was no other poll
    assert admin.list_group_offsets(group).get(tp, OffsetAndMetadata(0)).offset == 0
    assert one.poll(5).num_rows == 4
    eventually(lambda: admin.list_group_offsets(group).get(tp) == OffsetAndMetadata(4, 0))
    one.close()
    assert admin.list_group_offsets(group)[tp].offset == 8


@pytest.mark.claim(21, 25, 27, part=True)
def test_auto_commit_waits_for_its_interval_and_a_crash_repeats_records(
    consumer: Make, admin: Admin, filled: str, group: str
) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000, max_poll_records=3)
    one.assign([tp])
    assert len(read(one, 9)) == 9
    assert admin.list_group_offsets(group) == {}
    again = consumer()  # as after a kill of the first consumer: uncommitted records come again
    again.assign([tp])
    assert read(again, 10)[0] == (0, 0)


@pytest.mark.claim(37)
@pytest.mark.claim(24, part=True)
def test_at_most_once_loses_and_at_least_once_repeats(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    early = consumer(max_poll_records=5)
    early.assign([tp])
    read(early, 5)
    early.commit()  # the consumer then crashes before it processes a record
    after = consumer(max_poll_records=3)
    after.assign([tp])
    assert read(after, 3) == [(0, 5), (0, 6), (0, 7)]
    late = consumer(max_poll_records=2)  # `after` processed three records and crashed before its commit
    late.assign([tp])
    assert read(late, 2) == [(0, 5), (0, 6)]


@pytest.mark.claim(39)
@pytest.mark.claim(32, part=True)
def test_sync_and_async_commits_store_the_given_offsets(consumer: Make, filled: str) -> None:
    zero, one_ = offsets_of(filled, 0, 1)
    one = consumer()
    one.assign([zero, one_])
    read(one, 20)
    results: list[Any] = []
    one.commit_async({zero: 3}, lambda offsets, error: results.append((offsets, error)))
    one.commit_async({zero: 4}, lambda offsets, error: results.append((offsets, error)))
    one.commit({one_: OffsetAndMetadata(7, 0, "note")})
    assert results == [({zero: (3, -1, "")}, None), ({zero: (4, -1, "")}, None)]
    assert one.committed([zero, one_]) == {zero: (4, -1, ""), one_: (7, 0, "note")}


@pytest.mark.claim(40, part="a")
@pytest.mark.claim(35, part=True)
def test_with_a_commit_every_100_records_a_crash_repeats_at_most_99(
    consumer: Make, admin: Admin, publish: Any, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    publish(topic, {0: 450})
    tp = TopicPartition(topic, 0)
    one = consumer(max_poll_records=5_000)
    one.assign([tp])
    polled = eventually(lambda: one.poll(1.0), within_s=30)
    for done, record in enumerate(polled.records(), 1):
        if done % 100 == 0:
            one.commit_async(record.next_offsets)
        if done == 430:
            break  # the crash
    one.commit({})  # waits for the commits in flight
    assert one.committed([tp])[tp] == OffsetAndMetadata(400)
    again = consumer()
    again.assign([tp])
    assert read(again, 50)[0] == (0, 400)


def test_iteration_counts_a_record_as_returned_when_the_caller_asks_for_the_next(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer()
    one.assign([tp])
    seen = []
    for record in one:
        seen.append((record.offset, record.value, record.headers, record.timestamp_ms))
        if record.offset == 3:
            break
    assert seen[3] == (3, b"0:3", (("n", b"3"),), 1_700_000_000_003)
    assert one.position(tp) == 3
    assert read(one, 7)[0] == (0, 3)


@pytest.mark.claim(52, part="a")
@pytest.mark.claim(49, 50, 51, part=True)
@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10), ("none", None)])
def test_a_consumer_starts_at_the_commit_or_at_the_reset(
    consumer: Make, filled: str, reset: str, first: int | None
) -> None:
    zero, one_ = offsets_of(filled, 0, 1)
    one = consumer(auto_offset_reset=reset)
    one.commit({zero: 6})
    one.assign([zero, one_])
    if first is None:
        with pytest.raises(NoOffsetForPartition, match=str(one_)) as caught:
            one.poll(10)
        assert caught.value.partitions == (one_,)
        return
    assert (one.position(zero), one.position(one_)) == (6, first)


@pytest.mark.claim(43, 57, part=True)
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_an_offset_out_of_range_is_reset(consumer: Make, filled: str, reset: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(auto_offset_reset=reset)
    one.commit({tp: 20})
    one.assign([tp])
    if reset == "none":
        with pytest.raises(OffsetOutOfRange, match="offset 20"):
            one.poll(20)
    elif reset == "earliest":
        assert read(one, 10)[0] == (0, 0)
    else:
        eventually(lambda: (one.poll(0.1), one.position(tp) == 10)[1])


@pytest.mark.claim(58)
def test_seeks_pauses_and_lookups_by_time_have_their_effect(consumer: Make, filled: str) -> None:
    zero, one_ = offsets_of(filled, 0, 1)
    one = consumer()
    one.assign([zero, one_])
    one.seek(zero, 8)
    one.pause([one_])
    assert read(one, 2) == [(0, 8), (0, 9)]
    one.seek(zero, 6)
    assert read(one, 4)[0] == (0, 6)
    assert one.paused() == {one_}
    one.resume([one_])
    assert read(one, 10) == [(1, n) for n in range(10)]
    one.seek_to_beginning([zero])
    assert one.position(zero) == 0
    one.seek_to_end()
    assert one.position(one_) == 10
    assert one.beginning_offsets([zero]) == {zero: 0}
    times = one.offsets_for_times({zero: 1_700_000_000_004, one_: 1_900_000_000_000})
    assert times[zero].offset == 4
    assert times[one_] is None


@pytest.mark.parametrize("is_early", [True, False])
def test_a_paused_partition_holds_only_the_memory_of_its_own_records(
    consumer: Make, admin: Admin, topic: str, publish: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    is_early: bool,
) -> None:  # fmt: skip
    """One reply has records of both partitions. The partition with few records is paused after its first record, or
    before the reply arrives."""
    assert wait_for_kernels(60), "only records that the kernels decode know their memory"
    admin.create_topics([NewTopic(topic, 2, 1)])
    publish(topic, {0: 10, 1: 5_000})
    small, large = offsets_of(topic, 0, 1)
    one = consumer(max_poll_records=1)
    found: list[tuple[int, int]] = []
    if is_early:  # before the consumer can fetch
        on_reply = engine_of(one).fetcher.in_flight._on_reply

        def late(fetch: Any, reply: Any) -> set[str]:
            if any(row.partition == 0 and len(row.records) for row in reply.partitions):
                engine_of(one).subscription.pause([small])
            return on_reply(fetch, reply)

        monkeypatch.setattr(engine_of(one).fetcher.in_flight, "_on_reply", late)
    one.assign([small, large])
    one.position(small)
    one.position(large)
    while small not in engine_of(one).fetcher.buffer.queues or (not is_early and found[-1:] != [(0, 0)]):
        found += [(record.partition, record.offset) for record in one.poll(1).records()]
    monkeypatch.undo()
    (held,) = engine_of(one).fetcher.buffer.queues[small]
    if not is_early:
        one.pause([small])
    assert held.records.memory_bytes <= 2 * held.size < 10_000
    one.resume([small])
    while len(found) < 5_010 and (polled := one.poll(10)):
        found += [(record.partition, record.offset) for record in polled.records()]
    assert [n for partition, n in found if partition == 0] == list(range(10))
    assert [n for partition, n in found if partition == 1] == list(range(5_000))


@pytest.mark.claim(53, part="b")
def test_by_duration_resets_to_the_first_record_within_the_duration(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(auto_offset_reset="by_duration:P36500D")
    one.assign([tp])
    assert one.position(tp) == 0
    other = consumer(auto_offset_reset="by_duration:PT1S")
    other.assign([tp])
    assert other.position(tp) == 10


@pytest.mark.claim(59)
@pytest.mark.claim(26, part="a")
@pytest.mark.claim(64, part="b")
@pytest.mark.claim(23, part="c")
def test_two_members_share_partitions_and_a_revocation_commits(
    consumer: Make, admin: Admin, filled: str, group: str
) -> None:
    events: list[tuple[str, list[TopicPartition]]] = []
    first = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    first.subscribe(
        [filled],
        on_assigned=lambda tps: events.append(("assigned", tps)),
        on_revoked=lambda tps: events.append(("revoked", tps)),
    )
    read(first, 20)
    second = consumer()
    second.subscribe([filled])

    def shared() -> bool:
        first.poll(0.05)
        assert second.poll(0.05).num_rows == 0  # the revocation has committed: no duplicates
        return len(first.assignment()) == len(second.assignment()) == 1

    eventually(shared, within_s=30)
    assert not first.assignment() & second.assignment()
    both = offsets_of(filled, 0, 1)
    assert events[:2] == [("assigned", both), ("revoked", both)]
    assert {tp: c.offset for tp, c in admin.list_group_offsets(group).items()} == dict.fromkeys(both, 10)
    first.close()
    assert events[-1][0] == "revoked"
    eventually(lambda: (second.poll(0.05), second.assignment() == set(both))[1], within_s=30)


@pytest.mark.claim(68, part=True)
def test_cooperative_members_keep_their_partitions_in_a_rebalance(consumer: Make, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 4, 1)])
    lost: list[TopicPartition] = []
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first, second = consumer(**settings), consumer(**settings)
    first.subscribe([topic], on_revoked=lost.extend)
    eventually(lambda: (first.poll(0.05), len(first.assignment()) == 4)[1], within_s=30)
    second.subscribe([topic])
    eventually(
        lambda: (first.poll(0.05), second.poll(0.05), len(first.assignment()) == len(second.assignment()) == 2)[2],
        within_s=30,
    )
    assert len(lost) == 2
    assert set(lost) == second.assignment()


def test_a_member_that_is_removed_before_it_gives_partitions_up_has_lost_them(
    consumer: Make, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the last commit before ``on_revoked`` says that the member was removed. So other members may already
    own all its partitions."""
    admin.create_topics([NewTopic(topic, 2, 1)])
    events: list[tuple[str, list[TopicPartition]]] = []
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first, second = consumer(**settings), consumer(**settings)
    first.subscribe(
        [topic],
        on_revoked=lambda tps: events.append(("revoked", tps)),
        on_lost=lambda tps: events.append(("lost", tps)),
    )
    eventually(lambda: (first.poll(0.05), len(first.assignment()) == 2)[1], within_s=30)
    group: Any = engine_of(first).group
    commit = group.auto_commit_now

    async def commit_of_a_removed_member(timeout_ms: int) -> None:
        await commit(timeout_ms)
        if group.membership.joined:  # after the join: the new assignment lacks a partition
            group.membership.on_commit_refused(ErrorCode.unknown_member_id)

    monkeypatch.setattr(group, "auto_commit_now", commit_of_a_removed_member)
    second.subscribe([topic])
    eventually(lambda: (first.poll(0.05), second.poll(0.05), events)[2], within_s=30)
    assert events == [("lost", offsets_of(topic, 0, 1))]
    assert first.assignment() == set()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_member_keeps_its_partitions_until_on_revoked_succeeds(consumer: Make, filled: str, strategy: str) -> None:
    """The next poll calls ``on_revoked`` again. Until then no other member gets the partitions, and this member still
    reads them."""
    calls: list[int] = []

    def fails_once(partitions: list[TopicPartition]) -> None:
        calls.append(len(partitions))
        if len(calls) == 1:
            raise RuntimeError("not ready")

    first = consumer(partition_assignment_strategy=strategy)
    second = consumer(partition_assignment_strategy=strategy)
    first.subscribe([filled], on_revoked=fails_once)
    read(first, 20)
    second.subscribe([filled])

    def until_it_fails() -> bool:
        second.poll(0.05)
        first.poll(0.05)
        return False

    with pytest.raises(RuntimeError, match="not ready"):
        eventually(until_it_fails, within_s=30)
    assert len(first.assignment()) == 2
    assert not second.assignment()

    def shared() -> bool:
        first.poll(0.05)
        second.poll(0.05)
        return len(first.assignment()) == len(second.assignment()) == 1

    eventually(shared, within_s=30)
    assert not first.assignment() & second.assignment()
    assert calls[:2] == [calls[0]] * 2


def test_an_assignment_of_an_older_generation_is_dropped(consumer: Make, filled: str) -> None:
    """``on_revoked`` fails, and the member loses its membership before the next poll: others may own its partitions."""
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
    first, second = consumer(**settings), consumer(**settings)

    def fails(partitions: list[TopicPartition]) -> None:
        raise RuntimeError("not ready")

    first.subscribe([filled], on_revoked=fails, on_lost=lambda _: None)
    read(first, 20)
    second.subscribe([filled])
    with pytest.raises(RuntimeError, match="not ready"):
        eventually(lambda: (second.poll(0.05), first.poll(0.05), False)[2], within_s=30)
    assert len(first.assignment()) == 2
    loop.run(_lose_membership(first))
    first.poll(0)
    assert not first.assignment()


async def _lose_membership(consumer: Consumer) -> None:
    group = engine_of(consumer).group
    assert isinstance(group, ClassicCoordination)
    group.membership.on_left(lost=True)


def test_a_pattern_subscribes_to_the_matching_topics(consumer: Make, filled: str) -> None:
    one = consumer()
    one.subscribe(pattern=filled[:-2] + ".*")
    assert len(read(one, 20)) == 20
    assert one.subscription() == {filled}


def test_wakeup_ends_a_poll(consumer: Make, filled: str) -> None:
    one = consumer(auto_offset_reset="latest")
    one.assign(offsets_of(filled, 0))
    timer = threading.Timer(0.05, one.wakeup)
    timer.start()
    with pytest.raises(Wakeup):
        one.poll(30)
    timer.join()


@pytest.mark.claim(46, part="b")
@pytest.mark.claim(69, part=True)
def test_contradictory_calls_are_refused(consumer: Make, bootstrap: str, filled: str) -> None:
    one = consumer()
    with pytest.raises(IllegalState):
        one.poll(0)
    one.assign(offsets_of(filled, 0))
    with pytest.raises(IllegalState):
        one.subscribe([filled])
    with pytest.raises(IllegalState):
        one.seek(TopicPartition(filled, 1), 0)
    with Consumer(bootstrap) as alone:
        alone.assign(offsets_of(filled, 0))
        with pytest.raises(InvalidGroupId):
            alone.commit()
        with pytest.raises(InvalidGroupId):
            alone.subscribe([filled])
    with pytest.raises(IllegalState):
        alone.poll(0)


@pytest.mark.claim(69, part=True)
def test_the_error_of_a_refused_commit_names_the_reason(consumer: Make, filled: str) -> None:
    first = consumer(group_instance_id="one")
    first.subscribe([filled])
    eventually(lambda: (first.poll(0.1), first.assignment())[1])
    alone = consumer()
    alone.assign(offsets_of(filled, 0))
    with pytest.raises(CommitFailed, match="the group has live members") as caught:
        alone.commit({TopicPartition(filled, 0): 1})
    assert "max_poll" not in str(caught.value)
    second = consumer(group_instance_id="one")
    second.subscribe([filled])
    eventually(lambda: (second.poll(0.1), second.assignment())[1])
    with pytest.raises(FencedInstance):
        first.commit()
    with pytest.raises(FencedInstance):
        first.commit()  # the same error again, not one about missing polls
    with pytest.raises(FencedInstance):
        first.poll(1)


def test_a_lookup_creates_a_topic_only_if_the_setting_allows_it(own_broker: Callable[..., Any], topic: str) -> None:
    broker = own_broker(auto_create_topics_enable="true")
    with Consumer(broker.bootstrap, default_api_timeout_ms=500) as one, pytest.raises(RequestTimedOut):
        one.partitions_for(topic)
    with Consumer(broker.bootstrap, allow_auto_create_topics=True) as one:
        assert eventually(lambda: one.partitions_for(topic)) == [TopicPartition(topic, n) for n in range(4)]


@pytest.mark.claim(53, part="a")
@pytest.mark.claim(71, part="c")
@pytest.mark.parametrize(("settings", "message"), [
    ({"auto.offset.rest": "earliest"}, "auto.offset.reset"), ({"auto_offset_reset": "soon"}, "by_duration"),
    ({"max_poll_records": 0}, "max_poll_records"), ({"heartbeat_interval_ms": 45_000}, "session_timeout_ms"),
    ({"isolation_level": "x"}, "read_committed"), ({"enable_auto_commit": "yes"}, "true or false"),
    ({"partition_assignment_strategy": "rnge"}, "roundrobin"), ({"columns": ("key",)}, "offset"),
    ({"group_instance_id": "i"}, "group_id"), ({"max_poll_records": "many"}, "whole number"),
    ({"key.deserializer": "org…"}, "key.deserializer: keys are returned"), ({"sasl.mechanism": "PLAIN"}, "PLAINTEXT"),
    ({"security_protocol": "TLS"}, "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
])  # fmt: skip
def test_the_error_for_an_invalid_setting_names_the_remedy(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Consumer({"bootstrap.servers": "127.0.0.1:1"} | settings)
