"""The reader: reads ``__consumer_offsets`` as it grows, polls the logs and the groups, and feeds the tracker.

It joins no group, commits nothing and creates nothing (``cluster_polls``). What it cannot ask becomes stale, with the
reason; all else goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from odradek.client import loop
from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import OffsetOutOfRange
from odradek.client.reader import PartitionReader, shared_cluster
from odradek.core.counts import counted
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition
from odradek.history.coverage import Coverage
from odradek.history.log_ends import retention
from odradek.history.records.decode import NEEDED, decode_batch
from odradek.monitor import cluster_polls
from odradek.monitor.fetched_offsets import FetchedOffsets
from odradek.monitor.group_sums import GroupColumns, LagSeries
from odradek.monitor.group_tracker import GroupTracker, ListedState

if TYPE_CHECKING:
    from odradek.monitor.disk.recorder import HistoryRecorder

logger = logging.getLogger("odradek.monitor")

_FOLLOW_EVERY_S = 1.0
_RETENTION_EVERY_S = 300.0
_MOST_READERS = 4
"""The most partitions of the offsets topic that are read at the same time."""
_ENTRIES, _POLLS = "entries", "polls"
"""The parts of the work: each may have its own trouble."""
_REFUSED = (ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed)


class Trouble(NamedTuple):
    """Why the view is out of date, and since when (ms since 1970)."""

    since_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """``source``: ``topic`` reads the offsets topic, ``fetch`` asks for committed offsets, ``auto`` turns to ``fetch``
    if the topic may not be read. ``interval_ms``: the time between two polls of log bounds and groups."""

    source: str = "auto"
    interval_ms: int = 10_000


class OffsetsTopicReader:
    """Feeds ``tracker``. Its lock ``access`` guards the tracker: other threads hold it while they read."""

    def __init__(
        self, config: ClientConfig, tracker: GroupTracker, options: ReaderOptions,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:  # fmt: skip
        self.tracker = tracker
        self.access = threading.Lock()
        self.groups: GroupColumns | None = None
        """All groups at the newest poll; None before the first complete one."""
        self.lags = LagSeries()
        self.trouble: Trouble | None = None
        self.source = "topic" if options.source == "auto" else options.source
        self.poll_ms = 0
        """The duration of the newest poll."""
        self.source_reason = ""
        """Why the reader does not read the offsets topic; "" if it does, or if the options say so."""
        self.on_poll: Callable[[GroupTracker, GroupColumns], object] = lambda tracker, groups: None
        """Called after each poll that succeeded, with ``access`` held."""
        self.on_complete: Callable[[], object] = lambda: None
        """Called once, after the first complete view."""
        self.recorder: HistoryRecorder | None = None
        """What writes the entries and the polls to the disk; None without a directory."""
        self._config, self._options, self._now_ms = config, options, now_ms
        self._cluster = shared_cluster(config)
        # A broker answers the requests of a connection in their order, so polls have connections of their own.
        self._polled = shared_cluster(replace(config, client_id=f"{config.client_id}-polls"))
        self._positions: dict[int, int] = {}
        self._fetched = FetchedOffsets()
        self._retention_due = 0.0
        self._troubles: dict[str, Trouble] = {}
        self._noting = threading.Lock()
        self._is_followed = threading.Event()
        self._is_ending = False
        self._failure: BaseException | None = None

    @property
    def is_ready(self) -> bool:
        """Returns whether the view is complete and the newest poll succeeded."""
        return self.groups is not None and self.trouble is None

    def run(self, stop: threading.Event) -> None:
        """Follows until ``stop`` is set. No error of the cluster ends it.

        Another thread polls: a poll of many partitions takes seconds, and entries wait for none of them."""
        polling = threading.Thread(target=self._run_polls, args=(stop,), name="odradek-polls", daemon=True)
        polling.start()
        try:
            while not stop.is_set() and self._failure is None:
                if self._attempt(_ENTRIES, self._follow):
                    self._is_followed.set()
                else:
                    self._is_followed.clear()
                stop.wait(min(_FOLLOW_EVERY_S, self._options.interval_ms / 1000))
        finally:
            self._is_ending = True
            self._is_followed.set()
            polling.join()
        if self._failure is not None:
            raise self._failure

    def _run_polls(self, stop: threading.Event) -> None:
        """Polls while the entries are followed. The first poll waits until all of them have been read once."""
        try:
            while self._is_followed.wait() and not self._is_ending and not stop.is_set():
                due = time.monotonic() + self._options.interval_ms / 1000
                self._attempt(_POLLS, self._poll)
                stop.wait(max(0.0, due - time.monotonic()))
        except BaseException as error:
            self._failure = error

    def step(self) -> None:
        """Reads new entries, and then log bounds and group states."""
        if self._attempt(_ENTRIES, self._follow):
            self._attempt(_POLLS, self._poll)

    def _attempt(self, what: str, work: Callable[[], None]) -> bool:
        """Does a part of the work. Returns whether no error of the cluster ended it; ``trouble`` has this error."""
        try:
            work()
        except OdradekError as error:
            self._note_trouble(what, str(error))
            return False
        self._note_trouble(what, None)
        return True

    def _note_trouble(self, what: str, text: str | None) -> None:
        with self._noting:
            before = self._troubles.pop(what, None)
            if text is not None:
                self._troubles[what] = Trouble(before.since_ms if before else self._now_ms(), text)
            was_lost, self.trouble = self.trouble, min(self._troubles.values(), default=None)
            if self.trouble is not None and was_lost is None:
                logger.warning("the view is out of date: %s", self.trouble.text)
            elif self.trouble is None and was_lost is not None:
                logger.warning("the view is up to date again")

    def _follow(self) -> None:
        if self.source != "topic":
            return
        try:
            self._read_topic()
        except KafkaError as error:
            if error.code not in _REFUSED or self._options.source != "auto":
                raise
            self.source, self.source_reason = "fetch", str(error)
            logger.warning("the offsets topic may not be read, committed offsets are looked up instead: %s", error)

    def _read_topic(self) -> None:
        poll = loop.run(cluster_polls.poll_offsets_topic(self._cluster, self._config.default_api_timeout_ms))
        stale = dict(poll.failed)
        self._check_history(poll.bounds)
        wanted: list[tuple[int, int, int]] = []
        for number, (start, stable, end) in sorted(poll.bounds.items()):
            position = self._positions.get(number, 0)
            if stable < position:
                position = 0  # the topic is another one: it was deleted and created again
                with self.access:
                    self.tracker.next_offsets.pop(number, None)
            if stable < end:
                stale[number] = f"an open transaction holds back {counted(end - stable, 'entry')}"
            wanted.append((number, max(position, start), stable))
        self._read_partitions(wanted, stale)
        with self.access:
            self.tracker.stale_sources = stale

    def _read_partitions(self, wanted: list[tuple[int, int, int]], stale: dict[int, str]) -> None:
        """Reads several partitions at a time, each from a first offset up to an end: a busy broker answers late."""
        left, failures = deque(wanted), list[BaseException]()

        def read() -> None:
            while left and not failures:
                with suppress(IndexError):
                    number, start, end = left.popleft()
                    try:
                        self._read_partition(number, start, end)
                    except OffsetOutOfRange as error:
                        self._positions[number] = 0  # the log start offset has passed it: the next step reads on
                        stale[number] = str(error)
                    except BaseException as error:
                        failures.append(error)

        new = sum(start < end for _, start, end in wanted)
        threads = [
            threading.Thread(target=read, name="odradek-entries", daemon=True)
            for _ in range(min(_MOST_READERS, new) - 1)
        ]
        for thread in threads:
            thread.start()
        read()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _check_history(self, bounds: Mapping[int, tuple[int, int, int]]) -> None:
        """Begins another history if the one on the disk reaches further than the topic, which is another one then."""
        recorder = self.recorder
        if recorder is not None and any(
            stable < recorder.position(number) for number, (_, stable, _) in bounds.items()
        ):
            recorder.begin_again()

    def _read_partition(self, number: int, start: int, end: int) -> None:
        source = PartitionReader(self._config, TopicPartition(OFFSETS_TOPIC, number), NEEDED, "read_committed")
        coverage = Coverage()
        covering = coverage.begin(number, start, end, known_below=self._positions.get(number, 0))
        for batch in source.read(start, end, surveyed=covering.note_batches, null_times=True):
            covering.note_records(batch.column("offset"))
            decoded = decode_batch(batch)
            unreadable = self.tracker.unreadable
            with self.access:
                known = unreadable.count
                self.tracker.add_entries(decoded)
            if self.recorder is not None:
                self.recorder.add_records(decoded)
            if unreadable.count > known and not known:
                logger.warning("%s", unreadable)
            self._positions[number] = batch.column("offset")[-1].as_py() + 1
        self._positions[number] = max(end, self._positions.get(number, 0))
        covering.finish()
        if self.recorder is not None:
            self.recorder.note_incomplete(coverage.incomplete_below)
        with self.access:
            self.tracker.live.incomplete_below |= coverage.incomplete_below

    def _poll(self) -> None:
        begun, was_complete = time.monotonic(), self.groups is not None
        timeout_ms = self._config.default_api_timeout_ms
        listed = loop.run(cluster_polls.list_groups(self._polled))
        self._look_up_retention(begun)
        if self.source == "fetch":
            self._fetch(listed)
        with self.access:
            partitions = self.tracker.partitions()
        polled = loop.run(cluster_polls.poll_bounds(self._polled, partitions, timeout_ms))
        now_ms = self._now_ms()
        with self.access:
            self.tracker.add_bounds(now_ms, polled.bounds, polled.failed)
            self.tracker.set_groups({name: state for states in listed.values() for name, state in states.items()})
            self.groups = self.tracker.groups(now_ms)
            self.lags.add(self.groups)
            self.on_poll(self.tracker, self.groups)
        if self.recorder is not None and self.source == "topic":
            self.recorder.add_poll(now_ms, polled.bounds, polled.failed)
        self.poll_ms = int((time.monotonic() - begun) * 1000)
        if not was_complete:
            self.on_complete()

    def _look_up_retention(self, now: float) -> None:
        """Asks for the retention of offsets, at the first poll and then every ``_RETENTION_EVERY_S``."""
        if now < self._retention_due:
            return
        with Admin(self._config) as admin:
            answer = retention(admin)
        with self.access:
            self.tracker.live.retention_ms, self.tracker.live.retention_is_known = answer
        if self.recorder is not None:
            self.recorder.retention = answer
        self._retention_due = now + _RETENTION_EVERY_S

    def _fetch(self, listed: dict[int, dict[str, ListedState]]) -> None:
        lookups = loop.run(cluster_polls.fetch_offsets(self._polled, listed))
        changes = self._fetched.changes(lookups, self._now_ms())
        with self.access:
            self.tracker.add_entries(changes)
