"""Values that cannot name a partition folder. Readers would see another value, or no file could be created.

Such a value must not end a table for good, since its record stays in the topic. In a table with the columns ``raw`` and
``error`` the whole value of the record is treated as unreadable: its columns are null, so the row is in the folder of
null, ``raw`` has the bytes and ``error`` the reason. A key that cannot name a folder is null, and ``error`` has its
bytes in hexadecimal form. A table without these columns can only refuse the record.

The workers' form (``usable_rows``) and Spark's form (``usable_frame``) do the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.pipelines.files.partition_folders import NULL, escaped
from odradek.pipelines.values.reader import ERROR
from odradek.pipelines.values.record_values import RAW, RECORD_COLUMNS, BadRecords

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import Column, DataFrame

NAME_BYTES = 255
"""The longest name of a folder, in bytes: the limit of Linux's file systems and of HDFS."""
_KEY = "key"
_EMPTY = "the empty text names the same folder as null"
_NULL = f"the text {NULL} names the folder of null"
_NUL = "a text with NUL cannot name a folder"
_NOT_TEXT = "bytes that are not UTF-8 cannot name a folder"
_ESCAPED = "[\\x01-\\x1F\"#%'*/:=?\\\\{\\[\\]^\\x7F]"


def usable_rows(rows: pa.RecordBatch, records: pa.RecordBatch, partition_by: Sequence[str]) -> pa.RecordBatch:
    """Returns the rows, with an error in those that have no folder. ``records``: the records of the rows.

    Raises BadRecords if the table has no column ``error``.
    """
    problems: dict[str, list[str | None]] = {}
    wrong: npt.NDArray[np.bool_] | None = None
    for name in partition_by:
        column = rows.column(name)
        if not _is_text(column.type):
            continue
        encoded = column.dictionary_encode()
        reasons = [_problem(name, value) for value in encoded.dictionary.to_pylist()]
        if not any(reasons):
            continue
        codes = encoded.indices.fill_null(len(reasons)).to_numpy(zero_copy_only=False)
        found = np.array([reason is not None for reason in [*reasons, None]])[codes]
        problems[name] = [[*reasons, None][code] for code in codes.tolist()]
        wrong = found if wrong is None else wrong | found
    if wrong is None:
        return rows
    return _with_errors(rows, records, problems, np.flatnonzero(wrong))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _problem(column: str, value: str | bytes | None) -> str | None:
    """Returns why a value cannot name a folder; None if it can."""
    if value is None:
        return None
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return _NOT_TEXT
    if not value:
        return _EMPTY
    if value == NULL:
        return _NULL
    if "\0" in value:
        return _NUL
    size = len(f"{escaped(column)}={escaped(value)}".encode())
    return _too_long(size) if size > NAME_BYTES else None


def _too_long(size: int) -> str:
    return f"the name of its folder would have {size} bytes, more than {NAME_BYTES}"


def _with_errors(
    rows: pa.RecordBatch,
    records: pa.RecordBatch,
    problems: Mapping[str, list[str | None]],
    wrong: npt.NDArray[np.int64],
) -> pa.RecordBatch:
    errors = {int(at): _error(problems, records, int(at)) for at in wrong}
    if ERROR not in rows.schema.names:
        at = int(wrong[0])
        topic, partition, offset = (records.column(name)[at].as_py() for name in RECORD_COLUMNS[:3])
        raise BadRecords(f"{topic}-{partition}, offset {offset}: {errors[at]}. {_REMEDY}")
    mask = np.zeros(rows.num_rows, bool)
    mask[wrong] = True
    is_wrong = pa.array(mask)
    said = pa.array([errors.get(at) for at in range(rows.num_rows)], pa.string())
    columns = []
    for name in rows.schema.names:
        column = rows.column(name)
        if name == ERROR:
            column = pc.if_else(is_wrong, said, column)
        elif name == RAW:
            column = pc.if_else(is_wrong, records.column("value").cast(column.type), column)
        elif name == _KEY and _KEY in problems:
            is_usable = pa.array([reason is None for reason in problems[_KEY]])
            column = pc.if_else(is_usable, column, pa.scalar(None, column.type))
        elif name not in (*RECORD_COLUMNS, "headers"):
            column = _without(column, mask)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _without(column: pa.Array, mask: npt.NDArray[np.bool_]) -> pa.Array:
    """Returns the column with null where ``mask`` is True, for any type."""
    places = np.arange(len(column))
    return column.take(pa.array(places, mask=mask))


def _error(problems: Mapping[str, list[str | None]], records: pa.RecordBatch, at: int) -> str:
    said = []
    for name, reasons in problems.items():
        if reasons[at] is not None:
            said.append(f"column {name}: {reasons[at]}")
            if name == _KEY:
                said[-1] += f"; the key is {records.column(_KEY)[at].as_py().hex().upper()}"
    return "; ".join(said)


_REMEDY = "Choose other columns for --partition-by, or a --value-format with a column for errors"


def usable_frame(frame: DataFrame, partition_by: Sequence[str], raw: str) -> DataFrame:
    """Returns the table's rows, with an error in those that have no folder, and without the column ``raw``, which has
    the bytes of each value. Spark raises an error instead if the table has no column ``error``.
    """
    from pyspark.sql import functions as f

    kinds = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    checked = [name for name in partition_by if kinds.get(name) in ("string", "binary")]
    if not checked:
        return frame.drop(raw)
    reasons = {name: _reason(name, kinds[name]) for name in checked}
    parts = [f.concat(f.lit(f"column {name}: "), reason) for name, reason in reasons.items() if name != _KEY]
    if _KEY in reasons:
        bytes_of_key = f.concat(f.lit("; the key is "), f.hex(f.col(_KEY)))
        parts.insert(checked.index(_KEY), f.concat(f.lit("column key: "), reasons[_KEY], bytes_of_key))
    is_wrong = f.coalesce(*reasons.values()).isNotNull()
    error = f.concat_ws("; ", *parts)
    if ERROR not in frame.columns:
        place = f.concat(f.col("topic"), f.lit("-"), f.col("partition"), f.lit(", offset "), f.col("offset"))
        stop = f.raise_error(f.concat(place, f.lit(": "), error, f.lit(f". {_REMEDY}")))
        first = checked[0]
        checked_column = f.when(is_wrong, stop.cast(kinds[first])).otherwise(f.col(first))
        shown = [name for name in frame.columns if name != raw]
        return frame.select(*[checked_column.alias(name) if name == first else name for name in shown])
    chosen: list[object] = []
    for name in [name for name in frame.columns if name != raw]:
        column = f.col(f"`{name.replace('`', '``')}`")
        if name == ERROR:
            column = f.when(is_wrong, error).otherwise(column)
        elif name == RAW:
            column = f.when(is_wrong, f.col(raw)).otherwise(column)
        elif name == _KEY and _KEY in reasons:
            column = f.when(reasons[_KEY].isNull(), column)
        elif name not in (*RECORD_COLUMNS, "headers"):
            column = f.when(~is_wrong, column)
        chosen.append(column.alias(name))
    return frame.select(*chosen)


def _reason(name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    column = f.col(f"`{name.replace('`', '``')}`")
    text = column.cast("string")
    size = f.octet_length(text) + 2 * f.length(f.regexp_replace(text, re.sub(r"^\[", "[^", _ESCAPED), ""))
    size = size + len(f"{escaped(name)}=".encode())
    reason = f.when(column.isNull(), None)
    if kind == "binary":
        reason = reason.when(~f.is_valid_utf8(column), _NOT_TEXT)
    return (
        reason.when(text == "", _EMPTY)
        .when(text == NULL, _NULL)
        .when(f.instr(text, "\0") > 0, _NUL)
        .when(
            size > NAME_BYTES,
            f.concat(f.lit("the name of its folder would have "), size, f.lit(f" bytes, more than {NAME_BYTES}")),
        )
    )
