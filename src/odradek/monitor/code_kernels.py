"""The kernels of ``code_table``: a hash table of 64-bit codes with open addressing."""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.kernels.kernel_arrays import Int32s, Int64s, Long
from odradek.batches.kernels.kernel_cache import INT32S, INT64, INT64S, kernel

EMPTY = -1


@kernel(INT64(INT64, INT64))
def _home(code: int, mask: int) -> Long:
    """Returns the first place of a code: the high bits of a product spread similar codes."""
    mixed = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(24)) & np.uint64(mask))


@kernel(types.void(INT64S, INT32S, INT64S, INT32S))
def find(code_of: Int64s, slots: Int32s, wanted: Int64s, slots_found: Int32s) -> None:
    """Puts the slot of each code into ``slots_found``; EMPTY without one."""
    mask = len(slots) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and code_of[slots[at]] != wanted[i]:
            at = (at + 1) & mask
        slots_found[i] = slots[at]


@kernel(types.UniTuple(INT64, 2)(INT64S, INT32S, INT64S, INT32S, INT32S, INT64, INT64))
def find_or_add(  # noqa: PLR0917  kernels take flat arrays
    code_of: Int64s, slots: Int32s, wanted: Int64s, slots_found: Int32s, free: Int32s, free_count: Long, size: Long
) -> tuple[Long, Long]:  # fmt: skip
    """Puts the slot of each code into ``slots_found``. A new code gets a free slot, or else the slot ``size``.

    Returns the number of free slots and the size. The table must have places for all codes.
    """
    mask = len(slots) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and code_of[slots[at]] != wanted[i]:
            at = (at + 1) & mask
        if slots[at] == EMPTY:
            if free_count > 0:
                free_count -= 1
                slot: Long = np.int64(free[free_count])
            else:
                slot = size
                size += 1
            slots[at], code_of[slot] = slot, wanted[i]
        slots_found[i] = slots[at]
    return free_count, size


@kernel(types.void(INT64S, INT32S, INT32S))
def place(code_of: Int64s, slots: Int32s, used: Int32s) -> None:
    """Puts used slots into an empty table."""
    mask = len(slots) - 1
    for i in range(len(used)):
        at = _home(code_of[used[i]], mask)
        while slots[at] != EMPTY:
            at = (at + 1) & mask
        slots[at] = used[i]


@kernel(types.void(INT64S, INT32S, INT64S))
def remove(code_of: Int64s, slots: Int32s, wanted: Int64s) -> None:
    """Removes codes. Later codes move up, so that no search stops at the empty place."""
    mask = len(slots) - 1
    for i in range(len(wanted)):
        at = _home(wanted[i], mask)
        while slots[at] != EMPTY and code_of[slots[at]] != wanted[i]:
            at = (at + 1) & mask
        if slots[at] == EMPTY:
            continue
        slots[at] = EMPTY
        behind = (at + 1) & mask
        while slots[behind] != EMPTY:
            if ((behind - _home(code_of[slots[behind]], mask)) & mask) >= ((behind - at) & mask):
                slots[at] = slots[behind]
                slots[behind] = EMPTY
                at = behind
            behind = (behind + 1) & mask
