"""The offsets at which a query reads on after resets of its group."""

from __future__ import annotations

from collections.abc import Mapping

from odradek.core.ids import TopicPartition
from odradek.spark.offsets import data_loss, plan
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import LogRange
from odradek.spark.offsets.source_offset import Offsets

Resets = Mapping[TopicPartition, tuple[int, str]]


def usable_resets(
    lookups: Lookups, resets: Resets, log: Mapping[TopicPartition, LogRange], epoch_ends: Offsets, read: Offsets
) -> dict[TopicPartition, tuple[int, str]]:
    """Returns the resets of existing partitions, with usable offsets. ``epoch_ends``: as in ``TopicStates``, for the
    epochs of the resets. ``read``: the query's offsets.

    An offset above the log is a loss: the query reads on at the log end if it may. So are records below the log start
    that it has not read yet. If the log diverges, the query continues there. Raises DataLoss.
    """
    options, usable, lost = lookups.options, dict[TopicPartition, tuple[int, str]](), list[str]()
    there = {tp: reset for tp, reset in resets.items() if tp in log}
    held = lookups.held_log(log, {tp: offset for tp, (offset, _) in there.items()})
    for tp, (offset, reset_id) in there.items():
        bounds, epoch_end = held[tp], epoch_ends.get(tp)
        back = plan.resume_offset(offset, epoch_end, bounds)
        if epoch_end is not None and back != offset:
            data_loss.note(data_loss.diverged_reset_message(tp, offset, epoch_end, bounds))
        if back > max(bounds.end, epoch_end or 0):
            lost.append(data_loss.reset_beyond_message(tp, offset, bounds.end, options.group_id or ""))
            back = bounds.end
        first = max(back, read.get(tp, back))
        if first < bounds.start:
            lost.append(data_loss.removed_message(tp, first, bounds.start, lookups))
        elif back < bounds.start:
            data_loss.note(data_loss.removed_message(tp, back, bounds.start, lookups))
        usable[tp] = max(back, bounds.start), reset_id
    data_loss.fail_or_warn(sorted(lost), fail=options.fail_on_data_loss, file=options.losses_to)
    return usable
