"""Commits to a Delta table that other writers overtake, and the warnings about them.

A commit builds on one version of the table. If another writer makes the next version first, the run reads the log again
and tries again, without a limit: no row is lost or twice, but beside a fast writer the micro-batch may wait for long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("odradek.pipelines")
WARN_AFTER_S = 10.0


class CommitConflicts:
    """The commits of a run since its last successful one. ``now_s``: a clock that only goes forward, in seconds."""

    def __init__(self, table: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._now_s = now_s
        self._first_s: float | None = None
        self._count = 0
        self._rest_s = WARN_AFTER_S

    def note(self, *, is_committed: bool) -> None:
        """Notes the end of a commit. Warns after ten seconds of overtaken commits, then after growing pauses."""
        if is_committed:
            self._first_s, self._count, self._rest_s = None, 0, WARN_AFTER_S
            return
        now_s = self._now_s()
        self._count += 1
        if self._first_s is None:
            self._first_s = now_s
        waited_s = now_s - self._first_s
        if waited_s >= self._rest_s:
            self._rest_s = 2 * waited_s
            log.warning(
                "%s: other writers were faster in %d attempts of this run to commit, for %.0f s: the micro-batch is "
                "written and waits. Nothing is lost. Let the other writers commit less often, or pause them",
                self._table, self._count, waited_s,
            )  # fmt: skip
