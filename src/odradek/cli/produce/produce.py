"""``odradek produce``: sends lines, JSON lines, CSV or Parquet to a topic of a Kafka cluster.

It can send the output of ``odradek consume --json`` and ``--output``; it ignores topic, offset and timestamp type.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from odradek.batches.columns import WRITE_COLUMNS
from odradek.batches.row_sets import needs_columns
from odradek.cli.command_config import read_properties, without_values
from odradek.cli.options import client_config
from odradek.cli.produce import csv_rows
from odradek.cli.produce.encoded_rows import encoded_rows, given_schema
from odradek.cli.produce.standard_input import AwaitedInput
from odradek.cli.produce.table_rows import is_ordinary, json_records
from odradek.cli.produce.topic_lookup import look_up
from odradek.cli.produce.topic_partitions import TopicPartitions
from odradek.cli.records import formats
from odradek.cli.records.record_lines import from_json
from odradek.cli.terminal import CommandError, note, print_json, progress, warning_lines
from odradek.cli.termination import EXIT_INTERRUPTED, uninterrupted
from odradek.core.counts import counted, plural, span, was
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import LAST_MS
from odradek.text.encodings import UTF16, is_utf16
from odradek.text.json_literals import elements, members, refuse_repeated, strict_json
from odradek.text.printable import printable, shortened

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.cli.produce.csv_rows import Dialect
    from odradek.cli.produce.options import ProduceLine
    from odradek.cli.records.formats import Format
    from odradek.client.producer import Producer

IGNORED = frozenset({"topic", "offset", "timestampType"})
ROWS = 10_000
_FINER = re.compile(r"[.,]\d{3}\d*[1-9]")
"""Digits of a time behind the milliseconds."""
_FEW = 100
_OPEN = {"{": ("object", "jq -c ."), "[": ("array", "jq -c '.[]'")}
_KCAT = {"payload": "value", "ts": "timestamp"}
"""Fields of ``kcat -J``, and what they are here."""
_ONE = {"json": "each line of JSON", "csv": "each row below the header"}
SEND_S = 1.5
"""The longest end of a write to the producer after Ctrl-C, in seconds."""
LAST_S = 2.5
"""The longest wait for acknowledgements after Ctrl-C, in seconds."""


class TableForm(NamedTuple):
    """How the input is read: the column of a table with the keys, the delimiter of CSV (None: that of the header), and
    the partitions that records may have (None: any)."""

    key: str | None = None
    delimiter: str | None = None
    partitions: TopicPartitions | None = None


Row = dict[str, Any]
Rows = list[Row]
"""Fields by the names in WRITE_COLUMNS: rows of an install without pyarrow."""
Sized = Iterator["tuple[pa.RecordBatch | Rows, int]"]
"""Rows, and their share of the input: bytes of lines, or rows of a table."""


def run_produce(line: ProduceLine) -> int:
    """Sends a file, or standard input as it arrives, and waits until all records are acknowledged.

    The broker may create the topic, unless --no-create or the properties file forbids it. Returns the exit code.
    """
    from odradek.client.producer import Producer

    topic, file = line.topic, _given_file(line.file)
    is_typed = file is None and sys.stdin.isatty()  # read now: a Ctrl-C closes standard input before the last line
    form, schema = _form(line, file), given_schema(line)
    partitions = TopicPartitions(topic, lambda: len(made.partitions_for(topic)))
    table = TableForm(line.key, csv_rows.given_delimiter(line.delimiter), partitions)
    count, is_interrupted, has_begun = 0, False, False
    refused: dict[str, Any] = {"allow_auto_create_topics": False} if line.no_create else {}
    try:
        total, unit, batches = _input(file, form, table, lambda: None if count else _waiting_line(topic, form))
        with without_values(line.command_config):
            made = Producer(client_config(line.bootstrap, 5_000, line.command_config), **_settings(line), **refused)
        with (
            made as producer,
            progress("Sending", total, unit, lambda: _line(topic, file, count, is_typed)) as advance,
        ):
            # A missing schema creates no topic, and a missing topic registers no schema.
            known = schema.encoder() if schema is not None and schema.text is None else None
            look_up(producer, line)
            encode, has_begun = known or (schema and schema.encoder()), True
            try:
                for batch, size in batches:
                    with uninterrupted(SEND_S):
                        for number in _send(producer, topic, encoded_rows(batch, encode, count), count):
                            count += number
                    advance(size)
            except KeyboardInterrupt:
                is_interrupted = True
                _close_soon(producer, topic, count)
    except KeyboardInterrupt:
        if not has_begun:
            raise
        return EXIT_INTERRUPTED  # a second Ctrl-C, after the line about the acknowledgements
    except OSError as error:
        raise CommandError(f"{f'--file {file}' if file else 'standard input'}: {error.strerror or error}") from error
    except ValueError as error:
        sent = f" ({counted(count, 'earlier record')} {'was' if count == 1 else 'were'} sent)" if count else ""
        raise CommandError(f"{file or 'standard input'}: {error}{sent}") from error
    if line.as_json:
        print_json({"topic": topic, "records": count})
    else:
        note(f"{counted(count, 'record')} sent to {topic}, each acknowledged.")
    return EXIT_INTERRUPTED if is_interrupted else 0


def _form(line: ProduceLine, file: Path | None) -> Format:
    """Returns the format of the input. Raises CommandError for options that it has no use for."""
    form = formats.format_of(file, line.form, "--file", "lines")
    if form.name == "parquet" and file is None:
        raise CommandError("--format parquet: give --file; Parquet cannot be read from standard input")
    but = f", and the input is {form.name}: omit it, or add --format csv"
    if line.key is not None and form.name not in ("csv", "parquet"):
        raise CommandError(f"--key {line.key}: it names a column of CSV or Parquet{but}")
    if line.delimiter is not None and form.name != "csv":
        raise CommandError(f"--delimiter: only rows of CSV have one{but}")
    return form


def _line(topic: str, file: Path | None, count: int, is_typed: bool) -> str | None:
    """Returns the line about a long run; None if records are typed, which shows by itself that the command works."""
    is_silent = is_typed or (file is None and not count)  # without a record, the wait for one has its line
    return None if is_silent else f"Sending to {topic}: {counted(count, 'record')} so far"


def _waiting_line(topic: str, form: Format) -> str:
    one = _ONE.get(form.name, "each line")
    return f"Waiting for standard input: {one} is a record of {topic}; its end (Ctrl-D) ends the command."


def _close_soon(producer: Producer, topic: str, count: int) -> None:
    """Waits a short time for acknowledgements after Ctrl-C. Raises CommandError if some records have none."""
    warning_lines("Interrupted: waiting for the acknowledgements of the records that were read.")
    try:
        producer.close(LAST_S)
    except OdradekError as error:
        read = f"{counted(count, 'record')} {was(count)} sent to {topic}"
        raise CommandError(
            f"interrupted: {read}, and not all acknowledged: {error}; the last of them may be missing", EXIT_INTERRUPTED
        ) from error


def _settings(line: ProduceLine) -> dict[str, Any]:
    """Returns the producer's settings in the properties file, such as compression.type. Raises CommandError."""
    if line.command_config is None:
        return {}
    from odradek.client.config import ClientConfig
    from odradek.client.producer.config import ProducerConfig

    own = {one.name for one in fields(ProducerConfig)} - {one.name for one in fields(ClientConfig)}
    own -= {"transactional_id", "transaction_timeout_ms"}  # the command sends without transactions
    given = read_properties(line.command_config)
    return {name: value for name, value in given.items() if name.replace(".", "_") in own}


def _given_file(file: Path | None) -> Path | None:
    """Returns None for standard input, also if it is given as ``-``."""
    return None if file is not None and str(file) == "-" else file


def _send(producer: Producer, topic: str, rows: pa.RecordBatch | Rows, before: int) -> Iterator[int]:
    """Sends rows. Yields how many were sent since the last yield. ``before``: the number of the records before these.

    Raises ValueError for a record that is too large."""
    first, end = before + 1, before + 1
    try:
        if not isinstance(rows, list):
            end = before + int(rows.num_rows)
            producer.send_batch(topic, rows)
            yield int(rows.num_rows)
            return
        for first, row in enumerate(rows, before + 1):
            end = first
            headers = [(pair["key"], pair["value"]) for pair in row.get("headers") or ()]
            producer.send(topic, row.get("value"), row.get("key"), headers, row.get("partition"), row.get("timestamp"))
            yield 1
    except KafkaError as error:
        if error.code is not ErrorCode.message_too_large:
            raise
        where = f"{span(first, end + 1, 'record')}: {error.message}"
        raise ValueError(f"{where} (max.request.size=BYTES in the file of --command-config)") from error


def _input(
    file: Path | None, form: Format, how: TableForm, waiting: Callable[[], str | None]
) -> tuple[int, str, Sized]:
    """Returns the size of the input (0: unknown), the unit of the size, and the rows with their sizes.

    ``waiting`` returns the line about a long read of standard input.
    """
    if file is None:
        return 0, "bytes", read_stream(AwaitedInput(sys.stdin.buffer, waiting), form, how)
    if form.name == "parquet":
        with needs_columns("--format parquet"):
            import pyarrow.parquet as pq

        formats.check_parquet(file)
        table = pq.ParquetFile(file)
        return table.metadata.num_rows, "rows", read_columns(table.iter_batches(ROWS), how.key)
    return file.stat().st_size, "bytes", read_stream(file.open("rb"), form, how)


def read_stream(source: BinaryIO | AwaitedInput, form: Format, how: TableForm) -> Sized:
    if source.seekable():
        at = source.tell()
        head = source.read(8)
        source.seek(at)
        if form.name != "lines" and is_utf16(head):
            source.close()
            raise ValueError(UTF16)
        if (foreign := formats.foreign_content(head, form)) is not None:
            source.close()
            raise ValueError(foreign)
    return _csv(source, how) if form.name == "csv" else _lines(source, form.name, how.partitions)


def _csv(source: BinaryIO | AwaitedInput, how: TableForm) -> Sized:
    """Yields rows as soon as they are complete. Raises ValueError with the line in which the invalid row begins."""
    names: list[str] = []
    number = 1
    with source:
        for dialect, line, rows in csv_rows.whole_rows(source, how.delimiter):
            size = len(rows)
            if not names:
                rows = rows.removeprefix(BOM_UTF8)
                header, rest = _header(rows, dialect, is_given=how.delimiter is not None)
                names = next(csv.reader(io.StringIO(header, newline=""), delimiter=dialect.delimiter), [])
                line += csv_rows.line_ends(rows) - csv_rows.line_ends(rest)
                rows = rest
                if names:
                    yield _records(_no_rows(names), how.key, number), 0
            if rows.strip(b"\r\n"):
                cells = _cells(names, rows, line, dialect, is_ordinary=is_ordinary(names, how.key))
                if "partition" in names and how.partitions is not None and not is_ordinary(names, how.key):
                    _check_partitions(cells, rows, line, dialect, how.partitions)
                yield _records(cells, how.key, number), size
                number += cells.num_rows
    if not names:
        raise ValueError(f"no header: expected a line with names of columns among {', '.join(WRITE_COLUMNS)}")


def _header(rows: bytes, dialect: Dialect, *, is_given: bool) -> tuple[str, bytes]:
    """Returns the line with the names of columns, and the rows behind it. A line ``sep=;`` before it is left out."""
    while True:
        text = rows.lstrip(b"\r\n")
        match = dialect.row.match(text)
        end = match.end() if match is not None else len(text)
        head, rows = text[:end], text[end:]
        if is_given or csv_rows.named_delimiter(head.rstrip(b"\r\n")) is None:
            return head.decode(), rows


def _no_rows(names: list[str]) -> pa.RecordBatch:
    """Returns an empty Arrow batch: the producer checks the header even if no rows follow. Raises ValueError."""
    with needs_columns("--format csv"):
        import pyarrow as pa

    for number, name in enumerate(names, 1):
        if not name.strip():
            raise ValueError(f"column {number} of the header has no name: name it, or remove the column")
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f"the header has column {name!r} more than once")
    return pa.RecordBatch.from_arrays([pa.nulls(0)] * len(names), names)


def _cells(names: list[str], rows: bytes, line: int, dialect: Dialect, *, is_ordinary: bool = False) -> pa.RecordBatch:
    """Returns the cells. Keys and values are text, whatever their content: 007 stays 007.

    An empty cell is null, "" is an empty text. In an ordinary table all cells are text.
    """
    with needs_columns("--format csv"):
        import pyarrow as pa
        import pyarrow.csv as pc

    kinds = {name: pa.int64() if name == "partition" and not is_ordinary else pa.string() for name in names}
    try:
        table = pc.read_csv(
            io.BytesIO(rows),
            pc.ReadOptions(use_threads=False, block_size=len(rows) + 1, column_names=names),
            pc.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True),
            pc.ConvertOptions(
                column_types=kinds, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            ),
        )
    except pa.ArrowInvalid as error:
        # pyarrow counts rows from the start of this part.
        message = re.sub(r"Row #(\d+)", lambda row: f"line {dialect.line_of(rows, int(row[1]) - 1, line)}", str(error))
        if "invalid UTF8" in message:
            where = message[message.find("line ") :].partition(":")[0]
            message = f"{where}: a cell is not UTF-8: save the file as UTF-8, for example with `iconv -t UTF-8`"
        elif dialect.delimiter != "," and "columns, got" in message:
            message += f": cells end at {csv_rows.shown_delimiter(dialect.delimiter)}, unless --delimiter names another"
        raise ValueError(message) from error
    columns = {name: column.combine_chunks() for name, column in zip(names, table.columns, strict=True)}
    for name, read in (("timestamp", _time_cell), ("headers", headers_cell)):
        if name in columns and not is_ordinary:
            cells = []
            for number, text in enumerate(columns[name].to_pylist()):
                try:
                    cells.append(read(text) if text else None)
                except ValueError as error:
                    raise ValueError(f"line {dialect.line_of(rows, number, line)}: {_reason(error)}") from error
            columns[name] = _column(name, cells)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _check_partitions(
    cells: pa.RecordBatch, rows: bytes, line: int, dialect: Dialect, partitions: TopicPartitions
) -> None:
    """Raises ValueError with the line of the first row whose partition the topic lacks."""
    numbers = cells.column("partition").to_pylist()
    refused: dict[int | None, ValueError] = {}
    for one in set(numbers) - {None}:
        try:
            partitions.check(one)
        except ValueError as error:
            refused[one] = error
    for number, one in enumerate(numbers if refused else ()):
        if one in refused:
            raise ValueError(f"line {dialect.line_of(rows, number, line)}: {refused[one]}")


def _time_cell(text: str) -> int | None:
    return _time(int(text), text) if text.removeprefix("-").isdecimal() else _time(text, repr(text))


def headers_cell(text: str) -> list[Row] | None:
    try:
        value = _json(text)
    except ValueError as error:
        raise ValueError(f"headers: {error}") from None
    return _headers(value, text)


def _column(name: str, values: list[Any]) -> pa.Array:
    """Returns a column of records. pyarrow's own conversion would import pandas, which takes seconds."""
    import pyarrow as pa

    from odradek.batches.columns.arrow_columns import blob_column, headers_column, number_column

    if name in ("key", "value"):
        return blob_column(values)
    if name == "headers":
        return headers_column(values)
    return number_column(values, pa.int32() if name == "partition" else pa.int64())


def read_columns(batches: Iterator[pa.RecordBatch], key: str | None) -> Sized:
    number = 1
    for batch in batches:
        yield _records(batch, key, number), batch.num_rows
        number += batch.num_rows


def _records(batch: pa.RecordBatch, key: str | None, number: int) -> pa.RecordBatch:
    """Returns the records of rows: their columns, or JSON for an ordinary table. ``number``: that of the first row."""
    if is_ordinary(batch.schema.names, key):
        return json_records(batch, key, number)
    return _chosen(batch, number)


def _chosen(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    """Returns the Arrow batch without the ignored columns. ``number``: that of the first row.

    Raises ValueError without the column value, for a column that a record does not have, and for a time that a record
    cannot hold.
    """
    names = [name for name in batch.schema.names if name not in IGNORED]
    if "value" not in names:
        raise ValueError(f"no column value among {', '.join(batch.schema.names)}; expected {', '.join(WRITE_COLUMNS)}")
    if unknown := [name for name in names if name not in WRITE_COLUMNS]:
        raise ValueError(
            f"unknown column {unknown[0]!r}: beside a column value, one of {', '.join(WRITE_COLUMNS)}: to send each "
            "row as a JSON object, name the column of the keys with --key COLUMN, or rename the column value"
        )
    if "timestamp" in names:
        _refuse_finer(batch.column("timestamp"), number)
    return batch.select(names)


def _refuse_finer(times: pa.Array, number: int) -> None:
    """Raises ValueError with the row of a time that is finer than a millisecond."""
    import pyarrow as pa

    if not pa.types.is_timestamp(times.type) or times.type.unit not in ("us", "ns"):
        return
    step = 1000 if times.type.unit == "us" else 1_000_000
    for row, time in enumerate(times.cast(pa.int64()).to_pylist(), number):
        if time is not None and time % step:
            message = f"timestamp {times[row - number].cast(pa.string())}: finer than a millisecond"
            raise ValueError(f"row {row}: {message}, which a record cannot hold: round it")


def _lines(source: BinaryIO | AwaitedInput, form: str, partitions: TopicPartitions | None) -> Sized:
    """Yields lines as soon as they are complete, so that typed or piped lines are sent at once."""
    read = partial(json_row, partitions=partitions) if form == "json" else _line_row
    rest, count = b"", 0
    with source:
        while piece := source.read1(csv_rows.PIECE_BYTES):  # type: ignore[union-attr]  # files of bytes have it
            *lines, rest = (rest + piece).split(b"\n")
            yield from parse_lines(lines, read, count)
            count += len(lines)
        if rest:
            yield from parse_lines([rest], read, count)


def parse_lines(lines: list[bytes], read: Callable[[bytes], dict[str, object] | None], before: int) -> Sized:
    """Yields the rows before the first invalid line; then raises ValueError with that line's number."""
    rows: Rows = []
    failure: ValueError | None = None
    for number, line in enumerate(lines, before + 1):
        try:
            row = read(line.rstrip(b"\r"))
        except ValueError as error:
            failure = ValueError(f"line {number}: {_reason(error)}")
            break
        if row is not None:
            rows.append(row)
    if rows:
        yield _rows(rows), sum(map(len, lines)) + len(lines)
    if failure is not None:
        raise failure


def _rows(rows: Rows) -> pa.RecordBatch | Rows:
    if len(rows) < _FEW:  # typed lines do not wait until the kernels for columns are compiled
        return rows
    try:
        import pyarrow as pa
    except ModuleNotFoundError:
        return rows
    used = set().union(*rows) | {"value"}
    names = [name for name in WRITE_COLUMNS if name in used]
    return pa.RecordBatch.from_arrays([_column(name, [row.get(name) for row in rows]) for name in names], names)


def _line_row(line: bytes) -> Row:
    return {"value": line}


def json_row(line: bytes, partitions: TopicPartitions | None = None) -> Row | None:
    if not line.strip():
        return None
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not JSON (invalid UTF-8 in byte {error.start + 1})") from None
    row = _json(text, is_line=True)
    if isinstance(row, list):
        raise ValueError("an array: one object a line is expected, as `jq -c '.[]'` writes the objects of an array")
    refuse_repeated(row)
    if not isinstance(row, dict):
        shown = line[:60].decode(errors="replace")
        raise ValueError(f"expected an object with {', '.join(WRITE_COLUMNS)}, not {shown}")
    if unknown := [name for name in row if name not in WRITE_COLUMNS and name not in IGNORED]:
        raise ValueError(_unknown_fields(unknown))
    if "value" not in row:  # a record without a value deletes its key from a compacted topic
        raise ValueError('the object has no value: add one; "value": null sends a tombstone')
    as_it_stands = any(type(value) not in _PLAIN.get(name, _PLAIN_TEXT) for name, value in row.items())
    literals = members(text) if as_it_stands else {}
    values = {name: _PARTS[name](value, literals.get(name, "")) for name, value in row.items() if name not in IGNORED}
    if partitions is not None and isinstance(number := values.get("partition"), int):
        partitions.check(number)
    return values


def _unknown_fields(names: list[str]) -> str:
    """Returns the line about fields that a record does not have."""
    what = f"{plural(len(names), 'field')} {', '.join(names)[:60]}"
    renamed = [f"{name} is {_KCAT[name]}" for name in names if name in _KCAT]
    hint = f"; of kcat's fields, {' and '.join(renamed)}" if renamed else ""
    return f"a record has no {what}: expected an object with {', '.join(WRITE_COLUMNS)}{hint}"


def _reason(error: ValueError) -> str:
    """Returns why a line is refused: an error of UTF-8 in plain words."""
    if isinstance(error, UnicodeEncodeError):
        half = f"\\u{ord(error.object[error.start]):04x}"
        return f"{half} is half of a character (a lone surrogate), which UTF-8 cannot hold"
    return str(error)


def _json(text: str, *, is_line: bool = False) -> object:
    try:
        return strict_json(text)
    except ValueError as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        begin = text.lstrip()[:1]
        if is_line and isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip()) and begin in _OPEN:
            kind, command = _OPEN[begin]
            reason = f"the line ends inside an {kind}"
            raise ValueError(f"not JSON ({reason}): one object a line is expected, as `{command}` writes it") from None
        raise ValueError(f"not JSON ({reason})") from None


def _shown(value: object, literal: str) -> str:
    """Returns a value for a message, as it stands in the input: Python would print true as True, and 1.10 as 1.1."""
    return shortened(printable(literal or json.dumps(value, ensure_ascii=False)))


def _time(value: object, literal: str) -> int | None:
    """Returns milliseconds, from a number or from ISO 8601 (default zone: UTC). None: the time of sending."""
    time_ms = _milliseconds(value, literal)
    if time_ms is not None and not 0 <= time_ms <= LAST_MS:
        why = "before 1970" if time_ms < 0 else "does not fit into 64 bits"
        raise ValueError(f"timestamp {_shown(value, literal)}: {why}")
    return time_ms


def _milliseconds(value: object, literal: str) -> int | None:
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"timestamp {_shown(value, literal)}: expected milliseconds or ISO 8601") from None
        if _FINER.search(value):
            shown = _shown(value, literal)
            raise ValueError(f"timestamp {shown}: finer than a millisecond, which a record cannot hold: round it")
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"timestamp {_shown(value, literal)}: expected milliseconds or ISO 8601")
    return value


def _headers(value: Any, literal: str) -> list[Row] | None:
    """Reads ``{"name": "text"}``, or a list of ``{"key": …, "value": …}``, in which a name may occur twice."""
    if value is None:
        return None
    try:
        if isinstance(value, dict):
            texts = members(literal)
            pairs = [(name, one, texts[name]) for name, one in value.items()]
            objects = [value]
        else:
            headers = zip(value, elements(literal), strict=True) if isinstance(value, list) else value
            pairs = [(pair["key"], pair["value"], members(text)["value"]) for pair, text in headers]
            objects = value
    except (TypeError, KeyError, ValueError):
        shown = shortened(printable(literal)) if literal else repr(value)
        raise ValueError(f"headers {shown}: expected an object, or a list of objects with key and value") from None
    for one in objects:
        refuse_repeated(one)
    # A name is encoded here, too, so that the error for invalid UTF-8 (half of a surrogate pair) has the line number.
    return [{"key": str(name).encode().decode(), "value": from_json(one, text)} for name, one, text in pairs]


def _partition(value: object, literal: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"partition {_shown(value, literal)} is not a whole number")
    return value


_PARTS = {"key": from_json, "value": from_json, "headers": _headers, "partition": _partition, "timestamp": _time}
_PLAIN_TEXT = frozenset({str, type(None)})
_PLAIN = dict.fromkeys(("partition", "timestamp", "offset"), _PLAIN_TEXT | {int})
"""The types of values whose text in the input is not needed, for fields that are numbers."""
