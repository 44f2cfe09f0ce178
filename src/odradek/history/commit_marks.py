"""The marks in the metadata of commits: those of ``odradek groups reset --mark``, and those of Spark queries."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.records.column_values import booleans, numbers, plain_text
from odradek.lag.reset_mark import MARK, QUERY_MARK

_RESET_OFFSET = r"^odradek-reset:1:(?P<offset>\d{1,18})(?::|$)"
_QUERY = r"^odradek-spark:1:\d+:[^:]*:(?P<query>[^:]+)$"


class MarkColumns(NamedTuple):
    """The marks of some commits. ``queries``: the number of the Spark query in the mark; -1 without a mark or where the
    mark names no query. ``is_reset``: the commit has the mark of a reset to its own offset."""

    is_ours: Array
    queries: Array
    is_reset: Array


class CommitMarks:
    """Finds marks, and numbers the names of queries."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def columns(self, metadata: pa.Array, offsets: pa.Array) -> MarkColumns:
        ours = pc.fill_null(pc.starts_with(metadata, pattern=QUERY_MARK), False)
        return MarkColumns(booleans(ours), self._queries(metadata, ours), _marked_resets(metadata, offsets))

    def _queries(self, metadata: pa.Array, ours: pa.Array) -> Array:
        """Returns the number of the query in each row's mark; -1 without a mark or a query.

        A mark is ``odradek-spark:1:<offset>:<reset id or nothing>:<query>``.
        """
        numbers = np.full(len(metadata), -1, np.int32)
        rows = np.flatnonzero(booleans(ours))
        if len(rows):
            marks = plain_text(metadata.take(pa.array(rows)))
            queries = pc.struct_field(pc.extract_regex(marks, pattern=_QUERY), "query")
            named = pc.dictionary_encode(queries)
            known = [self._numbers.setdefault(one, len(self._numbers)) for one in named.dictionary.to_pylist()]
            indices = pc.fill_null(named.indices, len(known)).to_numpy(zero_copy_only=False)
            numbers[rows] = np.array([*known, -1], np.int32)[indices]
        return numbers


def _marked_resets(metadata: pa.Array, offsets: pa.Array) -> Array:
    """Returns whether each row has the mark of a reset to its own offset. MirrorMaker copies marks to other offsets."""
    marked = np.zeros(len(metadata), bool)
    rows = np.flatnonzero(booleans(pc.fill_null(pc.starts_with(metadata, pattern=MARK), False)))
    if len(rows):
        marks = plain_text(metadata.take(pa.array(rows)))
        named = pc.struct_field(pc.extract_regex(marks, pattern=_RESET_OFFSET), "offset")
        marked[rows] = numbers(named.cast(pa.int64())) == numbers(offsets)[rows]
    return marked
