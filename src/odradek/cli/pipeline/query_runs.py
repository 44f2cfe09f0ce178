"""A streaming query of a command: it runs in a thread, and signals end it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from odradek.cli.terminal import EXIT_OK, CommandError, error_line
from odradek.cli.termination import ExitAtOnce, Terminated
from odradek.core.counts import counted
from odradek.core.errors import OdradekError
from odradek.pipelines.options import letters_topic

if TYPE_CHECKING:
    from odradek.cli.pipeline.options import AdoptLine, IngestLine, ReplayLine, TransformLine
    from odradek.pipelines.group_commit import CommitState

T = TypeVar("T")

INTERACTIVE_S = 3.0
"""After Ctrl-C, somebody waits at a terminal. The next run repeats a micro-batch that did not end in this time."""

LAST_S = 4.4
"""The longest wait after Ctrl-C. The start and the stop of Spark cannot be interrupted; a busy machine needs longer."""


class StopRequest(threading.Event):
    """An event with the time that the current micro-batch has after it is set. A plain event gives the same default."""

    def __init__(self, patience_s: float = 20.0) -> None:
        super().__init__()
        self.patience_s = patience_s


def run_query_in_thread(run: Callable[[StopRequest], T], *, has_end: bool) -> tuple[T, int]:
    """Returns the result of ``run`` and the exit code.

    Java handles Ctrl-C badly. So the query runs in a thread, and a signal interrupts the main thread, which only waits.
    If the query has an end, Ctrl-C and SIGTERM stop it at once; any other query stops cleanly, by the event.
    """
    workers, stop = ThreadPoolExecutor(1, "pipeline"), StopRequest()
    try:
        return wait_for_end(workers.submit(run, stop), stop, has_end)
    finally:
        workers.shutdown(wait=False, cancel_futures=True)


def wait_for_end(running: Future[T], stop: StopRequest, has_end: bool, last_s: float = LAST_S) -> tuple[T, int]:
    try:
        return running.result(), EXIT_OK
    except (KeyboardInterrupt, Terminated) as received:
        if has_end:
            if isinstance(received, KeyboardInterrupt):  # SIGTERM has its line in ``cli/main``
                error_line("interrupted: finished micro-batches stay, and the next run goes on")
            raise
        signal = received
    if isinstance(signal, KeyboardInterrupt):
        stop.patience_s = INTERACTIVE_S
        error_line(f"the current micro-batch has {INTERACTIVE_S:.0f} s to end; Ctrl-C again stops at once")
        stop.set()
        return _within(last_s, running, signal), ExitAtOnce(EXIT_OK)  # the stop of Java would take seconds
    stop.set()
    try:
        return running.result(), signal.code
    except OdradekError as error:  # a worker process received the signal, too
        raise Terminated(signal.number, str(error)) from error


def _within(limit_s: float, running: Future[T], received: KeyboardInterrupt) -> T:
    """Returns the result if the query ends in time. Else raises ``received``: the process ends, and loses nothing."""
    try:
        return running.result(limit_s)
    except TimeoutError:
        if running.done():
            raise
        error_line(
            "stopped at once, in the middle of Spark's work; finished micro-batches stay, and the next run goes on"
        )
        raise received from None


def check_master_of(request: IngestLine | TransformLine | ReplayLine | AdoptLine) -> None:
    """Raises ArgumentError for a master that cannot be one, before anything is written or looked up."""
    from odradek.pipelines.values.arguments import about
    from odradek.spark.session import check_master, is_submitted

    if not is_submitted():  # without records Spark does not start, and a wrong master would look right
        with about("master"):
            check_master((request.conf or {}).get("spark.master", request.master))


def check_end(trigger: str | None, *, available_now: bool) -> None:
    """Raises CommandError if both options are given."""
    if available_now and trigger is not None:
        raise CommandError("--available-now stops at the present end, --trigger continues: omit one of them")


def nothing_line(unit: str, state: CommitState) -> str:
    """Returns the begin of a summary without a micro-batch: there was nothing to read, or the end came before."""
    from odradek.pipelines.group_commit import UNFINISHED

    if state.why == UNFINISHED:
        return f"No micro-batch was finished: 0 {unit}"
    return f"Nothing new: 0 {unit}"


def group_line(group: str, state: CommitState) -> str:
    """Returns the end of a summary: whether the group is committed."""
    if state.is_committed:
        return f"group {group} is committed."
    begin = f"group {group} is not committed"
    if state.is_committed is None:
        begin = f"it is unknown whether group {group} is committed"
    return f"{begin}: {'. '.join(filter(None, (state.why, state.remedy)))}."


def unreadable_line(bad: int, rows: int, value_format: str, framing: str, on_bad: str = "") -> str:
    """Returns the line about unreadable values. If no value of Avro can be read, their framing is the likely reason."""
    unreadable = f"{counted(bad, 'record')} with an unreadable value: see columns error and raw"
    if (topic := letters_topic(on_bad)) is not None:
        unreadable += f", and topic {topic}"
    if bad < rows or value_format != "avro":
        return f"{unreadable}."
    other = "confluent" if framing == "none" else "none"
    return f"{unreadable}. No value could be read: is it --framing {other}? That needs another table."
