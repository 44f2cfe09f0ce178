"""Commits to the group when a batch is finished: a listener in the driver, which ``register`` adds to a session.

Spark lets the planner know that a batch is finished only when it asks for the next one. That may be ten minutes later,
or never, when the query ends with the batch. So the driver, which Spark tells at once, commits as the planner would:
by the rules of ``plan.settle``. Where the next trigger begins at once, the planner does it, and this only looks.

The source's options are those of the query's own plan, in Spark's Java process; they are written nowhere.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from odradek.core.errors import ConfigError, OdradekError
from odradek.spark.lookups import Lookups
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.plan import GroupReset
from odradek.spark.source_offset import SourceOffset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("odradek.spark.commits")

# A batch is reported a moment before its trigger is over; after that time either the next one has begun, whose planner
# commits, or none is due.
_SOON_S = 0.1
# While a trigger is active its planner has committed, or will; what looked like one may still be the last one.
_LATER_S = 1.0
# A commit that could not be made is tried again after that, though no batch follows.
_AGAIN_S = 10.0
_NEVER = math.inf
# Nobody waits longer for a broker that does not answer: other listeners and the end of Spark wait for the last commit.
_ANSWER_MS = 10_000


@dataclass
class _Run:
    """A query from start to end. ``query``: Java's. ``sources``: the lookups of those that commit, by their numbers."""

    query: Any
    sources: dict[int, Lookups]
    count: int
    due_s: float = _NEVER
    is_over: bool = False
    settled: dict[int, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class GroupCommits:
    """The listener of one session. Spark calls it from threads of its own, with events as Java has them: to read all of
    one, as PySpark's own listeners do, takes a hundred calls to Java per batch."""

    def __init__(self, spark: SparkSession) -> None:
        self._manager: Any = spark.streams._jsqm
        self._changed = threading.Condition()
        self._runs: dict[str, _Run] = {}
        self._thread: threading.Thread | None = None

    def onQueryStarted(self, event: Any) -> None:
        try:
            run = _run_of(self._manager.get(event.id().toString()))
        except Py4JError as error:  # a query must start all the same; its planner commits
            log.debug("a query's sources cannot be seen: %s", error)
            return
        if run is None:
            return
        with self._changed:
            self._runs[event.runId().toString()] = run
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="odradek-commits", daemon=True)
                self._thread.start()

    def onQueryProgress(self, event: Any) -> None:
        if not self._runs:
            return
        run_id = event.progress().runId().toString()
        with self._changed:
            run = self._runs.get(run_id)
            if run is not None:
                run.due_s = time.monotonic() + _SOON_S
                self._changed.notify()

    def onQueryIdle(self, event: Any) -> None:
        """What the last batch read is committed already."""

    def onQueryTerminated(self, event: Any) -> None:
        if not self._runs:
            return
        run_id = event.runId().toString()
        run = self._runs.get(run_id)
        if run is not None:
            try:
                _settle(run)
            finally:
                with self._changed:
                    del self._runs[run_id]
                    self._changed.notify()
                with run.lock:  # the other thread may be at it, or about to be
                    run.is_over = True
                    for lookups in run.sources.values():
                        lookups.close()

    def finish(self) -> None:
        """What Spark has not told yet when the process ends."""
        for run in list(self._runs.values()):
            _settle(run)

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)

    # --- how

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
                later_s = _LATER_S
                if not _is_in_a_trigger(run):
                    later_s = _AGAIN_S if _settle(run) else _NEVER
                with self._changed:
                    if run.due_s == _NEVER:  # else another batch was finished meanwhile
                        run.due_s = time.monotonic() + later_s


def commit_finished_batches(spark: SparkSession) -> None:
    """Has the session's queries commit each batch when it is finished; once is enough, further calls do nothing.

    Raises nothing: whoever only reads batches needs none of it, and streams commit when the next batch is planned.
    """
    try:
        session_id = str(spark._jsparkSession.sessionUUID())
        with _lock:
            if session_id not in _listeners:
                _listeners[session_id] = _added_listener(spark)
    except Exception as error:
        log.warning("finished batches are committed when the next one is planned, since nobody tells before: %s", error)


def _added_listener(spark: SparkSession) -> GroupCommits:
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    listener = GroupCommits(spark)
    gateway: Any = SparkContext._gateway
    ensure_callback_server_started(gateway)
    # Not atexit, which comes when no thread can be started, nor a name be looked up, any more. What was registered
    # first is called last: the threads that look names up still work for us.
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(listener.finish)  # type: ignore[attr-defined]  # private, and there since Python 3.9
    wrapper = gateway.jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
    spark.streams._jsqm.addListener(wrapper(listener))  # the last that may fail: a second one would commit, too
    return listener


_lock = threading.Lock()
_listeners: dict[str, GroupCommits] = {}
"""By Spark's ids of their sessions."""


def _run_of(query: Any) -> _Run | None:
    """None for a query without a source that commits."""
    if query is None:  # it has ended already
        return None
    found = source_options(query)
    sources = {
        number: Lookups(options)
        for number, options in enumerate(found)
        if options is not None and options.commit_offsets
    }
    return _Run(query, sources, len(found)) if sources else None


def source_options(query: Any) -> list[ReadOptions | None]:
    """The options of a running query's sources in the order of its progress reports, None for those of others.

    ``query`` is Java's. Raises Py4JError.
    """
    return [_options_of(relation) for relation in _relations(query.streamingQuery().analyzedPlan())]


def _relations(analyzed: Any) -> Iterator[Any]:
    """The streaming leaves of a plan in its order, which is that of the sources in progress reports: one for leaves
    that are equal."""
    leaves = analyzed.collectLeaves()
    seen: list[Any] = []
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        if leaf.isStreaming() and not any(leaf.equals(other) for other in seen):
            seen.append(leaf)
            yield leaf


def _options_of(relation: Any) -> ReadOptions | None:
    """None where it is not one of our streams."""
    if not relation.getClass().getSimpleName().startswith("StreamingRelationV2"):
        return None
    name = relation.sourceName()
    if name not in {"odradek", "odradek-offsets"}:
        return None
    given = dict(relation.extraOptions().asCaseSensitiveMap())
    try:
        options = parse_options(given, streaming=True) if name == "odradek" else _history_options(given)
    except ConfigError:  # the query itself says so
        return None
    client = dataclasses.replace(
        options.client,
        default_api_timeout_ms=min(options.client.default_api_timeout_ms, _ANSWER_MS),
        bootstrap_timeout_ms=min(options.client.bootstrap_timeout_ms, _ANSWER_MS),
    )
    return dataclasses.replace(options, client=client)


def _history_options(given: dict[str, str]) -> ReadOptions:
    """Raises ConfigError."""
    from odradek.spark.offsets_source import parse_history_options

    return parse_history_options(given, streaming=True).read


def _is_in_a_trigger(run: _Run) -> bool:
    """Raises nothing."""
    try:
        return bool(run.query.isActive() and run.query.status().isTriggerActive())
    except Exception as error:
        _say(error)
        return False


def _settle(run: _Run) -> bool:
    """Commits where the last finished batch ended. Raises nothing: a commit is not worth a query, nor a listener, nor
    the commits of other queries. Returns whether one could not be made."""
    with run.lock:
        if run.is_over:
            return False
        try:
            ends = _ends_of_last_batch(run)
            for number, end in ends.items():
                _settle_source(run, number, end)
            return any(run.sources[number].is_behind and run.settled.get(number) != end for number, end in ends.items())
        except Exception as error:
            _say(error)
            return False


def _say(error: Exception) -> None:
    if isinstance(error, (Py4JError, OSError)):  # Java is about to end
        log.debug("a query cannot be asked any more: %s", error)
    else:
        log.warning("the offsets of a finished batch are not committed yet", exc_info=error)


def _settle_source(run: _Run, number: int, end: str) -> None:
    def is_last() -> bool:
        try:
            return not _is_in_a_trigger(run) and _ends_of_last_batch(run).get(number) == end
        except (Py4JError, OSError) as error:
            _say(error)
            return False

    lookups = run.sources[number]
    try:
        if settle_finished(lookups, SourceOffset.from_json(json.loads(end)), is_last):
            run.settled[number] = end
    except (OdradekError, OSError) as error:
        lookups.failed(error)


def _ends_of_last_batch(run: _Run) -> dict[int, str]:
    """The source offsets, as Spark has them, that are to be committed: none twice."""
    progress = run.query.lastProgress()  # its batch is in the checkpoint's log of commits
    if progress is None:
        return {}
    reported = progress.sources()
    if len(reported) != run.count:  # Spark has arranged the plan otherwise; the planner commits
        return {}
    ends = {number: reported[number].endOffset() for number in run.sources}
    return {number: end for number, end in ends.items() if end is not None and end != run.settled.get(number)}


def settle_finished(lookups: Lookups, done: SourceOffset, is_last: Callable[[], bool]) -> bool:
    """Commits what is done, as the planner would before the next batch. False where it is left to the planner: with
    ``onGroupReset=fail`` after a reset, or where the next trigger has begun (``is_last`` is asked just before the
    commit), or where it cannot be made now. A reset to be followed stays as it is. Raises what ``Lookups`` raises."""
    if not done.positions:
        return True
    held = lookups.held(done, lookups.ends(lookups.partitions()))
    committed = lookups.committed(done.positions)
    try:
        settlement = lookups.settlement(done, committed)
    except GroupReset:
        return False
    if not settlement.commits:
        return True
    if not is_last():
        return False
    return lookups.commit_held(settlement, held, done.query)
