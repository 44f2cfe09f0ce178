"""The fast path of OffsetCommit compared with the normal path: the same replies, records and state for any mix of
commits."""

from __future__ import annotations

import sys
from collections import deque
from types import GeneratorType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.group_harness import GroupHarness
from support.world_log import reload

from odradek.batches.encode import encode_batch
from odradek.broker.front_end.commit_fast_path import MAX_PLAN_BYTES, CommitFastPath
from odradek.broker.handlers import k08_offset_commit
from odradek.broker.loop.scheduler import Scheduler as Shares
from odradek.coordinator_runtime.driver import CATCH_UP_MS
from odradek.coordinator_runtime.loader import LoadSteps
from odradek.coordinator_runtime.shard_log import batch_of
from odradek.core.deferred import Deferred
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError
from odradek.groups.config import GroupConfig
from odradek.groups.messages import OffsetCommit, TopicCommit
from odradek.groups.offsets import commit_plan
from odradek.groups.offsets import committed_offsets as offsets_module
from odradek.groups.offsets.commit_plan import CommitPlan, PlannedCommits
from odradek.groups.shard import GroupShard
from odradek.wire import frames, schemas
from odradek.wire.offset_commit_frames import layout_of
from odradek.wire.schemas import Kind

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.just("m" * 130)


# --- the codec --------------------------------------------------------------------------------------------------


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    row = st.fixed_dictionaries(
        {
            "partition_index": int32,
            "committed_offset": int64,
            "committed_leader_epoch": int32,
            "committed_metadata": st.none() | texts,
        }
    )
    topic = st.fixed_dictionaries(
        {"name": texts, "topic_id": st.uuids(version=4), "partitions": st.lists(row, max_size=4)}
    )
    return {
        "group_id": draw(texts),
        "generation_id_or_member_epoch": draw(int32),
        "member_id": draw(texts),
        "group_instance_id": draw(st.none() | texts),
        "retention_time": -1,
        "topics": draw(st.lists(topic, max_size=3)),
    }


@pytest.mark.parametrize("version", range(2, 11))
@given(message=messages(), client_id=st.none() | texts, correlation_id=int32)
@settings(max_examples=examples(15))
def test_a_layout_reads_the_same_values_as_the_schemas(
    version: int, message: dict[str, Any], client_id: str | None, correlation_id: int
) -> None:
    frame = frames.encode_request(8, version, correlation_id, client_id, message)[4:]
    rows = [row for topic in message["topics"] for row in topic["partitions"]]
    layout = layout_of(frame)
    if not rows:
        assert layout is None
        return
    assert layout is not None
    found = layout.read(frame)
    assert found is not None
    same, commit = found
    assert commit.correlation_id == correlation_id.to_bytes(4, "big", signed=True)
    assert commit.offsets == tuple(row["committed_offset"] for row in rows)
    expected = tuple(row["committed_leader_epoch"] for row in rows) if version >= 6 else None
    assert commit.leader_epochs == expected
    # A commit that differs only in its offsets, epochs and correlation id has the same layout.
    for row in rows:
        row["committed_offset"] ^= 0x55
        row["committed_leader_epoch"] ^= 0x55
    again = layout.read(frames.encode_request(8, version, correlation_id ^ 1, client_id, message)[4:])
    assert again is not None
    assert again[0] == same
    assert again[1].offsets == tuple(offset ^ 0x55 for offset in commit.offsets)
    # A longer member id gives another layout: the request is longer.
    message["member_id"] += "x"
    other = frames.encode_request(8, version, correlation_id, client_id, message)[4:]
    assert len(other) > len(frame)


@pytest.mark.parametrize("version", range(2, 11))
@given(message=messages(), at=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
@settings(max_examples=examples(15))
def test_a_damaged_frame_gives_no_layout_or_one_with_the_same_values(
    version: int, message: dict[str, Any], at: float, byte: int
) -> None:
    frame = bytearray(frames.encode_request(8, version, 7, "c", message)[4:])
    frame[int(at * len(frame))] = byte
    damaged = bytes(frame)
    layout = layout_of(damaged)
    if layout is None:
        return
    found = layout.read(damaged)
    assert found is not None
    try:
        head = frames.read_request_head(damaged)
        decoded, _ = schemas.decode(8, head.version, Kind.REQUEST, damaged, head.body)
    except ValueError:
        return  # the normal path refuses this request, so it never makes a plan from it
    assert found[1].offsets == tuple(row.committed_offset for topic in decoded.topics for row in topic.partitions)


@pytest.mark.parametrize("version", [8, 9, 10])
def test_tagged_fields_use_the_normal_path(version: int) -> None:
    row = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": ""}
    topic = {"name": "t", "topic_id": None, "partitions": [row]}
    message = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [topic],
    }
    frame = frames.encode_request(8, version, 1, "c", message)[4:]
    assert layout_of(frame) is not None
    assert layout_of(frame[:-1] + b"\x01\x05\x01\x00") is None
    assert layout_of(frame[:-1]) is None
    assert layout_of(frame + b"\0") is None


# --- the records ------------------------------------------------------------------------------------------------

plans = st.lists(
    st.tuples(
        st.sampled_from(["t", "topic-two", "ü" * 20]),
        st.none() | st.binary(min_size=16, max_size=16).filter(any),
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | texts), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=3,
)


@given(
    topics=plans,
    times=st.integers(1, 5),
    before=st.sampled_from([0, 1, 60, 63, 64, 8188, 8191]),
    behind=st.integers(0, 2),
    numbers=st.randoms(use_true_random=False),
    knows_epochs=st.booleans(),
)
@settings(max_examples=examples(25))
def test_a_block_equals_its_records(
    topics: Any, times: int, before: int, behind: int, numbers: Any, knows_epochs: bool
) -> None:
    now_ms = 1_700_000_000_000
    rows = [
        TopicCommit(name, topic_id, [(partition, 0, 0, metadata) for partition, metadata in partitions])
        for name, topic_id, partitions in topics
    ]
    plan = CommitPlan(OffsetCommit("gruppe-ö", rows))
    commits, offsets, epochs = [], [], []
    for _ in range(times):
        made = []
        for name, topic_id, partitions in rows:
            values = [
                (row[0], numbers.randrange(-1, 2**63), numbers.randrange(-1, 2**31) if knows_epochs else -1, row[3])
                for row in partitions
            ]
            offsets += [value[1] for value in values]
            epochs += [value[2] for value in values]
            made.append(TopicCommit(name, topic_id, values))
        commits.append(OffsetCommit("gruppe-ö", made))
    shard = GroupShard(GroupConfig())
    planned = shard.handle(now_ms, PlannedCommits(plan, tuple(offsets), tuple(epochs) if knows_epochs else None))
    generated = [shard.handle(now_ms, commit) for commit in commits]
    expected = [record for result in generated for record in result.records]
    block = planned.block
    assert block is not None
    assert planned.reply == generated[0].reply
    assert [(r.key, r.value) for r in block.records()] == [(r.key, r.value) for r in expected]
    filler = [SimpleRecord(b"\0\2\0\1g", None)]
    packed = batch_of([*filler * before, block, *filler * behind], now_ms)
    assert packed == encode_batch([*filler * before, *expected, *filler * behind], now_ms=now_ms)
    assert block.most_bytes >= sum(map(len, block.pack(before)))
    # Replaying a block equals replaying its records.
    other = GroupShard(GroupConfig())
    shard.replay_block(0, block)
    for offset, record in enumerate(expected):
        other.replay(offset, SimpleRecord(record.key, record.value))
    assert shard.durable_state() == other.durable_state()


# --- the whole path ---------------------------------------------------------------------------------------------


class HarnessConnection:
    """The processing of one connection in a harness: frames in, replies out, in order."""

    def __init__(self, *, short: bool, room: int = MAX_PLAN_BYTES) -> None:
        self.harness = GroupHarness(partition_count=2)
        self.harness.catalog.add("t", 4)
        self.harness.catalog.add("topic-two", 3)
        self.fast_path = CommitFastPath(self.harness, room) if short else None
        self.slots: list[list[bytes]] = []
        self.taken = 0

    def feed(self, sent: list[bytes]) -> None:
        backlog = deque(sent)
        while backlog:
            slot: list[bytes] = []
            self.slots.append(slot)
            assert backlog[0][:2] == (8).to_bytes(2, "big")
            found = None if self.fast_path is None else self.fast_path.take(backlog, 1000, sys.maxsize)
            if found is not None and self.fast_path is not None:
                for _ in found[1]:
                    backlog.popleft()
                self.taken += len(found[1])
                self.fast_path.submit(*found, slot.extend)
            else:
                self._normal_path(backlog.popleft(), slot)

    def _normal_path(self, frame: bytes, slot: list[bytes]) -> None:
        head = frames.read_request_head(frame)
        message, _ = schemas.decode(8, head.version, Kind.REQUEST, frame, head.body)

        def answer(reply: bytes | list[bytes]) -> None:
            pieces = reply if isinstance(reply, list) else [reply]
            slot.append(frames.frame(frames.reply_head(8, head.version, head.correlation_id), *pieces))

        reply = k08_offset_commit.handle(self.harness, SimpleNamespace(version=head.version), message)
        if isinstance(reply, GeneratorType):
            reply = Shares(self.harness.process.call_soon).start(reply)
            self.harness.world.settle()  # the connection serves no other request until this one has a reply
        reply.then(answer) if isinstance(reply, Deferred) else answer(reply)

    def replies(self) -> bytes:
        assert all(self.slots), "a commit was not answered"
        return b"".join(chunk for slot in self.slots for chunk in slot)


kinds = st.tuples(
    st.sampled_from(["g", "h", "longer-name"]),
    st.sampled_from([2, 5, 6, 7, 8, 9, 10]),
    st.sampled_from(
        [
            (("t", (0,)),),
            (("t", (1, 2)),),
            (("t", (3, 2, 1, 0)), ("topic-two", (0, 2))),
            (("t", (0, 9)),),  # an unknown partition
            (("gone", (0,)),),
            (("t", (1, 1)),),
        ]
    ),
    st.sampled_from(["", "x", None, "y" * 5000]),
    st.sampled_from([-1, -1, -1, 0, 1]),
)
events = st.lists(
    st.tuples(kinds, st.integers(1, 6)) | st.sampled_from(["tick", "fail", "recreate", "load", "advance"]), max_size=25
)


def _frame(connection: HarnessConnection, kind: Any, number: int) -> bytes:
    group, version, topics, metadata, generation = kind
    listed = []
    for name, indexes in topics:
        topic = connection.harness.catalog.topic(name)
        rows = [
            {
                "partition_index": index,
                "committed_offset": number * 100 + index,
                "committed_leader_epoch": number % 3,
                "committed_metadata": metadata,
            }
            for index in indexes
        ]
        listed.append({"name": name, "topic_id": None if topic is None else topic.id, "partitions": rows})
    message = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": "" if generation < 0 else "unknown",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": listed,
    }
    return frames.encode_request(8, version, number, "c", message)[4:]


def _play(connection: HarnessConnection, script: list[Any]) -> None:
    number = 0
    for event in script:
        if isinstance(event, tuple):
            kind, times = event
            sent = []
            for _ in range(times):
                number += 1
                sent.append(_frame(connection, kind, number))
            connection.feed(sent)
        elif event == "fail":
            connection.harness.world.settle()
            for partition in connection.harness.partitions:
                partition.fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
        elif event == "recreate":
            connection.harness.world.settle()
            connection.harness.catalog.remove("t")
            connection.harness.runtime.on_topics_deleted(["t"])
            connection.harness.world.settle()
            connection.harness.catalog.add("t", 4)
        elif event == "load":
            connection.harness.world.settle()
            # Not awaited: commits arrive while the shard loads.
            reload(connection.harness.runtime, connection.harness.partitions[0])
        elif event == "advance":
            connection.harness.advance(1000)
        else:
            connection.harness.world.settle()
    connection.harness.world.settle()
    for partition in connection.harness.partitions:
        # A failed write would now delay the check for deleted topics beyond the end of the test.
        partition.fail_with = None
    connection.harness.advance(CATCH_UP_MS)  # a rebuilt shard checks for deleted topics


@given(script=events, room=st.sampled_from([1, 4000, 20_000, 10 << 20]))
@settings(max_examples=examples(40))
def test_the_fast_path_equals_the_normal_path(script: list[Any], room: int) -> None:
    short, long = HarnessConnection(short=True, room=room), HarnessConnection(short=False)
    for connection in (short, long):
        # otherwise the speed of the computer would determine which commits arrive during a load
        connection.harness.runtime.load_steps = LoadSteps(seconds=0)
        _play(connection, script)
    assert short.replies() == long.replies()
    for one, other in zip(short.harness.partitions, long.harness.partitions, strict=True):
        assert one.raw() == other.raw()
    for index in range(2):
        shards = [connection.harness.runtime.shard(index) for connection in (short, long)]
        assert shards[0] is not None
        assert shards[1] is not None
        assert shards[0].durable_state() == shards[1].durable_state()
        live = shards[0].durable_state()
        reload(short.harness.runtime, short.harness.partitions[index])
        short.harness.world.settle()
        reloaded = short.harness.runtime.shard(index)
        assert reloaded is not None
        assert reloaded.durable_state() == live


@given(
    script=st.lists(
        st.tuples(kinds, st.integers(1, 6)) | st.sampled_from(["tick", "recreate", "advance"]), max_size=25
    ),
    step=st.sampled_from([1, 2, 3]),
    max_bytes=st.sampled_from([1_048_588, 250]),
)
@settings(max_examples=examples(40))
def test_commits_in_steps_have_the_same_replies_and_records(script: list[Any], step: int, max_bytes: int) -> None:
    # A step runs at the end of a tick. A tick follows each event, so both connections have the same ticks.
    script = [each for event in script for each in (event, "tick")]
    at_once, in_steps = HarnessConnection(short=False), HarnessConnection(short=False)
    for connection in (at_once, in_steps):
        for partition in connection.harness.partitions:
            partition.max_message_bytes = max_bytes
    _play(at_once, script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(k08_offset_commit, "AT_ONCE", 0)
        patch.setattr(k08_offset_commit, "STEP_PARTITIONS", step)
        patch.setattr(offsets_module, "LONG_COMMIT", 0)
        patch.setattr(commit_plan, "STEP_PARTITIONS", step)
        _play(in_steps, script)
    # At 250 bytes, the two harnesses may refuse different commits as too large: the estimate of a block's size is
    # more exact than the estimate for single records.
    if max_bytes > 250:
        assert in_steps.replies() == at_once.replies()
        for one, other in zip(in_steps.harness.partitions, at_once.harness.partitions, strict=True):
            assert one.raw() == other.raw()
    for index in range(2):
        shard = in_steps.harness.runtime.shard(index)
        assert shard is not None
        live = shard.durable_state()
        if max_bytes > 250:
            assert live == at_once.harness.runtime.shard(index).durable_state()
        reload(in_steps.harness.runtime, in_steps.harness.partitions[index])
        in_steps.harness.world.settle()
        assert in_steps.harness.runtime.shard(index).durable_state() == live
    assert in_steps.replies() or not in_steps.slots


def test_unused_plans_are_replaced_and_used_plans_stay() -> None:
    connection = HarnessConnection(short=True, room=45_000)  # ten plans
    groups = [(f"group-{number:03}", 8, (("t", (0, 1, 2, 3)),), "", -1) for number in range(50)]
    assert connection.fast_path is not None
    for number in range(20):  # together the plans exceed the limit, so most commits use the normal path
        connection.feed([_frame(connection, kind, number) for kind in groups])
        assert len(connection.fast_path.plans) <= 10
        assert len(connection.fast_path.old_plans) <= 10
    assert 0 < connection.taken < 500
    for number in range(60):  # now only a few plans are in use, and they fit into the limit
        connection.feed([_frame(connection, kind, number) for kind in groups[30:35]])
    taken = connection.taken
    connection.feed([_frame(connection, kind, 1) for kind in groups[30:35]])
    assert connection.taken == taken + 5


def test_equal_commits_use_the_fast_path_from_the_third_on() -> None:
    connection = HarnessConnection(short=True)
    kind = ("g", 8, (("t", (0, 1)),), "", -1)
    connection.feed([_frame(connection, kind, number) for number in range(50)])
    assert connection.taken == 48
    connection.harness.world.settle()
    assert connection.replies()
    assert [len(connection.harness.partition_of("g").batches), len(connection.harness.partition_of("g").raw())] == [
        1,
        100,
    ]
