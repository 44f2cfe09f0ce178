"""The kernels of ``code_table``: a hash table of 64-bit codes with open addressing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from odradek.batches.kernel_cache import kernel

EMPTY = -1

_I64 = types.int64
_I64S = types.int64[::1]
_I32S = types.int32[::1]


@kernel(_I64(_I64, _I64))
def _home(code: int, mask: int) -> Any:
    """Returns the first place of a code: the high bits of a product spread similar codes."""
    mixed = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(24)) & np.uint64(mask))


@kernel(types.void(_I64S, _I32S, _I64S, _I32S))
def find(codes: Any, slots: Any, wanted: Any, found: Any) -> None:
    """Puts the slot of each code into ``found``; EMPTY without one."""
    mask = len(codes) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and codes[at] != wanted[i]:
            at = (at + 1) & mask
        found[i] = slots[at]


@kernel(types.UniTuple(_I64, 2)(_I64S, _I32S, _I64S, _I32S, _I64S, _I32S, _I64, _I64))
def find_or_add(  # noqa: PLR0917  kernels take flat arrays
    codes: Any, slots: Any, wanted: Any, found: Any, code_of: Any, free: Any, free_count: Any, size: Any
) -> Any:
    """Puts the slot of each code into ``found``. A new code gets a free slot, or else the slot ``size``.

    Returns the number of free slots and the size. The table must have places for all codes.
    """
    mask = len(codes) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and codes[at] != wanted[i]:
            at = (at + 1) & mask
        if slots[at] == EMPTY:
            if free_count > 0:
                free_count -= 1
                slot = np.int64(free[free_count])
            else:
                slot = size
                size += 1
            codes[at], slots[at], code_of[slot] = wanted[i], slot, wanted[i]
        found[i] = slots[at]
    return free_count, size


@kernel(types.void(_I64S, _I32S, _I64S))
def remove(codes: Any, slots: Any, wanted: Any) -> None:
    """Removes codes. Later codes move up, so that no search stops at the empty place."""
    mask = len(codes) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and codes[at] != wanted[i]:
            at = (at + 1) & mask
        if slots[at] == EMPTY:
            continue
        slots[at] = EMPTY
        behind = (at + 1) & mask
        while slots[behind] != EMPTY:
            if ((behind - _home(codes[behind], mask)) & mask) >= ((behind - at) & mask):
                codes[at], slots[at] = codes[behind], slots[behind]
                slots[behind] = EMPTY
                at = behind
            behind = (behind + 1) & mask
