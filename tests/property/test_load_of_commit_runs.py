"""Loading a log in runs of commits has the same result as replaying the log record by record."""

from __future__ import annotations

import struct
from collections import deque
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.group_harness import GroupHarness
from support.world import START_MS

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.batches.rows import iter_records
from odradek.codecs.offsets_topic import (
    GroupMetadata,
    OffsetCommitValue,
    group_key,
    group_value,
    offset_key,
    offset_value,
)
from odradek.coordinator_runtime.loader import Loader
from odradek.core.effects import SimpleRecord
from odradek.groups.config import GroupConfig
from odradek.groups.offsets import commit_runs
from odradek.groups.shard import GroupShard

groups = st.sampled_from(["g", "h", "gg", "grüße", "x" * 70])
topics = st.sampled_from(["t", "u", "topic-name"])
times = st.integers(0, 2**45)
epochs = st.sampled_from([-1, 0, 7, 2**31 - 1])


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[bytes, bytes | None]]:
    """The commits of one request, as a member sends them."""
    group, topic, time_ms = draw(groups), draw(topics), draw(times)
    metadata = draw(st.sampled_from(["", "", "m", "größer", "m" * 126, "m" * 200]))
    topic_id = draw(st.sampled_from([None, b"\1" * 16]))
    first, count, offset = draw(st.integers(0, 3)), draw(st.sampled_from([1, 2, 70])), draw(st.integers(-1, 2**62))
    expire_ms = draw(st.sampled_from([-1, -1, -1, 5]))
    epoch = -1 if expire_ms != -1 else draw(epochs)
    value = OffsetCommitValue(offset, epoch, metadata, time_ms, expire_ms, None if expire_ms != -1 else topic_id)
    return [
        (offset_key(group, topic, index), offset_value(value._replace(offset=max(offset, 0) + index)))
        for index in range(first, first + count)
    ]


@st.composite
def odd(draw: st.DrawFn) -> list[tuple[bytes | None, bytes | None]]:
    """Any other record that the topic may contain."""
    group, topic = draw(groups), draw(topics)
    key = offset_key(group, topic, draw(st.integers(0, 3)))
    usual = bytearray(offset_value(OffsetCommitValue(5, 1, "meta", 9, -1, draw(st.sampled_from([None, b"\2" * 16])))))
    usual[draw(st.integers(0, len(usual) - 1))] = draw(st.integers(0, 255))
    broken = bytearray(key)
    broken[draw(st.integers(0, len(key) - 1))] = draw(st.integers(0, 255))
    empty = GroupMetadata("consumer", draw(st.integers(0, 9)), None, None, 7)
    return [
        draw(
            st.sampled_from(
                [
                    (key, None),
                    (key, bytes(usual)),
                    (key, b""),
                    (bytes(broken), offset_value(OffsetCommitValue(6, 1, "", 9))),
                    (bytes(broken), None),
                    (b"\0\0" + key[2:], offset_value(OffsetCommitValue(7, 1, "", 9))),  # the old key version
                    (key, struct.pack(">hqh", 0, 8, 2) + b"mm" + struct.pack(">q", 3)),  # an old value version
                    (group_key(group), group_value(empty)),
                    (group_key(group), None),
                    (b"\x7f\x7f", b"from the future"),
                    (None, b"no key"),
                ]
            )
        )
    ]


logs = st.lists(
    st.tuples(
        st.lists(runs() | runs() | odd(), min_size=1, max_size=6),
        st.sampled_from(["none", "none", "none", "lz4"]),
        st.booleans(),  # each record has a different time
    ),
    max_size=8,
)


def _write(harness: GroupHarness, log: Any) -> None:
    for pieces, codec, has_times in log:
        rows = [
            SimpleNamespace(key=key, value=value, timestamp_ms=START_MS + number * 37 if has_times else None)
            for number, (key, value) in enumerate(record for piece in pieces for record in piece)
        ]
        harness.partitions[0].append(encode_batch(rows, now_ms=START_MS, compression=codec))


def _loaded(batches: list[bytes], first_offset: int) -> GroupShard:
    shard = GroupShard(GroupConfig())
    reader = Loader(shard, "log", commit_runs.CommitRuns)
    for batch in batches:
        for position, header in scan(batch):
            deque(reader.take(batch, position, header, first_offset), 0)
    deque(reader.finish(), 0)
    return shard


@given(log=logs, pending=st.sampled_from([1, 50, 20_000]), first_offset=st.sampled_from([0, 0, 1, 30]))
@settings(max_examples=examples(30))
def test_loading_a_log_in_runs_equals_replaying_it(log: Any, pending: int, first_offset: int) -> None:
    harness = GroupHarness(partition_count=1)
    _write(harness, log)
    batches = harness.partitions[0].batches
    replayed = GroupShard(GroupConfig())
    for batch in batches:
        for row in iter_records(batch):
            if row.key is not None and row.offset >= first_offset:
                replayed.replay(row.offset, SimpleRecord(row.key, row.value))
    before, commit_runs.PENDING_AT_MOST = commit_runs.PENDING_AT_MOST, pending
    try:
        loaded = _loaded(batches, first_offset)
    finally:
        commit_runs.PENDING_AT_MOST = before
    assert loaded.durable_state() == replayed.durable_state()
    del loaded.skipped["no key"]
    assert loaded.skipped <= replayed.skipped, "a load may skip only records that a replay skips, too"


def test_a_record_with_the_layout_of_a_commit_may_be_another_record() -> None:
    key, value = offset_key("g", "t", 0), offset_value(OffsetCommitValue(5, 1, "", START_MS))
    stray = offset_value(OffsetCommitValue(6, 1, "", START_MS))
    harness = GroupHarness(partition_count=1)
    harness.partitions[0].put(*[(key, value)] * 5, (b"\1\1" + key[2:], stray), (b"\0\0" + key[2:], stray), (key, value))
    loaded = _loaded(harness.partitions[0].batches, 0)
    assert loaded.committed("g", "t", 0) == OffsetCommitValue(5, 1, "", START_MS)
    assert loaded.skipped.total() == 1


def test_only_the_last_commits_of_a_run_are_decoded() -> None:
    """Two thousand commits for twenty partitions become only twenty objects, so a load is fast."""
    made = [
        (offset_key("g", "t", number % 20), offset_value(OffsetCommitValue(number, 0, "", START_MS + number)))
        for number in range(2000)
    ]
    harness = GroupHarness(partition_count=1)
    harness.partitions[0].put(*made)
    shard = GroupShard(GroupConfig())
    seen: list[int] = []
    replay_commits = shard.replay_commits

    def count(group_id: str, topic: str, commits: Any) -> None:
        seen.append(len(commits))
        replay_commits(group_id, topic, commits)

    shard.replay_commits = count
    shard.replay = None
    reader = Loader(shard, "log", commit_runs.CommitRuns)
    ((position, header),) = scan(harness.partitions[0].batches[0])
    deque(reader.take(harness.partitions[0].batches[0], position, header, 0), 0)
    deque(reader.finish(), 0)
    assert seen == [20]
    assert shard.committed("g", "t", 19) == OffsetCommitValue(1999, 0, "", START_MS + 1999)
