"""Prometheus metrics in the text format, with the names and labels of the exporters that people replace.

``kafka_…`` are those of kafka-lag-exporter, and of klag-exporter what the former lacks. ``burrow_…`` are Burrow's.
``odradek_…`` are our own. A value that is unknown has no line, so nothing is ever NaN.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.verdicts import LogBoundColumns, Verdicts
from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.group_sums import GroupColumns
from odradek.monitor.group_tracker import GroupTracker
from odradek.text.prometheus import Metric, MetricLines, escaped

if TYPE_CHECKING:
    from odradek.monitor.incidents.service import Incidents

MOST_PARTITIONS = 10_000
"""The maximum number of groups' partitions for which ``auto`` has a line each."""
STATES = {
    "PreparingRebalance": 1, "CompletingRebalance": 2, "Stable": 3, "Dead": 4, "Empty": 5, "Assigning": 6,
    "Reconciling": 7,
}  # fmt: skip
"""klag-exporter's numbers of group states; 0 for any other."""

_CLUSTER = ("cluster_name",)
_GROUP = ("cluster_name", "group")
_TOPIC = ("cluster_name", "group", "topic")
_PARTITION = ("cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id")
_LOG = ("cluster_name", "topic", "partition")
_BURROW_GROUP = ("cluster", "consumer_group")
_BURROW_PARTITION = ("cluster", "consumer_group", "topic", "partition")
_BURROW_LOG = ("cluster", "topic", "partition")


METRICS: dict[str, Metric] = {
    "kafka_partition_latest_offset": Metric("Latest offset of a partition", _LOG),
    "kafka_partition_earliest_offset": Metric("Earliest offset of a partition", _LOG),
    "kafka_consumergroup_group_offset": Metric("Committed offset of a group in a partition", _PARTITION),
    "kafka_consumergroup_group_lag": Metric("Lag of a group in a partition, in records", _PARTITION),
    "kafka_consumergroup_group_lag_seconds": Metric("Lag of a group in a partition, in seconds", _PARTITION),
    "kafka_consumergroup_group_max_lag": Metric("Highest lag of a group, in records", _GROUP),
    "kafka_consumergroup_group_max_lag_seconds": Metric("Highest lag of a group, in seconds", _GROUP),
    "kafka_consumergroup_group_sum_lag": Metric("Sum of a group's lags, in records", _GROUP),
    "kafka_consumergroup_group_topic_sum_lag": Metric("Sum of a group's lags in a topic, in records", _TOPIC),
    "kafka_consumergroup_poll_time_ms": Metric("Time of the newest poll of the cluster", _CLUSTER),
    "kafka_consumergroup_group_messages_lost": Metric("Records deleted before the group read them", _PARTITION),
    "kafka_consumergroup_group_retention_margin": Metric("Committed offset minus log start offset", _PARTITION),
    "kafka_consumergroup_group_lag_retention_ratio": Metric("Lag in percent of the records in the log", _PARTITION),
    "kafka_consumergroup_group_state": Metric(
        "State of a group: 0 unknown, "
        + ", ".join(f"{number} {name}" for name, number in STATES.items()),
        _GROUP,
    ),
    "burrow_kafka_consumer_lag_total": Metric("Sum of a group's lags", _BURROW_GROUP),
    "burrow_kafka_consumer_status": Metric("Status of a group: 1 OK, 2 WARN, 3 ERR", _BURROW_GROUP),
    "burrow_kafka_topic_partition_status": Metric(
        "Status of a group's partition with a full window: 1 OK, 2 WARN, 4 STOP, 5 STALL, 6 REWIND", _BURROW_PARTITION
    ),
    "burrow_kafka_consumer_current_offset": Metric(
        "Committed offset of a group's partition with a full window", _BURROW_PARTITION
    ),
    "burrow_kafka_consumer_partition_lag": Metric("Lag of a group in a partition", _BURROW_PARTITION),
    "burrow_kafka_topic_partition_offset": Metric("Latest offset of a partition", _BURROW_LOG),
    "odradek_group_records_per_second": Metric("Records that a group reads per second", _GROUP),
    "odradek_group_arrivals_per_second": Metric("Records that arrive per second in a group's partitions", _GROUP),
    "odradek_group_clear_seconds": Metric("Time until the slowest partition has no lag; absent while it grows", _GROUP),
    "odradek_group_messages_lost": Metric("Records deleted before the group read them", _GROUP),
    "odradek_group_stale_partitions": Metric("Partitions of a group whose newest poll failed", _GROUP),
    "odradek_monitor_groups": Metric("Groups in view", _CLUSTER),
    "odradek_monitor_partitions": Metric("Partitions of groups in view", _CLUSTER),
    "odradek_monitor_entries": Metric("Entries of the offsets topic read since the start", _CLUSTER),
    "odradek_monitor_unreadable_entries": Metric("Entries of the offsets topic that cannot be decoded", _CLUSTER),
    "odradek_monitor_stale_sources": Metric("Partitions of the offsets topic not read up to their end", _CLUSTER),
    "odradek_incidents_open": Metric("Open incidents", ("cluster_name", "kind", "severity")),
    "odradek_webhook_pending": Metric("Announcements that a webhook has to deliver", ("cluster_name", "webhook")),
    "odradek_webhook_attempts_total": Metric(
        "Attempts to deliver announcements, by what became of them", ("cluster_name", "webhook", "fate"), "counter"
    ),
    "odradek_monitor_up": Metric("1 if the newest poll succeeded, else 0", _CLUSTER),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """``granularity``: the finest lines to write; ``auto`` writes partitions if there are few enough, else topics."""

    cluster: str = "kafka"
    granularity: str = "auto"


def exposition(
    tracker: GroupTracker, groups: GroupColumns | None, options: MetricsOptions, *, is_up: bool, poll_ms: int,
    incidents: Incidents | None = None,
) -> str:  # fmt: skip
    """Returns all metrics. ``groups``: the newest judgement; None before the first poll. ``incidents``: None if the
    monitor keeps none."""
    lines = MetricLines(METRICS, (escaped(options.cluster),))
    if incidents is not None:
        _add_incidents(lines, incidents)
    lines.add("odradek_monitor_up", (), int(is_up))
    lines.add("odradek_monitor_entries", (), tracker.entry_count)
    lines.add("odradek_monitor_partitions", (), tracker.key_count)
    lines.add("odradek_monitor_unreadable_entries", (), tracker.unreadable.count)
    lines.add("odradek_monitor_stale_sources", (), len(tracker.stale_sources))
    if groups is not None:
        lines.add("odradek_monitor_groups", (), len(groups.names))
        lines.add("kafka_consumergroup_poll_time_ms", (), poll_ms)
        _add_groups(lines, tracker, groups)
        finest = _finest(options.granularity, tracker)
        _add_partitions(lines, tracker, groups, finest)
        if finest != "group":
            _add_logs(lines, tracker, groups.now_ms)
    return lines.text()


def _add_incidents(lines: MetricLines, incidents: Incidents) -> None:
    is_open = Counter((one.kind, one.severity.name) for one in incidents.observer.book.open.values())
    for (kind, severity), count in sorted(is_open.items()):
        lines.add("odradek_incidents_open", (kind, severity), count)
    with suppress(StoreFailed):  # the log has the reason
        for name, count in incidents.pending().items():
            lines.add("odradek_webhook_pending", (escaped(name),), count)
    for sender in incidents.senders:
        for fate, count in sorted(sender.counts.items()):
            lines.add("odradek_webhook_attempts_total", (escaped(sender.hook.name), fate.value), count)


def _finest(granularity: str, tracker: GroupTracker) -> str:
    if granularity != "auto":
        return granularity
    return "partition" if tracker.key_count <= MOST_PARTITIONS else "topic"


def _add_groups(lines: MetricLines, tracker: GroupTracker, groups: GroupColumns) -> None:
    # Lists, because a value of a numpy array takes several times as long as one of a list.
    columns = {
        "kafka_consumergroup_group_max_lag": groups.highest_lags.tolist(),
        "kafka_consumergroup_group_sum_lag": groups.lags.tolist(),
        "burrow_kafka_consumer_lag_total": groups.lags.tolist(),
        "burrow_kafka_consumer_status": groups.statuses.tolist(),
        "odradek_group_records_per_second": groups.read_rates.tolist(),
        "odradek_group_arrivals_per_second": groups.arrival_rates.tolist(),
        "odradek_group_messages_lost": groups.lost.tolist(),
        "odradek_group_stale_partitions": groups.stale.tolist(),
    }
    clear_ms = groups.clear_ms.tolist()
    names = [escaped(name) for name in groups.names]
    texts = {
        METRICS[metric].labels: [lines.label_text(metric, (name,)) for name in names]
        for metric in ("kafka_consumergroup_group_state", "burrow_kafka_consumer_status")
    }
    ours = texts[METRICS["odradek_group_clear_seconds"].labels]
    for name, text in zip(groups.names, ours, strict=True):
        state = tracker.group_states.get(name)
        lines.add_value("kafka_consumergroup_group_state", text, STATES.get(state.state, 0) if state else 0)
    rows = np.flatnonzero(groups.partitions).tolist()
    for metric, values in columns.items():
        of_metric = texts[METRICS[metric].labels]
        for at in rows:
            lines.add_value(metric, of_metric[at], values[at])
    for at in rows:
        if clear_ms[at] >= 0:
            lines.add_value("odradek_group_clear_seconds", ours[at], clear_ms[at] / 1000)


class _GroupTopics:
    """The lag of each group in each topic, and the highest time lag of each group. ``add`` takes keys in pieces: of a
    million keys only the groups and topics become objects."""

    def __init__(self, tracker: GroupTracker) -> None:
        self._tracker = tracker
        self._lags: dict[int, int] = {}
        self._ages: dict[int, int] = {}

    def add(self, slots: Array, verdicts: Verdicts, ages: Array) -> None:
        pairs, places = np.unique(
            (self._tracker.group_codes(slots) << 32) | self._tracker.topic_codes(slots), return_inverse=True
        )
        is_known = verdicts.lags >= 0
        lags, highest = np.zeros(len(pairs), np.int64), np.full(len(pairs), -1, np.int64)
        np.add.at(lags, places[is_known], verdicts.lags[is_known])
        np.maximum.at(highest, places, ages)
        known = np.bincount(places[is_known], minlength=len(pairs))
        rows = zip(pairs.tolist(), lags.tolist(), known.tolist(), highest.tolist(), strict=True)
        for pair, lag, count, age in rows:
            if count:
                self._lags[pair] = self._lags.get(pair, 0) + lag
            if age >= 0:
                self._ages[pair >> 32] = max(age, self._ages.get(pair >> 32, 0))

    def write(self, lines: MetricLines, *, with_topics: bool) -> None:
        name_of, topic_of = self._tracker.group_name, self._tracker.topic_name
        for code, age in self._ages.items():
            lines.add("kafka_consumergroup_group_max_lag_seconds", (escaped(name_of(code)),), age / 1000)
        for pair, lag in self._lags.items() if with_topics else ():
            labels = escaped(name_of(pair >> 32)), escaped(topic_of(pair & 0xFFFFFFFF))
            lines.add("kafka_consumergroup_group_topic_sum_lag", labels, lag)


def _add_partitions(lines: MetricLines, tracker: GroupTracker, groups: GroupColumns, finest: str) -> None:
    topics = _GroupTopics(tracker)
    for slots, verdicts, bounds in tracker.judged_chunks(groups.now_ms):
        ages, _ = tracker.ages(slots, np.maximum(verdicts.offsets, bounds.starts), groups.now_ms)
        topics.add(slots, verdicts, ages)
        if finest == "partition":
            names = [tracker.group_name(code) for code in tracker.group_codes(slots).tolist()]
            _add_rows(lines, tracker, (names, tracker.partitions_of(slots)), (verdicts, bounds, ages))
    topics.write(lines, with_topics=finest != "group")


def _add_rows(
    lines: MetricLines, tracker: GroupTracker, keys: tuple[list[str], list[TopicPartition]],
    columns: tuple[Verdicts, LogBoundColumns, Array],
) -> None:  # fmt: skip
    verdicts, bounds, ages = columns
    statuses, intervals = verdicts.statuses, tracker.rules.intervals
    for at, (name, tp) in enumerate(zip(*keys, strict=True)):
        burrow = (escaped(name), escaped(tp.topic), str(tp.partition))
        labels = (*burrow, "", "", "")
        offset, lag, start, end = (
            int(one[at]) for one in (verdicts.offsets, verdicts.lags, bounds.starts, bounds.ends)
        )
        lines.add("kafka_consumergroup_group_offset", labels, offset)
        if verdicts.counts[at] == intervals:
            lines.add("burrow_kafka_consumer_current_offset", burrow, offset)
            lines.add("burrow_kafka_topic_partition_status", burrow, statuses[at])
        if lag < 0:
            continue
        lines.add("kafka_consumergroup_group_lag", labels, lag)
        lines.add("burrow_kafka_consumer_partition_lag", burrow, lag)
        lines.add("kafka_consumergroup_group_messages_lost", labels, verdicts.lost[at])
        lines.add("kafka_consumergroup_group_retention_margin", labels, offset - start)
        ratio = 100.0 * (end - offset) / (end - start) if end > start else 0.0
        lines.add("kafka_consumergroup_group_lag_retention_ratio", labels, max(0.0, ratio))
        if ages[at] >= 0:
            lines.add("kafka_consumergroup_group_lag_seconds", labels, ages[at] / 1000)


def _add_logs(lines: MetricLines, tracker: GroupTracker, now_ms: int) -> None:
    partitions, bounds = tracker.bounds(now_ms)
    for tp, start, end in zip(partitions, bounds.starts.tolist(), bounds.ends.tolist(), strict=True):
        if end >= 0:
            labels = (escaped(tp.topic), str(tp.partition))
            lines.add("kafka_partition_latest_offset", labels, end)
            lines.add("kafka_partition_earliest_offset", labels, start)
            lines.add("burrow_kafka_topic_partition_offset", labels, end)
