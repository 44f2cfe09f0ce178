"""Fetches of offsets while records wait for replicas: they show what was there before these records."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.group_harness import GroupHarness
from support.world_log import WorldLog

from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import DELETE_GROUPS, DESCRIBE_GROUPS, LIST_GROUPS, OFFSET_DELETE, OFFSET_FETCH

OK = ErrorCode.none
GROUP, OTHER = "g", "other"


@pytest.fixture
def harness() -> GroupHarness:
    made = GroupHarness(partition_count=1)
    for topic in ("t", "u"):
        made.catalog.add(topic)
    return made


def log_of(harness: GroupHarness) -> WorldLog:
    return harness.partitions[0]


def hold(harness: GroupHarness) -> None:
    """No replica gets a record from now on."""
    log_of(harness).held_back = log_of(harness).log_end_offset


def move_to(harness: GroupHarness, offset: int | None) -> None:
    log_of(harness).held_back = offset
    harness.runtime.on_high_watermark(0)
    harness.world.settle()


def send(harness: GroupHarness, topic: str, offsets: dict[int, int], group: str = GROUP) -> None:
    """Commits, and does not wait for the reply."""
    rows = [
        {"partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": "m"}
        for index, offset in offsets.items()
    ]
    message = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": topic, "partitions": rows}],
    }  # fmt: skip
    harness.start(8, 8, **message)


def fetched(harness: GroupHarness, group: str = GROUP, *, names: bool = False, stable: bool = False) -> Any:
    """Returns the offsets of a group, or None while there is no reply. ``names``: of all partitions by name."""
    rows = [{"name": topic, "partition_indexes": [0, 1, 2, 3]} for topic in ("t", "u")] if names else None
    asked = {"groups": [{"group_id": group, "topics": rows}], "require_stable": stable}
    pending = harness.start(OFFSET_FETCH, 8, **asked)
    if not pending.answered:
        return None
    (one,) = pending.reply.groups
    assert one.error_code is OK
    offsets = {(row.name, part.partition_index): part.committed_offset for row in one.topics for part in row.partitions}
    return {key: offset for key, offset in offsets.items() if offset >= 0} if names else offsets


def test_a_fetch_shows_the_offset_before_an_unreplicated_commit(harness: GroupHarness) -> None:
    assert harness.commit(GROUP, "t", {0: 5}) == {0: OK}
    hold(harness)
    send(harness, "t", {0: 6, 1: 7})
    send(harness, "t", {0: 8})
    for names in (False, True):
        assert fetched(harness, names=names) == {("t", 0): 5}
        assert fetched(harness, names=names, stable=True) is None
    move_to(harness, 3)
    assert fetched(harness) == {("t", 0): 6, ("t", 1): 7}
    move_to(harness, None)
    assert fetched(harness) == {("t", 0): 8, ("t", 1): 7}


def test_deleted_offsets_are_shown_until_the_deletion_is_replicated(harness: GroupHarness) -> None:
    harness.commit(GROUP, "t", {0: 5, 1: 6})
    harness.commit(OTHER, "u", {0: 7})
    hold(harness)
    rows = [{"name": "t", "partitions": [{"partition_index": 0}]}]
    harness.start(OFFSET_DELETE, 0, group_id=GROUP, topics=rows)
    harness.start(DELETE_GROUPS, 2, groups_names=[OTHER])
    assert fetched(harness) == {("t", 0): 5, ("t", 1): 6}
    assert fetched(harness, OTHER, names=True) == {("u", 0): 7}
    move_to(harness, None)
    assert (fetched(harness), fetched(harness, OTHER)) == ({("t", 1): 6}, {})


def test_a_list_leaves_out_groups_whose_first_commit_is_not_replicated(harness: GroupHarness) -> None:
    harness.commit(GROUP, "t", {0: 5})
    hold(harness)
    send(harness, "t", {0: 6})
    send(harness, "t", {0: 1}, "new")
    asked = {"states_filter": [], "types_filter": []}
    pending = harness.start(LIST_GROUPS, 5, **asked)
    assert [row.group_id for row in pending.reply.groups] == [GROUP]
    harness.join("classic")
    assert not harness.start(LIST_GROUPS, 5, **asked).answered  # a group's own record is shown when it is replicated
    assert harness.start(DESCRIBE_GROUPS, 5, groups=[GROUP], include_authorized_operations=False).answered
    move_to(harness, None)
    assert {row.group_id for row in harness.call(LIST_GROUPS, 5, **asked).groups} == {GROUP, "new", "classic"}


def test_after_a_load_a_fetch_waits_for_the_whole_log(harness: GroupHarness) -> None:
    """A new coordinator does not know what was there before the records above the high watermark."""
    harness.commit(GROUP, "t", {0: 5})
    hold(harness)
    send(harness, "t", {0: 6})
    harness.restart()
    assert fetched(harness) is None
    move_to(harness, None)
    assert fetched(harness) == {("t", 0): 6}


@pytest.mark.parametrize("seed", range(30))
def test_each_fetch_shows_the_state_at_the_high_watermark(seed: int, harness: GroupHarness) -> None:
    """Commits, deletions and moves of the watermark by chance, beside the states after each record."""
    chance = random.Random(seed)
    hold(harness)
    log = log_of(harness)
    states: list[tuple[int, dict[tuple[str, int], int]]] = [(log.log_end_offset, {})]
    for number in range(60):
        now = dict(states[-1][1])
        topic, indexes = chance.choice("tu"), chance.sample(range(4), chance.randint(1, 4))
        kind = chance.choice(("commit", "commit", "delete", "move", "group"))
        if kind == "commit":
            send(harness, topic, dict.fromkeys(indexes, number))
            now |= {(topic, index): number for index in indexes}
        elif kind == "delete" and now:
            parts = [{"partition_index": index} for index in indexes]
            harness.start(OFFSET_DELETE, 0, group_id=GROUP, topics=[{"name": topic, "partitions": parts}])
            now = {key: offset for key, offset in now.items() if key[0] != topic or key[1] not in indexes}
        elif kind == "group" and chance.random() < 0.3:
            harness.start(DELETE_GROUPS, 2, groups_names=[GROUP])
            now = {}
        states.append((log.log_end_offset, now))
        if kind == "move":
            move_to(harness, chance.choice([end for end, _ in states if end >= log.high_watermark]))
        committed = [state for end, state in states if end <= log.high_watermark][-1]
        assert fetched(harness, names=chance.random() < 0.5) == committed, (number, kind)
