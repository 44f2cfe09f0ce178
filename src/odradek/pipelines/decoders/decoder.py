"""Decoders convert raw records to a table's columns in the workers, as ``values.Values.table`` does in Spark.

The driver makes a decoder, and the workers get it in a pickle. The decoder converts each RecordBatch of the source
(``key``, ``value``, ``topic``, ``partition``, ``offset``, ``timestamp``, maybe ``headers``; other columns are ignored)
into a RecordBatch of its ``schema``. The columns, their order, types and nulls are the same as if Spark wrote.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

from odradek.pipelines.values.arguments import wrong
from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.reader import BAD_TIME, ERROR, ValueReader
from odradek.pipelines.values.record_values import RAW, RECORD_COLUMNS, Values

HEADERS_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
_RECORD_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "key": pa.binary(),
    "headers": HEADERS_TYPE,
}


class Decoder(ABC):
    """Converts records to rows of a table. ``schema`` is the table's schema. The pickle of a decoder is small."""

    schema: pa.Schema

    @abstractmethod
    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns one row for each record, in the same order. If the schema has a column ``error``, it is null if
        the value was readable."""


def decoder_for(values: Values, time_zone: str = "UTC") -> Decoder:
    """Returns the decoder for ``values``. ``time_zone``: the session's zone (``spark.sql.session.timeZone``), for JSON
    timestamps without a zone.

    JSON with a schema needs a running Spark, which parses the schema's DDL. Raises ConfigError.
    """
    values.check()
    names = (*RECORD_COLUMNS, *(["headers"] if values.headers else []))
    match values.format:
        case ValueFormat.RAW:
            return RawDecoder(names)
        case ValueFormat.JSON:
            from odradek.pipelines.decoders.json_values import JsonReader

            return ValueDecoder(names, JsonReader.of(values.schema, time_zone), values)
        case ValueFormat.AVRO:
            from odradek.pipelines.decoders.avro_values import AvroReader

            assert values.schema is not None
            return ValueDecoder(names, AvroReader(values.schema, values.framing, values.writer_schemas), values)


class RawDecoder(Decoder):
    """Keeps values as bytes."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self.schema = pa.schema([*_record_fields(names), pa.field("value", pa.binary())])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._names,)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(_columns(batch, self.schema), schema=self.schema)


class ValueDecoder(Decoder):
    """Reads values with a ``ValueReader``. If ``values.flat``, the fields of a value become columns of the table.

    The column ``raw`` has the bytes of unreadable values; with ``values.keep_raw``, of all values.
    """

    def __init__(self, names: tuple[str, ...], reader: ValueReader, values: Values) -> None:
        self._names = names
        self._reader = reader
        self._settings = values
        self._record_schema = pa.schema(_record_fields(names))
        shown = [pa.field("value", reader.type)]
        if values.flat:
            shown = _flat_fields(reader.type, names)
        last = [pa.field(RAW, pa.binary()), pa.field(ERROR, pa.string())]
        ours = list(self._record_schema)
        self.schema = pa.schema([*shown, *ours, *last] if values.flat else [*ours, *shown, *last])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._names, self._reader, self._settings)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raw = batch.column("value")
        read, errors = self._reader.read(raw)
        if batch.column("timestamp").null_count:
            read, errors = _without_time(batch.column("timestamp").is_null(), read, errors)
        kept = _columns(batch, self._record_schema)
        shown = read.flatten() if self._settings.flat else [read]
        if not self._settings.keep_raw:
            raw = pa.nulls(len(batch), pa.binary()) if errors is None else _where(errors.is_valid(), raw)
        if errors is None:
            errors = pa.nulls(len(batch), pa.string())
        columns = [*shown, *kept] if self._settings.flat else [*kept, *shown]
        return pa.RecordBatch.from_arrays([*columns, raw, errors], schema=self.schema)


def _without_time(mask: pa.Array, read: pa.Array, errors: pa.Array | None) -> tuple[pa.Array, pa.Array]:
    """Returns values and errors; the values in ``mask``, of records whose time no column holds, are unreadable."""
    import pyarrow.compute as pc

    if errors is None:
        errors = pa.nulls(len(read), pa.string())
    places = pc.if_else(mask, pa.scalar(None, pa.int64()), pa.array(range(len(read)), pa.int64()))
    return read.take(places), pc.coalesce(errors, pc.if_else(mask, BAD_TIME, pa.scalar(None, pa.string())))


def _where(mask: pa.Array, values: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _record_fields(names: tuple[str, ...]) -> list[pa.Field]:
    return [pa.field(name, _RECORD_TYPES[name]) for name in names]


def _columns(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.Array]:
    found = [batch.column(field.name) for field in schema]
    return [one if one.type == field.type else one.cast(field.type) for one, field in zip(found, schema, strict=True)]


def _flat_fields(kind: pa.DataType, names: tuple[str, ...]) -> list[pa.Field]:
    """Returns the columns for the fields of ``value``. Raises ConfigError if there are no fields, if two fields have
    the same name, or if a field has the name of another column. Case is ignored."""
    if not pa.types.is_struct(kind):
        raise wrong("flat", " needs fields: the schema is of a single value, not of a record")
    fields = list(kind)
    lowered = [field.name.lower() for field in fields]
    taken = sorted(set(lowered) & {*names, RAW, ERROR})
    if taken:
        raise wrong("flat", f": a field {taken[0]!r} has the same name as a column of the record")
    if len(set(lowered)) != len(lowered):
        raise wrong("flat", ": the schema has a field twice (Spark ignores case)")
    return fields
