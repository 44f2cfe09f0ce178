"""Failures in a shard of groups: every request gets a reply, and the order of work is kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from support.group_harness import GroupHarness
from support.world import START_MS
from support.world_log import WorldLog, reload

from odradek.core.effects import CancelTimer, Effect, Result, ResultSteps, SetTimer, SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.classic import ClassicGroup
from odradek.groups.classic_protocol import Membership
from odradek.groups.messages import Heartbeat, OffsetCommit, OffsetFetch, TopicCommit
from odradek.groups.shard import GroupShard

OK, NOT_COORDINATOR = ErrorCode.none, ErrorCode.not_coordinator


@pytest.fixture
def harness() -> GroupHarness:
    made = GroupHarness(partition_count=1)
    made.catalog.add("t")
    return made


# --- a rebuilt shard that runs steps ----------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the kind of each call to the shard, or ``open`` while the shard runs steps. A loaded shard begins with
    steps."""
    asked: list[str] = []
    under_way: set[GroupShard] = set()
    handle, on_loaded = GroupShard.handle, GroupShard.on_loaded

    def loaded(self: GroupShard, now_ms: int) -> ResultSteps:
        on_loaded(self, now_ms)
        under_way.add(self)
        yield None
        under_way.discard(self)
        return Result()

    def handled(self: GroupShard, now_ms: int, request: Any) -> Any:
        asked.append("open" if self in under_way else type(request).__name__)
        return handle(self, now_ms, request)

    def deleted(self: GroupShard, now_ms: int, event: object) -> Result:
        asked.append("open" if self in under_way else "topics")
        return Result()

    monkeypatch.setattr(GroupShard, "on_loaded", loaded)
    monkeypatch.setattr(GroupShard, "handle", handled)
    monkeypatch.setattr(GroupShard, "on_event", deleted)
    return asked


def _commit_that_fails(harness: GroupHarness) -> Any:
    """Submits a commit whose append to the log will fail."""
    harness.partitions[0].fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
    return harness.runtime.submit(0, OffsetCommit("g", topics=[TopicCommit("t", None, [(0, 1, -1, None)])]))


def test_a_request_after_a_failed_append_waits_for_the_steps_of_the_rebuilt_shard(
    harness: GroupHarness, asked: list[str]
) -> None:
    commit = _commit_that_fails(harness)
    fetch = harness.submit(9, 5, {"group_id": "g", "topics": None})
    harness.world.settle()
    assert commit.value.error is ErrorCode.not_coordinator
    assert fetch.answered
    assert "open" not in asked


def test_an_event_after_a_failed_append_waits_for_the_steps_of_the_rebuilt_shard(
    harness: GroupHarness, asked: list[str]
) -> None:
    _commit_that_fails(harness)
    harness.runtime.on_topics_deleted(["u"])
    harness.world.settle()
    assert asked[-1] == "topics"
    assert "open" not in asked


# --- timers that are due while the shard runs steps -------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "rings"),
    [
        (None, [200]),
        (CancelTimer("key"), []),
        (SetTimer("key", START_MS + 500), [500]),
    ],
)
def test_a_timer_that_is_due_during_steps_may_still_be_cancelled_or_set(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch, before: Effect | None, rings: list[int]
) -> None:
    rang: list[int] = []

    def on_timer(self: GroupShard, now_ms: int, key: Hashable) -> Result:
        rang.append(now_ms - START_MS)
        return Result()

    def in_steps(shard: GroupShard, now_ms: int) -> ResultSteps:
        while harness.world.now_ms < START_MS + 200:
            yield None
        return Result(effects=[] if before is None else [before])

    monkeypatch.setattr(GroupShard, "on_timer", on_timer)
    driver = harness.runtime.drivers[0]
    driver.step(lambda shard, now_ms: Result(effects=[SetTimer("key", START_MS + 100)]))
    driver.step(in_steps)
    harness.world.now_ms += 100
    harness.runtime.timers.run_due()
    assert not rang
    harness.world.now_ms += 100
    harness.advance(1000)
    assert rang == rings
    assert "key" not in driver.timers


# --- a shard that raises ----------------------------------------------------------------------------------------


def _group_that_waits_for_its_assignment(harness: GroupHarness) -> tuple[str, str, int, Any]:
    """A group whose second member waits in SyncGroup. Returns the leader, the other member, the generation and the
    waiting request."""
    first, second = harness.stable("g", 2)
    joins = [harness.join("g", member) for member in (first, second)]
    generation = joins[0].reply.generation_id
    return first, second, generation, harness.sync("g", second, generation)


def test_a_failure_within_an_assignment_leaves_no_member_without_an_answer(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, generation, waiting = _group_that_waits_for_its_assignment(harness)
    renew, calls = Membership._renew, 0

    def failing(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # one member already has its reply
            raise ZeroDivisionError
        renew(*args)

    monkeypatch.setattr(Membership, "_renew", failing)
    leader = harness.sync("g", first, generation, {first: b"x", second: b"y"})
    monkeypatch.undo()
    harness.world.settle()
    assert leader.answered
    assert waiting.answered
    assert {leader.reply.error_code, waiting.reply.error_code} <= {ErrorCode.unknown_server_error, NOT_COORDINATOR}
    assert harness.generation("g") == generation - 1, "an assignment that is not in the log is not valid"
    assert harness.heartbeat("g", second, generation - 1) is OK


def test_a_timer_that_raises_leaves_no_member_without_an_answer(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.stable("g")
    waiting = harness.join("g", harness.member("g"))

    def failing(*args: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(ClassicGroup, "joined_members", failing)
    harness.advance(10_000)  # the member that does not join again is removed
    assert waiting.reply.error_code is NOT_COORDINATOR
    monkeypatch.undo()
    assert harness.stable("h")


def test_a_shard_that_raises_after_its_load_still_serves_requests(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.commit("g", "t", {0: 1})
    loads = 0

    def failing(*args: Any) -> Any:
        nonlocal loads
        loads += 1
        raise ZeroDivisionError

    monkeypatch.setattr(GroupShard, "on_loaded", failing)
    harness.restart()
    assert loads == 1
    assert harness.offset("g", "t", 0) == 1


# --- a log that was deleted -------------------------------------------------------------------------------------


def _in_steps(request: Any) -> ResultSteps:
    yield None
    return Result(request.error_reply(OK), [SimpleRecord(b"key", b"value")])


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("max_message_bytes", KafkaError(ErrorCode.unknown_topic_or_partition)),
        ("max_message_bytes", ZeroDivisionError()),
        ("append", KafkaError(ErrorCode.unknown_topic_or_partition)),
        ("append", ZeroDivisionError()),
        ("high_watermark", KafkaError(ErrorCode.unknown_topic_or_partition)),
    ],
)
def test_a_failed_append_at_the_end_of_steps_leaves_no_request_waiting(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch, fails: str, error: Exception
) -> None:
    """The failed request, the request that waits for its steps, and later requests get replies."""

    def failing(*args: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(GroupShard, "handle", lambda self, now_ms, request: _in_steps(request))
        replies = [harness.runtime.submit(0, Heartbeat("g", "m", 1)), harness.runtime.submit(0, OffsetFetch("g"))]
        patch.setattr(WorldLog, fails, failing if fails == "append" else property(failing))
        harness.world.settle()
    harness.world.settle()
    assert all(reply.resolved for reply in replies)
    later = harness.runtime.submit(0, OffsetFetch("g"))
    harness.world.settle()
    assert later.resolved
    reload(harness.runtime, harness.partitions[0])
    assert harness.commit("g", "t", {0: 1}) == {0: OK}
