"""``odradek pipeline verify``: each fault of a table is found, and what is no fault is explained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.publish import create_topic, numbers, publish

from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]


def rows(topic: str, offsets: list[int], partition: int = 0) -> pa.Table:
    """A table with the usual columns."""
    columns = {
        "topic": pa.array([topic] * len(offsets)),
        "partition": pa.array([partition] * len(offsets), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "value": pa.array([b"%d" % one for one in offsets]),
    }
    return pa.table(columns)


def write(folder: Path, name: str, table: pa.Table) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name)
    return folder / name


def verified(capsys: Capture, table: Path | str, *options: str) -> tuple[int, dict[str, Any]]:
    code = run(["pipeline", "verify", str(table), "--json", *options])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, json.loads(printed.out)


def the_partition(found: dict[str, Any]) -> dict[str, Any]:
    (one,) = found["partitions"]
    return dict(one)


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """A topic with the offsets 0 to 99 in its one partition."""
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(100))
    return topic


# --- without a cluster ------------------------------------------------------------------------------------------------


def test_a_whole_table_is_whole(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, "b.parquet", rows("t", list(range(50, 100))))
    write(tmp_path, "a.parquet", rows("t", list(range(50))))
    write(tmp_path / "_staged", "c.parquet", rows("t", [7]))  # Spark and its readers leave such folders out
    code, found = verified(capsys, tmp_path)
    assert (code, found["whole"], found["files"]) == (0, True, 2)
    one = the_partition(found)
    assert (one["rows"], one["first"], one["last"], one["repeated"], one["missing"]) == (100, 0, 99, 0, 0)
    assert run(["pipeline", "verify", str(tmp_path)]) == 0
    header, row, end = capsys.readouterr().out.splitlines()  # without a blank line for each partition
    assert (header.split()[0], row.split()[0], "each offset once" in end) == ("TOPIC", "t", True)


def test_a_path_is_not_decoded(tmp_path: Path, capsys: Capture) -> None:
    """Arrow and deltalake would read the folder ``xA``."""
    for name, count in (("xA", 10), ("x%41", 20), ("dA", 10), ("d%41", 20)):
        folder = tmp_path / name
        if name.startswith("d"):
            deltalake.write_deltalake(tmp_path / "d", rows("t", list(range(count))))
            (tmp_path / "d").rename(folder)
        else:
            write(folder, "a.parquet", rows("t", list(range(count))))
    assert the_partition(verified(capsys, f"file://{tmp_path}/x%41")[1])["rows"] == 20
    assert run(["pipeline", "verify", str(tmp_path / "d%41")]) == 2
    assert "would use another folder" in capsys.readouterr().err


def test_a_repeated_file_is_found(tmp_path: Path, capsys: Capture) -> None:
    first = write(tmp_path, "a.parquet", rows("t", list(range(50))))
    write(tmp_path, "b.parquet", rows("t", list(range(50, 90))))
    shutil.copy(first, tmp_path / "c.parquet")
    code, found = verified(capsys, tmp_path)
    one = the_partition(found)
    assert (code, one["repeated"], one["missing"]) == (1, 50, 0)
    (repeat,) = one["repeats"]
    assert (repeat["start"], repeat["end"]) == (0, 50)
    assert repeat["files"] == ["a.parquet", "c.parquet"]


def test_a_repeated_micro_batch_is_found_in_files_of_another_cut(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, "a.parquet", rows("t", list(range(100))))
    write(tmp_path, "b.parquet", rows("t", [*range(40, 60), 100]))
    write(tmp_path, "c.parquet", rows("t", list(range(60, 70))))
    code, found = verified(capsys, tmp_path)
    one = the_partition(found)
    assert (code, one["repeated"]) == (1, 30)
    assert [(repeat["start"], repeat["end"]) for repeat in one["repeats"]] == [(40, 70)]
    assert one["repeats"][0]["files"] == ["a.parquet", "b.parquet", "c.parquet"]


def test_missing_offsets_need_a_cluster(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, "a.parquet", rows("t", [0, 1, 5]))
    assert run(["pipeline", "verify", str(tmp_path)]) == 1
    out = capsys.readouterr()
    assert "with -b HOST:PORT the log shows why offsets are missing" in out.out + out.err


def test_partitions_are_kept_apart(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, "a.parquet", pa.concat_tables([rows("t", [0, 1]), rows("t", [0, 1], 1), rows("u", [1, 2])]))
    code, found = verified(capsys, tmp_path)
    assert code == 0
    assert [(one["topic"], one["partition"], one["first"]) for one in found["partitions"]] == [
        ("t", 0, 0), ("t", 1, 0), ("u", 0, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["kafka_", "_", "_kafka_metadata_"])
def test_the_columns_of_kafka_connect_are_known(tmp_path: Path, capsys: Capture, prefix: str) -> None:
    names = [f"{prefix}topic", f"{prefix}partition", f"{prefix}offset", "value"]
    write(tmp_path, "a.parquet", rows("t", [4, 5]).rename_columns(names))
    assert the_partition(verified(capsys, tmp_path)[1])["rows"] == 2


def test_nested_columns_folders_with_values_and_a_fixed_topic(tmp_path: Path, capsys: Capture) -> None:
    plain = rows("t", [4, 5])
    meta = pa.StructArray.from_arrays(
        [plain[name].combine_chunks() for name in ("topic", "partition", "offset")], ["topic", "partition", "offset"]
    )
    write(tmp_path / "nested", "a.parquet", pa.table({"_kafka_metadata": meta}))
    assert the_partition(verified(capsys, tmp_path / "nested")[1])["rows"] == 2
    write(tmp_path / "hive" / "topic=a%2Fb" / "partition=3", "a.parquet", plain.select(["offset", "value"]))
    one = the_partition(verified(capsys, tmp_path / "hive")[1])
    assert (one["topic"], one["partition"], one["rows"]) == ("a/b", 3, 2)
    write(tmp_path / "fixed", "a.parquet", plain.select(["partition", "offset"]).rename_columns(["p", "o"]))
    options = ("--topic", "t", "--partition-column", "p", "--offset-column", "o")
    one = the_partition(verified(capsys, tmp_path / "fixed", *options)[1])
    assert (one["topic"], one["rows"]) == ("t", 2)


def test_a_topic_for_a_table_that_has_a_column_of_topics_is_refused(tmp_path: Path, capsys: Capture) -> None:
    """The rows of all topics would be those of one, and the log of another topic would call them lost."""
    write(tmp_path, "a.parquet", rows("orders", [0, 1]))
    assert run(["pipeline", "verify", str(tmp_path), "--topic", "payments"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"odradek: --topic payments: {tmp_path} has a column of topics, topic, which says the topic of each row: omit"
        " --topic"
    )


def test_a_delta_table_has_only_its_current_files(tmp_path: Path, capsys: Capture) -> None:
    deltalake.write_deltalake(tmp_path, rows("t", list(range(10))))
    deltalake.write_deltalake(tmp_path, rows("t", list(range(20))), mode="overwrite")
    code, found = verified(capsys, tmp_path)
    assert (code, found["kind"], found["version"], found["files"]) == (0, "delta", 1, 1)
    deltalake.write_deltalake(tmp_path, rows("t", [19, 20]), mode="append")
    code, found = verified(capsys, tmp_path)
    assert (code, the_partition(found)["repeats"][0]["start"]) == (1, 19)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda at: None, (), "is missing: give the folder of a table"),
        (lambda at: at.mkdir(), (), "has no Parquet files and no Delta log"),
        (lambda at: write(at, "a.parquet", pa.table({"id": [1]})), (), "has no columns of partitions and offsets"),
        (lambda at: write(at, "a.parquet", rows("t", [1]).drop_columns("topic")), (), "has no column of topics"),
        (lambda at: write(at, "a.parquet", rows("t", [1])), ("--offset-column", "o"), "--offset-column o: "),
        (lambda at: write(at, "a.parquet", rows("t", [-1])), (), "have numbers below 0"),
        (lambda at: write(at, "a.parquet", rows("t", [1])), ("--group", "g"), "--group needs -b"),
        (lambda at: write(at, "a.parquet", rows("t", [1])), ("--topic", "t", "--topic-column", "topic"), "give one"),
        (lambda at: write(at, "a.parquet", rows("t", [1]).set_column(2, "offset", pa.array(["x"]))), (), "are no part"),
        (
            lambda at: write(at, "a.parquet", rows("t", [1])),
            ("--topic-column", "value"),
            "--topic-column: column value",
        ),
        (lambda at: write(at, "a.parquet", rows("t", [1])), ("--offset-column", "value"), "is binary, and cannot have"),
        (
            lambda at: write(at, "a.parquet", rows("t", [1]).set_column(0, "topic", pa.array([{"a": 1}]))),
            (),
            "is struct",
        ),
        (lambda at: write(at, "a.parquet", rows("t", [1]).set_column(2, "offset", pa.array([1.5]))), (), "is double"),
        (lambda at: write(at, "a.parquet", rows("t", [1])).write_bytes(b"PAR1 and more"), (), "cannot be read"),
    ],
)
def test_each_wrong_input_is_one_line(
    tmp_path: Path, capsys: Capture, make: Any, options: tuple[str, ...], message: str
) -> None:
    make(tmp_path / "table")
    assert run(["pipeline", "verify", str(tmp_path / "table"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert message in line


# --- with a cluster ---------------------------------------------------------------------------------------------------


def test_a_lost_range_and_a_lost_file_are_losses(bootstrap: str, filled: str, tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path, "a.parquet", rows(filled, [*range(20), *range(23, 40)]))
    write(tmp_path, "c.parquet", rows(filled, list(range(60, 100))))
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    one = the_partition(found)
    assert (code, one["missing"], one["lost"]) == (1, 23, 23)
    assert one["lost_ranges"] == [[20, 23], [40, 60]]


def test_transactions_leave_explained_gaps(bootstrap: str, topic: str, tmp_path: Path, capsys: Capture) -> None:
    """0–4 and their marker 5, five aborted records 6–10 and their marker 11, 12–16 and 17."""
    create_topic(bootstrap, topic)
    with Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer:
        producer.init_transactions()
        for is_kept in (True, False, True):
            producer.begin_transaction()
            for number in range(5):
                producer.send(topic, b"%d" % number, partition=0)
            producer.flush()
            if is_kept:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    write(tmp_path, "a.parquet", rows(topic, [*range(5), *range(12, 17)]))
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    one = the_partition(found)
    assert (code, one["lost"], one["missing_by_cause"]) == (0, 0, {"aborted": 5, "no record": 2})
    write(tmp_path, "a.parquet", rows(topic, [*range(5), *range(12, 14), 16]))
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    assert (code, the_partition(found)["lost_ranges"]) == (1, [[14, 16]])


def test_rows_of_transactions_that_were_not_committed_are_counted(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    """0–4 aborted, 5 the marker, 6–10 committed, 11 the marker, 12–14 aborted (their marker is behind the table), 15
    and 16 without a transaction, 17 the marker, 18–20 of an open transaction, 21 and 22 without one."""
    create_topic(bootstrap, topic)
    with (
        Producer(bootstrap_servers=bootstrap) as plain,
        Producer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
    ):
        producer.init_transactions()

        def send(sender: Producer, count: int) -> None:
            for number in range(count):
                sender.send(topic, b"%d" % number, partition=0)
            sender.flush()

        producer.begin_transaction()
        send(producer, 5)
        producer.abort_transaction()
        producer.begin_transaction()
        send(producer, 5)
        producer.commit_transaction()
        producer.begin_transaction()
        send(producer, 3)
        send(plain, 2)
        producer.abort_transaction()
        producer.begin_transaction()
        send(producer, 3)
        send(plain, 2)
        write(tmp_path, "a.parquet", rows(topic, [*range(5), *range(6, 11), *range(12, 17)]))
        code, found = verified(capsys, tmp_path, "-b", bootstrap)
        one = the_partition(found)
        assert (code, one["aborted_rows"], one["aborted_ranges"]) == (0, 8, [[0, 5], [12, 15]])
        assert (one["undecided_rows"], one["missing_by_cause"]) == (0, {"no record": 2})
        write(tmp_path, "b.parquet", rows(topic, [*range(18, 23)]))
        code, found = verified(capsys, tmp_path, "-b", bootstrap)
        assert (code, the_partition(found)["aborted_rows"], the_partition(found)["undecided_rows"]) == (0, 8, 5)
        assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 0
        said = capsys.readouterr().out
        assert f"{topic}-0: the table has 8 rows of aborted transactions: offsets 0 to 4, offsets 12 to 14\n" in said
        assert "has 5 rows from offset 18 on, where a transaction is open" in said
        assert "20 rows in 2 files, 8 of aborted transactions: each offset once, and no record is missing." in said

        notes = tmp_path / "_odradek"
        notes.mkdir()
        (notes / "table.json").write_text('{"isolation": "read_committed"}')
        code, found = verified(capsys, tmp_path, "-b", bootstrap)
        assert (code, found["whole"], the_partition(found)["reads_committed"]) == (1, False, True)
        assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 1
        assert "NOT COMMITTED: the table was read with read_committed, and has 8 rows" in capsys.readouterr().out
        (notes / "read_uncommitted").touch()  # a later run has read uncommitted records
        assert verified(capsys, tmp_path, "-b", bootstrap)[0] == 0
        producer.abort_transaction()


def test_what_retention_has_deleted_is_not_called_a_loss(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(filled, 0): 50})
    write(tmp_path, "a.parquet", rows(filled, [*range(10), *range(45, 60), *range(62, 100)]))
    code, found = verified(capsys, tmp_path, "-b", bootstrap)
    one = the_partition(found)
    assert one["missing_by_cause"] == {"below the log start": 35, "lost": 2}
    assert (code, one["lost_ranges"]) == (1, [[60, 62]])
    assert one["unknown"] == 35
    write(tmp_path, "a.parquet", rows(filled, [*range(10), *range(45, 100)]))
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 0
    out = capsys.readouterr().out
    assert f"{filled}-0: unknown: 35 offsets between two rows were deleted from the log" in out
    assert "each offset once, and no record is known to be missing; 35 offsets unknown." in out


@pytest.mark.parametrize("offsets", [range(40), range(0)], ids=["tail", "partition"])
def test_what_the_group_has_passed_and_retention_has_deleted_is_unknown(
    bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture, offsets: range
) -> None:
    with Admin(bootstrap) as admin:
        admin.delete_records({TopicPartition(filled, 0): 50})
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): 50})
    write(tmp_path, "a.parquet", rows(filled, list(offsets)))
    first = len(offsets)
    code, found = verified(capsys, tmp_path, "-b", bootstrap, "--group", group)
    one = the_partition(found)
    assert (code, one["lost"], one["unknown"], one["whole"]) == (1, 0, 50 - first, False)
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap, "--group", group]) == 1
    line = f"{filled}-0: UNKNOWN: offsets {first} to 49 were deleted from the log: the group has passed, and the table"
    assert line in capsys.readouterr().out


def test_a_table_that_does_not_know_its_start_says_so(
    bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    """Another tool may have begun there: no loss, and no agreement."""
    write(tmp_path, "a.parquet", rows(filled, list(range(50, 100))))
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): 100})
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap, "--group", group]) == 0
    out = capsys.readouterr().out
    assert "unknown: the log has 50 offsets before the first row of the table" in out
    assert "no record is missing" not in out


def test_a_table_behind_and_ahead_of_its_group(
    bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    write(tmp_path, "a.parquet", rows(filled, list(range(80))))
    tp = TopicPartition(filled, 0)
    for committed, expected in ((80, (0, None)), (60, (1, None)), (90, (1, {"lost": 10}))):
        with Admin(bootstrap) as admin:
            admin.alter_group_offsets(group, {tp: committed})
        code, found = verified(capsys, tmp_path, "-b", bootstrap, "--group", group)
        one = the_partition(found)
        assert (code, one["passed_by_group"]) == expected
        assert one["committed"] == committed


def test_a_group_with_which_nothing_is_compared_is_named(
    bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture
) -> None:
    """A mistyped group would make the table whole: no commit of it says that records are missing."""
    write(tmp_path, "a.parquet", rows(filled, list(range(80))))
    line = ["pipeline", "verify", str(tmp_path), "-b", bootstrap, "--group"]
    with Consumer(bootstrap, group_id=group, enable_auto_commit=False) as member:
        member.subscribe([filled])
        while not member.assignment():
            member.poll(0.1)
        assert run([*line, group[:-1]]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err == f"odradek: GROUP_ID_NOT_FOUND: group {group[:-1]} not found (did you mean {group}?)\n"
        assert run([*line, group]) == 0
        said = f"Group {group} has no committed offset of these partitions: the table is not compared with it."
        assert said in capsys.readouterr().out.splitlines()
        member.commit({TopicPartition(filled, 0): 80})
        assert run([*line, group]) == 0
        assert said not in capsys.readouterr().out.splitlines()


def test_a_partition_that_the_group_has_passed_and_the_table_lacks(
    bootstrap: str, filled: str, group: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    other = f"{topic}-other"
    create_topic(bootstrap, other)
    publish(bootstrap, other, numbers(7))
    write(tmp_path, "a.parquet", rows(filled, list(range(100))))
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): 100, TopicPartition(other, 0): 5})
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap, "--group", group]) == 1
    printed = capsys.readouterr()
    assert f"{other}-0: LOST: the group has passed and the table lacks 5 records of the log: offsets 0 to 4" in (
        printed.out + printed.err
    )


def test_a_table_of_a_former_topic_is_ahead_of_the_log(
    bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    write(tmp_path, "a.parquet", rows(filled, list(range(120))))
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 1
    printed = capsys.readouterr()
    assert "the table has offsets from 100 on, which the log has not reached" in printed.out + printed.err
    for far in (2**62, 2**63 - 1):  # before, all offsets up to there were called markers of transactions, or compacted
        write(tmp_path, "a.parquet", rows(filled, [*range(100), far]))
        assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 1
        printed = capsys.readouterr()
        assert "the table has offsets from 100 on, which the log has not reached" in printed.out + printed.err
        assert "no loss" not in printed.out + printed.err
    write(tmp_path, "a.parquet", rows("no-such-topic", [0, 1]))
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) in (0, 1)
    printed = capsys.readouterr()
    assert "the cluster has no such topic" in printed.out + printed.err


def test_a_link_to_a_folder_that_it_is_in_is_named(tmp_path: Path, capsys: Capture) -> None:
    write(tmp_path / "t", "a.parquet", rows("t", [0, 1]))
    write(tmp_path / "other", "b.parquet", rows("t", [2, 3]))
    (tmp_path / "t" / "more").symlink_to(tmp_path / "other")
    code, found = verified(capsys, tmp_path / "t")
    assert (code, the_partition(found)["rows"]) == (0, 4), "a link to another folder is followed, as Spark does"
    for target in (tmp_path / "t", tmp_path):
        link = tmp_path / "t" / "loop"
        link.symlink_to(target)
        assert run(["pipeline", "verify", str(tmp_path / "t")]) == 2
        assert f"{link} is a symbolic link to a folder that it is in" in capsys.readouterr().err
        link.unlink()


def test_what_a_table_of_another_tool_does_not_say_is_not_called_whole(
    bootstrap: str, group: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    """The topic has 20 records in each of two partitions."""
    create_topic(bootstrap, topic, partitions=2)
    for partition in (0, 1):
        publish(bootstrap, topic, numbers(20), partition=partition)
    log = ("-b", bootstrap)
    lacks = tmp_path / "lacks"
    write(lacks, "a.parquet", rows(topic, list(range(20))))
    assert run(["pipeline", "verify", str(lacks), *log]) == 0
    out = capsys.readouterr().out
    assert f"{topic}-1: unknown: the log has 20 offsets, and the table has no row of this partition" in out
    assert "no record is known to be missing; 20 offsets unknown." in out
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, partition): 15 for partition in (0, 1)})
    code, found = verified(capsys, lacks, *log, "--group", group)
    assert (code, [one["lost"] for one in found["partitions"]]) == (1, [0, 15])

    more = tmp_path / "more"
    for partition in (0, 1, 9):
        write(more, f"{partition}.parquet", rows(topic, list(range(20)), partition))
    assert run(["pipeline", "verify", str(more), *log]) == 1
    out = capsys.readouterr().out
    assert f"{topic}-9: the topic has no such partition" in out
    assert "the table is not whole" in out

    empty = tmp_path / "empty"
    write(empty, "a.parquet", rows(topic, []))
    for options in ((), log):
        assert run(["pipeline", "verify", str(empty), *options]) == 2
        assert "has no row, and nothing says which records it should have" in capsys.readouterr().err
    code, found = verified(capsys, empty, *log, "--group", group)
    assert (code, [one["lost"] for one in found["partitions"]]) == (1, [15, 15])


@pytest.mark.parametrize(("committed", "unknown"), [(30, 12), (5, 5)])
def test_what_the_group_has_passed_before_the_table_began_is_unknown(
    bootstrap: str, filled: str, group: str, tmp_path: Path, capsys: Capture, committed: int, unknown: int
) -> None:
    """A table that was put back from a copy began at the group's commit in a partition that it had read before."""
    write(tmp_path, "a.parquet", rows(filled, list(range(12, 30))))
    notes = tmp_path / "_odradek" / "batches" / "log-00000001.json"
    notes.parent.mkdir(parents=True)
    query = {"batch": 0, "covers": "c", "ends": "e", "added": [18, 0, 1, 9], "offsets": {filled: {"0": 30}}}
    state = {"run": [1, "0" * 8], "queries": {"q": query}, "starts": {filled: {"0": 12}}}
    notes.write_text(json.dumps({"state": state}))
    line = f"{filled}-0: UNKNOWN: the group has passed {unknown} offsets of the log before offset 12"
    assert run(["pipeline", "verify", str(tmp_path), "-b", bootstrap]) == 0
    assert "no record is missing." in capsys.readouterr().out
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): committed})
    run(["pipeline", "verify", str(tmp_path), "-b", bootstrap, "--group", group])
    out = capsys.readouterr().out
    assert line in out
    assert "no record is missing." not in out


def test_a_table_of_which_all_files_are_gone_is_not_whole(tmp_path: Path, capsys: Capture) -> None:
    """Its notes say what it has read. Before, verify did not know the folder as a table, and ended with 2."""
    notes = tmp_path / "_odradek" / "batches"
    notes.mkdir(parents=True)

    def note(end: int) -> None:
        query = {"batch": 0, "covers": "c", "ends": "e", "added": [end, 0, 1, 9], "offsets": {"t": {"0": end}}}
        state = {"run": [1, "0" * 8], "queries": {"q": query}, "whole": True, "starts": {"t": {"0": 0}}}
        (notes / "log-00000001.json").write_text(json.dumps({"state": state}))

    note(61)
    assert run(["pipeline", "verify", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "has no Parquet files, and its notes say that it has read 61 offsets: the files were removed" in error
    note(0)  # an ingest that has found no record
    assert run(["pipeline", "verify", str(tmp_path)]) == 2
    assert "has no Parquet files and no Delta log" in capsys.readouterr().err
