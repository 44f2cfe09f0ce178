"""Values of decoded columns as numpy arrays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odradek.batches.kernels.kernel_arrays import Array


def plain_text(column: pa.Array) -> pa.Array:
    """Returns a column of texts without a dictionary."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def numbers(column: pa.Array, kind: type = np.int64) -> Array:
    """Returns the numbers with -1 for null."""
    plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    filled: Array = pc.fill_null(plain, -1).to_numpy(zero_copy_only=False).astype(kind, copy=False)
    return filled


def booleans(column: pa.Array) -> Array:
    plain: Array = column.to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return plain
