"""Values read in workers equal those that Spark reads from the same bytes, column by column."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from json_examples import SCHEMAS, records, values

from odradek.core.errors import ConfigError
from odradek.pipelines.decoders.decoder import HEADERS_TYPE, Decoder, decoder_for
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.record_values import Values

SOURCE = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS_TYPE),
    ]
)


def batch_of(data: list[bytes | None]) -> pa.RecordBatch:
    """A batch with the columns of the source. Keys, times and headers vary. Some keys and headers are null."""
    size = len(data)
    headers = [None, [], [{"key": "h", "value": b"\x00"}, {"key": "h", "value": None}]]
    columns = [
        [None if at % 5 == 0 else b"k%d" % at for at in range(size)],
        data,
        ["t"] * size,
        [at % 3 for at in range(size)],
        list(range(size)),
        [at * 1_000_003 - 5_000_000 for at in range(size)],
        [0] * size,
        [headers[at % 3] for at in range(size)],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SOURCE, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SOURCE)


def by_spark(spark: Any, settings_: Values, batch: pa.RecordBatch) -> pa.Table:
    frame = spark.createDataFrame(pa.Table.from_batches([batch]))
    return settings_.table(frame).coalesce(1).orderBy("offset").toArrow()


def decoder(spark: Any, settings_: Values) -> Decoder:
    """A decoder after pickling."""
    made = decoder_for(settings_, spark.conf.get("spark.sql.session.timeZone"))
    return pickle.loads(pickle.dumps(made))


# From these texts Spark reads a value that is not in the text. Workers refuse these texts. docs/pipelines.md lists
# them.
_LISTED = {
    "half of a pair": re.compile(rb"\\u[dD][89a-fA-F]"),
    "infinite": re.compile(rb"[0-9][eE]\+?[0-9]{2,}|[0-9]{39}"),
    "beyond a byte": re.compile(rb"\b(12[89]|1[3-9][0-9]|2[0-9]{2})\b"),
    "a time alone": re.compile(rb'"\s*T?[0-9]{1,2}:'),
    "a time out of range": re.compile(rb"[0-9]{13}"),
    "three letters for a zone": re.compile(rb"[A-Z]{3}"),
}


def assert_equal(theirs: pa.Table, ours: pa.RecordBatch, data: list[bytes | None]) -> int:
    """Returns the number of rows that differ in a listed way."""
    ours.validate(full=True)
    ours = pa.Table.from_batches([ours])
    assert theirs.schema.names == ours.schema.names
    assert [str(field.type) for field in theirs.schema] == [str(field.type) for field in ours.schema]
    if theirs.equals(ours.cast(theirs.schema)):
        return 0
    listed = 0
    for at, value in enumerate(data):
        one, other = comparable(theirs, at), comparable(ours, at)
        if one == other or _java_digits(one) == _java_digits(other):
            continue
        assert other[-1] is not None, (value, one, other)
        assert any(known.search(value or b"") for known in _LISTED.values()), (value, one, other)
        listed += 1
    return listed


def _java_digits(row: list[Any]) -> str:
    """The row as text, with decimal numbers in Python's shortest form. Java before 19 writes more digits for some."""
    return re.sub(r"-?[0-9]+\.[0-9]+(?:E-?[0-9]+)?", lambda found: repr(float(found.group())), str(row))


def comparable(table: pa.Table, at: int) -> list[Any]:
    return [_plain(column.slice(at, 1).combine_chunks()) for column in table.columns]


def _plain(array: pa.Array) -> Any:
    """Times as numbers, because Python has no times before the year 1; NaN and -0.0 as texts."""
    kind = array.type
    if not array[0].is_valid:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _plain(array.field(number)) for number, field in enumerate(kind)}
    if pa.types.is_list(kind):
        items = array.flatten()
        return [_plain(items.slice(at, 1)) for at in range(len(items))]
    if pa.types.is_date(kind):
        return array.view(pa.int32())[0].as_py()
    if pa.types.is_timestamp(kind):
        return array.view(pa.int64())[0].as_py()
    if pa.types.is_floating(kind):
        return repr(array[0].as_py())
    return array[0].as_py()


def examples(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """This number of examples from hypothesis. They are compared together, because a Spark job for each would take
    hours."""
    made: list[Any] = []

    @settings(max_examples=count, phases=[Phase.generate], database=None)
    @given(strategy)
    def collect(value: Any) -> None:
        made.append(value)

    collect()
    return made


def compare(spark: Any, count: int) -> None:
    """Compares about ``count`` generated records in total, with one Spark job for each schema."""
    choices: list[tuple[str | None, list[str]]] = [*SCHEMAS.items(), (None, [])]
    listed = bad = 0
    for number, (schema, kinds) in enumerate(choices):
        texts = records(kinds) if kinds else values().map(str.encode) | st.binary(max_size=6)
        data = examples(texts, count // len(choices))
        chosen = Values(ValueFormat.JSON, schema, flat=number == 2, headers=number in (1, 2), keep_raw=number in (2, 3))
        batch = batch_of(data)
        ours = decoder(spark, chosen).decode(batch)
        bad += len(data) - ours.column("error").null_count
        listed += assert_equal(by_spark(spark, chosen, batch), ours, data)
    assert bad > count / 10
    assert listed < count / 30


def test_json_is_read_as_by_spark(spark: Any) -> None:
    compare(spark, 200)


@pytest.mark.slow
def test_many_examples_of_json_are_read_as_by_spark(spark: Any) -> None:
    compare(spark, 10_000)


def test_values_that_spark_reads_differently_are_unreadable_in_a_worker(spark: Any) -> None:
    """Each row of the table in docs/pipelines.md except the last row, whose value a worker reads."""
    rows = {
        '{"t":200}': "-56",
        '{"d":1e400}': "inf",
        '{"f":1e39}': "inf",
        '{"s":"\\ud800"}': "?",
        '{"m":{"\\ud800":1}}': "[('?', 1)]",
        '{"w":"2024-01-01T00:00:00 PST"}': "1704096000000000",
        '{"a":"-99999999"}': "-99997958",
        '{"c":"\uff11"}': "1.00",
    }
    schema = "t tinyint, d double, f float, s string, m map<string,int>, w timestamp, a date, c decimal(5,2)"
    batch = batch_of([text.encode() for text in [*rows, '{"w":"10:00"}']])
    chosen = Values(ValueFormat.JSON, schema, flat=True)
    theirs, ours = by_spark(spark, chosen, batch), decoder(spark, chosen).decode(batch)
    assert theirs["error"].null_count == len(batch)
    assert ours.column("error").to_pylist() == ["it does not fit the schema"] * len(batch)
    assert ours.column("raw").to_pylist() == batch.column("value").to_pylist()
    found = [next(value for value in comparable(theirs, at)[:8] if value is not None) for at in range(len(rows))]
    assert [str(value) for value in found] == list(rows.values())


def test_numbers_in_texts_have_javas_format(spark: Any) -> None:
    numbers = ["1.50", "1e3", "1e7", "9999999.5", "0.001", "0.00099", "1e-5", "-0.0", "-0", "123456789.125", "5e-324"]
    texts = [
        f'{{"s":{number}}}'.encode() for number in [*numbers, '["\\ud83d\\ude00\x7f\\u001f", {"a" : 1e2}]', "1e400"]
    ]
    chosen = Values(ValueFormat.JSON, "s string", flat=True)
    batch = batch_of(texts)
    ours = decoder(spark, chosen).decode(batch).column("s").to_pylist()
    assert by_spark(spark, chosen, batch)["s"].to_pylist() == ours


def test_raw_values_and_tombstones_are_read_as_by_spark(spark: Any) -> None:
    batch = batch_of([b"a", None, b"", b"\xff"])
    for headers in (False, True):
        chosen = Values(headers=headers)
        assert assert_equal(by_spark(spark, chosen, batch), decoder(spark, chosen).decode(batch), [b""] * 4) == 0


def test_avro_is_read_as_by_spark(spark: Any) -> None:
    fields: list[dict[str, Any]] = [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": ["null", {"type": "array", "items": "string"}]},
        {"name": "m", "type": {"type": "map", "values": "int"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "k", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
    ]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    good = b"\x02" + b"\x02\x04\x02x\x00\x00" + b"\x02\x02y\x04\x00" + b"\xd0\x0f" + b"\x02"
    data = [good, None, good + b"x", good[:-1], good[:-1] + b"\x04", b""]
    for flat in (False, True):
        chosen = Values(ValueFormat.AVRO, schema, flat=flat, headers=flat, keep_raw=flat)
        ours = decoder(spark, chosen).decode(batch_of(data))
        assert assert_equal(by_spark(spark, chosen, batch_of(data)), ours, data) == 0
        assert ours.column("error").null_count == 2


@pytest.mark.parametrize("schema", ["a interval day", "a variant", "a struct<b:time(6)>", "a map<int,int>", "a void"])
def test_types_that_workers_do_not_read_are_refused(spark: Any, schema: str) -> None:
    with pytest.raises(ConfigError, match="--writer spark"):
        decoder_for(Values(ValueFormat.JSON, schema))


def test_flat_columns_with_used_names_are_refused(spark: Any) -> None:
    for schema, says in (("Offset int", "'offset' has the same name"), ("a int, A int", "twice")):
        with pytest.raises(ConfigError, match=says):
            decoder_for(Values(ValueFormat.JSON, schema, flat=True))
    with pytest.raises(ConfigError, match="needs fields"):
        decoder_for(Values(ValueFormat.AVRO, '"string"', flat=True))


def test_a_driver_loads_no_kernels() -> None:
    """Numba and the kernels take a second to load, and only workers read values."""
    code = (
        "import pickle, sys, pyarrow as pa\n"
        "from odradek.pipelines.decoders.avro_values import AvroReader\n"
        "from odradek.pipelines.decoders.json_values import JsonReader\n"
        "made = [JsonReader(pa.struct([('id', pa.int64())]), 'UTC'), AvroReader('\"long\"')]\n"
        "print(len(pickle.dumps(made)) > 0, 'numba' in sys.modules)\n"
        "made[0].read(pa.array([b'{}'], pa.binary()))\n"
        "print('numba' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.stderr) == (["True", "False", "True"], "")
