"""The types of what kernels take and return: arrays by the type of their elements, and numbers.

Compiled, a kernel returns Python's numbers; run as Python, it may return numpy's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
"""An array whose elements have a type that its column decides."""
Bytes = NDArray[np.uint8]
Int8s = NDArray[np.int8]
Int16s = NDArray[np.int16]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Uint16s = NDArray[np.uint16]
Uint32s = NDArray[np.uint32]
Uint64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Doubles = NDArray[np.float64]
Long = int | np.int64
Word = int | np.uint64
