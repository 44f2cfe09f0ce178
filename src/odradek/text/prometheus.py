"""Prometheus' text format: the lines of metrics, with their labels, help texts and types.

The names of labels and metrics are written as they are, so the code chooses valid ones. A value that is unknown gets no
line: nothing is ever NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of a page of metrics."""


class Metric(NamedTuple):
    """The help text, the labels and the type of a metric. A ``counter`` only rises, a ``gauge`` also falls.

    A ``summary`` has the lines ``_sum`` and ``_count`` for each of its labels' values."""

    help: str
    labels: tuple[str, ...] = ()
    type: str = "gauge"


class MetricLines:
    """The lines of each metric, in the order of ``metrics``. A metric without a line is left out.

    ``first``: the escaped values of labels that every metric has before its others.
    """

    def __init__(self, metrics: Mapping[str, Metric], first: tuple[str, ...] = ()) -> None:
        self._metrics = metrics
        self._first = first
        self._lines: dict[str, list[str]] = {name: [] for name in metrics}

    def add(self, name: str, labels: Iterable[str], value: float, part: str = "") -> None:
        """Adds a line. ``labels``: the values of the other labels, already escaped: the same name may be in thousands
        of lines. ``part``: ``_sum`` or ``_count`` of a summary.

        Raises ValueError if it has more or fewer values than labels, KeyError for an unknown metric.
        """
        self.add_value(name, self.label_text(name, labels), value, part)

    def label_text(self, name: str, labels: Iterable[str]) -> str:
        """Returns the labels of a line for ``add_value``. Metrics with the same labels may share it."""
        if not (names := self._metrics[name].labels):
            return ""
        pairs = zip(names, (*self._first, *labels), strict=True)
        return "{" + ",".join([f'{label}="{text}"' for label, text in pairs]) + "}"

    def add_value(self, name: str, label_text: str, value: float, part: str = "") -> None:
        """Adds a line with a text of ``label_text``."""
        number = value if type(value) is int else f"{value:.12g}"
        self._lines[name].append(f"{name}{part}{label_text} {number}")

    def add_summary(self, name: str, labels: Iterable[str], total: float, count: int) -> None:
        """Adds the two lines of a summary."""
        values = tuple(labels)
        self.add(name, values, total, "_sum")
        self.add(name, values, count, "_count")

    def text(self) -> str:
        """Returns all lines."""
        out = []
        for name, metric in self._metrics.items():
            if self._lines[name]:
                out += [f"# HELP {name} {_help(metric.help)}", f"# TYPE {name} {metric.type}", *self._lines[name]]
        return "\n".join(out) + "\n"


def escaped(value: str) -> str:
    """Returns a label's value as it stands between quotation marks."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
