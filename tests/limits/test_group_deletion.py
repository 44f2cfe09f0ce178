"""The removal of thousands of offsets in steps of limited size: deleted topics, deleted groups, and expired offsets."""

from __future__ import annotations

from typing import Any

import pytest
from counters import lines_run
from support.group_harness import GroupHarness
from support.world_log import reload

from odradek.batches.header import scan
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import PART_RECORDS
from odradek.groups.config import GroupConfig
from odradek.groups.messages import DeleteGroups, OffsetCommit, OffsetFetch, TopicCommit

LINES_PER_STEP = 30_000
"""The allowed lines of the broker's code in one step. They take about a millisecond."""
GROUPS, PARTITIONS = 12, 400
LAST = f"g{GROUPS - 1}"
OFFSETS = 16_000
"""With so many offsets, a step that only reads all of them takes too many lines."""


def _harness(groups: int = GROUPS) -> GroupHarness:
    harness = GroupHarness(GroupConfig(offsets_retention_ms=1_000_000), partition_count=1)
    harness.catalog.add("t", PARTITIONS)
    harness.catalog.add("u", PARTITIONS)
    for number in range(groups):
        for topic in ("t", "u"):
            _commit(harness, f"g{number}", topic, PARTITIONS)
    harness.world.settle()
    return harness


def _commit(harness: GroupHarness, group: str, topic: str, partitions: int) -> None:
    found = harness.catalog.topic(topic)
    assert found is not None
    rows = [(index, 7, -1, "") for index in range(partitions)]
    for first in range(0, partitions, 5000):
        some = rows[first : first + 5000]
        harness.runtime.submit(0, OffsetCommit(group, [TopicCommit(topic, found.id.bytes, some)]))
        harness.world.settle()


def _kept(harness: GroupHarness, topic: str) -> int:
    return sum(key.topic == topic for key in harness.shard("g").durable_state().offsets)


def _settle(harness: GroupHarness, lines: list[int]) -> None:
    """Runs all callbacks that are due. Adds the number of lines that each callback runs to ``lines``."""
    while harness.world.is_due:
        lines.append(lines_run(harness.world.step))


def _run_some(harness: GroupHarness, count: int) -> None:
    for _ in range(count):
        harness.world.step()


def _matches_its_log(harness: GroupHarness) -> bool:
    """Returns whether a load of the log gives the current state."""
    lived = harness.shard("g").durable_state()
    reload(harness.runtime, harness.partitions[0])
    harness.world.settle()
    return bool(harness.shard("g").durable_state() == lived)


def test_the_offsets_of_a_deleted_topic_are_removed_in_steps() -> None:
    harness = _harness(OFFSETS // PARTITIONS)
    lines: list[int] = []
    harness.catalog.remove("t")
    lines.append(lines_run(lambda: harness.runtime.on_topics_deleted(["t"])))
    _settle(harness, lines)
    assert (_kept(harness, "t"), _kept(harness, "u")) == (0, OFFSETS)
    assert max(lines) < LINES_PER_STEP
    assert _matches_its_log(harness)


def test_offsets_expire_in_steps() -> None:
    harness = _harness(OFFSETS // PARTITIONS // 2)
    lines: list[int] = []
    harness.world.now_ms += 2_000_000
    _settle(harness, lines)
    assert (_kept(harness, "t"), _kept(harness, "u")) == (0, 0)
    assert harness.shard("g").durable_state().groups == {}
    assert max(lines) < LINES_PER_STEP
    assert _matches_its_log(harness)


def test_the_first_part_of_the_tombstones_is_written_too() -> None:
    """The topic has more partitions than one part has tombstones."""
    harness = GroupHarness(partition_count=1)
    harness.catalog.add("t", 1000)
    _commit(harness, "g", "t", 1000)
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    assert _kept(harness, "t") == 0
    assert sum(value is None for _, value in harness.partitions[0].raw()) == 1000


def test_requests_wait_until_the_offsets_of_a_topic_are_removed() -> None:
    harness = _harness()
    fetched: list[Any] = []
    harness.runtime.on_topics_deleted(["t"])
    harness.runtime.submit(0, OffsetFetch(LAST, [("t", (0,)), ("u", (0,))])).then(fetched.append)
    assert fetched == []
    harness.world.settle()
    assert [rows.values[0][0] for _, rows in fetched[0].topics] == [-1, 7]


def test_groups_are_deleted_in_steps_and_completely() -> None:
    harness = _harness()
    lines: list[int] = []
    answers: list[Any] = []
    some = [f"g{number}" for number in range(10)]

    def ask() -> None:
        harness.runtime.submit(0, DeleteGroups([*some, "unknown"])).then(answers.append)

    lines.append(lines_run(ask))
    _settle(harness, lines)
    assert dict(answers[0]) == {**dict.fromkeys(some, ErrorCode.none), "unknown": ErrorCode.group_id_not_found}
    assert _kept(harness, "t") == (GROUPS - 10) * PARTITIONS
    assert max(lines) < LINES_PER_STEP, "one step writes all records, and earlier steps have encoded them"
    (_, header) = next(scan(harness.partitions[0].batches[-1]))
    assert header.record_count == 10 * (2 * PARTITIONS + 1)
    assert _matches_its_log(harness)


def test_groups_with_too_many_offsets_for_a_batch_are_not_deleted() -> None:
    harness = _harness()
    harness.partitions[0].max_message_bytes = 20_000
    answers: list[Any] = []
    harness.runtime.submit(0, DeleteGroups(["g0", "g1"])).then(answers.append)
    harness.world.settle()
    assert answers == [[("g0", ErrorCode.unknown_server_error), ("g1", ErrorCode.unknown_server_error)]]
    assert _kept(harness, "t") == GROUPS * PARTITIONS


def test_each_part_is_written_before_the_next_is_created() -> None:
    harness = _harness()
    harness.catalog.remove("t")
    before = len(harness.partitions[0].batches)
    harness.runtime.on_topics_deleted(["t"])
    harness.world.settle()
    counts = [header.record_count for batch in harness.partitions[0].batches[before:] for _, header in scan(batch)]
    assert sum(counts) == GROUPS * PARTITIONS
    assert max(counts) <= PART_RECORDS


@pytest.mark.parametrize("partitions", [20, 20_000])
def test_the_offsets_of_a_topic_are_searched_in_steps(partitions: int) -> None:
    """No offset has expired yet. The check searches the offsets of the topic in steps nevertheless."""
    harness = GroupHarness(GroupConfig(offsets_retention_ms=10_000_000), partition_count=1)
    harness.catalog.add("t", partitions)
    _commit(harness, "g", "t", partitions)
    lines: list[int] = []
    harness.world.now_ms += 2_000_000
    _settle(harness, lines)
    assert _kept(harness, "t") == partitions
    assert max(lines) < LINES_PER_STEP


def test_commits_between_two_parts_are_kept() -> None:
    """The topic is deleted, created again and gets commits while the old offsets are removed."""
    harness = _harness()
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    _run_some(harness, 3)
    assert 0 < _kept(harness, "t") < GROUPS * PARTITIONS
    harness.catalog.add("t", 1)
    answers: list[Any] = []
    for group in ("g0", LAST):  # the old offset of g0 is already removed, that of the last group is not
        harness.runtime.submit(0, OffsetCommit(group, [TopicCommit("t", None, [(0, 8, -1, "")])])).then(answers.append)
    harness.world.settle()
    assert [answer.error for answer in answers] == [ErrorCode.none] * 2
    assert [harness.shard("g").committed(group, "t", 0).offset for group in ("g0", LAST)] == [8, 8]
    assert _kept(harness, "t") == 2
    assert _matches_its_log(harness)


def test_a_commit_during_the_expiry_restarts_the_retention() -> None:
    harness = _harness()
    harness.world.now_ms += 2_000_000
    harness.runtime.timers.run_due()
    _run_some(harness, 3)
    assert 0 < _kept(harness, "t") < GROUPS * PARTITIONS
    harness.runtime.submit(0, OffsetCommit(LAST, [TopicCommit("t", None, [(0, 8, -1, "")])]))
    harness.world.settle()
    assert harness.shard("g").committed(LAST, "t", 0).offset == 8
    assert (_kept(harness, "t"), _kept(harness, "u")) == (1, 0)
    assert _matches_its_log(harness)


def test_after_a_crash_between_two_parts_the_rest_is_removed_too() -> None:
    harness = _harness()
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    _run_some(harness, 3)
    left = _kept(harness, "t")
    assert 0 < left < GROUPS * PARTITIONS
    harness.restart()
    assert (_kept(harness, "t"), _kept(harness, "u")) == (0, GROUPS * PARTITIONS)
    assert _matches_its_log(harness)


def test_after_a_crash_during_the_expiry_the_rest_expires_in_the_next_round() -> None:
    harness = _harness()
    harness.world.now_ms += 2_000_000
    harness.runtime.timers.run_due()
    _run_some(harness, 3)
    left = _kept(harness, "t")
    assert 0 < left < GROUPS * PARTITIONS
    harness.restart()
    assert _kept(harness, "t") == left
    harness.advance(harness.config.offsets_retention_check_interval_ms)
    assert harness.shard("g").durable_state().offsets == {}
    assert harness.shard("g").groups == {}
    assert _matches_its_log(harness)


@pytest.mark.parametrize("comes_back", [False, True])
def test_unloading_the_partition_ends_the_removal(comes_back: bool) -> None:
    harness = _harness()
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    fetched: list[Any] = []
    _run_some(harness, 3)
    harness.runtime.submit(0, OffsetFetch(LAST, [("t", (0,))])).then(fetched.append)
    written = harness.partitions[0].log_end_offset
    harness.runtime.unload(0)
    assert [reply.error for reply in fetched] == [ErrorCode.not_coordinator]
    if comes_back:
        harness.runtime.load(0, harness.partitions[0], 0)
    harness.world.settle()
    if comes_back:
        assert _kept(harness, "t") == 0
    else:
        assert harness.partitions[0].log_end_offset == written


@pytest.mark.parametrize("parts_before", [0, 3])
def test_a_failed_append_between_parts_leaves_the_state_of_the_log(parts_before: int) -> None:
    harness = _harness()
    harness.catalog.remove("t")
    harness.runtime.on_topics_deleted(["t"])
    _run_some(harness, parts_before)
    harness.partitions[0].fail_with = KafkaError(ErrorCode.kafka_storage_error, "full")
    harness.world.settle()
    assert 0 < _kept(harness, "t") <= GROUPS * PARTITIONS
    harness.advance(11_000)  # the rebuilt shard checks again
    assert _kept(harness, "t") == 0
    assert _matches_its_log(harness)
