"""Reads a column of values with a compiled kernel, and makes Arrow arrays of the kernel's output.

The kernel gets the schema as a table of nodes. ``json_columns.py`` describes the table and the kernel for JSON.
``avro_columns.py`` has the kernel for Avro, which uses the same table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.pipelines.decoders import json_columns

PASSED_OVER, REFUSED = 1, 2
"""Marks of values. PASSED_OVER: the value is null. REFUSED: the kernel has refused the value, and Python reads it."""
STACK_FIELDS = 5
_NOTHING = np.zeros(1, np.uint8)


@dataclass(frozen=True)
class Texts:
    """Values in the form that a kernel reads. ``marks``: which values are null or refused."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]
    marks: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, values: pa.Array) -> Texts:
        if values.type != pa.binary():
            values = values.cast(pa.binary())
        _, offsets, data = values.buffers()
        marks = np.zeros(len(values), np.uint8)
        if values.null_count:
            marks[:] = values.is_null().to_numpy(zero_copy_only=False)
        has_data = data is not None and data.size > 0
        return cls(
            np.frombuffer(data, np.uint8) if has_data else _NOTHING,
            np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset)
            if len(values)
            else np.zeros(1, np.int32),
            marks,
        )


class KernelSchema:
    """A type as the table of nodes for a kernel.

    ``has_doubles``: the kernel writes floats as doubles. ``scratch``: the length of the kernel's argument ``skipped``.
    """

    def __init__(self, kernel: Callable[..., Any], *, has_doubles: bool, scratch: int) -> None:
        self.kernel = kernel
        self.has_doubles = has_doubles
        self.scratch = scratch
        self.kinds: list[pa.DataType] = []
        self.symbols: dict[int, pa.Array] = {}
        """By node of an enum: its symbols. The kernel writes their indices."""
        self.domains = 1
        self._names = bytearray(b"\0")
        self._rows: list[list[int]] = []

    def add(self, kind: pa.DataType, leaf: tuple[int, int, int], domain: int, name: bytes = b"") -> int:
        """Adds a node; ``leaf``: its KIND, LOW and HIGH."""
        row = [0] * json_columns.NODE_FIELDS
        row[json_columns.KIND], row[json_columns.LOW], row[json_columns.HIGH] = leaf
        row[json_columns.DOMAIN] = row[json_columns.INNER] = domain
        row[json_columns.NAME], row[json_columns.NAME_SIZE] = len(self._names), len(name)
        row[json_columns.CHILD] = row[json_columns.HINT] = -1
        self._names += name
        self._rows.append(row)
        self.kinds.append(kind)
        return len(self._rows) - 1

    def open_domain(self, node: int) -> int:
        """Creates and returns the domain of a node's elements."""
        self._rows[node][json_columns.INNER] = self.domains
        self.domains += 1
        return self.domains - 1

    def mark(self, node: int, field: int, value: int) -> None:
        self._rows[node][field] = value

    def set_children(self, node: int, children: list[int]) -> None:
        """Sets the children of a node, in their order."""
        if not children:
            return
        self._rows[node][json_columns.CHILD] = children[0] * json_columns.NODE_FIELDS
        self._rows[node][json_columns.HINT] = children[0] * json_columns.NODE_FIELDS
        for child, following in zip(children, [*children[1:], children[0]], strict=True):
            self._rows[child][json_columns.NEXT] = following * json_columns.NODE_FIELDS

    def finish(self) -> None:
        self.nodes = np.array(self._rows, np.int64)
        self.nodes[0, json_columns.COUNT] = len(self.nodes)
        self.names = np.frombuffer(self._names, np.uint8)
        self._elements_a_row = [1.0] * self.domains

    def read(self, texts: Texts) -> ValueColumns:
        """Reads values. Refused values are null, and ``texts`` marks them."""
        rows = len(texts.marks)
        most = int(texts.offsets[-1] - texts.offsets[0])  # an element has at least one byte
        room = [rows, *(min(int(rows * ratio * 1.2), most) + 64 for ratio in self._elements_a_row[1:])]
        while True:
            columns = ValueColumns(self, texts.data, room)
            marks = texts.marks.copy()
            full = columns.fill(texts.offsets, marks)
            if not full:
                break
            room[full] = min(room[full] * 2, most) + 64
        texts.marks[:] = marks
        if rows:
            self._elements_a_row = [count / rows for count in columns.counts.tolist()]
        return columns


class ValueColumns:
    """The kernel's output for one Arrow batch, and its Arrow arrays. ``room``: the capacity of each domain in
    values."""

    def __init__(self, plan: KernelSchema, data: npt.NDArray[np.uint8], room: list[int]) -> None:
        self._schema = plan
        self._kinds = plan.kinds
        self._data = data
        self._nodes = plan.nodes.copy()
        self._room = np.array(room, np.int64)
        sizes = self._room[self._nodes[:, json_columns.DOMAIN]]
        ends = np.cumsum(sizes)
        self._nodes[:, json_columns.BASE] = ends - sizes
        total = int(ends[-1])
        self.slots = np.empty(total, np.int64)
        self._lengths = np.zeros(total, np.int64)
        self._states = np.zeros(total, np.uint8)
        self.counts = np.zeros(len(room), np.int64)

    def fill(self, offsets: npt.NDArray[np.int32], marks: npt.NDArray[np.uint8]) -> int:
        """Runs the kernel. Returns the domain that is full, or 0 if no domain is."""
        self.counts[0] = len(marks)
        full = self._schema.kernel(
            self._nodes.reshape(-1), self._schema.names, self._data, offsets, marks, self.counts, self._room,
            self.slots, self._lengths, self._states,
            np.empty(STACK_FIELDS * (len(self._nodes) + 1), np.int64), np.empty(self._schema.scratch, np.uint8),
        )  # fmt: skip
        return int(full)

    def array(self, node: int) -> pa.Array:
        """Returns the values of a node. The array may share the memory of the slots, which must not change any more."""
        kind, row = self._kinds[node], self._nodes[node]
        size = int(self.counts[row[json_columns.DOMAIN]])
        base = int(row[json_columns.BASE])
        states = self._states[base : base + size]
        slots = self.slots[base : base + size]
        is_there = (states == json_columns.VALUE) | (states == json_columns.ESCAPED)
        nulls = size - int(np.count_nonzero(is_there))
        validity = pa.py_buffer(np.packbits(is_there, bitorder="little")) if nulls else None
        if pa.types.is_struct(kind):
            children = [self.array(child) for child in self._children(node)]
            return pa.Array.from_buffers(kind, size, [validity], nulls, children=children)
        if pa.types.is_list(kind) or pa.types.is_map(kind):
            offsets = np.zeros(size + 1, np.int32)
            np.cumsum(self._lengths[base : base + size], out=offsets[1:])
            children = [self.array(child) for child in self._children(node)]
            if pa.types.is_map(kind):
                entries = pa.struct([kind.key_field, kind.item_field])
                children = [pa.Array.from_buffers(entries, len(children[0]), [None], 0, children=children)]
            return pa.Array.from_buffers(kind, size, [validity, pa.py_buffer(offsets)], nulls, children=children)
        if node in self._schema.symbols:
            indices = pa.Array.from_buffers(pa.int64(), size, [validity, pa.py_buffer(slots)], nulls)
            return self._schema.symbols[node].take(indices)
        if row[json_columns.KIND] == json_columns.ODD:
            return pa.nulls(size, kind)
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            lengths = self._lengths[base : base + size]
            offsets, out = np.empty(size + 1, np.int32), np.empty(int(lengths.sum()), np.uint8)
            used = json_columns.gather(self._data, slots, lengths, states, offsets, out)
            return pa.Array.from_buffers(kind, size, [validity, pa.py_buffer(offsets), pa.py_buffer(out[:used])], nulls)
        return pa.Array.from_buffers(
            kind, size, [validity, pa.py_buffer(_fixed(kind, slots, self._schema.has_doubles))], nulls
        )

    def _children(self, node: int) -> list[int]:
        first = child = int(self._nodes[node, json_columns.CHILD])
        children = []
        while child >= 0:
            children.append(child // json_columns.NODE_FIELDS)
            child = int(self._nodes[children[-1], json_columns.NEXT])
            if child == first:
                break
        return children


def _fixed(kind: pa.DataType, slots: npt.NDArray[np.int64], has_doubles: bool) -> Any:
    """Returns slots as the buffer of a fixed-width type. ``has_doubles``: the slots of floats contain doubles."""
    if pa.types.is_boolean(kind):
        return np.packbits(slots.astype(np.bool_), bitorder="little")
    if pa.types.is_float64(kind):
        return slots
    if pa.types.is_float32(kind) and has_doubles:
        with np.errstate(all="ignore"):  # slots without a value have arbitrary bits
            return slots.view(np.float64).astype(np.float32)
    if pa.types.is_decimal(kind):
        return np.stack([slots, slots >> 63], axis=1)
    if kind.bit_width == 64:
        return slots
    return slots.astype(f"int{kind.bit_width}")


def put(column: pa.Array, rows: list[int], values: pa.Array) -> pa.Array:
    """Returns the column with other values in some rows."""
    order = np.arange(len(column))
    order[rows] = np.arange(len(column), len(column) + len(values))
    return pa.concat_arrays([column, values]).take(pa.array(order))
