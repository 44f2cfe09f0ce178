"""Deep nesting in JSON, Avro schemas, Avro values and patterns. A depth above the limit gives one clear error.

Depths up to the limit are accepted and pass through all later code. Events and progress reports that are too deep are
ignored.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.main import run
from odradek.client import Admin, NewTopic
from odradek.client.reader import PartitionReader
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition

Capture = pytest.CaptureFixture[str]

DEEP = 100_000
BRACKETS = "[" * DEEP + "]" * DEEP
BRACES = '{"a":' * DEEP + "1" + "}" * DEEP


def nested(depth: int) -> str:
    """A JSON value of this many levels, alternately objects and lists; ``{"a":[{"a":1}]}`` has three levels."""
    text = "1"
    for level in range(depth):
        text = f'{{"a":{text}}}' if level % 2 == 0 else f"[{text}]"
    return text


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deep", [BRACKETS, BRACES, '{"value":' + BRACKETS + "}"], ids=["lists", "objects", "value"])
def test_a_deep_line_of_json_is_refused_with_its_line_number(
    deep: str, bootstrap: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    lines = tmp_path / "lines.json"
    lines.write_text('{"value":"first"}\n' + deep + "\n")
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    assert run(["produce", topic, "--format", "json", "--file", str(lines), "-b", bootstrap]) == 2
    said = capsys.readouterr().err
    assert said == f"odradek: {lines}: line 2: not JSON (nested deeper than 256 levels) (1 earlier record was sent)\n"


def test_a_deep_cell_of_csv_is_refused_with_its_line_number(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Capture
) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"value,headers\nx,\ny,{BRACKETS}\n")
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    assert run(["produce", topic, "--format", "csv", "--file", str(table), "-b", bootstrap]) == 2
    assert "line 3: headers: not JSON (nested deeper than 256 levels)" in capsys.readouterr().err


def test_values_at_the_limit_are_sent_unchanged(bootstrap: str, topic: str, tmp_path: Path) -> None:
    value = nested(255)  # the object of the line adds one level
    lines = tmp_path / "lines.json"
    lines.write_text(f'{{"value":{value}}}\n{{"value":"{"[" * 10_000}"}}\n')
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        assert run(["produce", topic, "--format", "json", "--file", str(lines), "-b", bootstrap]) == 0
        rows = list(PartitionReader(admin.config, TopicPartition(topic, 0)).read_rows(0, 2))
    assert [row.value for row in rows] == [value.encode(), b"[" * 10_000]


# --- options ---------------------------------------------------------------------------------------------------------


def of_source(**options: str) -> Callable[[], object]:
    from odradek.spark.options import parse_options

    given = {"kafka.bootstrap.servers": "127.0.0.1:1", **options}
    return lambda: parse_options(given, streaming=False)


def options() -> dict[str, Callable[[], object]]:
    from odradek.pipelines.replays.selection import parse_ranges

    return {
        "assign": of_source(assign=BRACES),
        "startingOffsets": of_source(subscribe="t", startingOffsets=BRACES),
        "startingOffsetsByTimestamp": of_source(subscribe="t", startingOffsetsByTimestamp=BRACES),
        "subscribePattern": of_source(subscribePattern="(" * DEEP + ")" * DEEP),
        "subscribePattern, flags": of_source(subscribePattern="(?i:" * DEEP + ")" * DEEP),
        "subscribePattern, classes": of_source(subscribePattern="[" * DEEP + "a" + "]" * DEEP),
        "offsets": lambda: parse_ranges(BRACES),
    }


@pytest.mark.parametrize("name", options())
def test_deep_options_are_refused_with_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options()[name]()
    assert str(refused.value).startswith(name.partition(",")[0])
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("pattern", ["(" * 100 + "a" + ")" * 100, "[" * 100 + "a" + "]" * 100])
def test_patterns_at_the_limit_are_accepted(pattern: str) -> None:
    from odradek.spark.offsets.patterns import java_pattern

    assert java_pattern(pattern).fullmatch("a")


@pytest.mark.parametrize("pattern", ["(" * DEEP + ")" * DEEP, "a{99999999999999999999}"], ids=["groups", "times"])
def test_a_pattern_that_python_cannot_compile_is_a_value_error(pattern: str) -> None:
    from odradek.client.arguments import as_pattern

    with pytest.raises(ValueError, match="pattern"):
        as_pattern(pattern, is_matched_here=True)


# --- files -----------------------------------------------------------------------------------------------------------


def read_demo_state(place: Path, text: str) -> object:
    from odradek.demo.state import _FILE, DemoState

    (place / _FILE).write_text(text)
    return DemoState.load(place)


def read_checkpoint(place: Path, text: str) -> object:
    from odradek.pipelines.checkpoint import offset_of

    return offset_of(f"v1\n{{}}\n{text}", "offsets/0")


def read_query_id(place: Path, text: str) -> object:
    from odradek.pipelines.checkpoint import query_id
    from odradek.pipelines.filesystems.location import LocalLocation

    (place / "metadata").write_text(text)
    return query_id(LocalLocation(place))


def read_entry(place: Path, text: str) -> object:
    from odradek.pipelines.commit.logs import FileLog

    return FileLog(str(place), lambda change: {}).parse(1, text)


def read_manifest(place: Path, text: str) -> object:
    from odradek.pipelines.filesystems.location import LocalLocation
    from odradek.pipelines.parquet.manifests import Manifests

    (place / "0.json").write_text(text)
    return Manifests(LocalLocation(place))._read("0.json")


def read_table_state(place: Path, text: str) -> object:
    from odradek.pipelines.filesystems.location import LocalLocation
    from odradek.pipelines.formats.table_description import _parse

    return _parse(LocalLocation(place), text)


FILES = (read_demo_state, read_checkpoint, read_query_id, read_entry, read_manifest, read_table_state)


@pytest.mark.parametrize("read", FILES, ids=lambda read: read.__name__)
@pytest.mark.parametrize("text", [BRACKETS, BRACES], ids=["lists", "objects"])
def test_deep_files_of_tables_checkpoints_and_the_demo_are_treated_as_invalid(
    read: Callable[[Path, str], object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(OdradekError) as refused:
        read(tmp_path, text)
    assert len(str(refused.value)) < 500


def test_deep_progress_reports_and_events_are_ignored() -> None:
    from odradek.demo.publisher import event_number
    from odradek.spark.lag import progress_of
    from odradek.spark.progress import _parse

    assert _parse(BRACKETS.encode(), "token") is None
    assert progress_of(BRACES, BRACES) is None
    assert event_number(BRACES.encode()) is None


# --- Avro ------------------------------------------------------------------------------------------------------------


def decoder(schema: Any, writer: Any = None) -> Any:
    from odradek.pipelines.values.avro import AvroDecoder

    text = schema if isinstance(schema, str) else json.dumps(schema)
    return AvroDecoder(text) if writer is None else AvroDecoder(text, "confluent", {1: json.dumps(writer)})


def record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def chain(length: int, width: int) -> dict[str, Any]:
    """A root record with ``length`` record types. Each type contains the one before it ``width`` times. The JSON has
    only 6 levels, but the types have more than ``length`` levels."""
    return record("Root", record("R0", "int"), *(record(f"R{n}", *[f"R{n - 1}"] * width) for n in range(1, length)))


ARRAYS = '{"type":"array","items":' * DEEP + '"int"' + "}" * DEEP


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (ARRAYS, "not a valid Avro schema: nested deeper than 256 levels"),
        ('{"type":"array","items":' * 240 + '"int"' + "}" * 240, "types are nested deeper than 100 levels"),
        ('{"type":' * DEEP + '"int"' + "}" * DEEP, "not a valid Avro schema: nested deeper than 256 levels"),
        (chain(400, 1), "types are nested deeper than 100 levels"),
        (chain(16, 2), "more than 10,000 types"),
        (chain(64, 2), "more than 10,000 types"),
        ({"type": "array", "items": record("Empty")}, "an array whose items have no bytes"),
        ({"type": "array", "items": record("E", record("F"))}, "an array whose items have no bytes"),
        (record("R", record("E"), {"type": "array", "items": "E"}), "an array whose items have no bytes"),
        (
            {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
            "an array whose items have no bytes",
        ),
    ],
    ids=["arrays", "types", "wrapped", "chain", "twice", "billions", "empty", "within", "named", "fixed"],
)
def test_schemas_beyond_the_limits_are_refused(schema: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        decoder(schema)
    assert len(str(refused.value)) < 500


def test_a_writers_schema_has_the_same_limits() -> None:
    reader = record("R", "int")
    with pytest.raises(ConfigError, match="an array whose items have no bytes"):
        decoder(reader, record("R", "int", {"type": "array", "items": "null"}))
    with pytest.raises(ConfigError, match="more than 10,000 types"):
        decoder(reader, chain(64, 2))


def test_schemas_at_the_limits_are_decoded() -> None:
    import pyarrow as pa

    deep = decoder('{"type":"array","items":' * 99 + '"int"' + "}" * 99)
    values, errors = deep.decode(pa.array([b"\x02" * 99 + b"\x0e" + b"\x00" * 99]))
    assert errors.null_count == 1
    wide = decoder(record("Wide", *["int"] * 9_000))
    values, errors = wide.decode(pa.array([b"\x02" * 9_000]))
    assert (errors.null_count, len(values.type)) == (1, 9_000)


def test_a_type_may_be_used_many_times() -> None:
    import pyarrow as pa

    used = decoder(
        record("R", record("P", "int", {"type": "map", "values": "long"}), "P", {"type": "array", "items": "P"})
    )
    values, errors = used.decode(pa.array([b"\x02\x00\x04\x00\x00"]))
    assert errors.to_pylist() == [None]
    assert values.to_pylist()[0]["f1"]["f0"] == 2


LIST = record("N", "int", ["null", "N"])
TREE = record("N", "int", {"type": "array", "items": "N"})
MAPS = record("N", "int", {"type": "map", "values": "N"})

DECODE = """
import json, sys
import pyarrow as pa
from odradek.pipelines.values.avro import AvroDecoder
reader, writer, rows = json.loads(sys.stdin.read())
decoder = AvroDecoder(json.dumps(reader), "confluent", {1: json.dumps(writer)})
values, errors = decoder.decode(pa.array([b"\\0\\0\\0\\0\\1" + bytes.fromhex(row) for row in rows]))
print(json.dumps([values.to_pylist(), errors.to_pylist()]))
"""


@pytest.mark.parametrize(
    ("writer", "begin", "end"),
    [
        (LIST, "0202", ""),
        (TREE, "0202", "00"),
        (MAPS, "02020261", "00"),
    ],
    ids=["list", "tree", "maps"],
)
def test_only_the_deep_values_are_unreadable(writer: Any, begin: str, end: str) -> None:
    """fastavro skips a nested value with recursive calls in C, so a deep one could crash the process."""
    values, errors = decoded_elsewhere(writer, [begin * n + "0200" + end * n for n in (0, 1, 60, 1_000, 300_000)])
    assert errors == [None, None, None, *["it is nested deeper than 256 levels"] * 2]
    assert values[:3] == [{"f0": 1}] * 3


def test_blocks_with_a_size_count_as_levels() -> None:
    def tree(depth: int) -> str:
        value = b"\x02\x00"
        for _ in range(depth):
            value = b"\x02\x01" + long(len(value)) + value + b"\x00"
        return value.hex()

    values, errors = decoded_elsewhere(TREE, [tree(depth) for depth in (1, 60, 600)])
    assert errors == [None, None, "it is nested deeper than 256 levels"]
    assert values[:2] == [{"f0": 1}] * 2


EVERYTHING: dict[str, Any] = {
    "null": None, "boolean": True, "int": -7, "long": 1 << 62, "float": 1.5, "double": 2.5, "bytes": b"\xff" * 300,
    "string": "é" * 100,
}  # fmt: skip


def test_the_depth_is_found_after_any_type() -> None:
    import io

    import fastavro

    kinds: list[Any] = [
        *EVERYTHING,
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "fixed", "name": "F", "size": 3},
        {"type": "array", "items": "double"},
        {"type": "map", "values": "F"},
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 0},
        ["null", "E", "string"],
        {"type": "array", "items": {"type": "array", "items": "F"}},
    ]
    held = [*EVERYTHING.values(), "B", b"abc", [1.0] * 70, {"k": b"abc"}, Decimal(12), "text", [[b"abc"] * 3] * 7]
    writer = record("N", "int", *kinds, ["null", "N"])
    plain = {"f0": 1} | {f"f{number}": value for number, value in enumerate(held, 1)}
    last = f"f{len(held) + 1}"

    def written(depth: int) -> str:
        value = plain | {last: None}
        for _ in range(depth):
            value = plain | {last: value}
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)
        return out.getvalue().hex()

    values, errors = decoded_elsewhere(writer, [written(depth) for depth in (0, 1, 100, 200)])
    assert errors == [None, None, None, "it is nested deeper than 256 levels"]
    assert values[:3] == [{"f0": 1}] * 3


def long(number: int) -> bytes:
    """The Avro encoding of a number of at least 0."""
    from odradek.core.varints import uvarint

    return uvarint(2 * number)


def decoded_elsewhere(writer: Any, rows: list[str]) -> tuple[list[Any], list[Any]]:
    """Values and errors, from a separate process, because fastavro may crash it."""
    asked = json.dumps([record("N", "int"), writer, rows])
    done = subprocess.run([sys.executable, "-c", DECODE], input=asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    values, errors = json.loads(done.stdout)
    return values, errors


# --- the parser ------------------------------------------------------------------------------------------------------


def test_only_brackets_outside_strings_count() -> None:
    from odradek.text.json_depth import MAX_DEPTH, parse_json

    for text in (nested(MAX_DEPTH), json.dumps("[" * DEEP), json.dumps({'"[' * 500: ['\\"{' * 500] * 300})):
        assert json.dumps(parse_json(text)) == json.dumps(json.loads(text))
        assert parse_json(text.encode("utf-16")) == json.loads(text)
    flat = "[" + ",".join(["[]"] * DEEP) + "]"
    assert len(parse_json(flat)) == DEEP
    with pytest.raises(ValueError, match="nested deeper than 256 levels"):
        parse_json(nested(MAX_DEPTH + 1))
    for broken in ('"' + "[" * DEEP, "[" * 300 + '"' + "\\", "]" * DEEP + "[" * DEEP):
        with pytest.raises(ValueError):  # noqa: PT011  whichever
            parse_json(broken)
