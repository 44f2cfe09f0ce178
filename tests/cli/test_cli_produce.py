"""``odradek produce``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from brokers import eventually

from odradek.batches.rows import Row
from odradek.cli.main import run
from odradek.client import LATEST, Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config


def test_every_format(bootstrap: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    (tmp_path / "lines").write_text("one\ntwo\n")
    (tmp_path / "json").write_text('{"key": "k", "value": {"n": 1}}\n{"value": null}\n')
    (tmp_path / "csv").write_text("key,value\na,b\n")
    pq.write_table(pa.table({"value": [b"p"]}), tmp_path / "parquet")
    for form in ("lines", "json", "csv", "parquet"):
        assert run(["produce", topic, "--file", str(tmp_path / form), "--format", form, "-b", bootstrap]) == 0
    found = [(r.key, r.value) for r in PartitionReader(as_config(bootstrap), TopicPartition(topic, 0)).read_rows(0, 6)]
    assert found == [(None, b"one"), (None, b"two"), (b"k", b'{"n":1}'), (None, None), (b"a", b"b"), (None, b"p")]


def test_cells_of_csv_are_text_and_empty_ones_null(
    bootstrap: str, admin: Admin, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    file = tmp_path / "rows.csv"
    file.write_text(
        "key,value,partition,timestamp,headers\n"
        'a,007,0,1700000000007,"{""h"": ""x""}"\n'
        ",1.50,,2023-11-14T22:13:20Z,\n"
        '"",,0,1700000000009,\n'
    )
    assert run(["produce", topic, "--file", str(file), "--format", "csv", "--json", "-b", bootstrap]) == 0
    assert capsys.readouterr().out == f'{{"topic": "{topic}", "records": 3}}\n'
    found = [(r.key, r.value, r.timestamp, r.headers) for r in records(bootstrap, topic, 3)]
    assert found == [
        (b"a", b"007", 1_700_000_000_007, (("h", b"x"),)),
        (None, b"1.50", 1_700_000_000_000, ()),
        (b"", None, 1_700_000_000_009, ()),
    ]
    for cells, told in (
        ("value,headers\na,7\n", "headers 7: expected an object"),
        ("value,partition\na,b\n", "conversion error"),
        ("value,timestamp\na,soon\n", "soon"),
    ):
        file.write_text(cells)
        assert run(["produce", topic, "--file", str(file), "--format", "csv", "-b", bootstrap]) == 2
        said = capsys.readouterr().err
        assert told in said
        assert said.count("\n") == 1


def test_an_ill_destination_is_told_though_there_is_nothing_to_send(
    bootstrap: str, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").write_text("")
    assert run(["produce", topic, "--file", str(tmp_path / "empty"), "-b", bootstrap]) == 2
    assert f"unknown topic {topic}" in capsys.readouterr().err
    assert run(["produce", topic, "--file", str(tmp_path / "empty"), "-b", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "odradek: cannot reach 127.0.0.1:1: connection refused\n"


def records(bootstrap: str, topic: str, count: int) -> list[Row]:
    return list(PartitionReader(as_config(bootstrap), TopicPartition(topic, 0)).read_rows(0, count))


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_what_was_consumed_can_be_sent_again(
    bootstrap: str, filled: str, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    again, file = f"{filled}-again", tmp_path / "kept"
    admin.create_topics([NewTopic(again, 2, 1)])
    if form == "json":
        assert run(["consume", filled, "--json", "-b", bootstrap]) == 0
        file.write_text(capsys.readouterr().out)
    else:
        assert run(["consume", filled, "--output", str(file), "-b", bootstrap]) == 0
    assert run(["produce", again, "--file", str(file), "--format", form, "-b", bootstrap]) == 0
    kept = [
        [(r.key, r.value, r.timestamp, r.headers) for r in records(bootstrap, name, 10)] for name in (filled, again)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 10


def test_json_has_headers_partitions_and_times(bootstrap: str, admin: Admin, topic: str, tmp_path: Path) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    (tmp_path / "json").write_text(
        '{"value": "a", "headers": {"n": "1"}, "partition": 0, "timestamp": "2023-11-14T22:13:20Z"}\n'
        '{"value": "b", "headers": [{"key": "n", "value": null}], "partition": 0, "timestamp": 1700000000007}\n'
        '{"value": "c", "partition": 0}'
    )
    assert run(["produce", topic, "--file", str(tmp_path / "json"), "--format", "json", "-b", bootstrap]) == 0
    found = records(bootstrap, topic, 3)
    assert [(r.value, r.headers) for r in found] == [(b"a", (("n", b"1"),)), (b"b", (("n", None),)), (b"c", ())]
    assert [r.timestamp for r in found[:2]] == [1_700_000_000_000, 1_700_000_000_007]


def test_lines_are_sent_as_they_come(bootstrap: str, admin: Admin, topic: str) -> None:
    """Standard input that stays open: nobody waits for its end, nor for a number of lines."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    command = [sys.executable, "-m", "odradek.cli.main", "produce", topic, "-b", bootstrap]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        partition = TopicPartition(topic, 0)
        for number in (1, 2):
            process.stdin.write(f"line {number}\n")
            process.stdin.flush()
            eventually(lambda: admin.list_offsets({partition: LATEST})[partition].offset == number)  # noqa: B023
        out, _ = process.communicate("line 3, without an end", timeout=30)
        assert "3 records" in out
        assert [r.value for r in records(bootstrap, topic, 3)] == [b"line 1", b"line 2", b"line 3, without an end"]
    finally:
        process.kill()
        process.wait()


def test_bad_input_is_one_line(bootstrap: str, filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad").write_text("[1]\n")
    (tmp_path / "odd").write_text('{"value": "a", "partition": "first"}\n')
    pq.write_table(pa.table({"text": ["p"]}), tmp_path / "parquet")
    wrong = [
        ("bad", "json"),
        ("odd", "json"),
        ("none", "lines"),
        ("none", "parquet"),
        ("bad", "xml"),
        ("bad", "parquet"),
    ]
    for name, form in [*wrong, ("parquet", "parquet")]:
        file = tmp_path / name
        assert run(["produce", filled, "--file", str(file), "--format", form, "-b", bootstrap]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_line_that_is_none_is_named_and_what_came_before_it_is_sent(
    bootstrap: str, admin: Admin, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    file = tmp_path / "rows"
    line = ["produce", topic, "--file", str(file), "--format", "json", "-b", bootstrap]
    for number, (last, told) in enumerate((
        ("{oops", "line 4: no JSON (Expecting property name enclosed in double quotes, column 2)"),
        ('{"val": 1}', "line 4: expected an object with key, value"),
        ('{"value": 1, "timestamp": "soon"}', "line 4: timestamp 'soon': expected milliseconds or ISO 8601"),
    ), 1):  # fmt: skip
        file.write_text(f'{{"value": "a"}}\n\n{{"value": "b"}}\n{last}\n{{"value": "c"}}\n')
        assert run(line) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert f"{file}: {told}" in said
        assert said.endswith("(2 records before it were sent)")
        assert admin.list_offsets({TopicPartition(topic, 0): LATEST})[TopicPartition(topic, 0)].offset == 2 * number
