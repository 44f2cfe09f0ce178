"""The kernel of ``live_moves``: it keeps the newest commit of each key, and chooses the commits that may be moves."""

from __future__ import annotations

from numba import types

from odradek.batches.kernels.kernel_arrays import Bools, Bytes, Int32s, Int64s
from odradek.batches.kernels.kernel_cache import INT64S, UINT8S, kernel

CLOSED, OPEN, LONG_RUN = 0, 1, 2
"""States of a key. OPEN: all its entries are kept. LONG_RUN: a consumer outside of the group commits it."""
MARKED, WITHOUT_MEMBERS, NO_MEMBERS_KNOWN = 1, 2, 4
"""Bits of a commit: the mark of a reset; its group had members and has none; its group is not known to have any."""
NOT_OURS = -2
"""In place of a query's number: the commit is not a Spark query's."""
KEPT, FIRST, FIRST_OF_RUN = 1, 2, 3
"""Why an entry is kept: its key is OPEN; it opens a key that was CLOSED; it opens a key with a LONG_RUN."""


@kernel(types.void(
    INT64S, types.int64[:, ::1], types.int32[:, ::1], UINT8S, types.boolean[::1],
    types.int64[:, ::1], types.int32[:, ::1], UINT8S, UINT8S, types.int64[:, ::1],
))  # fmt: skip
def choose(  # noqa: PLR0917  kernels take flat arrays
    slots: Int64s, numbers: Int64s, marks: Int32s, bits: Bytes, are_deletions: Bools,
    newest: Int64s, newest_marks: Int32s, states: Bytes, chosen: Bytes, before: Int64s,
) -> None:  # fmt: skip
    """Puts into ``chosen`` why each entry is kept (0: it is not), and into ``before`` the key's commit before it.

    ``numbers``: offset, time, record offset and record time. ``marks``: the number of the query, and the topic id. A
    row of ``before`` has the four numbers and the two marks; it counts where an entry opens its key. ``newest`` has the
    newest commit of each key; the offset is -1 without one.
    """
    for i in range(len(slots)):
        slot = slots[i]
        state, has_before, is_ours = states[slot], newest[slot, 0] >= 0, marks[i, 0] > NOT_OURS
        is_outside = (bits[i] & WITHOUT_MEMBERS) != 0 and not is_ours
        was_ours = has_before and newest_marks[slot, 0] > NOT_OURS
        if are_deletions[i]:
            is_kept = state == OPEN or has_before
        else:
            is_kept = (
                state == OPEN
                or (bits[i] & MARKED) != 0
                or (is_outside and state != LONG_RUN)
                or (has_before and numbers[i, 0] < newest[slot, 0])
                or ((bits[i] & NO_MEMBERS_KNOWN) != 0 and was_ours and not is_ours)
            )
        chosen[i] = 0
        if is_kept:
            chosen[i] = KEPT if state == OPEN else FIRST if state == CLOSED else FIRST_OF_RUN
            for j in range(4):
                before[i, j] = newest[slot, j]
            before[i, 4], before[i, 5] = newest_marks[slot, 0], newest_marks[slot, 1]
            states[slot] = OPEN
        elif state == LONG_RUN and not is_outside:
            states[slot] = CLOSED
        if are_deletions[i]:
            newest[slot, 0] = -1
            continue
        for j in range(4):
            newest[slot, j] = numbers[i, j]
        newest_marks[slot, 0], newest_marks[slot, 1] = marks[i, 0], marks[i, 1]
