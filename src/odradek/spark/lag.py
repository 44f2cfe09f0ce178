"""The lag of streaming queries, computed from Spark's progress reports. Pure: no I/O, no clock.

Spark takes no metrics from Python data sources. But its progress reports have, for each source, the end offset of the
micro-batch and the latest offset that the source reported. The difference is the lag in offsets. With the timestamps of
the first unread records there is also a lag in seconds. The reports of Spark's own Kafka source have the same form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.spark.offsets.source_offset import EXTRA, Offsets, SourceOffset, nested
from odradek.text.json_depth import parse_json
from odradek.text.printable import printable


def latest_to_json(ends: Offsets) -> dict[str, Any]:
    """Returns the JSON value of the latest offset that our source reports to Spark: the log end offsets."""
    return nested(ends) | {EXTRA: {}}


@dataclass(frozen=True, slots=True)
class Lag:
    """Offsets behind latest per partition. ``seconds``: the age of the oldest unread record; None if it is unknown."""

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def total(self) -> int:
        return sum(self.offsets.values())

    @property
    def least(self) -> int:
        return min(self.offsets.values(), default=0)

    @property
    def most(self) -> int:
        return max(self.offsets.values(), default=0)

    @property
    def average(self) -> float:
        return self.total / len(self.offsets) if self.offsets else 0.0

    def __str__(self) -> str:
        behind = f"{self.total} offsets behind latest (min {self.least}, max {self.most}, avg {self.average:.1f})"
        return behind + ("" if self.seconds is None else f", {self.seconds:.1f} s behind")


@dataclass(frozen=True, slots=True)
class Progress:
    """One source's report. ``is_ours``: the source is odradek's.

    ``done``: the end offsets of the micro-batch; ``ends``: the log end offsets of the same partitions.
    """

    done: Offsets
    ends: Offsets
    is_ours: bool = False

    @property
    def unread(self) -> dict[TopicPartition, int]:
        """The next offset of each partition that is not read up to its log end."""
        return {tp: offset for tp, offset in self.done.items() if offset < self.ends[tp]}

    def lag(self, now_ms: int, unread_ms: Offsets) -> Lag:
        """Computes the lag. ``unread_ms``: the timestamps of the first unread records, where known."""
        offsets = {tp: max(0, to - self.done[tp]) for tp, to in self.ends.items()}
        if not any(offsets.values()):
            return Lag(offsets, 0.0 if self.is_ours else None)
        known = [unread_ms[tp] for tp, count in offsets.items() if count and tp in unread_ms]
        return Lag(offsets, max(0.0, (now_ms - min(known)) / 1000) if known else None)


def progress_of(end: str | None, latest: str | None) -> Progress | None:
    """Parses the two offsets of a source's report, which are JSON texts.

    Returns None before the first micro-batch, and for a source that is neither odradek's nor Spark's Kafka source.
    """
    try:
        read, held = parse_json(end or ""), parse_json(latest or "")
        done, ends = SourceOffset.from_json(read).positions, SourceOffset.from_json(held).positions
    except (ConfigError, ValueError, AttributeError, TypeError):
        return None
    there = done.keys() & ends.keys()
    return Progress({tp: done[tp] for tp in sorted(there)}, {tp: ends[tp] for tp in sorted(there)}, EXTRA in held)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """One query's last report. ``sources``: the lags by source number; ``rows``: the sum of all its reports' rows."""

    query: str
    query_id: str
    batch: int
    rows: int
    at_ms: int
    sources: Mapping[int, Lag]


_HELP = {
    "min_offsets_behind_latest": "Offsets from the end of the last micro-batch to the log end: minimum of the "
    "partitions.",
    "max_offsets_behind_latest": "Offsets from the end of the last micro-batch to the log end: maximum of the "
    "partitions.",
    "avg_offsets_behind_latest": "Offsets from the end of the last micro-batch to the log end: mean of the partitions.",
    "total_offsets_behind_latest": "Offsets from the end of the last micro-batch to the log end: sum of the "
    "partitions.",
    "seconds_behind_latest": "Age of the oldest record that was unread after the last micro-batch; 0 if all were read.",
    "partition_offsets_behind_latest": "Offsets from the end of the last micro-batch to the log end of the partition.",
    "last_batch_id": "Id of the last reported micro-batch.",
    "last_progress_timestamp_seconds": "Time of the report of the last micro-batch.",
    "rows_read_total": "Rows read by the reported micro-batches.",
}


def prometheus_text(queries: list[QueryLag]) -> str:
    """Formats the lags in Prometheus' text format 0.0.4."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}

    def add(name: str, labels: Mapping[str, object], value: float) -> None:
        text = ",".join(f'{label}="{_escaped(str(one))}"' for label, one in labels.items())
        number = str(int(value)) if value == int(value) else str(round(value, 3))
        samples[name].append(f"odradek_spark_{name}{{{text}}} {number}")

    for item in queries:
        names = {"query": item.query, "query_id": item.query_id}
        add("last_batch_id", names, item.batch)
        add("last_progress_timestamp_seconds", names, item.at_ms / 1000)
        add("rows_read_total", names, item.rows)
        for number, lag in sorted(item.sources.items()):
            labels = names | {"source": number}
            add("min_offsets_behind_latest", labels, lag.least)
            add("max_offsets_behind_latest", labels, lag.most)
            add("avg_offsets_behind_latest", labels, lag.average)
            add("total_offsets_behind_latest", labels, lag.total)
            if lag.seconds is not None:
                add("seconds_behind_latest", labels, lag.seconds)
            for tp, count in sorted(lag.offsets.items()):
                add("partition_offsets_behind_latest", labels | {"topic": tp.topic, "partition": tp.partition}, count)
    lines: list[str] = []
    for name, found in samples.items():
        if found:
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# HELP odradek_spark_{name} {_HELP[name]}", f"# TYPE odradek_spark_{name} {kind}", *found]
    return "\n".join(lines) + "\n" if lines else ""


def _escaped(text: str) -> str:
    """Escapes a label's value. Control characters become visible escapes: dashboards and terminals show labels."""
    return printable(text, line_feeds=True).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
