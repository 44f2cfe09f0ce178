"""Records as lines, one RecordBatch at a time: only values, or JSON that ``odradek produce`` reads back.

In JSON, keys, values and header values are texts if they are UTF-8, otherwise ``{"base64": "…"}``. A timestamp is a
text in ISO format. It is null if the record has none, and a number of milliseconds if it is outside the years 1 to
9999, the range of ``datetime``.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from odradek.batches.row_sets import RowBatch
from odradek.text.json_literals import refuse_repeated
from odradek.text.printable import printable, printable_json

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.batches.rows import Row

Batch: TypeAlias = "pa.RecordBatch | RowBatch"
"""Records of one partition, with or without pyarrow."""

VALUE_COLUMNS = ("value", "offset")
"""The columns to read for lines of values. A group's member needs the offset to seek to its first unused record."""
JSON_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
BASE64 = "base64"
NO_TIME = -1000
"""In microseconds: Kafka's -1 ms, the timestamp of a record without one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = (
    (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) for moment in (datetime.min, datetime.max)
)
_quoted = json.JSONEncoder().encode


def value_lines(batch: Batch) -> bytes:
    """Returns the values unchanged, each with a line feed; ``null`` for a record without a value."""
    values = _values(batch)
    if None in values:
        values = [b"null" if value is None else value for value in values]
    return b"\n".join([*values, b""])  # type: ignore[list-item]  # no None is left


def _values(batch: Batch) -> list[bytes | None]:
    if isinstance(batch, RowBatch):
        return [row.value for row in batch.rows]
    values: list[bytes | None] = batch.column("value").to_pylist()
    return values


def printable_value_lines(batch: Batch) -> str:
    """Returns the values for a terminal: one line each, with escapes for control characters, also for line feeds."""
    values = _values(batch)
    texts = ("null" if value is None else printable(value.decode(errors="replace")) for value in values)
    return "".join(f"{text}\n" for text in texts)


def printable_json_lines(batch: Batch, *, are_json: bool = False) -> str:
    """Returns ``json_lines`` for a terminal."""
    return printable_json(json_lines(batch, are_json=are_json).decode())


def json_lines(batch: Batch, *, are_json: bool = False) -> bytes:
    """Returns one object for each record, with the fields in ``JSON_COLUMNS``. ``batch`` has only one partition.

    ``are_json``: the values are JSON, which stands in the line as it is."""
    if not batch.num_rows:
        return b""
    if isinstance(batch, RowBatch):
        topic, partition = batch.partition
        rows = _fields_of_rows(batch.rows)
    else:
        topic, partition = (batch.column(name)[0].as_py() for name in ("topic", "partition"))
        rows = _fields_of_columns(batch)
    if are_json:
        texts = ["null" if value is None else value.decode() for value in _values(batch)]
        rows = (
            (key, text, offset, time, headers)
            for (key, _, offset, time, headers), text in zip(rows, texts, strict=True)
        )
    position = f', "topic": {_quoted(topic)}, "partition": {partition}, "offset": '
    lines = [
        f'{{"key": {key}, "value": {value}{position}{offset}, "timestamp": {time}, "headers": {headers}}}\n'
        for key, value, offset, time, headers in rows
    ]
    return "".join(lines).encode()


def json_fields(batch: Batch) -> tuple[tuple[str, int], Iterable[tuple[bytes | None, bytes | None, int, str, str]]]:
    """Returns the partition of a batch, and key, value, offset, timestamp and headers of its records.

    Keys and values are bytes, timestamps and headers are JSON. ``batch`` has at least one record.
    """
    if isinstance(batch, RowBatch):
        rows = batch.rows
        keys, values = [row.key for row in rows], [row.value for row in rows]
        texts = [(offset, time, headers) for _, _, offset, time, headers in _fields_of_rows(rows)]
        partition = batch.partition
    else:
        keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
        texts = [(offset, time, headers) for _, _, offset, time, headers in _fields_of_columns(batch)]
        topic, number = (batch.column(name)[0].as_py() for name in ("topic", "partition"))
        partition = (topic, number)
    return partition, ((key, value, *text) for key, value, text in zip(keys, values, texts, strict=True))


_Fields = Iterable[tuple[str, str, int, str, str]]
"""Key, value, offset, timestamp and headers of records; all but the offset as JSON."""


def _fields_of_columns(batch: pa.RecordBatch) -> _Fields:
    import pyarrow as pa

    keys, values = (_texts(batch.column(name).to_pylist()) for name in ("key", "value"))
    times = _times(batch.column("timestamp").view(pa.int64()).to_pylist())
    return zip(keys, values, batch.column("offset").to_pylist(), times, _headers(batch.column("headers")), strict=True)


def _fields_of_rows(rows: list[Row]) -> _Fields:
    keys, values = _texts([row.key for row in rows]), _texts([row.value for row in rows])
    times = _times([row.timestamp * 1000 for row in rows])
    headers = [
        f"[{', '.join(_header_texts(*zip(*pairs, strict=True)))}]" if (pairs := row.headers) else "null" for row in rows
    ]
    return zip(keys, values, [row.offset for row in rows], times, headers, strict=True)


def from_json(value: object, literal: str) -> bytes | None:
    """Returns the bytes for a value in JSON: of ``{"base64": "…"}``, of a text in UTF-8, or of any other value as it
    stands in the input, ``literal``: numbers keep all digits. Returns None for null.

    An object with ``base64`` as its only key is never sent as JSON: ValueError if its value is not valid base64.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {BASE64}:
        refuse_repeated(value)
        try:
            return b64decode(value[BASE64], validate=True)
        except (TypeError, ValueError):
            shown = json.dumps(value)[:60]
            raise ValueError(f"{shown} is not base64: to send this object as JSON, give it as a text") from None
    return literal.encode()


def with_null_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sets null for records without a timestamp; their -1 ms would be before 1970. Needs the column timestamp."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = batch.schema.get_field_index("timestamp")
    times = batch.column(column)
    is_none = pc.equal(times.view(pa.int64()), NO_TIME)
    if not is_none.true_count:
        return batch
    return batch.set_column(column, batch.schema.field(column), pc.if_else(is_none, pa.scalar(None, times.type), times))


def _text(value: bytes) -> str:
    try:
        return _quoted(value.decode())
    except UnicodeDecodeError:
        return f'{{"{BASE64}": "{b64encode(value).decode()}"}}'


def _texts(values: Iterable[bytes | None]) -> list[str]:
    return ["null" if value is None else _text(value) for value in values]


def _times(times: Iterable[int]) -> list[str]:
    """Converts microseconds since 1970 to JSON, in the form of ``datetime.isoformat``.

    Timestamps in the same second share one call of ``isoformat``."""
    seconds = {-1: ""}  # the last second before 1970 contains the value for no timestamp
    texts = []
    for time in times:
        second, micros = divmod(time, 1_000_000)
        text = seconds.get(second)
        if text is None:
            text = seconds[second] = _second(second)
        if text:
            texts.append(f'"{text}.{micros:06}+00:00"' if micros else f'"{text}+00:00"')
        else:
            texts.append(_rare_time(time))
    return texts


def _second(second: int) -> str:
    """Returns the text of a second; empty outside the range of ``datetime``."""
    return (_EPOCH + timedelta(seconds=second)).isoformat()[:-6] if _FIRST_S <= second <= _LAST_S else ""


def _rare_time(time: int) -> str:
    """Returns the text of a microsecond: null for no timestamp, milliseconds outside the range of ``datetime``."""
    if time == NO_TIME:
        return "null"
    if not _FIRST_S <= time // 1_000_000 <= _LAST_S:
        return str(time // 1000)
    return f'"{(_EPOCH + timedelta(microseconds=time)).isoformat()}"'


def _headers(column: pa.ListArray) -> list[str]:
    """Returns JSON: a list of objects with key and value; null for a record without headers."""
    ends = column.offsets.to_pylist()
    first = ends[0]
    pairs = column.values.slice(first, ends[-1] - first)
    if not len(pairs):
        return ["null"] * len(column)
    texts = _header_texts(pairs.field("key").to_pylist(), pairs.field("value").to_pylist())
    return [
        f"[{', '.join(texts[begin - first : end - first])}]" if begin < end else "null" for begin, end in pairwise(ends)
    ]


def _header_texts(names: Iterable[str], values: Iterable[bytes | None]) -> list[str]:
    return [f'{{"key": {_quoted(name)}, "value": {value}}}' for name, value in zip(names, _texts(values), strict=True)]
