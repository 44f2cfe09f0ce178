"""``fence_commits``: a run that was paused between its look at the log and its commit cannot set the group back."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import committed
from support.brokers import unique
from support.publish import create_topic, publish
from table_rows import KINDS, QUERY, Rows, Table, begun_table, plan

from odradek import Consumer, Producer
from odradek.client.admin import Admin
from odradek.core.errors import ConfigError, KafkaError
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.group_commit import COMMITTED
from odradek.pipelines.ingestion.job import Ingest
from odradek.pipelines.options import IngestOptions
from odradek.pipelines.sources import Source
from odradek.pipelines.tables.group import OVERTAKEN, TableGroup
from odradek.pipelines.tables.group_fence import GroupFence
from odradek.spark.offsets.source_offset import SourceOffset
from odradek.spark.options import parse_options


class GroupRun:
    """A run of a table whose micro-batches have ten offsets of one partition each."""

    def __init__(self, world: World, run: str, *, fences: bool = True) -> None:
        self.world, self.table = world, begun_table(world.kind, world.root, run)
        given = {"kafka.bootstrap.servers": world.bootstrap, "subscribe": world.tp.topic, "kafka.group.id": world.group}
        options = parse_options(given, streaming=True)
        fenced = GroupFence(options.client, lambda: world.group) if fences else None
        self.group = TableGroup(options, self.table, "t", fenced)

    def add(self, batch: int) -> None:
        end = {self.world.tp: 10 * batch + 10}
        mine = dataclasses.replace(plan(batch), offsets=end)
        self.table.add(Rows(10), mine)
        self.group.commit(PlannedBatch((), {}, {}, end, {}, SourceOffset(positions=end, query=QUERY)), mine)

    def close(self) -> None:
        self.group.close()
        self.table.close()


class World:
    """A topic, a group, and the folder of a table. ``offsets``: the group's offset after each operation of a run."""

    def __init__(self, kind: str, root: Path, bootstrap: str, admin: Admin) -> None:
        self.kind, self.root, self.bootstrap, self.admin = kind, root, bootstrap, admin
        self.group, self.tp = unique("fenced"), TopicPartition(unique("fenced"), 0)
        create_topic(bootstrap, self.tp.topic, 1)
        publish(bootstrap, self.tp.topic, [b"x"] * 60)
        self.offsets: list[int] = []

    def offset(self) -> int:
        return committed(self.admin, self.group).get(self.tp, 0)

    def watch(self, table: Table) -> None:
        real = table._perform

        def perform(operation: object) -> object:
            found = real(operation)
            self.offsets.append(self.offset())
            return found

        table._perform = perform

    def newer_run(self) -> None:
        run = GroupRun(self, "b")
        run.add(2)
        run.close()
        assert self.offset() == 30


@pytest.fixture
def world(tmp_path: Path, bootstrap: str, admin: Admin) -> World:
    return World("parquet", tmp_path, bootstrap, admin)


def pause_before(patch: pytest.MonkeyPatch, owner: type, name: str, meanwhile: Callable[[], None]) -> None:
    """Calls ``meanwhile`` before the first call of a method: the caller has decided what to send."""
    real, pauses = getattr(owner, name), iter([meanwhile])

    def paused(*given: Any) -> Any:
        next(pauses, lambda: None)()
        return real(*given)

    patch.setattr(owner, name, paused)


@KINDS
def test_a_paused_run_does_not_set_the_group_back(
    kind: str, tmp_path: Path, bootstrap: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(kind, tmp_path, bootstrap, admin)
    older = GroupRun(world, "a")
    older.add(0)
    assert (world.offset(), older.group.state and older.group.state.is_committed) == (10, True)
    pause_before(monkeypatch, Producer, "send_offsets_to_transaction", world.newer_run)
    world.watch(older.table)
    older.add(1)
    older.close()
    assert (world.offset(), older.group.state) == (30, OVERTAKEN)
    assert world.offsets == sorted(world.offsets), "the group never went back"


def test_without_the_fence_the_second_look_repairs_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The window that is left without ``fence_commits``."""
    older = GroupRun(world, "a", fences=False)
    older.add(0)
    pause_before(monkeypatch, Admin, "alter_group_offsets", world.newer_run)
    world.watch(older.table)
    older.add(1)
    older.close()
    assert 20 in world.offsets, "the group went back from 30"
    assert world.offset() == 30


def test_two_runs_that_commit_in_turns_fence_each_other_and_none_goes_back(world: World) -> None:
    older, newer = GroupRun(world, "a"), GroupRun(world, "b")
    older.add(0)
    newer.add(1)
    older.group.retry(at_once=True)
    world.watch(newer.table)
    newer.add(2)
    newer.group.commit(PlannedBatch((), {}, {}, {}, {}, SourceOffset(positions={world.tp: 30}, query=QUERY)), plan(2))
    assert (world.offset(), newer.group.state and newer.group.state.is_committed) == (30, True)
    older.close()
    newer.close()


def test_a_run_that_is_paused_inside_its_transaction_commits_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = GroupRun(world, "a")
    older.add(0)
    pause_before(monkeypatch, Producer, "commit_transaction", world.newer_run)
    older.add(1)
    older.close()
    assert (world.offset(), older.group.state) == (30, OVERTAKEN)
    assert world.admin.list_group_offsets(world.group, [world.tp], require_stable=True)[world.tp].offset == 30


RIGHTS = {
    "TRANSACTIONAL_ID": "Allow the user Write and Describe on transactional ids with the prefix odradek-table-",
    "GROUP": "Allow the user Read on group {group}",
    "TOPIC": "Allow the user Read on the topics",
}


@pytest.mark.parametrize(
    ("api", "what", "fences"),
    [
        ("FindCoordinator", "TRANSACTIONAL_ID", True),
        ("InitProducerId", "TRANSACTIONAL_ID", True),
        ("TxnOffsetCommit", "TRANSACTIONAL_ID", True),
        ("TxnOffsetCommit", "GROUP", True),
        ("TxnOffsetCommit", "TOPIC", True),
        ("EndTxn", "TRANSACTIONAL_ID", True),
        ("ConsumerGroupDescribe", "GROUP", True),
        ("OffsetFetch", "GROUP", True),
        ("OffsetFetch", "GROUP", False),
        ("OffsetCommit", "GROUP", False),
        ("OffsetCommit", "TOPIC", False),
    ],
)
def test_a_right_that_the_user_lacks_is_named_and_the_table_is_complete(
    api: str, what: str, fences: bool, tmp_path: Path, odradek_broker: Any
) -> None:
    with Admin(odradek_broker.bootstrap_servers) as admin:
        world = World("parquet", tmp_path, odradek_broker.bootstrap_servers, admin)
        run = GroupRun(world, "a", fences=fences)
        odradek_broker.faults.error(api, f"{what}_AUTHORIZATION_FAILED")
        try:
            run.add(0)
        finally:
            odradek_broker.faults.clear()
        state = run.group.state
        assert state is not None
        assert not state.is_committed
        assert state.why.startswith(f"{what}_AUTHORIZATION_FAILED: the user may not ")
        wanted = RIGHTS[what].format(group=world.group)
        assert state.remedy == f"{wanted}: the output is complete, and the next run commits"
        assert world.offset() == 0
        run.group.retry(at_once=True)
        run.close()
        assert world.offset() == 10


def test_a_user_without_the_group_is_refused_before_spark_starts(tmp_path: Path, odradek_broker: Any) -> None:
    topic = unique("rights")
    create_topic(odradek_broker.bootstrap_servers, topic, 1)
    odradek_broker.faults.error("OffsetFetch", "GROUP_AUTHORIZATION_FAILED")
    try:
        with pytest.raises(KafkaError) as error:
            Source(odradek_broker.bootstrap_servers, "g", (topic,)).check()
    finally:
        odradek_broker.faults.clear()
    says = "GROUP_AUTHORIZATION_FAILED: the user may not use group g. Allow the user Read on group g"
    assert str(error.value) == says


def test_a_group_with_members_is_not_committed(world: World) -> None:
    """A transaction may commit to such a group, other than OffsetCommit, so the members are looked for."""
    run = GroupRun(world, "a")
    with Consumer(world.bootstrap, group_id=world.group, enable_auto_commit=False) as member:
        member.subscribe([world.tp.topic])
        member.poll(2)
        run.add(0)
        assert run.group.state is not None
        assert "live members" in run.group.state.why
        assert world.offset() == 0
    run.group.retry(at_once=True)
    run.close()
    assert world.offset() == 10


def test_commits_that_are_off_cannot_be_fenced() -> None:
    given: dict[str, Any] = {"topics": "t", "group": "g", "output": "o", "fence_commits": True}
    with pytest.raises(ConfigError, match="fence_commits: with commitOffsets=false nothing is committed"):
        Ingest.of(IngestOptions("127.0.0.1:1", **given, options={"commitOffsets": "false"}))


def test_a_reset_during_a_transaction_stays(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator keeps the later record of the two."""
    run = GroupRun(world, "a")
    run.add(0)
    reset = {world.tp: OffsetAndMetadata(3)}
    pause_before(
        monkeypatch, Producer, "commit_transaction", lambda: world.admin.alter_group_offsets(world.group, reset)
    )
    run.add(1)
    run.close()
    assert world.offset() == 3


def test_an_open_transaction_of_another_client_does_not_hold_up_the_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, each micro-batch waited for the end of that transaction, up to 60 s."""
    run = GroupRun(world, "a")
    with Producer(world.bootstrap, transactional_id=unique("foreign"), transaction_timeout_ms=50_000) as foreign:
        foreign.init_transactions()
        foreign.begin_transaction()
        foreign.send_offsets_to_transaction({world.tp: OffsetAndMetadata(3)}, ConsumerGroupMetadata(world.group))
        begun = time.monotonic()
        for batch in (0, 1):
            run.add(batch)
            assert run.group.state == COMMITTED
            assert world.offset() == 10 * batch + 10
        assert time.monotonic() - begun < 20
        foreign.commit_transaction()
    assert world.offset() == 20, "the later record of the two"
    run.close()
    says = f"group {world.group} has the table's offsets, and a transaction of another client is open"
    assert [one.getMessage().startswith(says) for one in caplog.records if one.levelname == "WARNING"] == [True]
