"""Ordinary tables as records: each row is a JSON object, and a column may be the key.

Values keep what they are: numbers and times have all their digits and no others, times are ISO 8601, and bytes are text
or ``{"base64": "…"}``. What JSON cannot hold (NaN, durations, a map with a key twice) is an error with row and column.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.batches.columns import WRITE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_OUT_OF_RANGE = "<value"
"""The start of the text that Arrow writes for a time beyond its own calendar: ``<value out of range: 9>``."""
_ZONE = re.compile(r"([+-]\d\d)(\d\d)$")
_RECORD_COLUMNS = frozenset({*WRITE_COLUMNS, "topic", "offset", "timestampType"})


def is_ordinary(names: list[str], key: str | None) -> bool:
    """Returns whether a table's rows are JSON values: with --key, or if no column is that of a record's value.

    A table with only other columns of records is not ordinary: it lacks the value.
    """
    return key is not None or ("value" not in names and not set(names) <= _RECORD_COLUMNS)


def json_records(batch: pa.RecordBatch, key: str | None, first: int) -> pa.RecordBatch:
    """Returns the records of a table's rows: ``value``, and ``key`` if ``key`` names a column.

    ``first``: the number of the first row, from 1, for messages. Raises ValueError.
    """
    import pyarrow as pa

    from odradek.batches.columns.arrow_columns import blob_column

    names = batch.schema.names
    if key is not None and key not in names:
        raise ValueError(f"no column {key} for --key among {', '.join(names)}")
    if (twice := _twice(names)) is not None:
        raise ValueError(f"the table has column {twice!r} more than once: JSON can hold it once")
    columns = [[*_cells(name, column)] for name, column in zip(names, batch.columns, strict=True)]
    fields = [f"{_text(name)}:" for name in names]
    values = []
    for number, cells in enumerate(zip(*columns, strict=True), first):
        values.append(f"{{{','.join(map(str.__add__, fields, _row(cells, number)))}}}".encode())
    made = {"value": blob_column(values)}
    if key is not None:
        at = names.index(key)
        made["key"] = blob_column([*_keys(batch.column(at), columns[at])])
    return pa.RecordBatch.from_arrays(list(made.values()), list(made))


_Cell = str | ValueError
"""The JSON of a cell, or why there is none."""


def _row(cells: tuple[_Cell, ...], number: int) -> list[str]:
    """Returns the cells of a row. Raises ValueError with the row's number."""
    row = []
    for cell in cells:
        if isinstance(cell, ValueError):
            raise ValueError(f"row {number}: {cell}") from None
        row.append(cell)
    return row


def _cells(name: str, column: pa.Array) -> Iterator[_Cell]:
    """Yields the cells of a column. Raises ValueError for a type that JSON cannot hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    t = pa.types
    if t.is_dictionary(kind):
        return _cells(name, column.dictionary_decode())
    if t.is_run_end_encoded(kind):
        return _cells(name, pc.run_end_decode(column))
    if t.is_duration(kind) or t.is_interval(kind):
        raise ValueError(f"column {name} has the type {kind}, which JSON cannot hold: leave it out")
    if t.is_temporal(kind):
        shown = pc.cast(column, pa.string()).to_pylist()
        if t.is_timestamp(kind) and kind.tz is not None:  # with a time zone, Arrow writes a far year as another one
            plain = pc.cast(column.cast(pa.timestamp(kind.unit)), pa.string()).to_pylist()
            shown = [
                one if one and one.startswith(_OUT_OF_RANGE) else text for one, text in zip(plain, shown, strict=True)
            ]
        return map(_moment, shown)
    if t.is_float16(kind) or t.is_float32(kind):  # the digits of their own type, not of the double with the same value
        return (_number(None if cell is None else str(cell)) for cell in _short_floats(column))
    if t.is_struct(kind):
        return _objects(name, column)
    if t.is_map(kind):
        return _maps(name, column)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return _lists(name, column)
    try:
        return map(_json, column.to_pylist())
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {name}: {error}") from None


def _short_floats(column: pa.Array) -> Iterator[object]:
    numbers = column.to_numpy(zero_copy_only=False)
    present = column.is_valid().to_pylist()
    return (number if is_there else None for number, is_there in zip(numbers, present, strict=True))


def _number(text: str | None) -> _Cell:
    if text in ("nan", "inf", "-inf"):
        return ValueError(f"{text} is no number in JSON: replace it by null, or by a text")
    return "null" if text is None else text


def _moment(text: str | None) -> _Cell:
    if text is None:
        return "null"
    if text.startswith(_OUT_OF_RANGE):
        return ValueError(f"a time is beyond the calendar of Arrow ({text[1:-1].rpartition(' ')[2]}): leave it out")
    text = _ZONE.sub(r"\1:\2", text.replace(" ", "T", 1))
    return f'"{text}"'


def _objects(name: str, column: pa.StructArray) -> Iterator[_Cell]:
    names = [field.name for field in column.type]
    if (twice := _twice(names)) is not None:
        raise ValueError(f"column {name} has the field {twice!r} more than once: JSON can hold it once")
    parts = [_cells(f"{name}.{one}", part) for one, part in zip(names, column.flatten(), strict=True)]
    fields = [f"{_text(one)}:" for one in names]
    rows = zip(*parts, strict=True) if parts else iter([()] * len(column))
    for is_there, cells in zip(column.is_valid().to_pylist(), rows, strict=True):
        refused = next((cell for cell in cells if isinstance(cell, ValueError)), None)
        if not is_there:
            yield "null"
        else:
            yield refused or f"{{{','.join(map(str.__add__, fields, map(str, cells)))}}}"


def _maps(name: str, column: pa.MapArray) -> Iterator[_Cell]:
    ends = column.offsets.to_pylist()
    low, size = ends[0], ends[-1] - ends[0]
    keys = [*_keys(column.keys.slice(low, size), [*_cells(name, column.keys.slice(low, size))])]
    items = [*_cells(name, column.items.slice(low, size))]
    for at, is_there in enumerate(column.is_valid().to_pylist()):
        chosen = slice(ends[at] - low, ends[at + 1] - low)
        yield _map(keys[chosen], items[chosen]) if is_there else "null"


def _map(keys: list[bytes | None], items: list[_Cell]) -> _Cell:
    entries = []
    for key, item in zip(keys, items, strict=True):
        if isinstance(item, ValueError):
            return item
        try:
            entries.append(f"{_text((key or b'').decode())}:{item}")
        except UnicodeDecodeError:
            return ValueError("a key of a map is not UTF-8, which JSON cannot hold: leave its column out")
    if (twice := _twice([key.decode() for key in keys if key is not None])) is not None:
        return ValueError(f"a map has the key {twice!r} more than once: JSON can hold it once")
    return f"{{{','.join(entries)}}}"


def _lists(name: str, column: pa.ListArray) -> Iterator[_Cell]:
    import pyarrow.compute as pc

    cells = _cells(name, column.flatten())
    for size in pc.list_value_length(column).to_pylist():
        if size is None:
            yield "null"
            continue
        items = [next(cells) for _ in range(size)]
        refused = next((cell for cell in items if isinstance(cell, ValueError)), None)
        yield refused or f"[{','.join(map(str, items))}]"


def _json(cell: object) -> _Cell:
    if isinstance(cell, float):
        return _number(repr(cell))
    if cell is None or isinstance(cell, bool | int):
        return json.dumps(cell)
    if isinstance(cell, str):
        return _text(cell)
    if isinstance(cell, Decimal):
        return format(cell, "f")
    if isinstance(cell, bytes):
        try:
            return _text(cell.decode())
        except UnicodeDecodeError:
            return json.dumps({"base64": b64encode(cell).decode()}, separators=(",", ":"))
    if isinstance(cell, UUID):
        return _text(str(cell))
    return ValueError(f"{type(cell).__name__} {cell} is no value of JSON: leave its column out")


def _keys(column: pa.Array, cells: list[_Cell]) -> Iterator[bytes | None]:
    """Yields the keys of rows: a text or bytes as they are, any other value as JSON, and a time without quotes."""
    import pyarrow as pa

    t = pa.types
    kind = column.type.value_type if t.is_dictionary(column.type) else column.type
    whole = t.is_string(kind) or t.is_large_string(kind) or t.is_binary(kind) or t.is_large_binary(kind)
    whole = whole or t.is_string_view(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
    if whole:
        return ((one.encode() if isinstance(one, str) else one) for one in column.to_pylist())
    return (None if cell == "null" else str(cell).strip('"' if t.is_temporal(kind) else "").encode() for cell in cells)


def _twice(names: list[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
