"""The history of a monitor on disk: restarts without a gap or a double, joins, thinning, and what is kept."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="the extra arrow is not installed")

from support.offset_entries import batch_of, entry

from odradek.core.ids import TopicPartition
from odradek.history.findings import FindingRules
from odradek.history.kept.folder_analysis import analyse_folder
from odradek.history.kept.history_files import ENDS, RECORDS, HistoryFolder
from odradek.history.kept.known_ends import KnownEnds
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.disk import recorder as recorders
from odradek.monitor.disk import upkeep as upkeeps
from odradek.monitor.disk.recorder import HistoryRecorder
from odradek.monitor.disk.upkeep import HistoryUpkeep
from odradek.monitor.group_tracker import GroupTracker, LogBoundsRow

START_MS = 1_790_000_000_000
ORDERS = [TopicPartition("orders", number) for number in range(3)]
POLL_MS = 10_000
DAY_MS = 86_400_000


class RecordedWorld:
    """An offsets topic of two partitions, its tracker, and a monitor that is killed and started again."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.random = directory, random.Random(seed)
        self.now_ms = START_MS
        self.topic: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
        self.ends = dict.fromkeys(ORDERS, 100)
        self.polls: list[tuple[int, dict[TopicPartition, int]]] = []
        self.start()

    def start(self) -> None:
        self.recorder = HistoryRecorder(self.directory, lambda: self.now_ms)
        self.read = dict.fromkeys(self.topic, 0)

    def step(self) -> None:
        """Some commits, read in pieces, and a poll."""
        self.now_ms += POLL_MS
        for _ in range(self.random.randint(0, 6)):
            number, group, tp = self.random.randint(0, 1), self.random.choice("ab"), self.random.choice(ORDERS)
            offset = None if self.random.random() < 0.1 else self.random.randint(0, 120)
            place = number, len(self.topic[number])
            self.topic[number].append(entry(f"{group}{number}", tp, place, self.now_ms, offset, None))
        for number, rows in self.topic.items():
            while self.read[number] < len(rows):
                begin = self.read[number]
                self.read[number] = min(len(rows), begin + self.random.randint(1, 5))
                self.recorder.add_records(batch_of(rows[begin : self.read[number]]))
        for tp in ORDERS:
            self.ends[tp] += self.random.choice([0, 0, 3])
        self.polls.append((self.now_ms, dict(self.ends)))
        self.recorder.add_poll(self.now_ms, {tp: LogBoundsRow(1, end) for tp, end in self.ends.items()}, {})

    def places(self) -> Counter[tuple[int, int]]:
        found: Counter[tuple[int, int]] = Counter()
        for one in HistoryFolder(self.directory / "history").files(RECORDS):
            table = one.read()
            columns = (table.column(name).to_pylist() for name in ("record_partition", "record_offset"))
            found.update(zip(*columns, strict=True))
        return found

    def written(self) -> Counter[tuple[int, int]]:
        """Each record of the topic once."""
        return Counter((number, place) for number, rows in self.topic.items() for place in range(len(rows)))

    def known(self) -> KnownEnds:
        return KnownEnds([one.read() for one in HistoryFolder(self.directory / "history").files(ENDS)])


@pytest.mark.parametrize("seed", range(5))
def test_a_restart_leaves_no_gap_and_no_double(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed monitor writes nothing more; what it had not written comes again from the topic."""
    monkeypatch.setattr(recorders, "_MOST_ROWS", 20)
    world = RecordedWorld(tmp_path, seed)
    lost: set[int] = set()
    for _ in range(60):
        world.step()
        if world.random.random() < 0.2:
            is_killed = world.random.random() < 0.5
            if not is_killed:
                world.recorder.flush()
            written = set(world.known().polls.tolist())
            lost |= {ms for ms, _ in world.polls} - written
            world.start()
    world.step()
    world.recorder.flush()
    assert world.places() == world.written()
    known = world.known()
    assert set(known.polls.tolist()) == {ms for ms, _ in world.polls} - lost
    for ms, ends in world.polls:
        if ms not in lost:
            assert {tp: int(known.at(tp, _array(ms))[0]) for tp in ORDERS} == ends


def _array(ms: int) -> Any:
    import numpy as np

    return np.array([ms])


def test_a_clean_end_loses_no_poll(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path, 9)
    for _ in range(3):
        for _ in range(4):
            world.step()
        world.recorder.flush()
        world.start()
    assert world.known().polls.tolist() == [ms for ms, _ in world.polls]


def test_verdicts_and_findings_of_the_folder_are_those_of_the_tracker(tmp_path: Path) -> None:
    """The same entries and polls, judged live and from the files."""
    world, tracker = RecordedWorld(tmp_path, 3), GroupTracker(VerdictRules(), 250)
    read = dict.fromkeys(world.topic, 0)
    for _ in range(50):
        world.step()
        for number, rows in world.topic.items():
            if rows[read[number] :]:
                tracker.add_entries(batch_of(rows[read[number] :]))
                read[number] = len(rows)
        ms, ends = world.polls[-1]
        tracker.add_bounds(ms, {tp: LogBoundsRow(1, end) for tp, end in ends.items()}, {})
    world.recorder.flush()
    analysis = analyse_folder(HistoryFolder(tmp_path / "history"), rules=FindingRules())
    order = [("group", "ascending"), ("topic", "ascending"), ("partition", "ascending")]
    live, kept = tracker.table(tracker.last_poll_ms).sort_by(order), analysis.verdicts.sort_by(order)
    assert kept.num_rows > 3
    assert kept.to_pylist() == live.to_pylist()
    found, shown = (
        sorted((row["group"], row["topic"], row["partition"], row["from_offset"], row["to_offset"])
               for row in table.to_pylist() if row["kind"] == "rewind")
        for table in (tracker.findings(tracker.last_poll_ms), analysis.findings)
    )  # fmt: skip
    assert shown == found
    assert analysis.incomplete_below == {}


def test_old_files_are_joined_and_thinned_and_findings_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_MOST_ROWS", 30)
    monkeypatch.setattr(upkeeps, "_LEAST_FILES", 1)
    world = RecordedWorld(tmp_path, 4)
    for _ in range(200):
        world.step()
    world.recorder.flush()
    folder = HistoryFolder(tmp_path / "history")
    whole, rewinds = world.places(), _rewinds(folder)
    upkeep = HistoryUpkeep(folder, 400 * DAY_MS, 1 << 40, lambda: world.now_ms)
    sizes = []
    for age in (0, 3_700_000, 2 * DAY_MS, 8 * DAY_MS, 31 * DAY_MS):
        world.now_ms = world.polls[-1][0] + age
        while upkeep.step():
            pass
        sizes.append(len(world.places()))
        assert max(world.places().values()) == 1
        assert _rewinds(folder) == rewinds, "each rewind is still found"
    assert sizes[1] == sizes[0] == len(whole)
    assert sizes[1] > sizes[2] > sizes[3] >= sizes[4]
    assert len(folder.files(RECORDS)) <= 4
    newest = folder.files(RECORDS)[-1]
    assert newest.level == 0, "it says how far the history reaches"
    assert newest.notes.positions == {number: len(rows) for number, rows in world.topic.items()}
    analysis = analyse_folder(folder)
    assert set(analysis.incomplete_below) == {0, 1}
    assert HistoryRecorder(tmp_path, lambda: world.now_ms).position(0) == len(world.topic[0])


def test_small_files_wait_until_there_are_enough_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each minute's file would be thinned alone, and there would be thousands of them."""
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    world = RecordedWorld(tmp_path, 8)
    folder = HistoryFolder(tmp_path / "history")
    upkeep = HistoryUpkeep(folder, 400 * DAY_MS, 1 << 40, lambda: world.now_ms + 2 * DAY_MS)
    most = 0
    for number in range(60):
        world.step()
        if number % 4 == 3:
            while upkeep.step():
                pass
            most = max(most, len(folder.files(RECORDS)))
    world.recorder.flush()
    assert 60 > most <= 2 * upkeeps._LEAST_FILES + 60 // upkeeps._LEAST_FILES
    assert max(world.places().values()) == 1


def _rewinds(folder: HistoryFolder) -> set[tuple[Any, ...]]:
    rows = analyse_folder(folder).findings.to_pylist()
    return {
        (row["group"], row["topic"], row["partition"], row["from_timestamp"]) for row in rows if row["kind"] == "rewind"
    }


def test_keep_and_keep_bytes_remove_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_MOST_ROWS", 20)
    world = RecordedWorld(tmp_path, 5)
    for _ in range(60):
        world.step()
    world.recorder.flush()
    folder = HistoryFolder(tmp_path / "history")
    before = [one.path.name for one in folder.files(RECORDS)]
    size = sum(one.size for kind in (RECORDS, ENDS) for one in folder.files(kind))
    HistoryUpkeep(folder, DAY_MS, size // 2, lambda: world.now_ms).remove_oldest()
    after = [one.path.name for one in folder.files(RECORDS)]
    assert 1 <= len(after) < len(before)
    assert after == before[-len(after) :]
    assert sum(one.size for kind in (RECORDS, ENDS) for one in folder.files(kind)) <= size // 2
    world.now_ms += 2 * DAY_MS
    HistoryUpkeep(folder, DAY_MS, 1 << 40, lambda: world.now_ms).remove_oldest()
    assert [len(folder.files(kind)) for kind in (RECORDS, ENDS)] == [1, 1]


def test_memory_is_bounded_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "_MOST_ROWS", 20)
    world = RecordedWorld(tmp_path, 6)
    with monkeypatch.context() as patch:
        patch.setattr(HistoryFolder, "write", _full)
        for _ in range(40):
            world.step()
            assert world.recorder._waiting.rows <= 60
        assert "No space" in world.recorder.trouble
    for _ in range(8):
        world.step()
    world.recorder.flush()
    assert world.recorder.trouble == ""
    assert set(analyse_folder(HistoryFolder(tmp_path / "history")).incomplete_below) == {0, 1}, "the gap is noted"


def _full(*given: Any) -> None:
    raise OSError(28, "No space left on device")


def test_another_offsets_topic_begins_another_history(tmp_path: Path) -> None:
    world = RecordedWorld(tmp_path, 7)
    for _ in range(10):
        world.step()
    world.recorder.begin_again()
    world.topic = {0: [], 1: []}
    world.read = {0: 0, 1: 0}
    for _ in range(10):
        world.step()
    world.recorder.flush()
    assert world.places() == world.written()
    (former,) = tmp_path.glob("history-former-*")
    assert HistoryFolder(former).files(RECORDS)
