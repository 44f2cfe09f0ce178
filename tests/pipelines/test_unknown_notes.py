"""Missing notes, an absent log and unreadable folders are not read as consent: a run says so and adds nothing."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from deltalake import DeltaTable as Log
from deltalake.exceptions import DeltaError
from table_rows import QUERY, TP, Rows, begun_table, delta_table, files, plan

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.checkpoint import planned_batch
from odradek.pipelines.commit.state import TableRefused, covers_of
from odradek.pipelines.delta import state as delta_state
from odradek.pipelines.files.row_ends import parquet_row_ends
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.table_description import check_table
from odradek.pipelines.formats.target import Target
from odradek.spark.offsets.source_offset import SourceOffset

OLD = time.time() - 3 * 86_400
LATER = "f" * 16


def lose_the_log(root: Path) -> None:
    shutil.move(root / "t" / "_delta_log", root / "lost")


def test_a_delta_table_without_its_log_is_refused(tmp_path: Path) -> None:
    """Before, a run with a new checkpoint began another table in the folder, without the rows of the files."""
    table = begun_table("delta", tmp_path, "a")
    for batch in (0, 1):
        table.add(Rows(10), plan(batch))
    table.close()
    lose_the_log(tmp_path)
    with pytest.raises(TableRefused, match="has files of micro-batch 1, and no Delta log: the log was removed"):
        begun_table("delta", tmp_path, "b")
    assert len(files(tmp_path)) == 2


def test_files_of_an_earlier_version_stay_if_the_log_is_lost(tmp_path: Path) -> None:
    """Before, the next run removed them all, because no log had them."""
    name = tmp_path / "t" / f"batch-000000-{QUERY[:8]}-{'a' * 8}-0123456789ab-00000.parquet"
    name.parent.mkdir()
    name.write_bytes(b"rows")
    os.utime(name, (OLD, OLD))
    table = delta_table(tmp_path, "b" * 32)
    table.prepare(frozenset(["a" * 32]), gone=frozenset(["a" * 32]))
    table.close()
    assert name.exists()


def of_earlier_version(root: Path, *queries: str) -> None:
    """A Delta table of an earlier version with a micro-batch of each query."""
    for number, query in enumerate(queries):
        text = f"0 {query} 10 0 aaaaaaaa 1 100 {covers_of([(TP, 10 * number, 10 * number + 10)])}"
        said = CommitProperties(custom_metadata={"odradek.batch": text}, app_transactions=[Transaction(query, 0)])
        write_deltalake(root / "t", pa.table({"n": range(10)}), mode="append", commit_properties=said)


def test_a_query_of_an_earlier_version_that_another_one_followed_does_not_continue(tmp_path: Path) -> None:
    """Before, it added rows that the later one had added already."""
    of_earlier_version(tmp_path, QUERY, LATER)
    with pytest.raises(TableRefused, match="has no note of an earlier one of this query"):
        begun_table("delta", tmp_path, "a").add(Rows(10), plan(1))
    assert Log(tmp_path / "t").to_pyarrow_table().num_rows == 20


def test_the_only_query_of_an_earlier_version_continues(tmp_path: Path) -> None:
    of_earlier_version(tmp_path, QUERY)
    begun_table("delta", tmp_path, "a").add(Rows(10), plan(1))


def test_of_two_queries_in_manifests_none_continues(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for query in (QUERY, LATER):
        manifest = {"version": 1, "staged": "x", "moves": [], "rows": 10, "bad": 0, "covers": plan(0).covers}
        (tmp_path / "b" / f"batch-000000-{query[:8]}.json").write_text(json.dumps(manifest))
    with pytest.raises(TableRefused, match="it is not known which offsets micro-batch 0"):
        begun_table("parquet", tmp_path, "a").add(Rows(10), plan(1))


def test_a_delta_table_without_its_first_commits_and_our_folder_is_no_new_table(tmp_path: Path) -> None:
    """An earlier version noted the query in the texts of commits, which Delta removes. The names of the files stay."""
    of_earlier_version(tmp_path, QUERY)
    held = Path(Log(tmp_path / "t").file_uris()[0])
    held.rename(held.with_name(f"batch-000000-{QUERY[:8]}-aaaaaaaa-0123456789ab-00000.parquet"))
    commit = tmp_path / "t" / "_delta_log" / f"{0:020}.json"
    renamed = commit.read_text().replace(held.name, f"batch-000000-{QUERY[:8]}-aaaaaaaa-0123456789ab-00000.parquet")
    commit.write_text(renamed)
    log = Log(tmp_path / "t")
    assert delta_state.has_query(log)
    write_deltalake(tmp_path / "t", pa.table({"n": range(1)}), mode="append")
    log = Log(tmp_path / "t")
    log.create_checkpoint()
    commit.unlink()
    assert delta_state.has_query(Log(tmp_path / "t"))


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "day=1":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    (tmp_path / "day=1").mkdir()
    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StorageError, match="day=1 cannot be read: Permission denied"):
        LocalLocation(tmp_path).data_files()


def test_the_ends_of_rows_have_the_names_of_topics(tmp_path: Path, spark: Any) -> None:
    """Before, the topic 007 was 7, and a table on HDFS could not be read."""
    import pyarrow.parquet as pq

    for topic, number in (("007", 1), ("7", 2)):
        folder = tmp_path / f"topic={topic}" / f"partition={number}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"offset": pa.array(range(5 * number), pa.int64())}), folder / "batch-0.parquet")
    by = "topic", "partition"
    ends = {TopicPartition("007", 1): 5, TopicPartition("7", 2): 10}
    seven = TopicPartition("7", 2)
    for location in (LocalLocation(tmp_path), HadoopLocation(spark, tmp_path.as_uri())):
        assert parquet_row_ends(location, by) == ends
        assert parquet_row_ends(location, by, {seven, TopicPartition("7", 3)}) == {seven: 10}


def test_a_delta_table_that_forgets_actions_does_not_have_all_offsets(tmp_path: Path) -> None:
    table = begun_table("delta", tmp_path, "a")
    table.add(Rows(10), plan(0))
    assert delta_state._has_all_offsets(Log(tmp_path / "t"), QUERY, 0)
    Log(tmp_path / "t").alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    assert not delta_state._has_all_offsets(Log(tmp_path / "t"), QUERY, 0)


def test_an_error_of_hdfs_is_one_line() -> None:
    """HDFS puts the stack trace of its server into the message."""
    from py4j.protocol import Py4JJavaError

    java = SimpleNamespace(toString=lambda: "AccessControlException: /t is not a directory\n\tat java.lang.Thread\n")
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = java
    location = HadoopLocation.__new__(HadoopLocation)
    location.uri = "hdfs://h/t"
    with pytest.raises(StorageError) as failed, location._storage_errors("used"):
        raise error
    assert str(failed.value) == "hdfs://h/t cannot be used: AccessControlException: /t is not a directory"


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_a_damaged_description_of_a_table_names_what_helps(text: str, tmp_path: Path) -> None:
    """Before, the line named only the file."""
    (tmp_path / "_odradek").mkdir()
    (tmp_path / "_odradek" / "table.json").write_text(text)
    with pytest.raises(StorageError, match=r"_odradek/table.json is damaged: .*: restore this file from a copy"):
        check_table(LocalLocation(tmp_path), Target("t").layout())


def test_an_error_of_deltalake_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its causes were lines with arrows in colour."""

    def failed(*given: object) -> bool:
        arrow = "\x1b[31m↳\x1b[0m"
        text = f"Generic HdfsObjectStore error\n   {arrow} invalid argument\n    {arrow} No viewfs fallback mount found"
        raise DeltaError(text)

    table = delta_table(tmp_path / "t", "a")
    monkeypatch.setattr(Log, "is_deltatable", failed)
    says = "error: invalid argument: No viewfs fallback mount found. Give the folder that viewfs has mounted "
    with pytest.raises(StorageError, match=rf"t cannot be read: Generic HdfsObjectStore {says}\(hdfs://…, file:…\)"):
        table.state()


def write_plan(checkpoint: Path, batch: int, end: SourceOffset) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end.to_json())}")


@pytest.mark.parametrize("name", ["positions", "absent"])
def test_a_plan_that_ends_before_the_one_before_it_is_refused(name: str, tmp_path: Path) -> None:
    """A run planned micro-batch 1 from memory, while another copy of the checkpoint was put back. Before, the table's
    offset went back to 14, and the next micro-batch added six rows again."""
    location = LocalLocation(tmp_path)
    write_plan(tmp_path, 0, SourceOffset(positions={TP: 20}, origins={TP: 18}))
    write_plan(tmp_path, 1, SourceOffset(**{name: {TP: 14}}))
    says = "micro-batch 1 in .* ends at offset 14 of t-0, and the one before it at 20: a copy of the checkpoint was put"
    with pytest.raises(TableRefused, match=says):
        planned_batch(location, 1)
    write_plan(tmp_path, 1, SourceOffset(positions={TP: 14}, origins={TP: 10}))
    assert [item.size for item in planned_batch(location, 1).ranges] == [4], "a reset"


def test_a_plan_of_another_copy_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    """A run planned micro-batch 1 from memory: in its copy, micro-batch 0 had read t-1 up to 12. Then the copy was put
    back in which it ends at 11. Before, the table's offset of t-1 became 12, so no run read its record 11."""
    location, other = LocalLocation(tmp_path), TopicPartition("t", 1)
    write_plan(tmp_path, 0, SourceOffset(positions={TP: 20, other: 11}, origins={TP: 0, other: 0}))
    end = SourceOffset(positions={TP: 25}, absent={other: 12})
    memory = SourceOffset(positions={TP: 18, other: 12})
    write_plan(tmp_path, 1, replace(end, after=memory.digest))
    with pytest.raises(TableRefused, match=r"micro-batch 1 in .* was planned after another micro-batch than"):
        planned_batch(location, 1)
    right = SourceOffset(positions={TP: 25}, absent={other: 11})
    for noted in ("", planned_batch(location, 0).end.digest):  # earlier versions did not note it
        for batch in (1, 2):  # Spark repeats an offset for a micro-batch without records
            write_plan(tmp_path, batch, replace(right, after=noted))
        assert [item.size for item in planned_batch(location, 1).ranges] == [5]
        assert planned_batch(location, 2).ranges == ()
