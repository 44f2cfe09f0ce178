"""The driver's listener that commits finished micro-batches to the group. ``register`` adds it to a session.

The planner learns that a micro-batch is finished only when Spark requests the next micro-batch. That may be ten minutes
later, or never if the query ends with this micro-batch. Spark reports the micro-batch to the driver at once, so the
driver commits by the planner's rules (``plan.decide_commits``). Where the next trigger begins at once, the planner
commits and the listener does nothing.

The listener reads the source's options from the query's plan in Spark's Java process. It writes them to no log and no
file.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from odradek.core.errors import OdradekError
from odradek.spark.driver.kafka_checkpoint import complete_first_batch
from odradek.spark.driver.query_sources import LISTENER_TIMEOUT_MS, source_options
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.plan import GroupReset
from odradek.spark.offsets.source_offset import SourceOffset

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

log = logging.getLogger("odradek.spark.commits")

# Spark reports a micro-batch shortly before its trigger ends. After this time, either the next trigger is active and
# its planner commits, or no trigger is due.
_REPORT_DELAY_S = 0.1
# The time until the listener checks a query with an active trigger again. Its planner commits, except after the last
# trigger.
_TRIGGER_RETRY_S = 1.0
# The time after which a failed commit is tried again, even if no micro-batch follows.
COMMIT_RETRY_S = 10.0
_NEVER = math.inf


@dataclass
class _Run:
    """One run of a query. ``query``: the Java object. ``sources``: the lookups of the sources that commit, by number.

    ``count``: the number of all sources. ``committed_ends``: by source number, the source offset that was committed
    last.
    """

    query: JavaObject
    sources: dict[int, Lookups]
    count: int
    due_s: float = _NEVER
    is_over: bool = False
    committed_ends: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class GroupCommits:
    """The listener of one session. Spark calls it from its own threads, with Java's event objects.

    It reads only the fields that it uses: reading a whole event, as PySpark's listeners do, takes a hundred calls to
    Java per micro-batch.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._manager: JavaObject = spark.streams._jsqm
        self._changed = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._thread: threading.Thread | None = None
        self.wrapper: JavaObject | None = None  # the Java object by which Spark calls this listener

    def onQueryStarted(self, event: JavaObject) -> None:
        try:
            query = self._manager.get(event.id().toString())
            if query is not None:
                _complete_first_batch(query)
            run = _run_of(query)
        except Py4JError as error:  # the query must start anyway; its planner commits
            log.debug("cannot read the sources of a query: %s", error)
            return
        if run is None:
            return
        with self._changed:
            self._runs[event.runId().toString()] = run
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="odradek-commits", daemon=True)
                self._thread.start()

    def onQueryProgress(self, event: JavaObject) -> None:
        if not self._runs:
            return
        run_id = event.progress().runId().toString()
        with self._changed:
            run = self._runs.get(run_id)
            if run is not None:
                run.due_s = time.monotonic() + _REPORT_DELAY_S
                self._changed.notify()

    def onQueryIdle(self, event: object) -> None:
        """Does nothing: the last micro-batch is already committed."""

    def onQueryTerminated(self, event: JavaObject) -> None:
        if not self._runs:
            return
        run_id = event.runId().toString()
        run = self._runs.get(run_id)
        if run is not None:
            try:
                _commit_run(run)
            finally:
                with self._changed:
                    del self._runs[run_id]
                    self._changed.notify()
                with run.lock:  # the committing thread may use the lookups
                    run.is_over = True
                    for lookups in run.sources.values():
                        lookups.close()

    def finish(self) -> None:
        """Commits, at the end of the process, the micro-batches that Spark has not reported yet.

        Then removes the listener: an event after the end of Python's threads would be an error with a stack trace."""
        for run in list(self._runs.values()):
            _commit_run(run)
        try:
            self._manager.removeListener(self.wrapper)
        except (Py4JError, OSError) as error:  # Java has ended, as after ``spark.stop()``
            log.debug("cannot remove the listener of finished micro-batches: %s", error)

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    # --- the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [run for run in self._runs.values() if run.due_s <= now]
                if not due:
                    if not self._runs:
                        self._thread = None
                        return
                    soonest = min(run.due_s for run in self._runs.values())
                    self._changed.wait(None if soonest == _NEVER else soonest - now)
                    continue
                for run in due:
                    run.due_s = _NEVER
            for run in due:
                delay_s = _TRIGGER_RETRY_S
                if not _is_in_a_trigger(run):
                    delay_s = COMMIT_RETRY_S if _commit_run(run) else _NEVER
                with self._changed:
                    if run.due_s == _NEVER:  # else another micro-batch was finished in the meantime
                        run.due_s = time.monotonic() + delay_s


def commit_finished_batches(spark: SparkSession) -> None:
    """Adds the listener to a session, so that its queries commit each micro-batch when it is finished.

    Further calls for the session do nothing. Raises nothing: batch reads do not need the listener, and without it
    streams commit when the next micro-batch is planned.
    """
    try:
        session_id = str(spark._jsparkSession.sessionUUID())
        with _lock:
            if session_id not in _listeners:
                _listeners[session_id] = _add_listener(spark)
    except Exception as error:
        log.warning(
            "cannot listen for finished micro-batches; each is committed when the next one is planned: %s", error
        )


def _add_listener(spark: SparkSession) -> GroupCommits:
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    listener = GroupCommits(spark)
    gateway: JavaObject = SparkContext._gateway
    ensure_callback_server_started(gateway)
    # atexit is too late: at that time no thread can be started and no host name can be resolved. The import registers
    # the end of the threads that resolve host names. It is first, because callbacks run in reverse order of
    # registration: so these threads still run during ``finish``.
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(listener.finish)  # type: ignore[attr-defined]  # private, and there since Python 3.9
    listener.wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(listener)
    spark.streams._jsqm.addListener(listener.wrapper)  # the last step that can fail: a retry adds no second listener
    return listener


_lock = threading.Lock()
_listeners: dict[str, GroupCommits] = {}
"""The listeners by Spark's session id."""


def _complete_first_batch(query: JavaObject) -> None:
    """Raises nothing: if the start of the first micro-batch stays unknown, the planner refuses the micro-batch."""
    try:
        complete_first_batch(query.streamingQuery())
    except Exception as error:
        log.warning("cannot look for the start of the query's first micro-batch in its checkpoint: %s", error)


def _run_of(query: JavaObject) -> _Run | None:
    """Returns the run of a Java query; None if no source of it commits."""
    if query is None:  # it has ended already
        return None
    found = source_options(query.streamingQuery(), LISTENER_TIMEOUT_MS)
    sources = {
        number: Lookups(options)
        for number, options in enumerate(found)
        if options is not None and options.commit_offsets
    }
    return _Run(query, sources, len(found)) if sources else None


def _is_in_a_trigger(run: _Run) -> bool:
    """Returns whether a trigger of the query is active. Raises nothing."""
    try:
        return bool(run.query.isActive() and run.query.status().isTriggerActive())
    except Exception as error:
        _log_failure(error)
        return False


def _commit_run(run: _Run) -> bool:
    """Commits the end of the last finished micro-batch. Returns whether a commit failed.

    Raises nothing: a failed commit must end neither the query nor the listener, nor prevent commits of other queries.
    """
    with run.lock:
        if run.is_over:
            return False
        try:
            ends = _ends_of_last_batch(run)
            for number, end in ends.items():
                _commit_source(run, number, end)
            return any(
                run.sources[number].is_behind and run.committed_ends.get(number) != end for number, end in ends.items()
            )
        except Exception as error:
            _log_failure(error)
            return False


def _log_failure(error: Exception) -> None:
    if isinstance(error, (Py4JError, OSError)):  # Java is about to end
        log.debug("cannot read the state of a query any more: %s", error)
    else:
        log.warning("could not commit the offsets of a finished micro-batch", exc_info=error)


def _commit_source(run: _Run, number: int, end: str) -> None:
    def is_last() -> bool:
        try:
            return not _is_in_a_trigger(run) and _ends_of_last_batch(run).get(number) == end
        except (Py4JError, OSError) as error:
            _log_failure(error)
            return False

    lookups = run.sources[number]
    try:
        if commit_finished(lookups, SourceOffset.from_json(json.loads(end)), is_last):
            run.committed_ends[number] = end
    except (OdradekError, OSError) as error:
        lookups.note_refusal(error)


def _ends_of_last_batch(run: _Run) -> dict[int, str]:
    """Returns the source offsets to commit, as Spark's JSON; without those that are already committed."""
    progress = run.query.lastProgress()  # its micro-batch is in the checkpoint's log of commits
    if progress is None:
        return {}
    reported = progress.sources()
    if len(reported) != run.count:  # Spark reports other sources than the plan has; the planner commits
        return {}
    ends = {number: reported[number].endOffset() for number in run.sources}
    return {number: end for number, end in ends.items() if end is not None and end != run.committed_ends.get(number)}


def commit_finished(lookups: Lookups, done: SourceOffset, is_last: Callable[[], bool]) -> bool:
    """Commits a finished micro-batch as the planner does before the next micro-batch.

    Returns False if the planner has to commit instead, in three cases: a reset with ``onGroupReset=fail``; the next
    trigger has begun (``is_last`` is called just before the commit); the commit failed. Leaves a reset in the group if
    the query has to follow it. Raises the errors of ``Lookups``.
    """
    if not done.positions:
        return True
    existing = lookups.existing_ends(done, lookups.ends(lookups.partitions()))
    committed = lookups.committed(done.positions)
    try:
        decision = lookups.commit_decision(done, committed)
    except GroupReset:
        return False
    if not decision.commits:
        return True
    if not is_last():
        return False
    return lookups.commit_existing(decision, existing, done.query)
