"""Invalid arguments and settings raise at once, and the error names them. Interrupted calls leave no coroutine.

Also: custom assignors, values of numpy, and what a poll does before it waits.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.brokers import eventually
from support.insides import engine_of

from odradek import aio
from odradek.client import (
    Admin,
    Assignor,
    NewTopic,
    OffsetAndMetadata,
    TopicPartition,
    loop,
)
from odradek.client.arguments import (
    as_offset,
    as_offsets,
    as_partition,
    as_seek_target,
    as_times,
    check_timeout,
    chosen_partition,
)
from odradek.client.config import as_config
from odradek.client.consumer import Consumer
from odradek.client.consumer.records import Record
from odradek.client.group.assignors import Assignments, CooperativeStickyAssignor, RangeAssignor, make_assignors
from odradek.client.group.config import reset_timestamp
from odradek.client.model import ListedOffset
from odradek.client.producer import Producer
from odradek.codecs.consumer_protocol import Subscription
from odradek.core.errors import ConfigError

Make = Callable[..., Consumer]
TP = TopicPartition("t", 0)


@pytest.fixture
def consumer(bootstrap: str, group: str) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        given = {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
        made.append(Consumer(given | settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


WRONG: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda c: c.assign("t"), TypeError, "several TopicPartitions, as a list, not 't'"),
    (lambda c: c.assign(TP), TypeError, "several TopicPartitions, as a list, not TopicPartition"),
    (lambda c: c.assign(["t"]), TypeError, "a TopicPartition, a topic and a number, not 't'"),
    (lambda c: c.assign([("t", "0")]), TypeError, "a topic and a number, not"),
    (lambda c: c.assign([("t", -1)]), ValueError, "partition -1 of t: a partition's number is at least 0"),
    (lambda c: c.assign(None), TypeError, "several TopicPartitions"),
    (lambda c: c.position("t"), TypeError, "a topic and a number, not 't'"),
    (lambda c: c.seek(TP, "3"), TypeError, "offset of t-0: expected a whole number or OffsetAndMetadata, not '3'"),
    (
        lambda c: c.seek(TP, 3, "1"),
        TypeError,
        r"is the leader epoch, not '1': give",
    ),
    (lambda c: c.seek(TP, 3.0), TypeError, "offset of t-0"),
    (lambda c: c.seek(TP, -3), ValueError, "offset -3 for t-0: an offset is at least 0"),
    (lambda c: c.seek(TP, True), TypeError, "offset of t-0"),
    (lambda c: c.seek_to_end(TP), TypeError, "several TopicPartitions"),
    (lambda c: c.committed(TP), TypeError, "several TopicPartitions"),
    (lambda c: c.end_offsets("t"), TypeError, "several TopicPartitions"),
    (lambda c: c.offsets_for_times([TP]), TypeError, "times: expected a mapping of partitions to ms since 1970"),
    (lambda c: c.offsets_for_times({TP: -7}), ValueError, "time -7 for t-0: expected ms since 1970, at least 0"),
    (lambda c: c.offsets_for_times({TP: 1.5}), TypeError, "time for t-0: expected ms since 1970 as a whole number"),
    (lambda c: c.commit([TP]), TypeError, "offsets: expected a mapping of partitions to offsets"),
    (lambda c: c.commit(Record("t", 0, 3, 0, 0, None, b"")), TypeError, r"not Record\(.*\): give its next_offsets$"),
    (lambda c: c.commit({TP: 3.5}), TypeError, "offset of t-0: expected a whole number or OffsetAndMetadata, not 3.5"),
    (lambda c: c.commit({TP: True}), TypeError, "not True"),
    (lambda c: c.commit({TP: None}), TypeError, "not None"),
    (lambda c: c.commit({TP: 1 << 63}), ValueError, r"at least 0 and below 2\*\*63"),
    (lambda c: c.commit({TP: OffsetAndMetadata(3, -1, 5)}), TypeError, "metadata of t-0: expected text, not 5"),  # type: ignore[arg-type]
    (lambda c: c.commit_async({TP: 3}, "done"), TypeError, "callback: expected a function, not 'done'"),
    (lambda c: c.subscribe(["t"], on_revoked=3), TypeError, "on_revoked: expected a function, not 3"),
    (lambda c: c.subscribe(5), TypeError, "topics: expected names, or a compiled pattern, not 5"),
    (lambda c: c.subscribe(pattern="("), ValueError, r"pattern '\(': missing \), unterminated subpattern"),
    (lambda c: c.poll(None), TypeError, "timeout: expected seconds, not None"),
    (lambda c: c.poll("1"), TypeError, "timeout: expected seconds, not '1'"),
    (lambda c: c.poll(-1), ValueError, "timeout: expected seconds, at least 0, not -1"),
    (lambda c: c.poll(float("nan")), ValueError, "timeout: expected seconds, at least 0, not nan"),
]


@pytest.mark.parametrize(("call", "kind", "message"), WRONG, ids=[case[2][:40] for case in WRONG])
def test_a_consumer_names_the_invalid_argument(
    consumer: Make, call: Callable[[Any], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(consumer())


def test_the_async_consumer_raises_the_same_errors(bootstrap: str, group: str) -> None:
    async def all_of_them() -> None:
        async with aio.Consumer({"bootstrap.servers": bootstrap, "group.id": group}) as one:
            for call, kind, message in WRONG:
                with pytest.raises(kind, match=message):
                    await call(one)  # type: ignore[misc]

    asyncio.run(all_of_them())


def test_offsets_may_be_given_as_numbers_or_pairs_or_without_metadata() -> None:
    given: Any = {("t", 0): 4, TopicPartition("t", 1): (5, 2), ("t", 2): OffsetAndMetadata(6, 3, None)}  # type: ignore[arg-type]
    assert list(as_offsets(given).items()) == [
        (TP, OffsetAndMetadata(4)),
        (TopicPartition("t", 1), OffsetAndMetadata(5, 2)),
        (TopicPartition("t", 2), OffsetAndMetadata(6, 3, "")),
    ]


def test_the_result_of_a_lookup_by_time_is_an_offset(bootstrap: str, filled: str, group: str, admin: Admin) -> None:
    """It has a leader epoch of its own, which a seek and a commit keep."""
    tp = TopicPartition(filled, 0)
    with Consumer({"bootstrap_servers": bootstrap, "group_id": group}) as reader:
        reader.assign([tp])
        found = reader.offsets_for_times({tp: 1_700_000_000_003})[tp]
        assert found is not None
        assert (found.offset, found.leader_epoch) == (3, 0)
        reader.seek(tp, found)
        assert reader.position(tp) == 3
        reader.commit({tp: found})
    assert admin.list_group_offsets(group)[tp] == OffsetAndMetadata(3, 0)
    assert as_seek_target(found, -1, tp) == OffsetAndMetadata(3, 0)
    with pytest.raises(ValueError, match="offset -1 for t-0: an offset is at least 0"):
        as_offset(ListedOffset(), TP)


def test_a_time_below_0_without_a_meaning_is_refused(admin: Admin, filled: str) -> None:
    with pytest.raises(ValueError, match="time -9: expected ms since 1970, or EARLIEST"):
        admin.list_offsets({TopicPartition(filled, 0): -9})


@pytest.mark.parametrize("call", [
    lambda a: a.delete_topics("abc"), lambda a: a.describe_topics("abc"), lambda a: a.delete_groups("abc"),
    lambda a: a.describe_groups("abc"), lambda a: a.list_groups(states="Stable"), lambda a: a.delete_topics([b"abc"]),
    lambda a: a.describe_configs("topic", "abc"), lambda a: a.delete_groups(5),
])  # fmt: skip
def test_a_string_is_not_taken_for_a_list_of_names(admin: Admin, call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=r"expected (several names, as a list|a name), not"):
        call(admin)


def test_an_admin_names_the_invalid_argument(admin: Admin, topic: str, group: str) -> None:
    wrong: Any
    for wrong in (topic, [topic]):
        with pytest.raises(TypeError, match="expected a list of NewTopic"):
            admin.create_topics(wrong)
    with pytest.raises(ValueError, match=r"offset -1 for .*: an offset is at least 0"):
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(-1)})
    with pytest.raises(TypeError, match="several TopicPartitions"):
        admin.delete_group_offsets(group, topic)  # type: ignore[arg-type]
    with Producer(admin.config) as producer, pytest.raises(TypeError, match="topic: expected a name, not 5"):
        producer.send(5, b"v")  # type: ignore[arg-type]


def test_settings_may_be_numbers_or_booleans_and_offsets_plain_numbers(admin: Admin, topic: str, group: str) -> None:
    configs: Any = {"retention.ms": 77_000, "preallocate": True}
    admin.create_topics([NewTopic(topic, 1, 1, configs)])
    admin.alter_topic_configs(topic, {"segment.bytes": 2_000_000})  # type: ignore[dict-item]
    found = {entry.name: entry.value for entry in admin.describe_topic_configs([topic])[topic]}
    assert (found["retention.ms"], found["preallocate"], found["segment.bytes"]) == ("77000", "true", "2000000")
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 3})
    assert admin.list_group_offsets(group) == {TopicPartition(topic, 0): OffsetAndMetadata(3)}


def test_an_interrupt_before_a_call_leaves_no_coroutine(
    consumer: Make, filled: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    one = consumer()
    one.assign(one.partitions_for(filled))

    def interrupted() -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "client_loop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.commit()
    gc.collect()
    assert [str(warning.message) for warning in recwarn if "never awaited" in str(warning.message)] == []
    assert one.poll(20).num_rows > 0


# --- settings -------------------------------------------------------------------------------------------------------


def test_every_client_accepts_settings_in_every_form() -> None:
    for given in ("h:1,i:2", ["h:1", "i:2"], {"bootstrap.servers": "h:1,i:2"}, {"bootstrap_servers": ["h:1", "i:2"]}):
        for made in (as_config(given), Consumer(given).config, Producer(given).config, Admin(given).config):
            assert made.bootstrap_servers == "h:1,i:2"
    with pytest.raises(ConfigError, match="client_id is set twice"):
        as_config({"bootstrap.servers": "h:1", "client.id": "a"}, client_id="b")


@pytest.mark.parametrize(("setting", "message"), [
    ("reconnect.backoff.ms", "retry_backoff_ms and retry_backoff_max_ms apply to connections"),
    ("client_dns_lookup", "leave it out"), ("receive.buffer.bytes", "leave it out"),
    ("enable.metrics.push", "leave it out"), ("connections.max.idle.ms", "stay open"),
    ("fetch.min.byte", r"did you mean fetch\.min\.bytes\?"), ("fetch_min_byte", r"did you mean fetch_min_bytes\?"),
])  # fmt: skip
def test_an_unsupported_setting_is_refused_with_the_reason(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Consumer({"bootstrap.servers": "h:1", setting: "1"})


@pytest.mark.parametrize(("setting", "message"), [
    ("partitioner.class", "that of Java's default"), ("compression.zstd.level", "compression level cannot be set"),
    ("linger.m", r"unknown setting linger\.m; did you mean linger\.ms\?"), ("linger.ms", "linger.ms: expected a whole"),
])  # fmt: skip
def test_errors_name_a_producer_s_settings_as_the_caller_wrote_them(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Producer({"bootstrap.servers": "h:1", setting: "soon"})


@pytest.mark.claim(53, part=True)
@pytest.mark.parametrize(("policy", "back_ms"), [
    ("by_duration:P1D", 86_400_000), ("by_duration:p1dt1h", 90_000_000), ("by_duration:PT0S", 0),
    ("by_duration:+PT1,5S", 1_500), ("by_duration:PT1.S", 1_000), ("by_duration:P99999999999D", 10**15),
])  # fmt: skip
def test_durations_have_the_format_of_java(policy: str, back_ms: int) -> None:
    now_ms = 10**12
    assert reset_timestamp(policy, now_ms) == max(0, now_ms - back_ms)


@pytest.mark.claim(53, part=True)
@pytest.mark.parametrize("policy", ["", "P", "PT", "1h", "P1W", "P1DT", "PT1H1H", "-PT1H", "PT-1H"])
def test_invalid_durations_are_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match="auto_offset_reset"):
        reset_timestamp(f"by_duration:{policy}", 10**12)


# --- assignors ------------------------------------------------------------------------------------------------------


def test_assignors_are_found_by_their_java_names_too() -> None:
    package = "org.apache.kafka.clients.consumer."
    made = make_assignors(f"{package}RangeAssignor, {package}CooperativeStickyAssignor")
    assert [type(one) for one in made] == [RangeAssignor, CooperativeStickyAssignor]
    with pytest.raises(ConfigError, match="5 is neither a name nor an Assignor"):
        make_assignors(5)  # type: ignore[arg-type]


class Odd(Assignor):
    """An assignor that returns the assignment that the test has given it."""

    name = "odd"

    def __init__(self, assignment: Callable[[list[str]], Any], user_data: Any = b"") -> None:
        self._assignment, self._user_data = assignment, user_data

    def user_data(self, topics: object) -> bytes:
        return self._user_data  # type: ignore[no-any-return]  # the test passes it in

    def assign(self, members: Any, partition_counts: Any) -> Assignments:
        return self._assignment(sorted(members))  # type: ignore[no-any-return]  # the test passes it in


ASSIGNMENTS: list[tuple[Callable[[list[str]], Any], type[Exception], str]] = [
    (lambda members: None, TypeError, r"assignor odd: assign\(\) must return a mapping of member ids"),
    (lambda members: {members[0]: ["t"]}, TypeError, "its assignment for .*: expected a TopicPartition"),
    (lambda members: {members[0]: 3}, TypeError, "its assignment for .*: expected several TopicPartitions"),
    (lambda members: {"stranger": []}, ValueError, "its assignment has 'stranger', which is not a member"),
    (lambda members: {members[0]: [TP, TP]}, ValueError, "its assignment gives t-0 to "),
    (lambda members: 1 // 0, ZeroDivisionError, "by zero"),
]


@pytest.mark.claim(59, part=True)
@pytest.mark.parametrize(("assignment", "kind", "message"), ASSIGNMENTS)
def test_an_invalid_assignment_is_raised_by_the_poll(
    consumer: Make, filled: str, assignment: Callable[[list[str]], Any], kind: type[Exception], message: str
) -> None:
    one = consumer(partition_assignment_strategy=Odd(assignment))
    one.subscribe([filled])
    with pytest.raises(kind, match=message):
        one.poll(20)


def test_user_data_of_the_wrong_kind_is_raised_by_the_poll(consumer: Make, filled: str) -> None:
    one = consumer(partition_assignment_strategy=Odd(lambda members: {}, "text"))
    one.subscribe([filled])
    with pytest.raises(TypeError, match=r"assignor odd: user_data\(\) must return bytes, not 'text'"):
        one.poll(20)


class Weighted(Assignor):
    """Gives each member partitions in proportion to its weight, which is its user data. Returns plain tuples."""

    name = "weighted"

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.given: list[int] = []

    def user_data(self, topics: object) -> bytes:
        return bytes([self.weight])

    def on_assigned(self, partitions: Any, generation: int) -> None:
        self.given.append(len(partitions))

    def assign(self, members: Any, partition_counts: Any) -> Any:
        weighed: list[tuple[str, Subscription]] = sorted(members.items())
        slots = [member_id for member_id, one in weighed for _ in range(one.user_data[0])]
        assignment: dict[str, list[tuple[str, int]]] = {}
        for topic, count in partition_counts.items():
            for number in range(count):
                assignment.setdefault(slots[number % len(slots)], []).append((topic, number))
        return assignment


def test_a_custom_assignor_distributes_by_weight(consumer: Make, admin: Admin, topic: str, group: str) -> None:
    admin.create_topics([NewTopic(topic, 8, 1)])
    weights = [Weighted(3), Weighted(1)]
    members = [consumer(partition_assignment_strategy=[one], heartbeat_interval_ms=100) for one in weights]
    for one in members:
        one.subscribe([topic])

    def shares() -> list[int]:
        for one in members:
            one.poll(0.1)
        return [len(one.assignment()) for one in members]

    eventually(lambda: sorted(shares()) == [2, 6])
    assert shares() == [6, 2], "in proportion to the weights"
    assert admin.describe_groups([group])[group].protocol == "weighted"
    members[0].close()
    del members[0]
    eventually(lambda: shares() == [8])
    assert (weights[0].given[-1], weights[1].given[-1]) == (6, 8)


def test_a_seek_keeps_the_epoch_of_its_tuple() -> None:
    tp = TopicPartition("t", 0)
    assert as_seek_target(5, 7, tp) == as_seek_target((5,), 7, tp) == OffsetAndMetadata(5, 7)
    assert as_seek_target((5, 2), 7, tp) == as_seek_target(OffsetAndMetadata(5, 2), 7, tp) == OffsetAndMetadata(5, 2)


def test_numpy_numbers_are_accepted() -> None:
    """A value of a column, such as its maximum, has a numpy type."""
    tp = as_partition(("t", np.int64(3)))
    assert (tp, type(tp.partition)) == (TopicPartition("t", 3), int)
    placed = as_offset(np.int64(5), tp)
    assert (placed.offset, type(placed.offset)) == (5, int)
    assert type(as_offset(OffsetAndMetadata(np.uint32(7)), tp).offset) is int  # type: ignore[arg-type]  # from a column
    assert as_times({tp: np.int64(9)}) == {tp: 9}
    assert check_timeout(np.float32(0.5)) == 0.5
    assert chosen_partition("t", np.int32(1), 2) == 1  # type: ignore[arg-type]  # from a column
    for wrong in (np.float64(1.0), np.bool_(True), "1", None):
        with pytest.raises(TypeError):
            as_offset(wrong, tp)


def test_a_numpy_timestamp_is_sent(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer:
        when, where = np.int64(1_700_000_000_123), np.int64(0)
        producer.send(topic, b"v", timestamp=when, partition=where)  # type: ignore[arg-type]  # from a column
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert next(iter(consumer)).timestamp_ms == 1_700_000_000_123


def test_the_poll_interval_begins_again_before_a_poll_waits(
    consumer: Make, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll restarts the time of max_poll_interval_ms before it waits."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    one = consumer()
    one.assign([TopicPartition(topic, 0)])
    one.position(TopicPartition(topic, 0))
    one.poll(0.0)
    engine, order = engine_of(one), []
    note_poll, wait_in_thread = engine.group.note_poll, engine.wait_in_thread
    monkeypatch.setattr(engine.group, "note_poll", lambda: (order.append("polled"), note_poll())[1])
    monkeypatch.setattr(engine, "wait_in_thread", lambda timeout: (order.append("waits"), wait_in_thread(timeout))[1])
    one.poll(0.2)
    assert order[:2] == ["polled", "waits"]


def test_a_resumed_or_added_partition_is_fetched_at_once(consumer: Make, admin: Admin, topic: str) -> None:
    """The consumer does not wait for the reply to the fetch in flight: the broker may hold that fetch for long."""
    admin.create_topics([NewTopic(topic, 2, 1)])
    one = consumer(fetch_max_wait_ms=60_000)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    one.assign([first])
    one.position(first)
    one.poll(0.1)
    scheduled = threading.Event()
    schedule_fetches = engine_of(one).fetcher.schedule_fetches
    # Notes each call.
    engine_of(one).fetcher.schedule_fetches = lambda: (scheduled.set(), schedule_fetches())[1]  # type: ignore[method-assign]
    one.pause([first])
    assert not scheduled.is_set()
    one.resume([first])
    assert scheduled.wait(30)
    scheduled.clear()
    one.assign([first, second])
    assert scheduled.wait(30)


def test_time_limits_of_calls_are_in_seconds_and_the_old_name_warns(bootstrap: str) -> None:
    one = Consumer(bootstrap, group_id=f"limits-{uuid.uuid4().hex[:8]}", enable_auto_commit=False)
    one.assign([TP])
    one.seek(TP, 3)
    assert one.position(TP, timeout=2.5) == 3
    with pytest.warns(DeprecationWarning, match="timeout_ms is now timeout, in seconds") as warned:
        assert one.position(TP, timeout_ms=2_500) == 3
    assert warned[0].filename == __file__
    with pytest.raises(TypeError, match="timeout and timeout_ms are both set"):
        one.commit({TP: 3}, timeout=1, timeout_ms=1)
    with pytest.raises(ValueError, match="expected seconds, at least 0"):
        one.close(timeout=-1)
    with pytest.raises(TypeError):
        one.commit({TP: 3}, 5_000)  # type: ignore[call-arg]  # an old call in ms is not read as seconds
    with pytest.warns(DeprecationWarning, match="in seconds") as warned:
        one.close(timeout_ms=20_000)
    assert warned[0].filename == __file__


def test_a_generator_may_call_the_client_that_reads_it(consumer: Make, admin: Admin, topic: str) -> None:
    """It runs on the thread of the caller: on that of the client's loop, its calls would wait for ever."""
    admin.create_topics(NewTopic(name, 2, 1) for name in (topic, f"{topic}-2") if name not in admin.topics())  # type: ignore[arg-type]
    one = consumer(enable_auto_commit=False)
    one.assign(one.partitions_for(topic))
    one.seek_to_end(tp for tp in one.assignment() if one.position(tp) == 0)
    assert one.committed(partitions=(tp for tp in one.assignment() if one.position(tp) == 0)) == dict.fromkeys(
        one.assignment()
    )
    admin.delete_topics(name for name in (topic, f"{topic}-2") if admin.partitions(name))  # type: ignore[arg-type]
    assert topic not in admin.topics()
