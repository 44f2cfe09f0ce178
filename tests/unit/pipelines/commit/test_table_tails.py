"""The last batches that a table has read: a table's notes keep them until a topic is created again."""

from __future__ import annotations

import json
from typing import Any

from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit import state
from odradek.pipelines.commit.operations import NewFiles, TableChange
from odradek.pipelines.commit.state import Added, BatchPlan, RunTag, TableState
from odradek.pipelines.delta import state as delta_state

A, B = TopicPartition("a", 0), TopicPartition("b/ü", 3)
RUN = RunTag(1, "0" * 8)
TAIL = LogTail(2**40, 2**40 - 7, 2**32 - 1)


def after(before: TableState, plan: BatchPlan, tails: dict[TopicPartition, LogTail]) -> TableState:
    return TableChange(RUN, plan, NewFiles(None, Added(0, 0), tails)).state_after(before)


def plan(batch: int, topics: dict[str, str]) -> BatchPlan:
    return BatchPlan("q", batch, "", "", offsets={A: 9, B: 2**40}, topics=topics)


def tails_of(found: TableState) -> dict[TopicPartition, LogTail]:
    assert found.newest_query is not None
    return dict(found.newest_query.tails)


def test_notes_keep_the_tails_of_partitions_that_a_micro_batch_does_not_read() -> None:
    first = after(TableState(), plan(0, {"a": "1", "b/ü": "2"}), {A: LogTail(4, 3, 0), B: TAIL})
    second = after(first, plan(1, {"a": "1", "b/ü": "2"}), {A: LogTail(9, 4, 5)})
    assert tails_of(second) == {A: LogTail(9, 4, 5), B: TAIL}
    assert tails_of(state.of_json(json.loads(json.dumps(state.to_json(second))))) == tails_of(second)
    third = after(second, plan(2, {"a": "1", "b/ü": "another"}), {})
    assert tails_of(third) == {A: LogTail(9, 4, 5)}


def test_a_replay_has_no_tails() -> None:
    first = after(TableState(), plan(0, {}), {A: LogTail(4, 3, 0)})
    replay = BatchPlan("replay-" + "0" * 64, 0, "", "", ranges=((A, 0, 2),))
    assert tails_of(after(first, replay, {A: LogTail(2, 0, 1)})) == {A: LogTail(4, 3, 0)}


def test_delta_actions_have_the_tails() -> None:
    actions = delta_state._numbers_of_tails({A: LogTail(4, 3, 0), B: TAIL})
    assert max(actions.values()) < 2**63

    class Log:
        def transaction_version(self, name: str) -> int | None:
            return actions.get(name)

    log: Any = Log()
    assert delta_state.tails_in(log, [A, B, TopicPartition("c", 0)]) == {A: LogTail(4, 3, 0), B: TAIL}
    assert delta_state._numbers_of_tails({A: LogTail(2**31, 0, 1)}) == {}  # no batch has so many offsets
