"""KIP-848 groups of many topics, partitions and members: each request is served in steps of limited size."""

from __future__ import annotations

import itertools
from types import GeneratorType, SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from counters import lines_run
from hypothesis import given, settings
from hypothesis import strategies as st
from support.consumer_harness import ConsumerHarness
from support.examples import examples
from support.group_harness import Pending

from odradek.broker.handlers import k68_consumer_group_heartbeat
from odradek.broker.loop.scheduler import Scheduler
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace
from odradek.groups.kip848 import checks as kip848_checks
from odradek.groups.kip848 import records as kip848_records
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.kip848.member import Kip848Member, Kip848MemberState
from odradek.wire import schemas
from odradek.wire.schemas import Kind

LINES_PER_STEP = 30_000
"""The allowed lines of the broker's code in one step. They take about a millisecond."""


class Steps:
    """A harness that records how many lines of code each callback runs."""

    def __init__(self, topics: int, partitions: int = 1) -> None:
        self.harness = ConsumerHarness(partition_count=1)
        for number in range(topics):
            self.harness.catalog.add(f"topic-{number:05}", partitions)
        self.lines: list[int] = []
        ticks = itertools.count()
        # The clock advances by a second whenever it is read, so the scheduler runs one step in each share.
        self.harness.scheduler = Scheduler(self.harness.process.call_soon, clock=lambda: float(next(ticks)))

    def beat(self, member: str, epoch: int, **said: Any) -> Any:
        """Returns the reply to a heartbeat. A joining member also sends its rebalance timeout and owned partitions."""
        message: dict[str, Any] = {
            "group_id": "g", "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
            "rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": None,
        }  # fmt: skip
        if epoch == 0:
            message |= {"rebalance_timeout": 60_000, "topic_partitions": []}
        packed = schemas.encode(68, 1, Kind.REQUEST, message | said)
        request, _ = schemas.decode(68, 1, Kind.REQUEST, packed)
        context: Any = SimpleNamespace(
            api_key=68, version=1, client_id="c", client_host="/h", grow_reply=lambda size: None
        )
        broker: Any = self.harness
        answers: list[Any] = []

        def begin() -> None:
            answer = k68_consumer_group_heartbeat.handle(broker, context, request)
            if isinstance(answer, GeneratorType):
                answer = self.harness.scheduler.start(answer)
            answer.then(answers.append)

        self.lines.append(lines_run(begin))
        while self.tick():
            pass
        pending = Pending(68, 1)
        pending.take(answers[0])
        return pending.reply

    def pass_time(self, by_ms: int) -> None:
        self.harness.world.now_ms += by_ms
        while self.tick():
            pass

    def tick(self) -> bool:
        if not self.harness.world.is_due:
            return False
        self.lines.append(lines_run(self.harness.world.step))
        return True

    def names(self) -> list[str]:
        return sorted(self.harness.catalog.topics)

    @property
    def group(self) -> Kip848Group:
        return self.harness.shard("g").consumer_groups["g"]


def _assigned(reply: Any) -> int:
    return sum(len(row.partitions) for row in reply.assignment.topic_partitions)


# --- the work of a request --------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_pattern", [False, True])
def test_a_member_of_many_topics_joins_in_steps(by_pattern: bool) -> None:
    steps = Steps(3000)
    said = {"subscribed_topic_regex": "topic-.*"} if by_pattern else {"subscribed_topic_names": steps.names()}
    reply = steps.beat("m", 0, **said)
    epoch = reply.member_epoch
    for _ in range(3):
        steps.pass_time(2000)
        later = steps.beat("m", epoch)
        epoch = later.member_epoch
        reply = later if later.assignment is not None else reply
    assert _assigned(reply) == 3000
    assert steps.group.state.value == "Stable"
    assert max(steps.lines) < LINES_PER_STEP


def test_members_of_a_large_group_are_assigned_in_steps() -> None:
    steps = Steps(60, 20)
    epochs: dict[str, int] = {}
    for number in range(60):
        names = steps.names()[number % 3 :]
        epochs[f"m{number}"] = steps.beat(f"m{number}", 0, subscribed_topic_names=names).member_epoch
    for _ in range(6):
        steps.pass_time(2000)
        for member, epoch in epochs.items():
            owned = [
                {"topic_id": UUID(bytes=topic_id), "partitions": [*numbers]}
                for topic_id, numbers in steps.group.members[member].assigned.items()
            ]
            epochs[member] = steps.beat(member, epoch, topic_partitions=owned).member_epoch
    assert steps.group.state.value == "Stable"
    assert sum(len(numbers) for member in steps.group.members.values() for numbers in member.assigned.values()) == 1200
    assert max(steps.lines) < LINES_PER_STEP


def test_too_many_names_are_refused_before_any_work() -> None:
    steps = Steps(1)
    names = [f"{number:x}" for number in range(kip848_checks.MAX_NAMES + 1)]
    reply = steps.beat("m", 0, subscribed_topic_names=names)
    assert reply.error_code is ErrorCode.invalid_request
    assert "10001 names" in reply.error_message
    assert max(steps.lines) < LINES_PER_STEP
    assert steps.beat("m", 0, subscribed_topic_names=names[1:]).error_code is ErrorCode.none
    assert max(steps.lines) < LINES_PER_STEP


@pytest.mark.parametrize("topics", [1, 5000])
def test_a_heartbeat_with_many_owned_partitions_is_served_in_steps(topics: int) -> None:
    steps = Steps(3)
    epoch = steps.beat("m", 0, subscribed_topic_names=steps.names()).member_epoch
    reported = [
        {"topic_id": UUID(int=1000 + number), "partitions": list(range(50_000 // topics))} for number in range(topics)
    ]
    assert steps.beat("m", epoch, topic_partitions=reported).error_code is ErrorCode.none
    assert steps.beat("m", epoch - 1, topic_partitions=reported).error_code is ErrorCode.fenced_member_epoch
    assert max(steps.lines) < LINES_PER_STEP


def test_small_heartbeats_take_one_step() -> None:
    steps = Steps(3)
    epoch = steps.beat("m", 0, subscribed_topic_names=steps.names()).member_epoch
    before = len(steps.lines)
    steps.beat("m", epoch)
    assert len(steps.lines) == before + 1


# --- what happens between two steps -----------------------------------------------------------------------------


def _between_steps(steps: Steps, message: dict[str, Any]) -> Any:
    """Begins a heartbeat with many topics, and stops between two of its steps."""
    full = {
        "group_id": "g", "instance_id": None, "rack_id": None, "rebalance_timeout": 60_000,
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    pending = steps.harness.submit(68, 1, full | message)
    for _ in range(3):
        steps.tick()
    assert not pending.answered
    return pending


def test_topics_that_change_between_two_steps_are_read_again() -> None:
    steps = Steps(2000)
    harness = steps.harness
    names = steps.names()
    pending = _between_steps(steps, {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": names})
    harness.catalog.remove(names[0])
    harness.catalog.topics[names[1]].partition_count = 4
    harness.runtime.on_topics_changed([names[0], names[1]])
    while steps.tick():
        pass
    assert pending.reply.error_code is ErrorCode.none
    epoch = pending.reply.member_epoch
    for _ in range(3):
        steps.pass_time(2000)
        epoch = steps.beat("m", epoch).member_epoch
    found = {harness.topic_name(UUID(bytes=topic_id)): len(numbers) for topic_id, numbers in
             steps.group.members["m"].assigned.items()}  # fmt: skip
    assert found == {name: 4 if name == names[1] else 1 for name in names[1:]}


def test_a_member_can_join_between_the_steps_of_another_member() -> None:
    steps = Steps(1500)
    first = _between_steps(steps, {"member_id": "m", "member_epoch": 0, "subscribed_topic_names": steps.names()})
    second = _between_steps(steps, {"member_id": "n", "member_epoch": 0, "subscribed_topic_names": steps.names()})
    while steps.tick():
        pass
    assert (first.reply.error_code, second.reply.error_code) == (ErrorCode.none, ErrorCode.none)
    assert set(steps.group.members) == {"m", "n"}


# --- records ----------------------------------------------------------------------------------------------------

ids = st.integers(1, 2**128 - 1).map(lambda number: number.to_bytes(16, "big"))
numbers = st.frozensets(st.integers(0, 2**31 - 1), max_size=30)
owned = st.dictionaries(ids, st.dictionaries(st.integers(0, 10_000), st.integers(0, 2**31 - 1), max_size=8), max_size=8)
members = st.builds(
    lambda **fields: Kip848Member("m", **fields),
    epoch=st.integers(0, 1000),
    previous_epoch=st.integers(-1, 1000),
    state=st.sampled_from([Kip848MemberState.STABLE, Kip848MemberState.UNREVOKED_PARTITIONS]),
    topics=st.frozensets(st.text(st.characters(codec="utf-8"), max_size=200), max_size=20),
    pattern=st.sampled_from(["", "a.*"]),
    assigned=owned,
    to_revoke=owned,
)


@given(who=members, target=st.dictionaries(ids, numbers, max_size=20))
@settings(max_examples=examples(40))
def test_records_made_in_steps_equal_those_made_at_once(who: Kip848Member, target: dict[bytes, frozenset[int]]) -> None:
    at_once = [
        kip848_records.member("g", who),
        kip848_records.target_member("g", "m", target),
        kip848_records.current("g", who),
    ]
    in_steps = [
        result_of(kip848_records.member_in_steps("g", who, Pace(), few=-1)),
        result_of(kip848_records.target_member_in_steps("g", "m", target, Pace(), few=-1)),
        result_of(kip848_records.current_in_steps("g", who, Pace(), few=-1)),
    ]
    assert [(record.key, record.value) for record in in_steps] == [(record.key, record.value) for record in at_once]
    lived, read = ConsumerHarness(partition_count=1).shard("g"), ConsumerHarness(partition_count=1).shard("g")
    for one, other in zip(in_steps, at_once, strict=True):
        lived.replay(0, one)
        read.replay(0, other)
    assert lived.durable_state() == read.durable_state()
    assert lived.consumer_groups["g"].owners == read.consumer_groups["g"].owners
    assert lived.consumer_groups["g"].subscriptions.names == read.consumer_groups["g"].subscriptions.names
    assert list(lived.consumer_groups["g"].targets["m"]) == list(read.consumer_groups["g"].targets["m"])


def test_long_replies_are_encoded_like_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def replies() -> list[Any]:
        steps = Steps(7, 3)
        steps.harness.uuids = iter(range(1, 1000))
        joined = steps.beat("m", 0, subscribed_topic_names=steps.names())
        return [joined, steps.beat("m", joined.member_epoch)]

    at_once = replies()
    monkeypatch.setattr(k68_consumer_group_heartbeat, "AT_ONCE", 2)
    assert replies() == at_once
    assert _assigned(at_once[0]) == 21
