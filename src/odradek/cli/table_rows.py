"""Ordinary tables as records: each row is a JSON object, and a column may be the key.

Values keep what they are: whole numbers, decimals and times have all their digits, times are ISO 8601, and bytes are
text or ``{"base64": "…"}``. What JSON cannot hold (NaN, durations) is an error with row and column.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from odradek.batches.columns import WRITE_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

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

    if key is not None and key not in batch.schema.names:
        raise ValueError(f"no column {key} for --key among {', '.join(batch.schema.names)}")
    columns = [_plain(name, batch.column(name)) for name in batch.schema.names]
    names = [f"{_text(name)}:" for name in batch.schema.names]
    values = []
    for number, cells in enumerate(zip(*columns, strict=True), first):
        try:
            values.append(
                f"{{{','.join(name + _json(cell) for name, cell in zip(names, cells, strict=True))}}}".encode()
            )
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
    made = {"value": pa.array(values, pa.binary())}
    if key is not None:
        keys = columns[batch.schema.names.index(key)]
        made["key"] = pa.array([None if cell is None else _key(cell) for cell in keys], pa.binary())
    return pa.record_batch(made)


def _plain(name: str, column: pa.Array) -> list[Any]:
    """Returns the cells as Python's values. Times become text in Arrow, because Python's have no nanoseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        raise ValueError(f"column {name} has the type {kind}, which JSON cannot hold: leave it out")
    if pa.types.is_timestamp(kind):
        texts = pc.cast(column, pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T", 1) for text in texts]
    try:
        found: list[Any] = column.to_pylist()
    except ValueError as error:
        raise ValueError(f"column {name}: {error}") from None
    return found


def _json(cell: Any) -> str:
    if isinstance(cell, float) and not math.isfinite(cell):
        raise ValueError(f"{cell} is no number in JSON: replace it by null, or by a text")
    if cell is None or isinstance(cell, bool | int | float):
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
    if isinstance(cell, datetime | date | time):
        return _text(cell.isoformat())
    if isinstance(cell, dict):
        return "{" + ",".join(f"{_text(str(name))}:{_json(value)}" for name, value in cell.items()) + "}"
    if isinstance(cell, list) and cell and all(isinstance(pair, tuple) and len(pair) == 2 for pair in cell):
        return _json(dict(cell))  # a map of Arrow
    if isinstance(cell, list):
        return "[" + ",".join(map(_json, cell)) + "]"
    raise ValueError(f"{type(cell).__name__} {cell} is no value of JSON: leave its column out")


def _key(cell: Any) -> bytes:
    """Returns the key of a row: a text or bytes as they are, any other value as JSON."""
    if isinstance(cell, bytes):
        return cell
    return cell.encode() if isinstance(cell, str) else _json(cell).encode()


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
