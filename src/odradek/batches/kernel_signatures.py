"""The types in the signatures of kernels. ``kernel_arrays`` has the types of the same values in Python."""

from __future__ import annotations

from numba import types

INT64 = types.int64
INT64S = types.int64[::1]
INT32S = types.int32[::1]
UINT8S = types.uint8[::1]
READ_ONLY = types.Array(types.uint8, 1, "C", readonly=True)
"""Bytes that a kernel reads. Writable arrays are accepted, too: without a signature numba would compile a kernel again,
for seconds, for each mix of writable and readonly arrays."""
TABLE = types.int64[:, ::1]
"""Rows of numbers, such as the batches of ``decode.scan``."""
