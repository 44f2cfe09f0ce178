"""Partition folders, ``month=7/key=a%2Fb``, with the names that Spark gives them."""

from __future__ import annotations

import decimal
import logging
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from odradek.pipelines.values.arguments import wrong

if TYPE_CHECKING:
    from odradek.pipelines.values.record_values import Values

log = logging.getLogger("odradek.pipelines")
NULL = "__HIVE_DEFAULT_PARTITION__"
# Spark escapes these characters in folder names: control characters, and those with a meaning in file systems
# or URIs.
_ESCAPED = {*map(chr, range(0x20)), *"\"#%'*/:=?\\{[]^\x7f"}


def check_folder_columns(partition_by: Sequence[str], values: Values) -> None:
    """Raises ConfigError for columns that cannot name folders, as far as that is known without Spark."""
    known = values.columns()
    for name in partition_by:
        if known is not None and name not in known:
            is_field = name.removeprefix("value.") in (values.fields() or ())
            hint = "; with --flat the fields of values are columns" if is_field and not values.flat else ""
            if re.search(r"[(\s]", name):
                hint = (
                    ". An expression is no column: let the producer write a field with its value, and name this "
                    "field, with --flat; Iceberg has partitions by day(timestamp) and similar ones"
                )
            raise wrong("partition_by", f" {name}: the table's columns are {', '.join(known)}{hint}")
        if (name == "headers" and values.headers) or (name == "value" and values.fields() and not values.flat):
            raise wrong("partition_by", f" {name}: a column of type struct cannot name folders")
    if many := [name for name in ("offset", "timestamp") if name in partition_by]:
        log.warning(
            "partition by %s: nearly each record gets a folder and a file of its own, and readers open each file",
            many[0],
        )
    if known is not None and len(partition_by) == len(known):
        raise wrong("partition_by", ": a table cannot have all its columns in folders")


def check_partition_columns(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises ConfigError for a column that does not exist or has no text form, and if no other column is left."""
    for name in partition_by:
        at = schema.get_field_index(name)
        if at < 0:
            raise wrong("partition_by", f" {name}: the table's columns are {', '.join(schema.names)}")
        kind = schema.field(at).type
        if not _has_text(kind):
            where = " with --writer workers" if pa.types.is_floating(kind) else ""
            raise wrong("partition_by", f" {name}: a column of type {kind} cannot name folders{where}")
    if partition_by and len(set(partition_by)) == len(schema.names):
        raise wrong("partition_by", ": a table cannot have all its columns in folders")


def _has_text(kind: pa.DataType) -> bool:
    looks = pa.types
    checks = (looks.is_integer, looks.is_boolean, looks.is_string, looks.is_binary, looks.is_date32)
    return any(is_kind(kind) for is_kind in (*checks, looks.is_timestamp, looks.is_decimal))


def by_folder(rows: pa.RecordBatch, partition_by: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yields each folder's path and its rows. The rows keep their order and lose the partition columns."""
    if not partition_by:
        if rows.num_rows:
            yield "", rows
        return
    codes = np.zeros(rows.num_rows, np.int64)
    names: list[list[str]] = []
    for column in partition_by:
        encoded = rows.column(column).dictionary_encode("encode")
        values = [_folder(column, value) for value in _values(encoded.dictionary)]
        codes = codes * len(values) + encoded.indices.to_numpy(zero_copy_only=False)
        names.append(values)
    kept = rows.drop_columns(list(dict.fromkeys(partition_by)))
    # Null and the empty text have the same folder.
    parts: dict[str, list[Any]] = {}
    for code in np.unique(codes):
        parts.setdefault(_path(int(code), names), []).append(code)
    if len(parts) == 1:
        yield next(iter(parts)), kept
        return
    for path, own in parts.items():
        chosen = np.flatnonzero(np.isin(codes, own) if len(own) > 1 else codes == own[0])
        yield path, kept.take(pa.array(chosen))


def _path(code: int, names: Sequence[Sequence[str]]) -> str:
    found: list[str] = []
    for values in reversed(names):
        code, number = divmod(code, len(values))
        found.append(values[number])
    return "/".join(reversed(found))


def _values(found: pa.Array) -> list[object]:
    """Returns values for folder names; times and dates are text, because Python's times end with the year 9999."""
    if pa.types.is_timestamp(found.type):
        return [_time(value) for value in found.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False)]
    if pa.types.is_date(found.type):
        return [_time(value) for value in found.cast(pa.date32()).to_numpy(zero_copy_only=False)]
    values: list[object] = found.to_pylist()
    return values


def _time(value: np.datetime64) -> str | None:
    """Returns a time in Spark's text form, in UTC: years have at least four digits, longer years have a sign."""
    if np.isnat(value):
        return None
    date, _, time = str(value).partition("T")
    if not date.startswith("-") and len(date.partition("-")[0]) > len("9999"):
        date = f"+{date}"
    whole, _, fraction = time.partition(".")
    fraction = fraction.rstrip("0")
    return f"{date} {whole}.{fraction}" if fraction else f"{date} {whole}" if whole else date


def _folder(column: str, value: object) -> str:
    return f"{escaped(column)}={_named(value)}"


def _named(value: object) -> str:
    text = _text(value)
    return NULL if not text else escaped(text)


def _text(value: object) -> str | None:
    """Returns a value in Spark's text form."""
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case bytes():
            return value.decode("utf-8", "replace")
        case decimal.Decimal():
            return format(value, "f")
        case _:
            return str(value)


def escaped(text: str) -> str:
    """Returns a text as a part of a folder's name."""
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
