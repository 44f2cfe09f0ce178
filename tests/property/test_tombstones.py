"""Tombstones that are encoded in bulk equal tombstones in single records: in a batch, in the state machine, and when a
log is read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.group_harness import GroupHarness
from support.world import START_MS

from odradek.batches.encode import encode_batch, seal_batch
from odradek.batches.header import scan
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.groups.messages import DeleteGroups
from odradek.groups.offsets.tombstones import Tombstones
from odradek.groups.shard import GroupShard

names = st.sampled_from(["g", "h", "grüße", "x" * 70, "y" * 200])
partitions = st.lists(st.integers(0, 2**31 - 1), max_size=30)
rows = st.lists(st.tuples(names, st.none() | names, partitions), min_size=1, max_size=8)


def _block(of: list[tuple[str, str | None, list[int]]]) -> Tombstones:
    block = Tombstones()
    for group, topic, indexes in of:
        if topic is None:
            block.add_group(group)
        else:
            block.add_offsets(group, topic, indexes)
    return block


@given(rows, st.sampled_from([0, 1, 50, 63, 64, 8_180, 8_192]))
def test_tombstones_are_encoded_like_single_records(of: list[tuple[str, str | None, list[int]]], first: int) -> None:
    block = _block(of)
    records = block.records()
    assert len(records) == block.count
    filler = _block([("g", "t", list(range(first)))])
    packed = seal_batch([*filler.pack(0), *block.pack(first)], first + block.count, now_ms=START_MS)
    if first + block.count:
        assert packed == encode_batch([*filler.records(), *records], now_ms=START_MS)
    assert sum(map(len, block.pack(first))) <= block.most_bytes


@given(rows)
def test_tombstones_are_replayed_like_single_records(of: list[tuple[str, str | None, list[int]]]) -> None:
    shards = [GroupShard(GroupHarness().config) for _ in range(2)]
    block = _block(of)
    for shard in shards:
        for group, topic, indexes in of:
            if topic is not None:
                kept = OffsetCommitValue(1, -1, "", START_MS, -1, None)
                for index in [*indexes, 0]:
                    shard.replay_commits(group, topic, {index: tuple(kept)})
    one, other = shards
    one.replay_block(0, block)
    for offset, record in enumerate(block.records()):
        other.replay(offset, record)
    assert one.durable_state() == other.durable_state()
    assert list(one.groups) == list(other.groups)


@settings(max_examples=examples(12))
@given(st.lists(st.tuples(names, names, partitions), max_size=6), st.lists(names, min_size=1, max_size=4))
def test_deleted_groups_stay_deleted(commits: list[tuple[str, str, list[int]]], gone: list[str]) -> None:
    harness = GroupHarness(partition_count=1)
    value = offset_value(OffsetCommitValue(1, -1, "", START_MS, -1, None))
    for group, topic, indexes in commits:
        for index in indexes:
            harness.partitions[0].put((offset_key(group, topic, index), value))
            harness.catalog.add(topic)
    harness.restart()
    harness.runtime.submit(0, DeleteGroups(gone))
    harness.world.settle()
    lived = harness.shard("g").durable_state()
    assert {key.group for key in lived.offsets} == {name for name, _, indexes in commits if indexes} - {*gone}
    assert all(len([*scan(batch)]) == 1 for batch in harness.partitions[0].batches)
    harness.restart()
    assert harness.shard("g").durable_state() == lived
