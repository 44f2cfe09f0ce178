"""OffsetCommit: the memory that the fast path uses for earlier commits, and the steps that serve very long commits."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections import deque
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest
from counters import bytes_kept, lines_run
from support.group_harness import GroupHarness

from odradek.broker.front_end import commit_fast_path
from odradek.broker.front_end.commit_fast_path import CommitFastPath
from odradek.broker.handlers import k08_offset_commit
from odradek.broker.loop.scheduler import Scheduler
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import Heartbeat, OffsetCommit, OffsetCommitReply, OffsetFetch, TopicCommit
from odradek.groups.offsets import commit_plan
from odradek.groups.offsets.commit_plan import CommitPlan
from odradek.wire import frames, offset_replies, schemas
from odradek.wire.offset_replies import CommittedTopic, offset_commit_reply
from odradek.wire.schemas import Kind

MANY = 20_000
MIB = 1 << 20
LINES_PER_STEP = 25_000
"""The allowed lines of the broker's code in one step. They take about a millisecond."""


def message(
    group: str, partitions: int, *, topics: int = 1, metadata: str = "", first: int = 0, topic: str = "t"
) -> dict[str, Any]:
    rows = [
        {
            "partition_index": index,
            "committed_offset": first + index,
            "committed_leader_epoch": 0,
            "committed_metadata": metadata,
        }
        for index in range(partitions)
    ]
    names = [topic] if topics == 1 else [f"{topic}-{number}" for number in range(topics)]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": name, "topic_id": None, "partitions": rows} for name in names],
    }


def frame(asked: dict[str, Any], version: int = 9) -> bytes:
    return frames.encode_request(8, version, 1, "c", asked)[4:]


def frames_of_groups(groups: list[str], partitions: int) -> list[bytes]:
    """The same commit for each group. Only the first frame is encoded, because that takes long."""
    first = frame(message(groups[0], partitions))
    packed = [bytes([len(group) + 1]) + group.encode() for group in groups]
    assert first.count(packed[0]) == 1
    return [first.replace(packed[0], other) for other in packed]


def decoded(asked: dict[str, Any], version: int = 9) -> Any:
    packed = frame(asked, version)
    return schemas.decode(8, version, Kind.REQUEST, packed, frames.read_request_head(packed).body)[0]


class FastPath:
    """The commit plans of a broker that has topic ``t``."""

    def __init__(self) -> None:
        topic = SimpleNamespace(name="t", id=uuid.UUID(int=7), partition_count=1_000_000)
        runtime = SimpleNamespace(
            config=SimpleNamespace(offset_metadata_max_bytes=4096),
            partition_count=1,
            partition_of=lambda group: 0,
            batch_bytes=lambda index: MIB,
        )
        broker: Any = SimpleNamespace(
            catalog=SimpleNamespace(topic=lambda name: topic, topic_by_id=lambda topic_id: topic),
            groups=runtime,
            scheduler=SimpleNamespace(clock=lambda: 0.0),
            authorizer=None,
        )
        self.broker = broker
        self.fast_path = CommitFastPath(broker)
        self.take(frame(message("warm", 1)))

    def take(self, packed: bytes) -> bool:
        """Returns whether the fast path handles the commit."""
        return self.fast_path.take(deque([packed]), 1, sys.maxsize) is not None


# --- memory -----------------------------------------------------------------------------------------------------


def test_commits_are_handled_until_the_share_ends() -> None:
    path, ticks = FastPath(), itertools.count()
    packed = frame(message("g", 3))
    assert [path.take(packed) for _ in range(3)] == [False, False, True]
    path.broker.scheduler.clock = lambda: float(next(ticks))
    backlog = deque([packed] * 500)
    taken = path.fast_path.take(backlog, 1000, 3.0)
    assert taken is not None
    assert len(taken[1]) == 4 * commit_fast_path.COMMITS_PER_LOOK, (
        "the fourth read of the clock is after the end of the share"
    )
    whole = path.fast_path.take(backlog, 1000, 1000.0)
    assert whole is not None
    assert len(whole[1]) == 500


def test_long_commits_of_ten_lengths_are_neither_parsed_nor_cached() -> None:
    path = FastPath()
    sent = frames_of_groups(["g" * (5 + number) for number in range(10)], MANY)

    def attack() -> None:
        for packed in sent:
            for _ in range(3):
                assert not path.take(packed)

    assert max(lines_run(lambda packed=packed: path.take(packed)) for packed in sent) < 50
    assert bytes_kept(attack) < MIB


def test_layouts_of_many_lengths_share_one_limit() -> None:
    path = FastPath()
    sent = frames_of_groups(["g" * (5 + number) for number in range(25)], 3000)

    def attack() -> None:
        for packed in sent:
            path.take(packed)

    assert bytes_kept(attack) < 6 * MIB
    assert path.fast_path.layout_bytes <= commit_fast_path.MAX_LAYOUT_BYTES


def test_the_bytes_of_plans_are_limited_for_any_commits() -> None:
    path = FastPath()

    def attack() -> None:
        for number in range(1500):
            asked = message(f"group-{number:05}", 1, metadata=f"{number:05}" + "€" * 4000)
            for first in range(2):
                path.take(frame(asked | {"generation_id_or_member_epoch": -1 - first // 5}))

    assert bytes_kept(attack) < 26 * MIB
    limit = 2 * commit_fast_path.MAX_PLAN_BYTES + commit_fast_path.MAX_LAYOUT_BYTES
    assert path.fast_path.bytes_kept <= limit


@pytest.mark.parametrize(("partitions", "groups"), [(1, 500), (100, 40), (3000, 2)])
def test_the_estimated_bytes_of_plans_are_within_a_factor_of_two(partitions: int, groups: int) -> None:
    path = FastPath()
    sent = frames_of_groups([f"group-{number:06}" for number in range(groups)], partitions)
    before = path.fast_path.bytes_kept

    def learn() -> None:
        for packed in sent:
            assert [path.take(packed) for _ in range(3)] == [False, False, True]

    taken = bytes_kept(learn)
    assert 0.5 * taken < path.fast_path.bytes_kept - before < 2 * taken


def test_the_number_of_commits_seen_only_once_is_limited() -> None:
    path = FastPath()
    path.fast_path.seen = set(range(commit_fast_path.MAX_SEEN))
    first = frame(message("group-first", 1))
    path.take(first)
    assert len(path.fast_path.seen) + len(path.fast_path.seen_before) <= 2 * commit_fast_path.MAX_SEEN
    path.take(first)
    assert path.take(first)


def test_replies_of_many_lengths_use_little_memory() -> None:
    def attack() -> None:
        for count in range(MANY, MANY + 15):
            offset_commit_reply(9, [CommittedTopic("t", None, codes[: 2 * count])])

    codes = [number for index in range(MANY + 15) for number in (index, 3)]
    assert bytes_kept(attack) < 2 * MIB
    offset_replies.packed_rows.cache_clear()


# --- steps ------------------------------------------------------------------------------------------------------


class Broker:
    """A harness with topic ``t`` of many partitions. ``steps`` has the number of lines of code of each step."""

    def __init__(self, partitions: int = 1_000_000, max_message_bytes: int = 1_048_588) -> None:
        self.harness = GroupHarness(partition_count=1)
        self.harness.catalog.add("t", partitions)
        self.harness.partitions[0].max_message_bytes = max_message_bytes
        self.steps: list[int] = []
        commit_plan.offset_deltas(0, MANY)  # later calls use the same table, so no step counts its creation

    def commit(self, asked: dict[str, Any], version: int = 9) -> Any:
        """Returns the decoded reply."""
        request: Any = decoded(asked, version)
        answers: list[Any] = []

        def begin() -> None:
            context: Any = SimpleNamespace(version=version)
            broker: Any = self.harness
            reply = k08_offset_commit.handle(broker, context, request)
            if isinstance(reply, GeneratorType):
                reply = Scheduler(self.harness.process.call_soon, clock=self._step).start(reply)
            reply.then(answers.append) if isinstance(reply, Deferred) else answers.append(reply)

        self._count(begin)
        while not answers:
            self._count(self.harness.world.step)
        (reply,) = answers
        return schemas.decode(8, version, Kind.RESPONSE, b"".join(reply) if isinstance(reply, list) else reply)[0]

    def _count(self, call: Any) -> None:
        self.steps.append(lines_run(call))

    def _step(self) -> float:
        """A clock for the scheduler: each reading is a second later, so a share ends after one step."""
        self._now_s = getattr(self, "_now_s", 0.0) + 1.0
        return self._now_s

    def errors(self, reply: Any) -> set[int]:
        return {row.error_code for topic in reply.topics for row in topic.partitions}


@pytest.mark.parametrize("version", [4, 9])
def test_a_commit_too_large_for_a_batch_is_refused_before_most_partitions_are_planned(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker()
    planned = 0
    add = CommitPlan.add

    def count(plan: CommitPlan, topic: str, topic_id: bytes | None, rows: Any) -> int:
        nonlocal planned
        planned += len(rows)
        return add(plan, topic, topic_id, rows)

    monkeypatch.setattr(CommitPlan, "add", count)
    reply = broker.commit(message("g", 30_000), version)
    assert len(reply.topics[0].partitions) == 30_000
    assert broker.errors(reply) == {ErrorCode.unknown_server_error}, "the same code as Apache Kafka"
    assert planned < 20_000
    assert broker.harness.partitions[0].raw() == []
    assert max(broker.steps) < LINES_PER_STEP


def test_a_commit_as_large_as_a_batch_is_written_in_one_batch() -> None:
    broker = Broker()
    reply = broker.commit(message("g", 14_000, first=7))
    assert broker.errors(reply) == {0}
    assert [row.partition_index for row in reply.topics[0].partitions] == list(range(14_000))
    assert len(broker.harness.partitions[0].batches) == 1
    assert len(broker.harness.partitions[0].raw()) == 14_000
    shard = broker.harness.shard("g")
    assert all(shard.committed("g", "t", index).offset == 7 + index for index in range(0, 14_000, 999))


def test_a_long_commit_with_a_retention_time_is_stored_if_it_fits_in_a_batch() -> None:
    broker = Broker()
    reply = broker.commit(message("g", 6000) | {"retention_time": 60_000}, 3)
    assert broker.errors(reply) == {0}
    assert broker.harness.shard("g").committed("g", "t", 5999).expire_timestamp_ms != -1
    refused = broker.commit(message("h", 30_000) | {"retention_time": 60_000}, 3)
    assert broker.errors(refused) == {ErrorCode.unknown_server_error}
    assert broker.harness.shard("g").committed("h", "t", 0) is None


@pytest.mark.parametrize("topics", [1, 5000])
def test_unknown_partitions_are_answered_in_steps(topics: int) -> None:
    broker = Broker()
    reply = broker.commit(message("g", MANY // topics, topics=topics, topic="unknown"))
    assert broker.errors(reply) == {ErrorCode.unknown_topic_or_partition}
    assert len(reply.topics) == topics
    assert max(broker.steps) < LINES_PER_STEP


def test_a_topic_named_many_times_is_merged_in_linear_time() -> None:
    def lines(times: int) -> int:
        broker = Broker()
        asked = message("g", 1)
        asked["topics"] = asked["topics"] * times + message("g", 1, topic="unknown")["topics"]
        reply = broker.commit(asked)
        known = [topic for topic in reply.topics if topic.name == "t"]
        assert sum(len(topic.partitions) for topic in known) == times
        *_, most, writing = sorted(broker.steps)  # one step writes all records, as one batch
        assert most < LINES_PER_STEP
        assert writing < LINES_PER_STEP
        return sum(broker.steps)

    assert lines(4000) < 5 * lines(1000)


def test_too_long_metadata_is_refused_only_for_its_partition() -> None:
    broker = Broker()
    asked = message("g", 2000)
    asked["topics"][0]["partitions"][1500]["committed_metadata"] = "m" * 5000
    reply = broker.commit(asked)
    codes = [row.error_code for row in reply.topics[0].partitions]
    assert codes[1500] == ErrorCode.offset_metadata_too_large
    assert [code for code in codes if code] == [codes[1500]]
    assert broker.harness.shard("g").committed("g", "t", 1500) is None
    assert broker.harness.shard("g").committed("g", "t", 1501).offset == 1501


# --- requests that wait for a long commit -----------------------------------------------------------------------


def _long(group: str = "g", count: int = 5000, offset: int = 3) -> OffsetCommit:
    return OffsetCommit(group, [TopicCommit("t", bytes(15) + b"\1", [(i, offset, -1, "") for i in range(count)])])


def _submit(harness: GroupHarness, request: Any, answers: list[tuple[str, Any]], name: str) -> None:
    harness.runtime.submit(0, request).then(lambda reply: answers.append((name, reply)))


def test_requests_after_a_long_commit_are_handled_in_order() -> None:
    harness = GroupHarness(partition_count=1)
    answers: list[tuple[str, Any]] = []
    _submit(harness, _long(), answers, "long")
    _submit(harness, OffsetFetch("g", [("t", (4999,))]), answers, "fetch")
    _submit(harness, _long(count=1, offset=9), answers, "short")
    _submit(harness, _long(count=3000, offset=11), answers, "long again")
    _submit(harness, OffsetFetch("g", [("t", (0, 2999, 3000))]), answers, "fetch again")
    assert answers == []
    harness.world.settle()
    assert [name for name, _ in answers] == ["long", "fetch", "short", "long again", "fetch again"]
    fetched = dict(answers)
    assert [row[0] for row in next(iter(fetched["fetch"].topics))[1].values] == [3]
    assert [row[0] for row in next(iter(fetched["fetch again"].topics))[1].values] == [11, 11, 3]
    _submit(harness, OffsetFetch("g", [("t", (0,))]), answers, "at once")
    assert answers[-1][0] == "at once", "no request waits any more"


def test_topics_deleted_during_a_long_commit_lose_their_offsets_after_it() -> None:
    harness = GroupHarness(partition_count=1)
    answers: list[tuple[str, Any]] = []
    _submit(harness, _long(), answers, "long")
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert [name for name, _ in answers] == ["long"]
    assert harness.shard("g").committed("g", "t", 0) is None


def test_an_unload_answers_the_long_commit_and_the_requests_behind_it() -> None:
    harness = GroupHarness(partition_count=1)
    answers: list[tuple[str, Any]] = []
    _submit(harness, _long(), answers, "long")
    _submit(harness, Heartbeat("g", 1, "m"), answers, "behind")
    harness.world.step()
    harness.runtime.unload(0)
    assert answers == [
        ("long", OffsetCommitReply(ErrorCode.not_coordinator)),
        ("behind", ErrorCode.not_coordinator),
    ]
    harness.world.settle()
    assert len(answers) == 2
    harness.runtime.load(0, harness.partitions[0], 0)
    harness.world.settle()
    _submit(harness, _long(), answers, "later")
    harness.world.settle()
    assert answers[-1][1].error is ErrorCode.none


@pytest.mark.parametrize("code", [ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower])
def test_a_failed_append_during_a_long_commit_concerns_only_its_batch(code: ErrorCode) -> None:
    from odradek.core.errors import KafkaError

    harness = GroupHarness(partition_count=1)
    answers: list[tuple[str, Any]] = []
    harness.partitions[0].fail_with = KafkaError(code, "full")
    _submit(harness, _long("short", count=1), answers, "short")  # its append fails in the next tick
    _submit(harness, _long(), answers, "long")
    _submit(harness, OffsetFetch("short", [("t", (0,))]), answers, "fetch")
    harness.world.settle()
    errors = {name: reply.error for name, reply in answers}
    assert errors == {"short": ErrorCode.not_coordinator, "long": ErrorCode.none, "fetch": ErrorCode.none}
    assert harness.shard("g").committed("short", "t", 0) is None
    assert harness.shard("g").committed("g", "t", 0) is not None
    _submit(harness, _long(), answers, "later")
    harness.world.settle()
    assert answers[-1][1].error is ErrorCode.none
