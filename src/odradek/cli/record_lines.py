"""Records as lines, one RecordBatch at a time: only values, or JSON that ``odradek produce`` reads back.

In JSON, keys, values and header values are texts if they are UTF-8, otherwise ``{"base64": "…"}``. A timestamp is null
if the record has none, and milliseconds after the year 9999, where ``datetime`` ends.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from odradek.core.printable import printable, printable_json

if TYPE_CHECKING:
    import pyarrow as pa

VALUE_COLUMNS = ("value", "offset")
"""The columns to read for lines of values. A group's member needs the offset to return unused records."""
JSON_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
BASE64 = "base64"
NO_TIME = -1000
"""In microseconds: Kafka's -1 ms, the timestamp of a record without one."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = (
    (moment.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) for moment in (datetime.min, datetime.max)
)
_quoted = json.JSONEncoder().encode


def value_lines(batch: pa.RecordBatch) -> bytes:
    """Returns the values unchanged, each with a line feed; ``null`` for a record without a value."""
    values = batch.column("value").to_pylist()
    if batch.column("value").null_count:
        values = [b"null" if value is None else value for value in values]
    return b"\n".join([*values, b""])


def printable_value_lines(batch: pa.RecordBatch) -> str:
    """Returns the values for a terminal: one line each, with escapes for control characters, also for line feeds."""
    values = batch.column("value").to_pylist()
    texts = ("null" if value is None else printable(value.decode(errors="replace")) for value in values)
    return "".join(f"{text}\n" for text in texts)


def printable_json_lines(batch: pa.RecordBatch) -> str:
    """Returns ``json_lines`` for a terminal."""
    return printable_json(json_lines(batch).decode())


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Returns one object for each record, with the fields in ``JSON_COLUMNS``. ``batch`` has only one partition."""
    if not batch.num_rows:
        return b""
    topic, partition = (_quoted(batch.column(name)[0].as_py()) for name in ("topic", "partition"))
    position = f', "topic": {topic}, "partition": {partition}, "offset": '
    rows = zip(
        _texts(batch.column("key")), _texts(batch.column("value")), batch.column("offset").to_pylist(),
        _times(batch.column("timestamp")), _headers(batch.column("headers")), strict=True,
    )  # fmt: skip
    lines = [
        f'{{"key": {key}, "value": {value}{position}{offset}, "timestamp": {time}, "headers": {headers}}}\n'
        for key, value, offset, time, headers in rows
    ]
    return "".join(lines).encode()


def from_json(value: Any) -> bytes | None:
    """Returns the bytes for a value in JSON: of a text, of ``{"base64": "…"}``, or of any other JSON itself.

    Raises ValueError for an object whose only key is ``base64`` if it has another form, instead of sending it as JSON.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {BASE64}:
        try:
            return b64decode(value[BASE64], validate=True)
        except (TypeError, ValueError):
            shown = json.dumps(value)[:60]
            raise ValueError(f"{shown} is not base64: to send this object as JSON, give it as a text") from None
    return json.dumps(value, separators=(",", ":")).encode()


def with_null_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Sets null for records without a timestamp; their -1 ms would be a time before 1970. Needs the column."""
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


def _texts(column: pa.Array) -> list[str]:
    return ["null" if value is None else _text(value) for value in column.to_pylist()]


def _times(column: pa.Array) -> list[str]:
    """Returns timestamps in the form of ``datetime.isoformat``, which is called once for each second."""
    import pyarrow as pa

    seconds = {-1: ""}  # the last second before 1970 contains the value for no timestamp
    found = []
    for time in column.view(pa.int64()).to_pylist():
        second, micros = divmod(time, 1_000_000)
        text = seconds.get(second)
        if text is None:
            text = seconds[second] = _second(second)
        if text:
            found.append(f'"{text}.{micros:06}+00:00"' if micros else f'"{text}+00:00"')
        else:
            found.append(_rare_time(time))
    return found


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
    """Returns lists of objects with key and value; null for a record without headers."""
    ends = column.offsets.to_pylist()
    first = ends[0]
    pairs = column.values.slice(first, ends[-1] - first)
    if not len(pairs):
        return ["null"] * len(column)
    names, values = pairs.field("key").to_pylist(), _texts(pairs.field("value"))
    texts = [f'{{"key": {_quoted(name)}, "value": {value}}}' for name, value in zip(names, values, strict=True)]
    return [
        f"[{', '.join(texts[begin - first : end - first])}]" if begin < end else "null" for begin, end in pairwise(ends)
    ]
