"""``odradek.Consumer`` against a broker: reading, positions, commits, where reading starts, groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import eventually

from odradek import Admin, Consumer, OffsetAndMetadata, TopicPartition
from odradek.client import NewTopic, loop
from odradek.client.consumer.errors import (
    CommitFailed,
    FencedInstance,
    IllegalState,
    InvalidGroupId,
    NoOffsetForPartition,
    Wakeup,
)
from odradek.client.errors import OffsetOutOfRange, RequestTimedOut
from odradek.client.group.classic_coordination import ClassicCoordination
from odradek.core.errors import ConfigError

Make = Callable[..., Consumer]


@pytest.fixture
def consumer(bootstrap: str, group: str) -> Iterator[Make]:
    """Makes consumers of one group that read from the start and are closed at the end."""
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
    """(partition, offset) of ``count`` records."""
    found: list[tuple[int, int]] = []

    def more() -> bool:
        found.extend((r.partition, r.offset) for r in one.poll(0.5).records())
        return len(found) >= count

    eventually(more, within_s=30)
    return found


def offsets_of(filled: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(filled, number) for number in numbers]


def test_a_group_of_one_reads_all_as_columns(consumer: Make, filled: str) -> None:
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


@pytest.mark.claim(17, 18, 29)
def test_position_moves_with_poll_and_commit_does_not(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(max_poll_records=5)
    one.assign([tp])
    assert read(one, 5) == [(0, n) for n in range(5)]
    assert (one.position(tp), one.committed([tp])) == (5, {tp: None})
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


@pytest.mark.claim(23)
@pytest.mark.claim(22, part=True)
def test_auto_commit_takes_what_earlier_polls_returned(consumer: Make, admin: Admin, filled: str, group: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(enable_auto_commit=True, auto_commit_interval_ms=0, max_poll_records=4)
    one.assign([tp])
    assert read(one, 4) == [(0, n) for n in range(4)]
    committed = admin.list_group_offsets(group).get(tp, OffsetAndMetadata(0))
    assert committed.offset == 0  # as in Java, the first position may be committed; nothing of this poll is
    assert one.poll(5).num_rows == 4
    eventually(lambda: admin.list_group_offsets(group).get(tp) == OffsetAndMetadata(4, 0))
    one.close()
    assert admin.list_group_offsets(group)[tp].offset == 8


@pytest.mark.claim(21, 25, 27, part=True)
def test_auto_commit_waits_for_its_interval_and_repeats_after_a_crash(
    consumer: Make, admin: Admin, filled: str, group: str
) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000, max_poll_records=3)
    one.assign([tp])
    assert len(read(one, 9)) == 9
    assert admin.list_group_offsets(group) == {}
    again = consumer()  # as after a kill of the first: what was not committed comes again
    again.assign([tp])
    assert read(again, 10)[0] == (0, 0)


@pytest.mark.claim(37)
@pytest.mark.claim(24, part=True)
def test_at_most_once_loses_and_at_least_once_repeats(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    early = consumer(max_poll_records=5)
    early.assign([tp])
    read(early, 5)
    early.commit()  # … and then it crashes before it has processed anything
    after = consumer(max_poll_records=3)
    after.assign([tp])
    assert read(after, 3) == [(0, 5), (0, 6), (0, 7)]
    late = consumer(max_poll_records=2)  # `after` processed three and crashed before its commit
    late.assign([tp])
    assert read(late, 2) == [(0, 5), (0, 6)]


@pytest.mark.claim(32, 39)
def test_commits_of_each_kind(consumer: Make, filled: str) -> None:
    zero, one_ = offsets_of(filled, 0, 1)
    one = consumer()
    one.assign([zero, one_])
    read(one, 20)
    told: list[Any] = []
    one.commit_async({zero: 3}, lambda offsets, error: told.append((offsets, error)))
    one.commit_async({zero: 4}, lambda offsets, error: told.append((offsets, error)))
    one.commit({one_: OffsetAndMetadata(7, 0, "note")})
    assert told == [({zero: (3, -1, "")}, None), ({zero: (4, -1, "")}, None)]
    assert one.committed([zero, one_]) == {zero: (4, -1, ""), one_: (7, 0, "note")}


@pytest.mark.claim(35, 40, part=True)
def test_commit_every_hundred_records(consumer: Make, admin: Admin, publish: Any, topic: str) -> None:
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
    one.commit({})  # waits for what was sent
    assert one.committed([tp])[tp] == OffsetAndMetadata(400)
    again = consumer()
    again.assign([tp])
    assert read(again, 50)[0] == (0, 400)


def test_iteration_counts_a_record_as_done_when_the_next_is_asked_for(consumer: Make, filled: str) -> None:
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


@pytest.mark.claim(49, 50, 51, 52)
@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10), ("none", None)])
def test_where_reading_starts(consumer: Make, filled: str, reset: str, first: int | None) -> None:
    zero, one_ = offsets_of(filled, 0, 1)
    one = consumer(auto_offset_reset=reset)
    one.commit({zero: 6})
    one.assign([zero, one_])
    if first is None:
        with pytest.raises(NoOffsetForPartition, match=str(one_)) as told:
            one.poll(10)
        assert told.value.partitions == (one_,)
        return
    assert (one.position(zero), one.position(one_)) == (6, first)


@pytest.mark.claim(43, 57)
@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_out_of_range_meets_the_reset(consumer: Make, filled: str, reset: str) -> None:
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
def test_seek_pause_and_times(consumer: Make, filled: str) -> None:
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
    assert times[zero].offset == 4  # type: ignore[union-attr]
    assert times[one_] is None


@pytest.mark.parametrize("under_way", [True, False])
def test_a_paused_partition_keeps_no_more_than_its_own_records(
    consumer: Make, admin: Admin, topic: str, publish: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    under_way: bool,
) -> None:  # fmt: skip
    """Two come in one reply, one of them little; that one is paused after its first record, or before it came."""
    admin.create_topics([NewTopic(topic, 2, 1)])
    publish(topic, {0: 10, 1: 5_000})
    small, large = offsets_of(topic, 0, 1)
    one = consumer(max_poll_records=1)
    found: list[tuple[int, int]] = []
    if under_way:  # before anything can be fetched
        on_reply = one._engine.fetcher.in_flight._on_reply

        def late(fetch: Any, reply: Any) -> set[str]:
            if any(row.partition == 0 and len(row.records) for row in reply.partitions):
                one._engine.subscription.pause([small])
            return on_reply(fetch, reply)

        monkeypatch.setattr(one._engine.fetcher.in_flight, "_on_reply", late)
    one.assign([small, large])
    one.position(small)
    one.position(large)
    while small not in one._engine.fetcher.buffer._chunks or (not under_way and found[-1:] != [(0, 0)]):
        found += [(record.partition, record.offset) for record in one.poll(1).records()]
    monkeypatch.undo()
    (held,) = one._engine.fetcher.buffer._chunks[small]
    if not under_way:
        one.pause([small])
    assert held.records.memory_bytes <= 2 * held.size < 10_000
    one.resume([small])
    while len(found) < 5_010 and (polled := one.poll(10)):
        found += [(record.partition, record.offset) for record in polled.records()]
    assert [n for partition, n in found if partition == 0] == list(range(10))
    assert [n for partition, n in found if partition == 1] == list(range(5_000))


@pytest.mark.claim(53)
def test_by_duration(consumer: Make, filled: str) -> None:
    (tp,) = offsets_of(filled, 0)
    one = consumer(auto_offset_reset="by_duration:P36500D")
    one.assign([tp])
    assert one.position(tp) == 0
    other = consumer(auto_offset_reset="by_duration:PT1S")
    other.assign([tp])
    assert other.position(tp) == 10


@pytest.mark.claim(26, 59, 64)
def test_two_members_share_and_hand_over_at_the_commit(consumer: Make, admin: Admin, filled: str, group: str) -> None:
    told: list[tuple[str, list[TopicPartition]]] = []
    first = consumer(enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    first.subscribe(
        [filled],
        on_assigned=lambda tps: told.append(("assigned", tps)),
        on_revoked=lambda tps: told.append(("revoked", tps)),
    )
    read(first, 20)
    second = consumer()
    second.subscribe([filled])

    def shared() -> bool:
        first.poll(0.05)
        assert second.poll(0.05).num_rows == 0  # revocation has committed: no duplicates
        return len(first.assignment()) == len(second.assignment()) == 1

    eventually(shared, within_s=30)
    assert not first.assignment() & second.assignment()
    both = offsets_of(filled, 0, 1)
    assert told[:2] == [("assigned", both), ("revoked", both)]
    assert {tp: c.offset for tp, c in admin.list_group_offsets(group).items()} == dict.fromkeys(both, 10)
    first.close()
    assert told[-1][0] == "revoked"
    eventually(lambda: (second.poll(0.05), second.assignment() == set(both))[1], within_s=30)


@pytest.mark.claim(68)
def test_cooperative_members_keep_what_they_hold(consumer: Make, admin: Admin, topic: str) -> None:
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


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_nothing_is_given_up_while_on_revoked_fails(consumer: Make, filled: str, strategy: str) -> None:
    """The next poll calls it again; until then nobody else gets the partitions, and they go on here."""
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


def test_a_plan_of_a_generation_that_is_over_is_not_taken(consumer: Make, filled: str) -> None:
    """``on_revoked`` failed, and before the next poll the member was thrown out: what it had is others' now."""
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
    loop.run(_throw_out(first))
    first.poll(0)
    assert not first.assignment()


async def _throw_out(consumer: Consumer) -> None:
    group = consumer._engine.group
    assert isinstance(group, ClassicCoordination)
    group.membership.on_left(lost=True)


def test_a_pattern(consumer: Make, filled: str) -> None:
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


@pytest.mark.claim(46, 69)
def test_what_contradicts_is_refused(consumer: Make, bootstrap: str, filled: str) -> None:
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


@pytest.mark.claim(69)
def test_why_a_commit_is_refused_is_said(consumer: Make, filled: str) -> None:
    first = consumer(group_instance_id="one")
    first.subscribe([filled])
    eventually(lambda: (first.poll(0.1), first.assignment())[1])
    alone = consumer()
    alone.assign(offsets_of(filled, 0))
    with pytest.raises(CommitFailed, match="the group has live members") as told:
        alone.commit({TopicPartition(filled, 0): 1})
    assert "max_poll" not in str(told.value)
    second = consumer(group_instance_id="one")
    second.subscribe([filled])
    eventually(lambda: (second.poll(0.1), second.assignment())[1])
    with pytest.raises(FencedInstance):
        first.commit()
    with pytest.raises(FencedInstance):
        first.commit()  # still, and not for want of polls
    with pytest.raises(FencedInstance):
        first.poll(1)


def test_a_topic_is_made_by_looking_it_up_only_where_that_is_asked_for(
    own_broker: Callable[..., Any], topic: str
) -> None:
    broker = own_broker(auto_create_topics_enable="true")
    with Consumer(broker.bootstrap, default_api_timeout_ms=500) as one, pytest.raises(RequestTimedOut):
        one.partitions_for(topic)
    with Consumer(broker.bootstrap, allow_auto_create_topics=True) as one:
        assert eventually(lambda: one.partitions_for(topic)) == [TopicPartition(topic, n) for n in range(4)]


@pytest.mark.claim(53, 71)
@pytest.mark.parametrize(("settings", "told"), [
    ({"auto.offset.rest": "earliest"}, "auto.offset.reset"), ({"auto_offset_reset": "soon"}, "by_duration"),
    ({"max_poll_records": 0}, "max_poll_records"), ({"heartbeat_interval_ms": 45_000}, "session_timeout_ms"),
    ({"isolation_level": "x"}, "read_committed"), ({"enable_auto_commit": "yes"}, "true or false"),
    ({"partition_assignment_strategy": "rnge"}, "roundrobin"), ({"columns": ("key",)}, "offset"),
    ({"group_instance_id": "i"}, "group_id"), ({"max_poll_records": "many"}, "whole number"),
    ({"key.deserializer": "org…"}, "key.deserializer: keys are returned"), ({"sasl.mechanism": "PLAIN"}, "PLAINTEXT"),
    ({"security_protocol": "SSL"}, "only PLAINTEXT is supported: leave it out"),
])  # fmt: skip
def test_ill_settings_name_the_remedy(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Consumer({"bootstrap.servers": "127.0.0.1:1"} | settings)
