"""The inputs of ``odradek produce``: what programs elsewhere write as CSV and JSON, read without a broker."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.pieces import Pieces

from odradek.cli.produce import produce
from odradek.cli.produce.csv_rows import delimiter_of, given_delimiter
from odradek.cli.produce.topic_partitions import TopicPartitions
from odradek.cli.records.formats import Format
from odradek.cli.terminal import CommandError

PLAIN = produce.TableForm()


def sent(data: bytes, form: str, how: produce.TableForm = PLAIN, piece: int = 1 << 20) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for rows, _ in produce.read_stream(Pieces(data, piece), Format(form, False), how):
        found += rows if isinstance(rows, list) else rows.to_pylist()
    return found


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("id;x\n1;2\n", [b'{"id":"1","x":"2"}']),
        ("\n\nid;x\r\n1,5;2\r\n", [b'{"id":"1,5","x":"2"}']),
        ("id\tx\n1;3\t2", [b'{"id":"1;3","x":"2"}']),
        ("id|x\n1|2\n", [b'{"id":"1","x":"2"}']),
        ('"a,b";"c"\n"1\n2";"x;y"\n', [b'{"a,b":"1\\n2","c":"x;y"}']),
        ("\ufeffsep=;\r\nid;x\r\n1;2\r\n", [b'{"id":"1","x":"2"}']),
        ("sep=,\nid,x;y\n1,2\n", [b'{"id":"1","x;y":"2"}']),
        ('id,"a;b"\n1,2\n', [b'{"id":"1","a;b":"2"}']),
        ('"a;b"\n1;2\n', [b'{"a;b":"1;2"}']),
        ("id;x", []),
        ("id;x\n", []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1, 1000])
def test_the_header_shows_the_delimiter(text: str, wanted: list[bytes], piece: int) -> None:
    """Once, ``id;x`` was one column."""
    assert [row["value"] for row in sent(text.encode(), "csv", piece=piece)] == wanted


def test_columns_of_records_have_any_delimiter() -> None:
    text = 'key;value;partition;timestamp;headers\nk;1,5;3;2026-01-02T03:04:05.678Z;"{""h"":""a;b""}"\n'
    moment = int(datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC).timestamp() * 1000)
    assert sent(text.encode(), "csv") == [{
        "key": "k", "value": "1,5", "partition": 3, "timestamp": moment, "headers": [{"key": "h", "value": b"a;b"}],
    }]  # fmt: skip


def test_an_option_names_the_delimiter() -> None:
    assert sent(b"a;b\n1;2\n", "csv", produce.TableForm(delimiter=",")) == [{"value": b'{"a;b":"1;2"}'}]
    assert sent(b"a,b\tc\n1\t2\n", "csv", produce.TableForm(delimiter="\t")) == [{"value": b'{"a,b":"1","c":"2"}'}]
    assert sent(b"a,b:c\n1:2\n", "csv", produce.TableForm(delimiter=":")) == [{"value": b'{"a,b":"1","c":"2"}'}]
    assert [given_delimiter(text) for text in (";", "tab", "\\t", "\t", None)] == [";", "\t", "\t", "\t", None]
    for wrong in ("", ";;", "\n", '"', "§"):
        with pytest.raises(CommandError, match=r"^--delimiter .*: expected one character, such as ';', or tab$"):
            given_delimiter(wrong)
    assert [delimiter_of(head) for head in (b"value", b"a,b;c", b'"a,b";c')] == [",", ",", ";"]


@pytest.mark.parametrize(
    ("form", "data", "message"),
    [
        ("csv", b"id;x\n1;2\n3\n", "line 3: Expected 2 columns, got 1: 3: cells end at ';', unless --delimiter names "
                                   "another"),
        ("csv", b"a;b\tc\n1\n", "the header has ';' and tab: name the one between cells with --delimiter"),
        ("csv", "id;x\n1;2\n".encode("utf-16"), "it is UTF-16: save it as UTF-8, for example with `iconv -f UTF-16 "
                                                "-t UTF-8`"),
        ("json", "{}\n".encode("utf-16"), "it is UTF-16: save it as UTF-8"),
        ("csv", "id;x\n1;2\n3;\xe4\n".encode("latin-1"), "line 3: a cell is not UTF-8: save the file as UTF-8, for "
                                                         "example with `iconv -t UTF-8`"),
        ("json", b'{"value":"a","value":"b"}', "line 1: 'value' stands twice in one object: leave one of them out"),
        ("json", b'{"value":1,"key":"a"}\n{"topic":1,"topic":2}', "line 2: 'topic' stands twice"),
        ("json", b"{}", "line 1: the object has no value: add one; \"value\": null sends a tombstone"),
        ("json", b'{"value":null}\n\n{"key":"a","partition":0}', "line 3: the object has no value"),
        ("json", '{"value":1}\n'.encode("utf-16-le"), "it is UTF-16: save it as UTF-8"),
        ("json", b'{"value":0,"headers":{"h":1,"h":2}}', "line 1: 'h' stands twice"),
        ("json", b'{"value":0,"headers":[{"key":"h","value":1,"value":2}]}', "line 1: 'value' stands twice"),
        ("json", b'{"value":{"base64":"QQ==","base64":"Qg=="}}', "line 1: 'base64' stands twice"),
        ("csv", b'value,headers\na,"{""h"":1,""h"":2}"\n', "line 2: 'h' stands twice"),
        ("json", b'{"value":"\\ud800"}', "line 1: \\ud800 is half of a character (a lone surrogate), which UTF-8 "
                                         "cannot hold"),
        ("json", b'{"value":0,"key":"a\\udfff"}', "line 1: \\udfff is half of a character"),
        ("json", b'{"value":0,"headers":{"\\ud800":1}}', "line 1: \\ud800 is half"),
        ("json", b'{"value":0,"headers":{"h":"\\ud800"}}', "line 1: \\ud800 is half"),
        ("json", b'{\n  "value": 1\n}\n', "line 1: not JSON (the line ends inside an object): one object a line is "
                                          "expected, as `jq -c .` writes it"),
        ("json", b'{"value":\n1}\n', "line 1: not JSON (the line ends inside an object): one object a line"),
        ("json", b'[\n{"value": 1}\n]\n', "line 1: not JSON (the line ends inside an array): one object a line is "
                                          "expected, as `jq -c '.[]'` writes it"),
        ("json", b'[{"value":1},{"value":2}]\n', "line 1: an array: one object a line is expected, as `jq -c '.[]'`"),
        ("json", b'{"value":0,"timestamp":"2026-01-02T03:04:05.6789Z"}',
         'line 1: timestamp "2026-01-02T03:04:05.6789Z": finer than a millisecond, which a record cannot hold: round'),
        ("json", b'{"value":0,"timestamp":"2026-01-02T03:04:05.123000001+01:00"}',
         'line 1: timestamp "2026-01-02T03:04:05.123000001+01:00": finer'),
        ("csv", b"value,timestamp\na,2026-01-02T03:04:05.000001Z\n", "line 2: timestamp '2026-01-02T03:04:05.000001Z': "
                                                                     "finer"),
        ("csv", b"id,,x\n1,2,3\n", "column 2 of the header has no name: name it, or remove the column"),
        ("csv", b",id,x\n0,1,2\n", "column 1 of the header has no name: name it"),
        ("csv", b'id;" "\n', "column 2 of the header has no name: name it"),
        ("csv", b"value,key,\na,b,\n", "column 3 of the header has no name: name it"),
        ("json", b'{"value":0,"timestamp":true}', "line 1: timestamp true: expected milliseconds or ISO 8601"),
        ("json", b'{"value":0,"timestamp":1.10}', "line 1: timestamp 1.10: expected milliseconds"),
        ("json", b'{"value":0,"timestamp":{"a":null}}', 'line 1: timestamp {"a":null}: expected milliseconds'),
        ("json", '{"value":0,"timestamp":"\u00e9"}'.encode(), 'line 1: timestamp "\u00e9": expected milliseconds'),
        ("json", b'{"value":0,"timestamp":-1}', "line 1: timestamp -1: before 1970"),
        ("json", b'{"value":0,"partition":true}', "line 1: partition true is not a whole number"),
        ("json", b'{"value":0,"partition":0.0}', "line 1: partition 0.0 is not a whole number"),
        ("json", b'{"value":0,"partition":"0"}', 'line 1: partition "0" is not a whole number'),
        ("json", b'{"value":0,"partition":[1e2]}', "line 1: partition [1e2] is not a whole number"),
    ],
)  # fmt: skip
def test_what_would_be_lost_is_refused_with_its_line(form: str, data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"^(CSV parse error: )?{re.escape(message)}.*$") as caught:
        sent(data, form)
    assert "\n" not in str(caught.value)


def test_what_json_sends_as_it_stands_may_have_a_name_twice() -> None:
    assert sent(b'{"value":{"a":1,"a":2},"key":"\\ud83d\\ude00"}', "json") == [
        {"value": b'{"a":1,"a":2}', "key": "\U0001f600".encode()}
    ]
    assert sent(b'{"value":null,"timestamp":"2026-01-02T03:04:05.678000000Z"}', "json") == [
        {"value": None, "timestamp": 1_767_323_045_678}
    ]


ADDS_3 = "odradek topics alter t --partitions 3 adds it; without the field or column partition, the keys choose$"


@pytest.mark.parametrize("count", [1, 200])
def test_a_partition_that_the_topic_lacks_is_refused_with_its_line(count: int) -> None:
    counts = iter([1, 2, 2, 2])  # a partition is added
    how = produce.TableForm(partitions=TopicPartitions("t", lambda: next(counts)))
    good = b'{"value":"a","partition":0}\n\n{"value":"b","partition":1}\n' * count
    source = io.BytesIO(good + b'{"value":"c","partition":2}\n')
    batches = produce.read_stream(source, Format("json", False), how)
    assert sum(len(rows) if isinstance(rows, list) else rows.num_rows for rows, _ in [next(batches)]) == 2 * count
    with pytest.raises(ValueError, match=rf"^line {3 * count + 1}: topic t has no partition 2 \(it has 2\): {ADDS_3}"):
        next(batches)


def test_a_partition_in_csv_that_the_topic_lacks_is_refused_with_its_line() -> None:
    how = produce.TableForm(partitions=TopicPartitions("t", lambda: 2))
    assert len(sent(b"value,partition\na,0\nb,\nc,1\n", "csv", how)) == 3
    for wrong, remedy in ((b"2", ADDS_3), (b"-1", "partitions begin at 0$")):
        message = rf"^line 4: topic t has no partition {wrong.decode()} \(it has 2\): {remedy}"
        with pytest.raises(ValueError, match=message):
            sent(b"value,partition\na,0\nb,\nc," + wrong + b"\nd,5\n", "csv", how)
    assert len(sent(b"id,partition\na,9\n", "csv", how)) == 1, "a column of an ordinary table"


def test_a_partition_that_no_topic_has_is_refused() -> None:
    with pytest.raises(ValueError, match="4294967296 does not fit into 32 bits"):
        sent(b'{"value":"a","partition":4294967296}\n' * 200, "json")


def test_no_input_imports_pandas() -> None:
    """pyarrow imports pandas, for seconds, when it converts a list."""
    program = """
import io, sys
from odradek.cli.produce import produce
from odradek.cli.records.formats import Format
headers = b'[{"key":"h","value":"x"},{"key":"n","value":null}]'
line = b'{"value":"a","key":null,"partition":1,"timestamp":5,"headers":' + headers + b'}'
for form, data in (("csv", b"id;x\\n1;2\\n"), ("csv", b'value,timestamp,headers\\na,5,"{""h"":1}"\\nb,,\\n'),
                   ("json", (line + b"\\n") * 200 + b'{"value":null}\\n' * 100), ("lines", b"x\\n" * 200)):
    for how in (produce.TableForm(), *([produce.TableForm("id")] if b"id" in data else [])):
        rows = [rows for rows, _ in produce.read_stream(io.BytesIO(data), Format(form, True), how)]
        assert not isinstance(rows[-1], list)
        last = rows[-1].to_pylist()[0]
        rows[-1].validate(full=True)
        print(last)
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        str({
            "key": None, "value": b"a", "headers": [{"key": "h", "value": b"x"}, {"key": "n", "value": None}],
            "partition": 1, "timestamp": 5,
        }),
        "{'value': b'x'}",
    ]  # fmt: skip


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_time_of_parquet_that_is_finer_than_a_millisecond_is_refused(unit: str) -> None:
    step = {"us": 1000, "ns": 1_000_000}[unit]
    times = pa.array([None, 5 * step], pa.timestamp(unit))
    (rows,) = [rows for rows, _ in produce.read_columns(iter([batch(times)]), None)]
    assert rows.num_rows == 2
    with pytest.raises(ValueError, match=r"^row 2: timestamp 1970-01-01 00:00:00\.0\d+: finer than a millisecond"):
        [*produce.read_columns(iter([batch(pa.array([None, step + 1], pa.timestamp(unit)))]), None)]


def batch(times: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"v"] * len(times), pa.binary()), "timestamp": times})
