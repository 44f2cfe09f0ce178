"""Reads Avro values into Arrow columns in a worker.

A compiled kernel reads the values that were written with the reader's schema, if the kernel supports that schema.
fastavro reads all other values. The kernels are loaded when the first values are read: the driver makes readers, too,
but reads no values.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from odradek.pipelines.values.avro import HEADER, AvroDecoder, in_micros
from odradek.pipelines.values.reader import ValueReader

if TYPE_CHECKING:
    from odradek.pipelines.decoders.value_columns import KernelSchema, Texts


class AvroReader(ValueReader):
    """Reads values into columns of one schema. The values may have been written with other schemas."""

    def __init__(self, schema: str, framing: str = "none", writer_schemas: Mapping[int, str] | None = None) -> None:
        self.decoder = AvroDecoder(schema, framing, writer_schemas)
        self.type = _named_as_by_spark(in_micros(self.decoder.decoded))
        self._header = HEADER if framing == "confluent" else 0
        self._same = self.decoder.same_writers()
        self.slowly = 0
        """The number of values that were read one by one."""

    def __reduce__(self) -> tuple[object, ...]:
        decoder = self.decoder
        return type(self), (decoder.schema, str(decoder.framing), decoder.writer_schemas)

    @functools.cached_property
    def _schema(self) -> KernelSchema | None:
        from odradek.pipelines.decoders.avro_schema import kernel_schema

        return kernel_schema(self.decoder.timed, self.type, self._header)

    def read(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        from odradek.pipelines.decoders.value_columns import REFUSED, Texts, put

        if self._schema is None:
            self.slowly += len(values) - values.null_count
            read, errors = self.decoder.decode(values)
            return read.cast(self.type), errors if errors.null_count < len(errors) else None
        data = Texts.of(values)
        if self._same is not None:
            self._leave_others(data, self._same)
        read = self._schema.read(data).array(0)
        refused = np.flatnonzero(data.marks == REFUSED)
        if not len(refused):
            return read, None
        self.slowly += len(refused)
        found, wrong = self.decoder.decode(values.take(pa.array(refused)))
        if found.null_count < len(found):
            read = put(read, refused.tolist(), found.cast(self.type))
        if wrong.null_count == len(wrong):
            return read, None
        return read, put(pa.nulls(len(values), pa.string()), refused.tolist(), wrong)

    def _leave_others(self, data: Texts, same: list[int]) -> None:
        """Marks values with another writer schema as refused, because the kernel cannot read them."""
        from odradek.pipelines.decoders.value_columns import REFUSED

        starts = data.offsets[:-1].astype(np.int64)
        rows = np.flatnonzero((np.diff(data.offsets) >= self._header) & (data.marks == 0))
        ids = np.zeros(len(rows), np.int64)
        for byte in range(1, self._header):
            ids = ids << 8 | data.data[starts[rows] + byte]
        data.marks[rows[~np.isin(ids, same)]] = REFUSED


def _named_as_by_spark(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _named_as_by_spark(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), _named_as_by_spark(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _named_as_by_spark(kind.value_type)))
    return kind
