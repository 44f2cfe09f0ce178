"""A streaming query of a command: it runs in a thread, and signals end it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from odradek.cli.terminal import EXIT_OK, CommandError
from odradek.cli.termination import EXIT_TERMINATED, Terminated
from odradek.core.errors import OdradekError

if TYPE_CHECKING:
    from odradek.pipelines.checkpoint import CommitState

T = TypeVar("T")


def run_query_in_thread(run: Callable[[threading.Event], T], *, has_end: bool) -> tuple[T, int]:
    """Returns the result of ``run`` and the exit code.

    Java handles Ctrl-C badly. So the query runs in a thread, and a signal interrupts the main thread, which only waits.
    If the query has an end, Ctrl-C and SIGTERM stop it at once; any other query stops cleanly, by the event.
    """
    workers, stop = ThreadPoolExecutor(1, "pipeline"), threading.Event()
    try:
        return _finished(workers.submit(run, stop), stop, has_end)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)


def _finished(running: Future[T], stop: threading.Event, has_end: bool) -> tuple[T, int]:
    try:
        return running.result(), EXIT_OK
    except (KeyboardInterrupt, Terminated) as signal:
        if has_end:
            raise
        stop.set()
        if isinstance(signal, KeyboardInterrupt):
            return running.result(), EXIT_OK
    try:
        return running.result(), EXIT_TERMINATED
    except OdradekError as error:  # Spark's Java received the signal, too
        raise Terminated(f"stopped by SIGTERM: {error}") from error


def check_end(trigger: str | None, *, available_now: bool) -> None:
    """Raises CommandError if both options are given."""
    if available_now and trigger is not None:
        raise CommandError("--available-now stops at the present end, --trigger continues: omit one of them")


def group_line(group: str, state: CommitState) -> str:
    """Returns the end of a summary: whether the group is committed."""
    if state.is_committed:
        return f"group {group} is committed."
    begin = f"group {group} is not committed"
    if state.is_committed is None:
        begin = f"it is unknown whether group {group} is committed"
    return f"{begin}: {'. '.join(filter(None, (state.why, state.remedy)))}."
