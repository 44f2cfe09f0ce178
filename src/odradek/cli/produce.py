"""``odradek produce``: lines, JSON lines, CSV or Parquet into a topic of any Kafka.

What ``odradek consume --json`` and ``--output`` write can be sent again: topic, offset and timestamp type are let fall.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from odradek.cli.options import client_config
from odradek.cli.record_lines import from_json
from odradek.cli.terminal import CommandError, counted, note, progress

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("lines", "json", "csv", "parquet")
COLUMNS = ("key", "value", "headers", "partition", "timestamp")
LET_FALL = frozenset({"topic", "offset", "timestampType"})
ROWS = 10_000
PIECE_BYTES = 256 << 10
LONGEST_ROW = 16 << 20
"""Of CSV: without a bound, a quote that nothing closes would take the rest of the input for one cell."""
# A quote is one only at a cell's beginning: the rules of pyarrow, which reads the cells. Possessive: no way back.
_CELL = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|(?!")[^,\r\n]*+)'
_ROW = _CELL + rb"(?:," + _CELL + rb")*+[\r\n]"
_CSV_ROW, _CSV_ROWS = re.compile(_ROW), re.compile(rb"(?:" + _ROW + rb")*+")

Sized = Iterator["tuple[pa.RecordBatch, int]"]
"""Rows, and how much of the input they were: bytes of lines, rows of a table."""


def run_produce(
    topic: str, file: Path | None, form: str, bootstrap: str, command_config: Path | None, *, as_json: bool = False
) -> int:
    """Sends a file, or standard input as it comes, and waits until all of it is acknowledged."""
    from odradek.client.producer import Producer

    if form not in FORMATS:
        raise CommandError(f"--format {form!r}: one of {', '.join(FORMATS)}")
    if form == "parquet" and file is None:
        raise CommandError("--format parquet: give --file, it cannot be read from standard input")
    count = 0
    try:
        total, unit, batches = _input(file, form)
        with (
            Producer(client_config(bootstrap, 5_000, command_config)) as producer,
            progress("Sending", total, unit) as advance,
        ):
            producer.partitions_for(topic)  # says at once what would be met by the first record
            for batch, size in batches:
                producer.send_batch(topic, batch)
                count += batch.num_rows
                advance(size)
    except OSError as error:
        raise CommandError(f"{f'--file {file}' if file else 'standard input'}: {error.strerror or error}") from error
    except ValueError as error:
        sent = f" ({counted(count, 'record')} before it {'was' if count == 1 else 'were'} sent)" if count else ""
        raise CommandError(f"{file or 'standard input'}: {error}{sent}") from error
    if as_json:
        print(json.dumps({"topic": topic, "records": count}))
        return 0
    note(f"{counted(count, 'record')} sent to {topic}, each acknowledged.")
    return 0


def _input(file: Path | None, form: str) -> tuple[int, str, Sized]:
    """How much there is, of what, and the batches. 0: not known."""
    if file is None:
        return 0, "bytes", _stream(sys.stdin.buffer, form)
    if form == "parquet":
        import pyarrow.parquet as pq

        table = pq.ParquetFile(file)
        return table.metadata.num_rows, "rows", _columns(table.iter_batches(ROWS))
    return file.stat().st_size, "bytes", _stream(file.open("rb"), form)


def _stream(source: BinaryIO, form: str) -> Sized:
    return _csv(source) if form == "csv" else _lines(source, form)


def _csv(source: BinaryIO) -> Sized:
    """Rows as soon as they are whole. Raises ValueError that names the row; the header is row 1."""
    names: list[str] = []
    before = 1
    with source:
        for rows in _whole_rows(source):
            size = len(rows)
            if not names:
                rows = rows.removeprefix(BOM_UTF8).lstrip(b"\r\n")
                header = _CSV_ROW.match(rows)
                end = header.end() if header is not None else len(rows)
                names = next(csv.reader(io.StringIO(rows[:end].decode(), newline="")), [])
                rows = rows[end:]
            if rows.strip(b"\r\n"):
                batch = _cells(names, rows, before)
                before += batch.num_rows
                yield _chosen(batch), size
    if not names:
        raise ValueError(f"no header: expected a line with the names of columns, of {', '.join(COLUMNS)}")


def _whole_rows(source: BinaryIO) -> Iterator[bytes]:
    """What comes, cut behind rows: not at a line feed inside of quotes."""
    rest = b""
    while piece := source.read1(PIECE_BYTES):  # type: ignore[attr-defined]
        rest += piece
        whole = _CSV_ROWS.match(rest)
        if whole is not None and (cut := whole.end()):
            yield rest[:cut]
            rest = rest[cut:]
        if len(rest) > LONGEST_ROW:
            raise ValueError(f"a row is longer than {LONGEST_ROW >> 20} MiB: is there a quote that nothing closes?")
    if rest:
        yield rest


def _cells(names: list[str], rows: bytes, before: int) -> pa.RecordBatch:
    """Cells are text, whatever they look like: 007 stays 007. An empty cell is null, "" an empty text."""
    import pyarrow as pa
    import pyarrow.csv as pc

    kinds = {name: pa.int64() if name == "partition" else pa.string() for name in names}
    try:
        table = pc.read_csv(
            io.BytesIO(rows),
            pc.ReadOptions(use_threads=False, block_size=len(rows) + 1, column_names=names),
            pc.ParseOptions(newlines_in_values=True),
            pc.ConvertOptions(
                column_types=kinds, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            ),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(re.sub(r"Row #(\d+)", lambda row: f"Row #{before + int(row[1])}", str(error))) from error
    columns = {name: column.combine_chunks() for name, column in zip(names, table.columns, strict=True)}
    if "timestamp" in columns:
        times = [_time(int(t) if t.isdecimal() else t) if t else None for t in columns["timestamp"].to_pylist()]
        columns["timestamp"] = pa.array(times, pa.int64())
    if "headers" in columns:
        texts = columns["headers"].to_pylist()
        columns["headers"] = pa.array([_headers(json.loads(text)) if text else None for text in texts], _headers_kind())
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _headers_kind() -> pa.DataType:
    import pyarrow as pa

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _columns(batches: Iterator[pa.RecordBatch]) -> Sized:
    for batch in batches:
        yield _chosen(batch), batch.num_rows


def _chosen(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without the columns that are let fall."""
    names = [name for name in batch.schema.names if name not in LET_FALL]
    if "value" not in names:
        raise ValueError(f"no column value among {', '.join(batch.schema.names)}; expected {', '.join(COLUMNS)}")
    return batch.select(names)


def _lines(source: BinaryIO, form: str) -> Sized:
    """Lines as soon as they are whole: who types, or pipes a log that grows, need not wait for a number of them."""
    read = _json_row if form == "json" else _line_row
    rest, count = b"", 0
    with source:
        while piece := source.read1(PIECE_BYTES):  # type: ignore[attr-defined]
            *lines, rest = (rest + piece).split(b"\n")
            yield from _parsed(lines, read, count)
            count += len(lines)
        if rest:
            yield from _parsed([rest], read, count)


def _parsed(lines: list[bytes], read: Callable[[bytes], dict[str, Any] | None], before: int) -> Sized:
    """The rows up to the first line that is none; then raises ValueError with that line's number."""
    rows: list[dict[str, Any]] = []
    failure: ValueError | None = None
    for number, line in enumerate(lines, before + 1):
        try:
            row = read(line.rstrip(b"\r"))
        except ValueError as error:
            failure = ValueError(f"line {number}: {error}")
            break
        if row is not None:
            rows.append(row)
    if rows:
        yield _rows(rows), sum(map(len, lines)) + len(lines)
    if failure is not None:
        raise failure


def _rows(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    import pyarrow as pa

    kinds = (pa.binary(), pa.binary(), _headers_kind(), pa.int32(), pa.int64())
    used = set().union(*rows) | {"value"}
    schema = pa.schema([(name, kind) for name, kind in zip(COLUMNS, kinds, strict=True) if name in used])
    return pa.RecordBatch.from_pylist(rows, schema)


def _line_row(line: bytes) -> dict[str, Any]:
    return {"value": line}


def _json_row(line: bytes) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except ValueError as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise ValueError(f"no JSON ({reason})") from None
    if not isinstance(row, dict) or not row.keys() <= {*COLUMNS, *LET_FALL}:
        shown = line[:60].decode(errors="replace")
        raise ValueError(f"expected an object with {', '.join(COLUMNS)}, not {shown}")
    return {name: _PARTS[name](value) for name, value in row.items() if name not in LET_FALL}


def _time(value: Any) -> int | None:
    """Milliseconds, from a number of them or from ISO 8601 (UTC unless it says otherwise)."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"timestamp {value!r}: expected milliseconds or ISO 8601") from None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"timestamp {value!r}: expected milliseconds or ISO 8601")
    return value


def _headers(value: Any) -> list[dict[str, Any]] | None:
    """From ``{"name": "text"}``, or from a list of ``{"key": …, "value": …}``, where a name may come twice."""
    if value is None:
        return None
    try:
        pairs = value.items() if isinstance(value, dict) else [(pair["key"], pair["value"]) for pair in value]
    except (TypeError, KeyError):
        raise ValueError(f"headers {value!r}: expected an object, or a list of objects with key and value") from None
    return [{"key": str(name), "value": from_json(text)} for name, text in pairs]


def _partition(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"partition {value!r} is no number")
    return value


_PARTS = {"key": from_json, "value": from_json, "headers": _headers, "partition": _partition, "timestamp": _time}
