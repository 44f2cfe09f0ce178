"""Failures in a shard of groups: every request gets a reply, and the order of work is kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from support.group_harness import GroupHarness
from support.world import START_MS
from support.world_log import WorldLog, reload

from odradek.core.effects import CancelTimer, Complete, Effect, Result, ResultSteps, SetTimer, SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.messages import Heartbeat, OffsetCommit, OffsetFetch, SyncGroup, TopicCommit
from odradek.groups.shard import GroupShard

OK, NOT_COORDINATOR = ErrorCode.none, ErrorCode.not_coordinator


def make_harness(**kinds: Any) -> GroupHarness:
    made = GroupHarness(partition_count=1, **kinds)
    made.catalog.add("t")
    return made


@pytest.fixture
def harness() -> GroupHarness:
    return make_harness()


# --- a rebuilt shard that runs steps ----------------------------------------------------------------------------


@pytest.fixture
def asked() -> tuple[GroupHarness, list[str]]:
    """A harness, and the kind of each call to its shard, or ``open`` for a call while the shard runs steps. A loaded
    shard begins with steps."""
    asked: list[str] = []

    class SteppingShard(GroupShard):
        in_steps = False

        def on_loaded(self, now_ms: int) -> ResultSteps:
            super().on_loaded(now_ms)
            self.in_steps = True
            yield None
            self.in_steps = False
            return Result()

        def handle(self, now_ms: int, request: Any) -> Any:
            asked.append("open" if self.in_steps else type(request).__name__)
            return super().handle(now_ms, request)

        def on_event(self, now_ms: int, event: object) -> Result:
            asked.append("open" if self.in_steps else "topics")
            return Result()

    return make_harness(shard_type=SteppingShard), asked


def _commit_that_fails(harness: GroupHarness) -> Any:
    """Submits a commit whose append to the log will fail."""
    harness.partitions[0].fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
    return harness.runtime.submit(0, OffsetCommit("g", topics=[TopicCommit("t", None, [(0, 1, -1, None)])]))


def test_a_request_after_a_failed_append_waits_for_the_steps_of_the_rebuilt_shard(
    asked: tuple[GroupHarness, list[str]],
) -> None:
    harness, calls = asked
    commit = _commit_that_fails(harness)
    fetch = harness.submit(9, 5, {"group_id": "g", "topics": None})
    harness.world.settle()
    assert commit.value.error is ErrorCode.not_coordinator
    assert fetch.answered
    assert calls
    assert "open" not in calls


def test_an_event_after_a_failed_append_waits_for_the_steps_of_the_rebuilt_shard(
    asked: tuple[GroupHarness, list[str]],
) -> None:
    harness, calls = asked
    _commit_that_fails(harness)
    harness.runtime.on_topics_deleted(["u"])
    harness.world.settle()
    assert calls[-1] == "topics"
    assert "open" not in calls


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
    before: Effect | None, rings: list[int]
) -> None:
    rang: list[int] = []

    class RingingShard(GroupShard):
        def on_timer(self, now_ms: int, key: Hashable) -> Result:
            rang.append(now_ms - START_MS)
            return Result()

    harness = make_harness(shard_type=RingingShard)

    def in_steps(shard: GroupShard, now_ms: int) -> ResultSteps:
        while harness.world.now_ms < START_MS + 200:
            yield None
        return Result(effects=[] if before is None else [before])

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


class FailingAssignments(dict[str, bytes]):
    """Assignments of two members. The shard reads each one for the record, and then each one for the member's reply.
    The last of these four reads raises."""

    reads = 0

    def get(self, member: str, default: Any = None) -> Any:
        self.reads += 1
        if self.reads == 4:  # one member already has its reply
            raise ZeroDivisionError
        return super().get(member, default)


def test_a_failure_within_an_assignment_leaves_no_member_without_an_answer(harness: GroupHarness) -> None:
    first, second, generation, waiting = _group_that_waits_for_its_assignment(harness)
    assignments = FailingAssignments({first: b"x", second: b"y"})
    leader = harness.runtime.submit(0, SyncGroup("g", first, generation, assignments, None, "consumer", "range"))
    harness.world.settle()
    assert assignments.reads == 4
    assert leader.resolved
    assert waiting.answered
    assert {leader.value.error, waiting.reply.error_code} <= {ErrorCode.unknown_server_error, NOT_COORDINATOR}
    assert harness.generation("g") == generation - 1, "an assignment that is not in the log is not valid"
    assert harness.heartbeat("g", second, generation - 1) is OK


def test_a_timer_that_raises_leaves_no_member_without_an_answer() -> None:
    """The timer has answered the waiting member before it raises: the shard has this answer, and the driver not."""
    is_failing = False

    class FailingShard(GroupShard):
        def on_timer(self, now_ms: int, key: Hashable) -> Result | ResultSteps:
            out = super().on_timer(now_ms, key)
            if is_failing:
                assert isinstance(out, Result)
                assert any(isinstance(effect, Complete) for effect in out.effects)
                raise ZeroDivisionError
            return out

    harness = make_harness(shard_type=FailingShard)
    harness.stable("g")
    waiting = harness.join("g", harness.member("g"))
    is_failing = True
    harness.advance(10_000)  # the member that does not join again is removed
    assert waiting.reply.error_code is NOT_COORDINATOR
    is_failing = False
    assert harness.stable("h")


def test_a_shard_that_raises_after_its_load_still_serves_requests() -> None:
    loads = 0

    class FailingShard(GroupShard):
        def on_loaded(self, now_ms: int) -> Result | ResultSteps:
            nonlocal loads
            loads += 1
            raise ZeroDivisionError

    harness = make_harness(shard_type=FailingShard)
    harness.commit("g", "t", {0: 1})
    harness.restart()
    assert loads == 2, "the first load is that of the new harness"
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
def test_a_failed_append_at_the_end_of_steps_leaves_no_request_waiting(fails: str, error: Exception) -> None:
    """The failed request, the request that waits for its steps, and later requests get replies."""
    failing = ""
    runs_steps = True

    class SteppingShard(GroupShard):
        def handle(self, now_ms: int, request: Any) -> Any:
            return _in_steps(request) if runs_steps else super().handle(now_ms, request)

    class DeletedLog(WorldLog):
        def append(self, data: bytes) -> Any:
            if failing == "append":
                raise error
            return super().append(data)

        @property
        def max_message_bytes(self) -> int:
            if failing == "max_message_bytes":
                raise error
            return self.log.config.max_message_bytes

        @property
        def high_watermark(self) -> int:
            if failing == "high_watermark":
                raise error
            return super().high_watermark

    harness = make_harness(shard_type=SteppingShard, log_type=DeletedLog)
    replies = [harness.runtime.submit(0, Heartbeat("g", "m", 1)), harness.runtime.submit(0, OffsetFetch("g"))]
    failing = fails
    harness.world.settle()
    failing, runs_steps = "", False
    harness.world.settle()
    assert all(reply.resolved for reply in replies)
    later = harness.runtime.submit(0, OffsetFetch("g"))
    harness.world.settle()
    assert later.resolved
    reload(harness.runtime, harness.partitions[0])
    assert harness.commit("g", "t", {0: 1}) == {0: OK}
