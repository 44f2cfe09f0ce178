"""One look at the cluster serves the commit of a micro-batch and the plan of the next one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ingest_runs import committed
from support.brokers import unique
from support.insides import lookups_of
from support.publish import create_topic, publish
from table_rows import Rows, begun_table, plan

from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.sources import Source
from odradek.pipelines.tables.group import TableGroup
from odradek.spark.offsets import group_look
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.source_offset import SourceOffset
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.source import OdradekStreamReader

LOOKS = ("partitions", "ends", "committed")


class DriverAndPlanner:
    """A query with micro-batches of ten records. ``looks``: the requests that the planner has made itself."""

    def __init__(self, place: Path, bootstrap: str, admin: Admin, patch: pytest.MonkeyPatch) -> None:
        self.admin, self.tp, self.group_id = admin, TopicPartition(unique("look"), 0), unique("look")
        create_topic(bootstrap, self.tp.topic, 1)
        publish(bootstrap, self.tp.topic, [b"x"] * 10)
        self.bootstrap = bootstrap
        source = Source(bootstrap, self.group_id, (self.tp.topic,), options={"onGroupReset": "follow"})
        self.table = begun_table("parquet", place, "a")
        self.group = TableGroup(parse_options(source.all_options(), streaming=True), self.table, "t")
        self.options = parse_options(source.committed_by_table(self.group.look).all_options(), streaming=True)
        self.planner = OdradekStreamReader(self.options)
        self.looks: list[str] = []
        for name in LOOKS:
            self._note_calls(patch, name)

    def _note_calls(self, patch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Lookups, name)

        def noted(lookups: Lookups, *given: object, **more: object) -> object:
            if lookups is lookups_of(self.planner):
                self.looks.append(name)
            return real(lookups, *given, **more)

        patch.setattr(Lookups, name, noted)

    def publish(self) -> None:
        publish(self.bootstrap, self.tp.topic, [b"x"] * 10)

    def next(self, start: dict[str, object]) -> dict[str, object]:
        """Plans the micro-batch after ``start``. ``looks`` are then those of this plan."""
        self.looks.clear()
        return self.planner.latestOffset(start)

    def add(self, batch: int, end: dict[str, object]) -> None:
        after = SourceOffset.from_json(json.loads(json.dumps(end)))
        mine = dataclasses.replace(plan(batch), offsets=after.positions)
        self.table.add(Rows(10), mine)
        self.group.commit(PlannedBatch((), {}, {}, after.positions, {}, after), mine)

    def close(self) -> None:
        self.group.close()
        self.planner.stop()
        self.table.close()


@pytest.fixture
def both(tmp_path: Path, bootstrap: str, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriverAndPlanner]:
    monkeypatch.setattr(group_look, "_USABLE_S", 600)
    both = DriverAndPlanner(tmp_path, bootstrap, admin, monkeypatch)
    yield both
    both.close()


def test_the_planner_takes_what_the_commit_has_seen(both: DriverAndPlanner) -> None:
    first = both.next({})
    assert set(both.looks) == set(LOOKS)
    both.publish()
    both.add(0, first)
    assert committed(both.admin, both.group_id) == {both.tp: 10}
    second = both.next(first)
    assert both.looks == []
    assert SourceOffset.from_json(second).positions == {both.tp: 20}
    both.publish()
    assert both.next(second) != second
    assert set(both.looks) == set(LOOKS), "a look is used once, for the micro-batch that it follows"


def test_an_old_look_or_one_of_another_micro_batch_is_not_used(
    both: DriverAndPlanner,
) -> None:
    first = both.next({})
    both.add(0, first)
    look = Path(both.group.look)
    content = json.loads(look.read_text())
    content["seen"] -= 601
    look.write_text(json.dumps(content))
    assert both.next(first) == first
    assert set(both.looks) == set(LOOKS)
    both.publish()
    second = both.next(first)
    both.add(1, second)
    assert group_look.group_look(both.group.look, first) is None
    Path(both.group.look).write_text("{")
    assert group_look.group_look(both.group.look, second) is None
    assert both.next(second) == second
    assert set(both.looks) == set(LOOKS)


def test_a_reset_after_the_look_is_followed_one_micro_batch_later(both: DriverAndPlanner) -> None:
    first = both.next({})
    both.publish()
    both.add(0, first)
    both.admin.alter_group_offsets(both.group_id, {both.tp: OffsetAndMetadata(3)})
    second = both.next(first)
    assert SourceOffset.from_json(second).origins == {}
    both.add(1, second)
    assert committed(both.admin, both.group_id) == {both.tp: 3}, "the reset is not overwritten"
    third = both.next(second)
    assert SourceOffset.from_json(third).origins == {both.tp: 3}


def test_a_new_partition_is_seen_at_once(both: DriverAndPlanner) -> None:
    first = both.next({})
    both.admin.create_partitions({both.tp.topic: 2})
    both.add(0, first)
    assert set(SourceOffset.from_json(both.next(first)).positions) == {both.tp, TopicPartition(both.tp.topic, 1)}


def test_a_commit_that_fails_leaves_no_look(both: DriverAndPlanner, monkeypatch: pytest.MonkeyPatch) -> None:
    first = both.next({})
    monkeypatch.setattr(Lookups, "commit", lambda lookups, commits: False)
    both.add(0, first)
    assert not Path(both.group.look).exists()


def test_an_ordinary_query_has_no_look(bootstrap: str) -> None:
    options: ReadOptions = parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": "t"}, streaming=True)
    assert options.group_look is None
    assert group_look.group_look(None, {}) is None
