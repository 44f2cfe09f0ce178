"""The reports of a micro-batch's tasks to the driver, and the check that each row was written once. Pure.

Why a committed transaction has no second copy of a row:

1. Only attempt 0 of a task in attempt 0 of its stage sends (``may_send``). Spark starts it once. A task that is
   repeated or copied by speculation has a higher number, and so has the attempt of a repeated stage.
2. So each partition of the topic has at most one sender in an epoch, whatever Spark repeats.
3. The driver commits only if every task has one report, from the attempt that may send. This attempt reports after the
   broker has acknowledged all its rows, so at the commit no task sends any more.
4. Otherwise the driver aborts, and the next attempt has another epoch, in which the broker refuses earlier senders.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Arrow's names of the types.
REPORT_COLUMNS = {"task": "int32", "stage": "int32", "stage_attempt": "int32", "attempt": "int32", "rows": "int64"}
REPORT_SCHEMA = "task int, stage int, stage_attempt int, attempt int, rows long"

UNKNOWN_ATTEMPT = -1
"""The attempt of a stage whose tasks got no row at all, not even a task row (``transaction_task``)."""


class WriteReport(NamedTuple):
    """One task's report. ``task``: the task's partition in Spark; ``rows``: the number of rows that it has written."""

    task: int
    stage: int
    stage_attempt: int
    attempt: int
    rows: int

    @property
    def may_send(self) -> bool:
        return self.attempt == 0 and self.stage_attempt == 0


def is_each_row_written_once(reports: Iterable[WriteReport], tasks: int) -> bool:
    """Returns whether each of the ``tasks`` writing tasks has one report, from the attempt that may send."""
    found = list(reports)
    if all(report.stage_attempt == UNKNOWN_ATTEMPT for report in found):
        return True  # the micro-batch has no rows, and Spark has made no partitions for it
    is_complete = sorted(report.task for report in found) == list(range(tasks))
    return is_complete and all(report.may_send for report in found) and len({report.stage for report in found}) == 1
