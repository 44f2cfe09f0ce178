"""Records that come after a replay's run and are deleted before its next one are named: by the earliest offset as by a
time, the replay selects only what the log still has. Before, the next run left them out without a line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish
from transaction_runs import committed_records

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.pipelines import Replayed, replay
from odradek.pipelines.replays.selection import RangeGone

KINDS = pytest.mark.parametrize("kind", ["topic", "parquet", pytest.param("delta", marks=pytest.mark.slow)])


class GrowingReplay:
    """A replay, run again and again. Its topic has 10 records in partition 0 and 4 in partition 1, all replayed."""

    def __init__(self, bootstrap: str, admin: Admin, spark: Any, kind: str, root: Path, **chosen: str) -> None:
        self.bootstrap, self.admin, self.spark = bootstrap, admin, spark
        self.topic = unique("gone")
        create_topic(bootstrap, self.topic, 2, retention_ms="-1")
        self.given: dict[str, Any] = {"topics": self.topic, **chosen}
        if kind == "topic":
            target = unique("copies")
            create_topic(bootstrap, target, 2)
            self.given |= {"to_topic": target, "exactly_once": True}
        else:
            self.given |= {"output": root / "table", "table_format": kind}
        self.send(10)
        self.send(4, partition=1)
        assert self.run().rows == 14

    def send(self, count: int, partition: int = 0) -> None:
        publish(self.bootstrap, self.topic, numbers(count), partition=partition)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        self.admin.delete_records({TopicPartition(self.topic, partition): offset})

    def run(self, **given: Any) -> Replayed:
        done = replay(self.bootstrap, spark=self.spark, **self.given, **given)
        assert isinstance(done, Replayed)
        return done

    def refusal(self) -> str:
        with pytest.raises(RangeGone) as refused:
            self.run()
        assert "\n" not in str(refused.value)
        return str(refused.value)


@KINDS
@pytest.mark.parametrize("start", ["earliest", pytest.param("2001-01-01T00:00:00", marks=pytest.mark.slow)])
def test_records_that_no_run_has_read_are_named(
    kind: str, start: str, bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    runs = GrowingReplay(bootstrap, admin, spark, kind, tmp_path, start=start)
    runs.send(10)
    runs.delete_before(15)
    runs.delete_before(3, partition=1)
    line = runs.refusal()
    assert line.startswith(f"{runs.topic}-0: offsets 10 to 14 are lost (its log starts at 15), removed by ")
    assert f"{runs.topic}-1" not in line, "an earlier run has replayed what partition 1 has lost"
    done = runs.run(allow_missing=True)
    assert (done.rows, done.missing) == (5, (line,))
    runs.send(2)
    assert (runs.run().rows, runs.run().already) == (2, True), "they are named once"
    if kind == "topic":
        assert len(committed_records(bootstrap, runs.given["to_topic"])) == 14 + 5 + 2


@KINDS
@pytest.mark.parametrize("end", ["latest", pytest.param("12", marks=pytest.mark.slow)])
def test_a_topic_without_any_record_is_no_reason_for_silence(
    kind: str, end: str, bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    """Neither partition has a record of the selection any more."""
    given = {} if end == "latest" else {"end": end, "allow_missing": True}
    runs = GrowingReplay(bootstrap, admin, spark, kind, tmp_path, **given)
    runs.send(10)
    runs.delete_before(20)
    runs.delete_before(4, partition=1)
    gone = f"{runs.topic}-0: offsets 10 to {19 if end == 'latest' else 11} are lost (its log starts at 20)"
    if end == "latest":
        assert gone in runs.refusal()
    done = runs.run(**({} if "allow_missing" in given else {"allow_missing": True}))
    assert done.already or done.rows == 0
    assert any(line.startswith(gone) for line in done.missing)


@pytest.mark.slow
@KINDS
def test_what_a_run_has_planned_and_what_came_later_is_one_line(
    kind: str, bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    """With ``again`` all of it is sent once more, and nothing is missing."""
    runs = GrowingReplay(bootstrap, admin, spark, kind, tmp_path)
    runs.send(10)
    runs.delete_before(15)
    done = runs.run(again=True)
    assert (done.rows, done.missing) == (9, ())


@KINDS
@pytest.mark.parametrize("way", ["start", pytest.param("offsets", marks=pytest.mark.slow)])
def test_offsets_that_were_replayed_before_they_were_deleted_are_not_missing(
    kind: str, way: str, bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    """An offset as the start, and ranges, name what the log has no more. The next run of the same command said that
    these records are lost, although an earlier run had replayed them."""
    runs = GrowingReplay(bootstrap, admin, spark, kind, tmp_path, start="0")
    if way == "offsets":
        ranges = json.dumps({runs.topic: {"0": [0, 30], "1": [0, 4]}})
        runs.send(20)
        del runs.given["topics"], runs.given["start"]
        runs.given["offsets"] = ranges
        assert runs.run().rows == 34
        runs.delete_before(12)
        runs.delete_before(4, partition=1)
        assert (runs.run().already, runs.run().missing) == (True, ())
        return
    runs.send(10)
    runs.delete_before(10)
    assert (runs.run().rows, runs.run().missing) == (10, ())
    runs.delete_before(20)
    runs.delete_before(4, partition=1)
    done = runs.run()
    assert (done.already, done.missing) == (True, ()), "nothing of the selection is left in the logs"
    runs.send(10)
    runs.delete_before(25)
    line = runs.refusal()
    assert line.startswith(f"{runs.topic}-0: offsets 20 to 24 are lost (its log starts at 25), removed by ")
    assert f"{runs.topic}-1" not in line
    done = runs.run(allow_missing=True)
    assert (done.rows, done.missing) == (5, (line,))
    if kind == "topic":
        assert len(committed_records(bootstrap, runs.given["to_topic"])) == 14 + 10 + 5


@KINDS
def test_a_first_run_from_an_offset_names_what_was_deleted_before(
    kind: str, bootstrap: str, admin: Admin, spark: Any, tmp_path: Path
) -> None:
    """It leaves no folder. ``again``, too, reads all of the selection."""
    runs = GrowingReplay(bootstrap, admin, spark, kind, tmp_path, start="0")
    runs.delete_before(3)
    lost = f"{runs.topic}-0: offsets 0 to 2 are lost (its log starts at 3)"
    with pytest.raises(RangeGone, match=re.escape(lost)):
        runs.run(again=True)
    assert runs.run().already
    if kind == "topic":
        target = unique("copies")
        create_topic(bootstrap, target, 2)
        runs.given["to_topic"] = target
    else:
        runs.given["output"] = tmp_path / "other"
    assert runs.refusal().startswith(lost)
    assert not (tmp_path / "other").exists()
    done = runs.run(allow_missing=True)
    assert (done.rows, len(done.missing)) == (11, 1)
