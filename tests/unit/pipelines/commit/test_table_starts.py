"""The state of a table has the offset at which it began to read a partition; what an earlier query may have read is
unknown."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.operations import NewFiles, TableChange
from odradek.pipelines.commit.partition_starts import check_starts
from odradek.pipelines.commit.state import Added, BatchPlan, RunTag, TableRefused, TableState, of_json, to_json

RUN = RunTag(1, "0" * 8)
FIRST, SECOND, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def after(state: TableState, plan: BatchPlan) -> TableState:
    """The state after a micro-batch, as the next run reads it."""
    change = TableChange(RUN, plan, NewFiles(None, Added(0, 0)))
    return of_json(json.loads(json.dumps(to_json(change.state_after(state)))))


def plan(query: str, batch: int, *, topics: dict[str, str] | None = None, **first: int) -> BatchPlan:
    """A micro-batch that reads partitions of t for the first time, and ends ten offsets later."""
    begun = {TopicPartition("t", int(name[1:])): at for name, at in first.items()}
    offsets = {tp: at + 10 for tp, at in begun.items()}
    return BatchPlan(query, batch, "", "", offsets=offsets, first=begun, topics=topics or {})


def test_the_first_query_to_read_a_partition_gives_its_start() -> None:
    begun = after(TableState(is_whole=True), plan("a", 0, p0=50))
    assert begun.starts == {FIRST: 50}
    wider = after(begun, plan("a", 1, p1=7))
    assert wider.starts == {FIRST: 50, SECOND: 7}
    next_query = after(wider, plan("b", 0, p0=60, p1=17))
    assert next_query.starts == {FIRST: 50, SECOND: 7}
    assert after(next_query, replace(plan("replay-0", 0, p0=0), query="replay-0")).starts == {FIRST: 50, SECOND: 7}


def test_what_an_earlier_query_may_have_read_has_no_start() -> None:
    begun = after(TableState(is_whole=True), plan("a", 0, p0=50))
    earlier = replace(begun, starts={}, is_whole=False)  # of an earlier version, which forgot partitions
    assert after(earlier, plan("a", 1, p1=7)).starts == {}
    whole = replace(begun, starts={})
    assert after(whole, plan("b", 0, p0=60, p1=7)).starts == {SECOND: 7}


def test_a_topic_that_was_created_again_has_a_new_start() -> None:
    begun = after(TableState(is_whole=True), plan("a", 0, topics={"t": "old"}, p0=50))
    assert after(begun, plan("b", 0, topics={"t": "new"}, p0=3)).starts == {FIRST: 3}
    adopted = replace(plan("adopted", 0, topics={"t": "new"}), offsets={FIRST: 0, OTHER: 9}, is_whole=True)
    assert after(begun, adopted).starts == {FIRST: 0}


def test_a_commit_of_a_partition_without_notes_names_its_three_causes() -> None:
    """Before, the line did not know a table that was begun again with its group."""
    begun = after(TableState(is_whole=True), plan("a", 0, p0=50))
    with pytest.raises(TableRefused, match=r"older copy.*begun again.*another table .*pipeline adopt.* first record$"):
        check_starts(begun, {OTHER: 9}, (), "/t")
    check_starts(begun, {FIRST: 9}, (), "/t")
