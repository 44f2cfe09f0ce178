"""The encoding and compression of a Parquet file's columns, chosen by a sample of its rows.

A dictionary helps if values repeat. If values hardly repeat, a dictionary costs time and saves nothing. The number of
different values in a column is estimated from the sample, and the dictionary must fit into its page. Integers and
timestamps without a dictionary are stored as differences: record offsets and timestamps then need one or two bytes
each. A column of texts or bytes is uncompressed if snappy cannot compress it, and uses zstd if zstd makes it much
smaller than snappy does. All other columns use snappy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS = 20_000
_SAMPLE_BYTES = 256 << 10
DICTIONARY_BYTES = 4 << 20
_WORTH_A_DICTIONARY = 0.8
_INCOMPRESSIBLE = 0.95
_MUCH_SMALLER = 0.6
# A column with fewer values in the sample gets a dictionary and snappy: the sample says too little about it.
_FEW_ROWS = 100


def settings_for(rows: pa.Table) -> dict[str, object]:
    """Returns the arguments of ``pq.ParquetWriter`` for a file that begins with these rows."""
    sample = rows.slice(0, SAMPLE_ROWS)
    dictionaries: list[str] = []
    encodings: dict[str, str] = {}
    codecs: dict[str, str] = {}
    for name, values in _leaves(sample):
        codecs[name] = "snappy"
        if values is None or len(values) < _FEW_ROWS:
            dictionaries.append(name)
            continue
        if _is_text(values.type):
            codecs[name] = _codec(values)
        if pa.types.is_boolean(values.type):
            continue
        if _wants_dictionary(values, rows.num_rows):
            dictionaries.append(name)
        elif pa.types.is_integer(values.type) or pa.types.is_timestamp(values.type):
            encodings[name] = "DELTA_BINARY_PACKED"
    return {
        "use_dictionary": dictionaries or False,
        "column_encoding": encodings or None,
        "compression": codecs,
        "compression_level": {name: 1 for name, codec in codecs.items() if codec == "zstd"} or None,
        "dictionary_pagesize_limit": DICTIONARY_BYTES,
        "store_schema": False,
        "store_decimal_as_integer": True,
    }


def _leaves(rows: pa.Table) -> Iterator[tuple[str, pa.Array | None]]:
    """Yields each stored column of Parquet: its path and its values. Values in lists and maps are None."""
    for field in rows.schema:
        yield from _below(field.name, field.type, rows.column(field.name))


def _below(name: str, kind: pa.DataType, values: pa.Array | None) -> Iterator[tuple[str, pa.Array | None]]:
    if pa.types.is_struct(kind):
        for field in kind:
            inner = None if values is None else pc.struct_field(values, field.name)
            yield from _below(f"{name}.{field.name}", field.type, inner)
    elif pa.types.is_map(kind):
        yield from _below(f"{name}.key_value.key", kind.key_type, None)
        yield from _below(f"{name}.key_value.value", kind.item_type, None)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _below(f"{name}.list.element", kind.value_type, None)
    else:
        yield name, None if values is None else values.drop_null()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


def _wants_dictionary(values: pa.Array, rows: int) -> bool:
    count = len(values)
    different = different_values(count, pc.count_distinct(values).as_py())
    size = values.nbytes / count
    if different * size > DICTIONARY_BYTES:
        return False
    rows = max(rows, count)
    bits = max(1, int(different).bit_length())
    return bool(min(different, rows) * size + rows * bits / 8 < _WORTH_A_DICTIONARY * rows * size)


def different_values(count: int, distinct: int) -> float:
    """Estimates the number of different values in a column from a sample of ``count`` rows with ``distinct`` values.

    Assumes that all values are equally frequent. Returns infinity if no value repeats in the sample.
    """
    if distinct >= count:
        return float("inf")
    low, high = float(distinct), 1e12
    for _ in range(60):
        middle = (low * high) ** 0.5
        expected = middle * -math.expm1(-count / middle)
        low, high = (middle, high) if expected < distinct else (low, middle)
    return low


def _codec(values: pa.Array) -> str:
    data = bytearray()
    for value in values.slice(0, 4096):
        data += value.as_buffer() if value.is_valid else b""
        if len(data) >= _SAMPLE_BYTES:
            break
    if not data:
        return "snappy"
    quick = len(pa.compress(bytes(data), "snappy", asbytes=True))
    if quick > _INCOMPRESSIBLE * len(data):
        return "none"
    dense = len(pa.Codec("zstd", 1).compress(bytes(data), asbytes=True))
    return "zstd" if dense < _MUCH_SMALLER * quick else "snappy"
