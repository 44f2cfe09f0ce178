"""Prometheus' text: lines in the order of the table, escaped labels, whole numbers without loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.prometheus_text import read_metrics

from odradek.text.prometheus import Metric, MetricLines, escaped

METRICS = {
    "a_bytes_total": Metric("Bytes\nof \\ all", ("topic", "partition"), "counter"),
    "b_seconds": Metric("Seconds", ("topic",)),
    "c_unused": Metric("Nothing"),
    "d_up": Metric("1 if it is up"),
}


def test_the_lines_of_a_metric_follow_its_help_and_its_type() -> None:
    lines = MetricLines(METRICS)
    lines.add("d_up", (), 1)
    lines.add("b_seconds", ("t",), 0.25)
    lines.add("a_bytes_total", ("t", "0"), (1 << 62) + 1)
    lines.add("a_bytes_total", ("t", "1"), 5)
    assert lines.text() == (
        "# HELP a_bytes_total Bytes\\nof \\\\ all\n# TYPE a_bytes_total counter\n"
        'a_bytes_total{topic="t",partition="0"} 4611686018427387905\na_bytes_total{topic="t",partition="1"} 5\n'
        '# HELP b_seconds Seconds\n# TYPE b_seconds gauge\nb_seconds{topic="t"} 0.25\n'
        "# HELP d_up 1 if it is up\n# TYPE d_up gauge\nd_up 1\n"
    )


def test_the_first_labels_stand_in_each_line() -> None:
    metrics = {"m": Metric("Words", ("cluster", "topic")), "n": Metric("Words", ("cluster",))}
    lines = MetricLines(metrics, ("k",))
    lines.add("m", ("t",), 2)
    lines.add("n", (), 3)
    assert list(read_metrics(lines.text())) == [("m", (("cluster", "k"), ("topic", "t"))), ("n", (("cluster", "k"),))]


@pytest.mark.parametrize("labels", [(), ("t",), ("t", "0", "x")])
def test_a_line_with_other_labels_than_its_metric_raises(labels: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="zip"):
        MetricLines(METRICS).add("a_bytes_total", labels, 1)


@given(st.lists(st.text(max_size=8), unique=True, max_size=5))
def test_any_names_can_be_labels(names: list[str]) -> None:
    lines = MetricLines({"m": Metric("Words", ("topic",))})
    for number, name in enumerate(names):
        lines.add("m", (escaped(name),), number)
    if not names:
        return
    text = lines.text()
    found = [line for line in text.split("\n") if line.startswith("m{")]
    assert len(found) == len(names)
    back = [line[len('m{topic="') : line.rindex('"')] for line in found]
    assert [one.replace("\\\\", "\0").replace('\\"', '"').replace("\\n", "\n").replace("\0", "\\") for one in back] == [
        name.replace("\0", "\\") for name in names
    ]
