"""Hidden partitioning: the transforms of Iceberg, computed in the workers for whole columns.

``day(timestamp)``, ``bucket(16, id)``, ``truncate(4, name)``; a plain column is the transform identity. The values are
those of Iceberg's specification, in the form in which manifests have them: days and hours since 1970, microseconds.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from odradek.pipelines.files.file_layouts import LaidOutRows
from odradek.pipelines.files.partition_folders import escaped
from odradek.pipelines.values.arguments import wrong

_TERM = re.compile(r"(\w+)\s*\(\s*(?:(\d+)\s*,\s*)?([^(),]+?)\s*\)")
_TIMES = {"year": "Y", "month": "M", "day": "D", "hour": "h"}
_WIDE = ("bucket", "truncate")
_SUFFIX = {"bucket": "bucket", "truncate": "trunc"}
_LONGEST_NAME = 80
_MOST = (1 << 31) - 1


class PartitionTransform(NamedTuple):
    """A partition field: the transform of a column. ``width``: of ``bucket`` and ``truncate``, else 0."""

    kind: str
    column: str
    width: int = 0

    @property
    def text(self) -> str:
        """The form in which a user gives it."""
        if self.kind == "identity":
            return self.column
        return f"{self.kind}({f'{self.width}, ' if self.width else ''}{self.column})"

    @property
    def name(self) -> str:
        """The name of the partition field, as Spark gives it."""
        return self.column if self.kind == "identity" else f"{self.column}_{_SUFFIX.get(self.kind, self.kind)}"

    @property
    def iceberg(self) -> str:
        """The transform in the form of Iceberg's metadata."""
        return f"{self.kind}[{self.width}]" if self.width else self.kind


def transforms_of(terms: Sequence[str]) -> tuple[PartitionTransform, ...]:
    """Returns the transforms that a user gives. Raises ArgumentError."""
    return tuple(_transform(term) for term in terms)


def _transform(term: str) -> PartitionTransform:
    if "(" not in term and ")" not in term:
        return PartitionTransform("identity", term)
    found = _TERM.fullmatch(term.strip())
    kind = "" if found is None else found[1].lower()
    if found is None or kind not in (*_TIMES, *_WIDE, "identity"):
        raise wrong(
            "partition_by",
            f" {term}: this transform does not exist: choose one of day(C), hour(C), month(C), year(C), bucket(N, C), "
            "truncate(N, C), or a column",
        )
    if (found[2] is not None) != (kind in _WIDE):
        expected = f"{kind}(N, {found[3]})" if kind in _WIDE else f"{kind}({found[3]})"
        raise wrong("partition_by", f" {term}: expected {expected}")
    width = int(found[2] or 0)
    if kind in _WIDE and not 0 < width <= _MOST:
        raise wrong("partition_by", f" {term}: expected a number from 1 to {_MOST}")
    return PartitionTransform(kind, found[3], width)


def check_transforms(schema: pa.Schema, transforms: Sequence[PartitionTransform]) -> None:
    """Raises ConfigError for a column that does not exist, or whose type the transform does not take."""
    for one in transforms:
        at = schema.get_field_index(one.column)
        if at < 0:
            raise wrong("partition_by", f" {one.text}: the table's columns are {', '.join(schema.names)}")
        kind = schema.field(at).type
        if not _takes(one.kind, kind):
            raise wrong("partition_by", f" {one.text}: a column of type {kind} has no partitions by {one.kind}")
    names = [one.name for one in transforms]
    taken = [one for one in transforms if names.count(one.name) > 1]
    if taken:
        raise wrong("partition_by", f" {taken[0].text}: two partition fields would have the name {taken[0].name}")


def _takes(transform: str, kind: pa.DataType) -> bool:
    looks = pa.types
    if transform in _TIMES:
        return bool(looks.is_timestamp(kind) or (looks.is_date32(kind) and transform != "hour"))
    sized = looks.is_integer(kind) or looks.is_string(kind) or looks.is_binary(kind) or looks.is_decimal(kind)
    if transform == "truncate":
        return bool(sized)
    timed = looks.is_timestamp(kind) or looks.is_date32(kind)
    return bool(sized or timed or (transform == "identity" and looks.is_boolean(kind)))


def parts_of(rows: pa.RecordBatch, transforms: Sequence[PartitionTransform]) -> Iterator[LaidOutRows]:
    """Yields the rows of each partition, in their order."""
    if not rows.num_rows:
        return
    codes = np.zeros(rows.num_rows, np.int64)
    levels: list[list[object]] = []
    for one in transforms:
        encoded = values_of(rows.column(one.column), one).dictionary_encode("encode")
        levels.append(encoded.dictionary.to_pylist())
        codes = codes * len(levels[-1]) + encoded.indices.to_numpy(zero_copy_only=False)
    present = np.unique(codes)
    for code in present:
        values = _values_at(int(code), levels)
        folder = "/".join(_folder(one, value) for one, value in zip(transforms, values, strict=True))
        chosen = rows if len(present) == 1 else rows.take(pa.array(np.flatnonzero(codes == code)))
        yield LaidOutRows(folder, values, chosen)


def _values_at(code: int, levels: Sequence[Sequence[object]]) -> tuple[object, ...]:
    found: list[object] = []
    for values in reversed(levels):
        code, number = divmod(code, len(values))
        found.append(values[number])
    return tuple(reversed(found))


def _folder(transform: PartitionTransform, value: object) -> str:
    """Returns the name of a folder, for people: readers take the value from the manifest."""
    if value is None:
        text = "null"
    elif transform.kind in _TIMES and isinstance(value, int):
        text = str(np.datetime64(value, _TIMES[transform.kind])).replace("T", "-")  # type: ignore[call-overload]
    else:
        text = value.hex() if isinstance(value, bytes) else str(value)
    named = f"{escaped(transform.name)}={escaped(text)}"
    return named.encode()[:_LONGEST_NAME].decode(errors="ignore").replace("\0", "")


def values_of(column: pa.Array, transform: PartitionTransform) -> pa.Array:
    """Returns the values of a partition field for all rows, in the form of manifests."""
    kind = column.type
    if transform.kind in _TIMES:
        return _times(column, _TIMES[transform.kind])
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if transform.kind == "identity":
        return column
    if transform.kind == "truncate" and pa.types.is_integer(column.type):
        return _of_numbers(column, lambda numbers: numbers - numbers % transform.width)
    if transform.kind == "bucket" and pa.types.is_integer(column.type):
        return _of_numbers(column, lambda numbers: _bucket(_hash_of_longs(numbers), transform.width))
    return _of_distinct(column, transform)


def _times(column: pa.Array, unit: str) -> pa.Array:
    kind = column.type
    if pa.types.is_timestamp(kind):
        times = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        source = "us"
    else:
        times, source = column.cast(pa.int32()).cast(pa.int64()), "D"

    def convert(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return numbers.astype(f"datetime64[{source}]").astype(f"datetime64[{unit}]").astype(np.int64)

    return _of_numbers(times, convert).cast(pa.int32())


def _of_numbers(column: pa.Array, convert: Any) -> pa.Array:
    mask = column.is_null().to_numpy(zero_copy_only=False)
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(convert(numbers), mask=mask)


def _bucket(hashes: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    return (hashes.astype(np.int64) & _MOST) % count


def _hash_of_longs(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns the 32-bit hashes (Murmur3) of integers as eight bytes, the lowest first. Source: Iceberg's
    specification, appendix B."""
    bits = numbers.astype(np.int64).view(np.uint64)
    found = np.zeros(len(bits), np.uint32)
    with np.errstate(over="ignore"):
        for block in ((bits & np.uint64(0xFFFFFFFF)).astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)):
            mixed = _rotated(block * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
            found = _rotated(found ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
        found ^= np.uint32(8)
        found = (found ^ (found >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        found = (found ^ (found >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return found ^ (found >> np.uint32(16))


def _rotated(numbers: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    return (numbers << np.uint32(by)) | (numbers >> np.uint32(32 - by))


def _of_distinct(column: pa.Array, transform: PartitionTransform) -> pa.Array:
    """Returns the values of a field of texts, bytes or decimals: each different value is computed once."""
    encoded = column.dictionary_encode()
    compute = _bucket_of if transform.kind == "bucket" else _truncated
    values = [compute(value, transform.width) for value in encoded.dictionary.to_pylist()]
    kind = pa.int32() if transform.kind == "bucket" else column.type
    return pa.array(values, kind).take(encoded.indices)


def _truncated(value: Any, width: int) -> object:
    if isinstance(value, decimal.Decimal):
        scale = value.as_tuple().exponent
        assert isinstance(scale, int)
        unscaled = _unscaled(value)
        return decimal.Decimal(unscaled - unscaled % width).scaleb(scale)
    return value[:width]


def _unscaled(value: decimal.Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _bucket_of(value: Any, count: int) -> int:
    import mmh3

    if isinstance(value, decimal.Decimal):
        number = _unscaled(value)
        size = (number if number >= 0 else number + 1).bit_length() // 8 + 1
        value = number.to_bytes(size, "big", signed=True)
    return int((mmh3.hash(value) & _MOST) % count)
