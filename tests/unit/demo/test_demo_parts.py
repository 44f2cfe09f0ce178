"""The demo's parts without a broker or Spark: the remaining events, rewinds, state, table, check, and the cause of a
failed query."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odradek.client.errors import UnknownTopic
from odradek.client.model import ListedOffset
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import EARLIEST, LATEST, NO_TAILS, OffsetAndMetadata, TopicPartition
from odradek.demo.checks import CheckReport, Count, count_rows, judge, read_rows
from odradek.demo.flight_lake import Lake
from odradek.demo.flights import Feed, Flights
from odradek.demo.publisher import event_number, missing_events
from odradek.demo.rewind import Move, Rewind, RewindKind, execute_rewind, parse_rewind, rewind_moves
from odradek.demo.single_reset import Query, Reset, reset_once
from odradek.demo.state import DemoState, PendingRewind
from odradek.pipelines.commit.state import BatchPlan, covers_of, ends_of
from odradek.pipelines.files.file_layouts import FileLayout
from odradek.pipelines.files.staging import StagedFile, found_files
from odradek.pipelines.filesystems.location import LocalLocation, Location

TARGET = 600


@pytest.fixture(scope="module")
def feed() -> Feed:
    return Feed(Flights.load(), TARGET)


# --- the remaining events -------------------------------------------------------------------------------------------


def test_all_events_are_missing_in_an_empty_topic(feed: Feed) -> None:
    assert missing_events(feed.sequences, [0] * 6).tolist() == list(range(TARGET))


def test_no_event_is_missing_in_a_complete_topic(feed: Feed) -> None:
    assert missing_events(feed.sequences, [len(sequence) for sequence in feed.sequences]).tolist() == []


@pytest.mark.parametrize("seed", range(20))
def test_each_partition_continues_at_its_log_end(feed: Feed, seed: int) -> None:
    random = np.random.default_rng(seed)
    found = [int(random.integers(0, len(sequence) + 1)) for sequence in feed.sequences]
    missing = missing_events(feed.sequences, found).tolist()
    held = [number for sequence, count in zip(feed.sequences, found, strict=True) for number in sequence[:count]]
    assert sorted([*missing, *held]) == list(range(TARGET))
    assert missing == sorted(missing)


@pytest.mark.parametrize("value", [b"", None, b"x", b"[]", b"3", b'{"event":"7"}', b'{"other":1}', b"\xff\xfe"])
def test_bytes_that_are_not_an_event_have_no_number(value: bytes | None) -> None:
    assert event_number(value) is None


def test_an_event_has_its_number(feed: Feed) -> None:
    assert [event_number(event.value) for event in feed.flights.events(7, 10)] == [7, 8, 9]


# --- rewinds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Rewind(RewindKind.EARLIEST)),
        ("LATEST", Rewind(RewindKind.LATEST)),
        ("-100", Rewind(RewindKind.BACK, 100)),
        ("1970-01-01", Rewind(RewindKind.TIME, 0)),
        ("1970-01-01T00:00:01.5", Rewind(RewindKind.TIME, 1500)),
        ("1970-01-01T01:00:00+01:00", Rewind(RewindKind.TIME, 0)),
        ("2026-01-31T12:00:00Z", Rewind(RewindKind.TIME, 1769860800000)),
    ],
)
def test_rewind_targets_are_parsed(text: str, expected: Rewind) -> None:
    assert parse_rewind(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("yesterday", "is not earliest, latest, -N or a time such as"),
        ("2026-13-01", "is not earliest"),
        ("", "is not earliest"),
        ("--100", "is not earliest"),
        ("-0", "1 or more"),
        ("100", "write --rewind -100"),
    ],
)
def test_invalid_rewind_targets_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_rewind(text)


class _Cluster:
    """A fake Admin: one topic, three partitions, given offsets. ``is_killed``: the program ends when it would write."""

    is_killed = False

    def __init__(self, committed: Mapping[int, int]) -> None:
        self.committed = {TopicPartition("flights", p): OffsetAndMetadata(o) for p, o in committed.items()}

    def positions(self) -> dict[TopicPartition, int]:
        return {place: commit.offset for place, commit in self.committed.items()}

    def describe_topics(self, names: list[str], missing_ok: bool = False) -> dict[str, Any]:
        return {name: None for name in names if name == "flights"}

    def partitions(self, topic: str) -> list[TopicPartition]:
        if topic != "flights":
            raise UnknownTopic(topic)
        return [TopicPartition(topic, partition) for partition in range(3)]

    def list_group_offsets(self, group: str, partitions: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.committed

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        starts, ends = [0, 5, 0], [50, 500, 0]
        answers = {}
        for place, time in wanted.items():
            by_time = 30 if time <= 1000 and place.partition < 2 else -1
            known = {EARLIEST: starts[place.partition], LATEST: ends[place.partition]}
            answers[place] = ListedOffset(known.get(time, by_time))
        return answers

    def alter_group_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.is_killed:
            raise KeyboardInterrupt
        self.committed.update(offsets)


@pytest.mark.parametrize(
    ("text", "after"),
    [("earliest", [0, 5, 0]), ("latest", [50, 500, 0]), ("-20", [0, 380, 0]), ("1970-01-01", [30, 30, 0])],
)
def test_a_reset_stays_within_the_log(text: str, after: list[int]) -> None:
    cluster: Any = _Cluster({0: 10, 1: 400, 2: 0})
    moves = rewind_moves(cluster, "flights", parse_rewind(text), cluster.positions())
    assert [move.after for move in moves] == after
    execute_rewind(cluster, "g", "flights", moves)
    assert [cluster.committed[TopicPartition("flights", p)].offset for p in range(3)] == after


def test_a_rewind_before_the_start_is_limited_and_reported() -> None:
    cluster: Any = _Cluster({0: 10, 1: 25, 2: 0})
    moves = rewind_moves(cluster, "flights", Rewind(RewindKind.BACK, 21), cluster.positions())
    assert [move.clamped for move in moves] == [True, True, True]
    assert moves[1] == Move(partition=1, before=25, wanted=4, after=5)


def test_a_time_after_the_last_record_means_the_log_end() -> None:
    cluster: Any = _Cluster({0: 10, 1: 25, 2: 0})
    moves = rewind_moves(cluster, "flights", Rewind(RewindKind.TIME, 10**15), cluster.positions())
    assert [move.after for move in moves] == [50, 500, 0]


def test_a_partition_without_a_commit_is_at_its_start() -> None:
    cluster: Any = _Cluster({0: 10})
    moves = rewind_moves(cluster, "flights", parse_rewind("latest"), cluster.positions())
    assert [move.before for move in moves] == [10, 5, 0]


# --- a rewind that a kill interrupts --------------------------------------------------------------------------------


def _write_batch(checkpoint: Path, batch: int, positions: list[int], followed: str = "") -> None:
    """The entries that Spark writes to the checkpoint before it reads a micro-batch."""
    end: dict[str, Any] = {"flights": {str(p): offset for p, offset in enumerate(positions)}}
    if followed:
        end["$odradek"] = {"followed": {"flights": {str(p): followed for p in range(len(positions))}}}
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end)}")


def _commit(cluster: _Cluster, positions: list[int], mark: str = "odradek-spark:1:") -> None:
    for p, offset in enumerate(positions):
        metadata = f"{mark}{offset}" if mark else ""
        cluster.committed[TopicPartition("flights", p)] = OffsetAndMetadata(offset, metadata=metadata)


class _Demo:
    """A group that has read its three partitions up to 30, 300 and 0, with its checkpoint. After a kill, only the
    files on disk and the group's commits remain."""

    def __init__(self, root: Path) -> None:
        self.cluster: Any = _Cluster({})
        self.query = Query("g", "flights", root / "checkpoint", root)
        _write_batch(self.query.checkpoint, 4, [30, 300, 0])
        _commit(self.cluster, [30, 300, 0])
        DemoState(600).save(root)

    def run(self, asked: str | None) -> Reset | None:
        state = DemoState.load(self.query.data_dir)
        assert state is not None
        return reset_once(self.cluster, self.query, state, asked)

    def positions(self) -> list[int]:
        return [offset for _, offset in sorted(self.cluster.positions().items())]

    def state(self) -> DemoState:
        state = DemoState.load(self.query.data_dir)
        assert state is not None
        return state


@pytest.fixture
def killed(tmp_path: Path) -> _Demo:
    return _Demo(tmp_path)


@pytest.mark.parametrize("again", ["-20", None])
def test_a_kill_after_the_reset_does_not_rewind_twice(killed: _Demo, again: str | None) -> None:
    first = killed.run("-20")
    assert first is not None
    assert (first.continued, killed.positions()) == (False, [10, 280, 0])
    reset = killed.run(again)
    assert reset == Reset("-20", tuple(first.moves), continued=True)
    assert killed.positions() == [10, 280, 0]


def test_a_reset_missing_after_a_kill_is_done_by_the_next_run(killed: _Demo) -> None:
    killed.cluster.is_killed = True
    with pytest.raises(KeyboardInterrupt):
        killed.run("-20")
    killed.cluster.is_killed = False
    assert killed.positions() == [30, 300, 0]
    reset = killed.run(None)
    assert reset is not None
    assert reset.continued
    assert killed.positions() == [10, 280, 0]


def test_a_reset_that_the_query_has_followed_is_not_repeated(killed: _Demo) -> None:
    killed.run("-20")
    _write_batch(killed.query.checkpoint, 5, [15, 285, 0], followed="id")
    _commit(killed.cluster, [15, 285, 0])
    reset = killed.run("-20")
    assert reset is not None
    assert reset.continued
    assert killed.positions() == [15, 285, 0]


def test_another_rewind_replaces_one_that_was_not_followed(killed: _Demo) -> None:
    killed.run("latest")
    assert killed.positions() == [50, 500, 0]
    reset = killed.run("-10")
    assert reset is not None
    assert not reset.continued
    assert killed.positions() == [20, 290, 0], "the rewind counts from the query's offsets, not from the replaced reset"
    assert killed.state().skipped == {}, "no event was skipped"


def test_another_rewind_after_a_followed_one_counts_from_the_followed_offsets(killed: _Demo) -> None:
    killed.run("latest")
    _write_batch(killed.query.checkpoint, 5, [50, 500, 0], followed="id")
    _commit(killed.cluster, [50, 500, 0], "odradek-spark:1:")
    killed.run("-10")
    assert killed.positions() == [40, 490, 0]
    assert killed.state().skipped == {0: [(30, 50)], 1: [(300, 500)]}


def test_a_rewind_counts_from_the_checkpoint_if_the_group_is_behind(killed: _Demo) -> None:
    """The process was killed between a micro-batch and the group's commit, or within a micro-batch that Spark will run
    again."""
    _write_batch(killed.query.checkpoint, 5, [40, 400, 0])
    killed.run("-20")
    assert killed.positions() == [20, 380, 0]


def test_a_rewind_counts_from_the_checkpoint_if_the_group_has_expired(killed: _Demo) -> None:
    killed.cluster.committed.clear()
    killed.run("-20")
    assert killed.positions() == [10, 280, 0]


def test_a_rewind_counts_from_a_reset_by_another_tool(killed: _Demo) -> None:
    _commit(killed.cluster, [25, 105, 0], mark="")
    killed.run("-20")
    assert killed.positions() == [5, 85, 0]


def test_a_rewind_without_a_topic_does_nothing(killed: _Demo) -> None:
    assert reset_once(killed.cluster, replace(killed.query, topic="none"), killed.state(), "-20") is None
    assert killed.state().pending is None


def test_an_invalid_checkpoint_raises_a_storage_error(killed: _Demo) -> None:
    (killed.query.checkpoint / "offsets" / "5").write_text("v1\n{}\n-")
    with pytest.raises(StorageError, match="offsets/5 is damaged: it is no JSON"):
        killed.run("-20")


# --- state ----------------------------------------------------------------------------------------------------------


def test_state_is_read_back_as_written(tmp_path: Path) -> None:
    state = DemoState(target=17)
    state.skip(3, 5, 9)
    state.skip(3, 9, 9)
    state.save(tmp_path)
    assert DemoState.load(tmp_path) == DemoState(17, skipped={3: [(5, 9)]})
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]


def test_a_pending_rewind_is_kept_until_it_ends(tmp_path: Path) -> None:
    state = DemoState(17, PendingRewind("latest", 4, (Move(0, 10, 50, 50), Move(1, 9, 3, 5))))
    state.save(tmp_path)
    assert DemoState.load(tmp_path) == state
    state.end_rewind(followed=True)
    state.save(tmp_path)
    assert DemoState.load(tmp_path) == DemoState(17, skipped={0: [(10, 50)]})


def test_a_missing_state_file_means_no_state(tmp_path: Path) -> None:
    assert DemoState.load(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":9,"target":1,"skipped":{}}',
        '{"version":1,"target":null}',
        '{"version":1,"target":1,"skipped":{},"pending":{"moves":[{}]}}',
    ],
)
def test_a_file_that_is_not_a_state_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "demo.json").write_text(text)
    with pytest.raises(ConfigError, match="another --data-dir"):
        DemoState.load(tmp_path)


def test_state_that_cannot_be_written_raises_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        DemoState(1).save(tmp_path / "missing")


# --- the table ------------------------------------------------------------------------------------------------------


def _rows(feed: Feed, partition: int, start: int, stop: int) -> pa.Table:
    events = feed.sequences[partition][start:stop]
    columns = {
        "partition": pa.array([partition] * len(events), pa.int32()),
        "offset": pa.array(range(start, start + len(events)), pa.int64()),
        "event": pa.array(events, pa.int64()),
        "distance": pa.array(feed.flights.distances_of(events), pa.int32()),
    }
    return pa.table(columns)


def _stage(staged: Path, tables: Mapping[str, pa.Table]) -> None:
    """The files that Spark writes: data files in month folders, and files that only Spark uses, without data."""
    for month, table in tables.items():
        (staged / month).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, staged / month / "part-00000-x.snappy.parquet")
        (staged / month / ".part-00000-x.snappy.parquet.crc").write_bytes(b"crc")
    (staged / "_SUCCESS").touch()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path, "month")
    lake.prepare()
    lake.checkpoint.mkdir()
    return lake


class _StagedTables:
    """The rows of a micro-batch that a test writes as Spark does."""

    in_place = False
    tails = NO_TAILS

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.tables = tables

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        assert isinstance(location, LocalLocation)
        _stage(location.path, self.tables)
        return [file for file in found_files(location) if file.rows]


def _add_batch(lake: Lake, tables: Mapping[str, pa.Table], batch: int) -> int:
    """Adds a micro-batch of ten offsets; returns the number of its rows."""
    tp, start = TopicPartition("flights", 0), batch * 10
    covers, ends = covers_of([(tp, start, start + 10)]), ends_of({tp: start + 10})
    plan = BatchPlan("a" * 8, batch, covers, ends, begin=ends_of({tp: start}), offsets={tp: start + 10})
    rows: Any = _StagedTables(tables)
    return lake._table.add(rows, plan).rows


def _names(lake: Lake) -> list[str]:
    return sorted(str(path.relative_to(lake.table)) for path in lake.table.glob("**/*.*"))


def test_a_micro_batch_is_added_once(lake: Lake, feed: Feed) -> None:
    first = {"month=1": _rows(feed, 0, 0, 10), "month=2": _rows(feed, 1, 0, 5)}
    assert _add_batch(lake, first, 0) == 15
    again = {"month=1": _rows(feed, 0, 0, 10), "month=3": _rows(feed, 1, 0, 4)}
    assert _add_batch(lake, again, 0) == 15
    assert _add_batch(lake, {"month=1": _rows(feed, 0, 0, 10)}, 1) == 10
    assert read_rows(lake).num_rows == 25
    names = [re.sub(r"-\d{6}\.[0-9a-f]{8}-", "-run-", name) for name in _names(lake)]
    assert names == [
        "month=1/batch-000000-aaaaaaaa-run-part-00000.parquet",
        "month=1/batch-000001-aaaaaaaa-run-part-00000.parquet",
        "month=2/batch-000000-aaaaaaaa-run-part-00001.parquet",
    ]


def test_the_next_run_moves_the_files_of_a_published_micro_batch(
    lake: Lake, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[str] = []
    replace = Path.replace

    def dies(self: Path, target: Path) -> Path:
        moves.append(self.name)
        if moves.count("part-00000-x.snappy.parquet") == 2:
            raise OSError("killed")
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", dies)
        with pytest.raises(StorageError, match="killed"):
            _add_batch(lake, {f"month={n}": _rows(feed, n, 0, 5) for n in (1, 2, 3)}, 0)
    assert read_rows(lake).num_rows == 5
    Lake(tmp_path, "month").prepare()
    assert read_rows(lake).num_rows == 15
    assert list((tmp_path / "staging").iterdir()) == []


def test_files_without_notes_are_not_taken_for_an_empty_table(feed: Feed, tmp_path: Path) -> None:
    (tmp_path / "table" / "month=2").mkdir(parents=True)
    pq.write_table(_rows(feed, 1, 0, 5), tmp_path / "table" / "month=2" / "batch-000000-a-part-00007.parquet")
    with pytest.raises(StorageError, match="has files and no notes of their micro-batches"):
        Lake(tmp_path, "month").prepare()


def test_files_of_a_killed_writer_are_not_in_the_table_and_are_deleted(lake: Lake, feed: Feed, tmp_path: Path) -> None:
    left = tmp_path / "staging" / "killed" / "batch-0" / "month=1"
    left.mkdir(parents=True)
    (left / "part-0.parquet").write_bytes(b"PAR1 torn")
    unfinished = lake.table / "_temporary" / "0"
    unfinished.mkdir(parents=True)
    (unfinished / "part-0.parquet").write_bytes(b"PAR1 torn")
    assert list(lake.files()) == []
    Lake(tmp_path, "month").prepare()
    assert not left.exists()


def test_files_without_rows_are_not_added(lake: Lake, feed: Feed) -> None:
    assert _add_batch(lake, {"month=1": _rows(feed, 0, 0, 0)}, 0) == 0
    assert list(lake.files()) == []


# --- the check ------------------------------------------------------------------------------------------------------


def _judge(feed: Feed, *tables: pa.Table, skipped: dict[int, list[tuple[int, int]]] | None = None) -> CheckReport:
    rows = pa.concat_tables(tables).combine_chunks()
    return judge(rows, count_rows(rows), feed, skipped or {})


def _all(feed: Feed) -> list[pa.Table]:
    return [_rows(feed, partition, 0, TARGET) for partition in range(6)]


def test_a_complete_table_passes_the_check(feed: Feed) -> None:
    report = _judge(feed, *_all(feed))
    assert report.passed
    assert report.by_pyarrow == Count(TARGET, TARGET, int(feed.flights.distances[:TARGET].sum()))


def test_rows_that_were_read_again_are_counted_separately(feed: Feed) -> None:
    report = _judge(feed, *_all(feed), _rows(feed, 2, 10, 20), _rows(feed, 2, 15, 20))
    assert report.passed
    assert (report.by_pyarrow.rows, report.by_pyarrow.distinct, report.by_pyarrow.repeated) == (TARGET + 15, TARGET, 15)


def test_a_lost_record_is_found(feed: Feed) -> None:
    tables = _all(feed)
    tables[4] = pa.concat_tables([_rows(feed, 4, 0, 7), _rows(feed, 4, 8, TARGET)])
    report = _judge(feed, *tables)
    assert not report.passed
    assert "1 offset of flights-4 is missing, the first is 7" in report.problems


def test_a_record_read_twice_does_not_hide_a_lost_one(feed: Feed) -> None:
    tables = _all(feed)
    tables[4] = pa.concat_tables([_rows(feed, 4, 0, 7), _rows(feed, 4, 6, 7), _rows(feed, 4, 8, TARGET)])
    assert not _judge(feed, *tables).passed


def test_a_row_at_the_wrong_offset_is_found(feed: Feed) -> None:
    tables = _all(feed)
    events = tables[1]["event"].to_pylist()
    events[0], events[1] = events[1], events[0]
    tables[1] = tables[1].set_column(2, "event", pa.array(events, pa.int64()))
    report = _judge(feed, *tables)
    assert report.problems == [
        f"2 rows are not the event published there, first at flights-1 offset 0 (event {events[0]})"
    ]


def test_rows_that_were_never_published_are_found(feed: Feed) -> None:
    stray = _rows(feed, 0, 0, 1).set_column(1, "offset", pa.array([10**6], pa.int64()))
    assert not _judge(feed, *_all(feed), stray).passed


def test_a_row_whose_event_could_not_be_parsed_is_found(feed: Feed) -> None:
    tables = _all(feed)
    tables[0] = tables[0].set_column(2, "event", pa.array([None] * len(tables[0]), pa.int64()))
    assert not _judge(feed, *tables).passed


def test_only_events_that_a_rewind_skipped_may_be_missing(feed: Feed) -> None:
    tables = _all(feed)
    tables[3] = pa.concat_tables([_rows(feed, 3, 0, 10), _rows(feed, 3, 12, 13), _rows(feed, 3, 20, TARGET)])
    report = _judge(feed, *tables, skipped={3: [(8, 20)]})
    assert report.passed
    assert (report.skipped, report.skipped_count) == ({3: [(10, 12), (13, 20)]}, 9)
    assert report.expected_distinct == TARGET - 9
    assert not _judge(feed, *tables, skipped={3: [(8, 19)]}).passed


def test_readers_that_disagree_are_a_problem(feed: Feed) -> None:
    rows = pa.concat_tables(_all(feed)).combine_chunks()
    honest = count_rows(rows)
    assert not judge(rows, Count(honest.rows + 1, honest.distinct, honest.distance), feed, {}).passed
    assert not judge(rows, Count(honest.rows, honest.distinct, honest.distance + 1), feed, {}).passed


def test_all_events_are_missing_in_an_empty_table(feed: Feed) -> None:
    assert len([p for p in _judge(feed, _rows(feed, 0, 0, 0)).problems if "missing" in p]) == 6
