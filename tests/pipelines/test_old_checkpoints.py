"""A checkpoint that is older than its table is refused, and ``adopt`` lets a new one begin at the table's offsets."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from ingest_runs import committed, delta, ends, expected, parquet, record_ids
from support.brokers import unique
from support.forks import odradek_command
from support.publish import create_topic, numbers, publish

from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines import adopt, ingest, replay
from odradek.pipelines.checkpoint import planned_batch, remove_sums_without_files
from odradek.pipelines.commit import logs
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.checkpoint_mark import bind, check_checkpoint
from odradek.pipelines.queries import QueryFailed

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden_tables"
READ = {"parquet": parquet, "delta": delta}


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("old")
    create_topic(bootstrap, name, 1)
    publish(bootstrap, name, numbers(20))
    return name


EACH_PAIR = [
    ("parquet", "workers"),
    pytest.param("delta", "spark", marks=pytest.mark.slow),
    pytest.param("parquet", "spark", marks=pytest.mark.slow),
    pytest.param("delta", "workers", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "writer"), EACH_PAIR)
def test_a_restored_checkpoint_neither_loses_nor_repeats_rows(
    kind: str,
    writer: str,
    engine: Any,
    admin: Admin,
    bootstrap: str,
    topic: str,
    group: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before, a Delta table lost 50 rows after 100 further commits, and a Parquet table repeated rows after 200 further
    micro-batches."""
    if writer == "spark" and engine is None:
        pytest.skip("the stand-in for Spark has no writer")
    monkeypatch.setattr(logs.FileLog.__init__, "__defaults__", (3,))
    output, checkpoint = tmp_path / "t", tmp_path / "checkpoint"

    def run(most: str = "10") -> int:
        return ingest(
            bootstrap, topics=topic, group=group, output=output, table_format=kind, checkpoint=checkpoint,
            writer=writer, options={"maxOffsetsPerTrigger": most}, spark=engine,
        ).rows  # fmt: skip

    assert run() == 20
    shutil.copytree(checkpoint, tmp_path / "copy")
    publish(bootstrap, topic, numbers(10))
    assert run("2") == 10
    if kind == "delta":
        log = DeltaTable(output)
        for _ in range(101):
            log.create_write_transaction([], "append", log.schema(), [])
            log.update_incremental()
    publish(bootstrap, topic, numbers(5))
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(StorageError, match=r"the checkpoint is older than the table: it plans micro-batch 1, and .* 6"):
        run()
    assert READ[kind](output).num_rows == 30
    assert committed(admin, group) == {TopicPartition(topic, 0): 30}

    shown = adopt(bootstrap, group=group, output=output, checkpoint=checkpoint)
    assert (dict(shown.offsets), shown.is_done) == ({TopicPartition(topic, 0): 30}, False)
    assert (checkpoint / "offsets").exists(), "without execute, nothing is done"
    done = adopt(bootstrap, group=group, output=output, checkpoint=checkpoint, execute=True)
    assert done.kept_as is not None
    assert Path(done.kept_as, "offsets").exists()
    assert run() == 5
    assert record_ids(READ[kind](output)) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic)
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "copy", checkpoint)
    with pytest.raises(StorageError, match="has no note of an earlier one of this query"):
        run()


def test_older_notes_of_a_parquet_table_neither_lose_nor_repeat_rows(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """The folder with notes and checkpoint comes from a copy, and the files do not. Before, rows came twice."""
    output = tmp_path / "t"
    given = {"group": group, "topics": topic, "output": output, "spark": engine}
    assert ingest(bootstrap, **given).rows == 20
    shutil.copytree(output / "_odradek", tmp_path / "copy")
    publish(bootstrap, topic, numbers(10))
    assert ingest(bootstrap, **given).rows == 10
    shutil.rmtree(output / "_odradek")
    shutil.copytree(tmp_path / "copy", output / "_odradek")
    publish(bootstrap, topic, numbers(5))
    says = "has files of micro-batch 1, and its notes end at micro-batch 0: notes were removed, or are an older copy"
    with pytest.raises((StorageError, QueryFailed), match=says):
        ingest(bootstrap, **given)
    with pytest.raises(StorageError, match=says):
        adopt(bootstrap, group=group, output=output, execute=True)
    assert parquet(output).num_rows == 30
    assert committed(admin, group) == {TopicPartition(topic, 0): 30}


@pytest.mark.parametrize("more", [pytest.param(0, marks=pytest.mark.slow), 5])
def test_older_notes_are_named_before_the_checkpoint(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path, more: int
) -> None:
    """Only the notes come from a copy. Before, the line advised an adoption, which refuses such a table."""
    output = tmp_path / "t"
    given = {"group": group, "topics": topic, "output": output, "spark": engine}
    assert ingest(bootstrap, **given).rows == 20
    shutil.copytree(output / "_odradek" / "batches", tmp_path / "copy")
    for _ in range(2):
        publish(bootstrap, topic, numbers(10))
        assert ingest(bootstrap, **given).rows == 10
    shutil.rmtree(output / "_odradek" / "batches")
    shutil.copytree(tmp_path / "copy", output / "_odradek" / "batches")
    publish(bootstrap, topic, numbers(more))
    says = "has files of micro-batch 2, and its notes end at micro-batch 0.* or begin another table"
    with pytest.raises(StorageError, match=says):
        ingest(bootstrap, **given)
    with pytest.raises(StorageError, match=says):
        adopt(bootstrap, group=group, output=output)


def test_a_table_that_lacks_its_newest_file_goes_on_after_an_adoption(
    engine: Any,
    admin: Admin,
    bootstrap: str,
    topic: str,
    group: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output, tp = tmp_path / "t", TopicPartition(topic, 0)
    given = {"group": group, "topics": topic, "output": output, "spark": engine}
    assert ingest(bootstrap, **given, options={"maxOffsetsPerTrigger": "8"}).rows == 20
    (lost,) = output.glob("batch-000002-*.parquet")
    lost.unlink()
    publish(bootstrap, topic, numbers(5))
    says = f"has the file {lost.name}, which is neither in the table nor in .*: `odradek pipeline adopt` shows how"
    with pytest.raises(StorageError, match=says):
        ingest(bootstrap, **given)
    found = adopt(bootstrap, group=group, output=output)
    assert (found.lost, found.readable) == ({lost.name}, {tp: (16, 20)})
    admin.delete_records({tp: 18})
    assert adopt(bootstrap, group=group, output=output).readable == {tp: (18, 20)}
    line = ["pipeline", "adopt", "-b", bootstrap, "--group", group, "--output", str(output), "--execute"]
    assert run(line) == 0
    said = capsys.readouterr()
    assert f"still has records of this micro-batch: {tp} offsets 18 to 19. The next" in said.out + said.err
    assert ingest(bootstrap, **given).rows == 5
    replay(bootstrap, offsets=json.dumps({topic: {"0": [18, 20]}}), output=output, spark=engine)
    assert record_ids(parquet(output)) == Counter((topic, 0, at) for at in [*range(16), *range(18, 25)])


@pytest.mark.parametrize("kind", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_a_new_topic_of_the_same_name_is_read_from_its_start(
    kind: str, engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """Before, the new checkpoint began at the offsets of the deleted topic: the first records of the new one were in no
    table."""
    given = {"group": group, "topics": topic, "output": tmp_path / "t", "table_format": kind, "spark": engine}
    adopted = {"group": group, "output": tmp_path / "t"}

    def create_again(count: int) -> None:
        admin.delete_topics([topic])
        create_topic(bootstrap, topic, 1)
        publish(bootstrap, topic, numbers(count))

    assert ingest(bootstrap, **given).rows == 20
    create_again(30)
    shutil.rmtree(tmp_path / "t" / "_odradek" / "checkpoint")
    with pytest.raises(ConfigError, match="`odradek pipeline adopt` shows how"):
        ingest(bootstrap, **given)
    assert adopt(bootstrap, **adopted).replaced == (topic,)
    done = adopt(bootstrap, **adopted, execute=True)
    assert (done.replaced, done.unknown, done.offsets) == ((topic,), (), {TopicPartition(topic, 0): 0})
    create_again(40)  # after the adoption: the offsets of the group are those of another topic again
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
    with pytest.raises((StorageError, QueryFailed), match=f"an earlier topic {topic}, which was deleted"):
        ingest(bootstrap, **given)
    assert adopt(bootstrap, **adopted, execute=True).replaced == (topic,)
    assert ingest(bootstrap, **given).rows == 40
    assert READ[kind](tmp_path / "t").num_rows == 60


def test_a_table_that_lacks_the_last_micro_batch_is_refused_without_new_records(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """Before, such a run ended well: "a newer run has published to the table"."""
    given = {"group": group, "topics": topic, "output": tmp_path / "t", "table_format": "delta", "spark": engine}
    given |= {"checkpoint": tmp_path / "checkpoint"}
    assert ingest(bootstrap, **given).rows == 20
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    publish(bootstrap, topic, numbers(10))
    assert ingest(bootstrap, **given).rows == 10
    shutil.rmtree(tmp_path / "t")
    shutil.copytree(tmp_path / "copy", tmp_path / "t")
    with pytest.raises(StorageError, match="micro-batch 1 is done in the checkpoint"):
        ingest(bootstrap, **given)
    adopt(bootstrap, group=group, output=tmp_path / "t", checkpoint=tmp_path / "checkpoint", execute=True)
    assert ingest(bootstrap, **given).rows == 10
    assert delta(tmp_path / "t").num_rows == 30


def test_a_checkpoint_without_a_part_names_what_helps(tmp_path: Path) -> None:
    """Before, the line named only the missing file."""
    with pytest.raises(StorageError, match=r"offsets/0 is missing.* `odradek pipeline adopt` shows how"):
        planned_batch(LocalLocation(tmp_path), 0)


def test_a_checkpoint_that_has_lost_all_offsets_is_refused(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """Before, each run failed in Spark: "assertion failed"."""
    output = tmp_path / "t"
    assert ingest(bootstrap, group=group, topics=topic, output=output, spark=engine).rows == 20
    (output / "_odradek" / "checkpoint" / "offsets" / "0").unlink()
    with pytest.raises(StorageError, match=r"has micro-batch 0 as done, and there are no offsets: .* adopt` shows how"):
        ingest(bootstrap, group=group, topics=topic, output=output, spark=engine)
    assert adopt(bootstrap, group=group, output=output, execute=True).is_done
    publish(bootstrap, topic, numbers(5))
    assert ingest(bootstrap, group=group, topics=topic, output=output, spark=engine).rows == 5


@pytest.mark.slow
def test_a_checkpoint_with_a_later_commit_than_its_offsets_is_refused_and_adopted(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """A driver is paused at its end, an old copy of table and checkpoint is put back, and the driver goes on: it notes
    its last micro-batch as done. Before, every later run failed, with the advice to run the command again."""
    output = tmp_path / "t"
    given = {"group": group, "topics": topic, "output": output, "spark": engine}
    assert ingest(bootstrap, **given).rows == 20
    shutil.copytree(output, tmp_path / "copy")
    publish(bootstrap, topic, numbers(10))
    assert ingest(bootstrap, **given).rows == 10
    done = (output / "_odradek" / "checkpoint" / "commits" / "1").read_bytes()
    shutil.rmtree(output)
    shutil.copytree(tmp_path / "copy", output)
    (output / "_odradek" / "checkpoint" / "commits" / "1").write_bytes(done)
    for _ in range(2):
        with pytest.raises(
            StorageError, match=r"has micro-batch 1 as done, and its newest offsets are those of .* 0: "
        ):
            ingest(bootstrap, **given)
    assert adopt(bootstrap, group=group, output=output, execute=True).is_done
    assert ingest(bootstrap, **given).rows == 10
    assert record_ids(parquet(output)) == {(topic, 0, offset): 1 for offset in range(30)}


def test_a_table_whose_next_records_were_deleted_is_adopted_at_the_log_start(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """Before, no command helped: the new checkpoint began at the log start, and the table ended below it."""
    given = {"group": group, "topics": topic, "output": tmp_path / "t", "spark": engine}
    tp = TopicPartition(topic, 0)
    assert ingest(bootstrap, **given).rows == 20
    publish(bootstrap, topic, numbers(20))
    admin.delete_records({tp: 35})
    shutil.rmtree(tmp_path / "t" / "_odradek" / "checkpoint")
    done = adopt(bootstrap, group=group, output=tmp_path / "t", execute=True)
    assert (done.offsets, done.deleted) == ({tp: 35}, {tp: 20})
    assert ingest(bootstrap, **given).rows == 5
    assert committed(admin, group) == {tp: 40}


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_a_table_and_a_checkpoint_of_an_earlier_version_go_on(
    kind: str, engine: Any, admin: Admin, bootstrap: str, group: str, tmp_path: Path
) -> None:
    """The version before the log of tables has written them (commit 99ff361b): 40 records of topic golden."""
    output, checkpoint = tmp_path / kind, tmp_path / kind / "_odradek" / "checkpoint"
    shutil.copytree(GOLDEN / kind, output)
    topic = unique("golden")
    create_topic(bootstrap, topic, 2)
    for partition in range(2):
        publish(bootstrap, topic, numbers(20), partition=partition)
    topic_id = admin.describe_topics([topic])[topic].topic_id
    for path in (checkpoint / "offsets").iterdir():  # the topic of this broker has another name and another id
        if path.suffix == ".crc":
            path.unlink()
            continue
        lines = path.read_text().splitlines()
        offset = json.loads(lines[2])
        offset[topic] = offset.pop("golden")
        for name in ("from", "epochs"):
            if "golden" in offset["$odradek"].get(name, {}):
                offset["$odradek"][name][topic] = offset["$odradek"][name].pop("golden")
        offset["$odradek"]["ids"] = {topic: str(topic_id)}
        path.write_text("\n".join([*lines[:2], json.dumps(offset, separators=(",", ":"))]))
    _rename_topic_in_notes(output, kind, checkpoint)

    def run() -> int:
        return ingest(
            bootstrap, topics=topic, group=group, output=output, table_format=kind, partition_by=["partition"],
            spark=engine,
        ).rows  # fmt: skip

    assert run() == 0
    assert committed(admin, group) == ends(admin, topic)
    publish(bootstrap, topic, numbers(3), partition=1)
    assert run() == 3
    publish(bootstrap, topic, numbers(2), partition=0)
    assert run() == 2
    rows = record_ids(READ[kind](output))
    assert len(rows) == sum(rows.values()) == 45
    assert committed(admin, group) == ends(admin, topic)


def _rename_topic_in_notes(output: Path, kind: str, checkpoint: Path) -> None:
    """Writes the digests for the other name of the topic into the notes of the earlier version."""
    from odradek.pipelines.checkpoint import planned_batch
    from odradek.pipelines.commit.state import covers_of
    from odradek.pipelines.filesystems.location import LocalLocation

    covers = covers_of(planned_batch(LocalLocation(checkpoint), 2).ranges)
    if kind == "parquet":
        (manifest,) = (output / "_odradek" / "batches").glob("batch-000002-*.json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"covers": covers}))
        return
    commit = output / "_delta_log" / f"{3:020}.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for action in lines:
        if "commitInfo" in action:
            words = action["commitInfo"]["odradek.batch"].split()
            action["commitInfo"]["odradek.batch"] = " ".join([*words[:7], covers])
    commit.write_text("\n".join(map(json.dumps, lines)) + "\n")


@pytest.mark.parametrize("kind", [pytest.param("parquet", marks=pytest.mark.slow), "delta"])
def test_a_table_that_has_read_nothing_yet_is_adopted_at_its_notes(
    kind: str, engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    """Before, a Delta table was a dead end: ``adopt`` said that it has no rows, and ``ingest`` said to adopt it."""
    given: dict[str, Any] = {"group": group, "output": tmp_path / "t", "spark": engine}
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(20)})
    assert ingest(bootstrap, topics=topic, table_format=kind, **given).rows == 0
    shutil.rmtree(tmp_path / "t" / "_odradek" / "checkpoint")
    admin.delete_groups([group])
    assert adopt(bootstrap, **given, execute=True).offsets == {TopicPartition(topic, 0): 20}
    assert committed(admin, group) == {TopicPartition(topic, 0): 20}
    publish(bootstrap, topic, numbers(5))
    assert ingest(bootstrap, topics=topic, table_format=kind, **given).rows == 5


@pytest.mark.slow
def test_rows_that_a_user_has_removed_do_not_come_back_after_an_adoption(
    engine: Any, admin: Admin, bootstrap: str, group: str, tmp_path: Path
) -> None:
    """Before, a partition without rows in a Delta table was read from its start again."""
    topic, output = unique("removed"), tmp_path / "t"
    create_topic(bootstrap, topic, 2)
    for partition in range(2):
        publish(bootstrap, topic, numbers(10), partition=partition)
    given: dict[str, Any] = {"group": group, "output": output, "spark": engine}
    assert ingest(bootstrap, topics=topic, table_format="delta", **given).rows == 20
    DeltaTable(output).delete("partition = 1")
    shutil.rmtree(output / "_odradek" / "checkpoint")
    admin.delete_groups([group])
    assert adopt(bootstrap, **given, execute=True).offsets == ends(admin, topic)
    assert ingest(bootstrap, topics=topic, table_format="delta", **given).rows == 0


def test_the_command_shows_what_it_does_first(
    engine: Any, bootstrap: str, topic: str, group: str, tmp_path: Path
) -> None:
    output = tmp_path / "t"
    line = [*odradek_command(), "pipeline", "adopt", "-b", bootstrap, "--group", group]
    line += ["--output", str(output)]

    def odradek(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*line, *more], capture_output=True, text=True, timeout=120, check=False)

    with pytest.raises(ConfigError, match="is not a table of odradek"):
        adopt(bootstrap, group=group, output=output)
    ingest(bootstrap, topics=topic, group=group, output=output, spark=engine)
    shown = odradek()
    assert shown.returncode == 0, shown
    assert f"{topic}  " in shown.stdout + shown.stderr
    assert "With --execute: group" in shown.stdout + shown.stderr
    done = odradek("--execute", "--json")
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    assert (found["done"], found["offsets"]) == (
        True,
        [{"topic": topic, "partition": 0, "offset": 20, "committed": 20}],
    )
    publish(bootstrap, topic, numbers(2))
    assert ingest(bootstrap, topics=topic, group=group, output=output, spark=engine).rows == 2


def test_two_copies_of_a_table_with_one_group_name_each_other(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the copies overwrote each other's commits without a line: both have the checkpoint of one query."""
    first, second = tmp_path / "first", tmp_path / "second"

    def lines_of(output: Path) -> list[str]:
        caplog.clear()
        assert ingest(bootstrap, topics=topic, group=group, output=output, spark=engine).group.is_committed
        return [line for line in caplog.messages if "has committed the offset of" in line]

    assert lines_of(first) == []
    shutil.copytree(first, second)
    for output, other in ((second, first), (first, second)):  # without new records, and without Spark
        (line,) = lines_of(output)
        assert f"group {group}: the pipeline of the table {other} has committed the offset of {topic}-0" in line
        assert lines_of(output) == []
    publish(bootstrap, topic, numbers(5))
    assert len(lines_of(second)) == 1
    assert committed(admin, group) == {TopicPartition(topic, 0): 25}
    assert len(lines_of(first)) == 1


def test_a_second_table_of_a_group_names_its_start_and_the_first_table(
    engine: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, the second table began at the offsets of the first without a word."""
    tp = TopicPartition(topic, 0)
    first = ingest(bootstrap, topics=topic, group=group, output=tmp_path / "first", spark=engine)
    assert first.start is not None
    assert (dict(first.start.offsets), first.start.outputs) == ({}, ())
    admin.delete_groups([group])
    idle = ingest(bootstrap, topics=topic, group=group, output=tmp_path / "first", spark=engine)
    assert (idle.rows, idle.group.is_committed) == (0, True), "a run without Spark commits with the same mark"
    publish(bootstrap, topic, numbers(5))
    second = ingest(bootstrap, topics=topic, group=group, output=tmp_path / "second", spark=engine)
    assert second.start is not None
    assert (second.rows, dict(second.start.offsets)) == (5, {tp: 20})
    assert second.start.outputs == (str(tmp_path / "first"),)
    assert f"is also the group of the table {tmp_path}/first: this table begins at its offsets" in caplog.text
    assert "has committed the offset of" not in caplog.text, "one line for each table"
    again = ingest(bootstrap, topics=topic, group=group, output=tmp_path / "second", spark=engine)
    assert again.start is None
    assert committed(admin, group) == {tp: 25}


def test_a_table_that_has_lost_its_description_says_so(tmp_path: Path) -> None:
    """Before, the message said that the checkpoint belongs to another query."""
    checkpoint = tmp_path / "t" / "_odradek" / "checkpoint"
    checkpoint.mkdir(parents=True)
    (checkpoint / "odradek-table").write_text("a" * 32)
    table = LocalLocation(tmp_path / "t")
    with pytest.raises(ConfigError, match=r"has lost _odradek/table\.json, with which it began"):
        check_checkpoint(LocalLocation(checkpoint), table, None, has_batches=False)
    other, new = "belongs to another query than the one for", r"belongs to another query, and \S+new is a new table"
    for id, place, text in (("another id", tmp_path / "t", other), (None, tmp_path / "new", new)):
        with pytest.raises(ConfigError, match=text):
            check_checkpoint(LocalLocation(checkpoint), LocalLocation(place), id, has_batches=False)


def test_checksums_without_their_files_are_removed(tmp_path: Path) -> None:
    """Spark cannot write a file again whose checksum is there: "Rename destination … already exists"."""
    names = ("commits/0", "commits/.0.crc", "commits/.1.crc", "offsets/1", "offsets/.1.crc", "offsets/.x.crc")
    for name in (*names, ".metadata.crc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    remove_sums_without_files(LocalLocation(tmp_path))
    held = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert held == ["commits/.0.crc", "commits/0", "offsets/.1.crc", "offsets/.x.crc", "offsets/1"]
    remove_sums_without_files(LocalLocation(tmp_path / "none"))


def test_of_two_runs_that_begin_with_one_checkpoint_one_marks_it(tmp_path: Path) -> None:
    """Both see no mark. Before, the mark of the second replaced that of the first, or one of their renames failed."""
    checkpoint, table = LocalLocation(tmp_path / "checkpoint"), LocalLocation(tmp_path / "table")
    first = "1" * 32

    class Late(LocalLocation):
        """Sees the mark of another run only after its own check."""

        looks = 2

        def read_text(self, name: str) -> str | None:
            self.looks -= 1
            return None if self.looks >= 0 else super().read_text(name)

    bind(checkpoint, table, first, has_batches=False)
    bind(Late(checkpoint.path), table, first, has_batches=False)
    with pytest.raises(ConfigError, match="belongs to another query"):
        bind(Late(checkpoint.path), table, "2" * 32, has_batches=False)
    assert [path.read_text() for path in checkpoint.path.iterdir()] == [f"{first}\n"]
