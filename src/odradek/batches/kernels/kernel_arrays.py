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
Int16s = NDArray[np.int16]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Long = int | np.int64
Word = int | np.uint64
