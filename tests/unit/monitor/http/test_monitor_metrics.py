"""The metrics have the names, labels and types of the exporters that people replace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.offset_entries import STEP_MS, machine_with

from odradek.core.ids import TopicPartition
from odradek.monitor.group_sums import GroupColumns
from odradek.monitor.group_tracker import GroupTracker, ListedState, LogBoundsRow
from odradek.monitor.http.metrics import METRICS, MetricsOptions, exposition

EXPORTERS = json.loads((Path(__file__).parents[3] / "data/verdicts/exporters_metrics.json").read_text())["metrics"]
ORDERS = [TopicPartition("orders", number) for number in range(2)]
_LINE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\} (\S+)')


def lines_of(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Parses the text format: for each metric, the value for each set of labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = _LINE.fullmatch(line)
            assert match, line
            labels = tuple(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2]))
            found.setdefault(match[1], {})[labels] = float(match[3])
    return found


def full_machine() -> tuple[GroupTracker, GroupColumns]:
    """A group with a full window and a lag that two polls saw arrive."""
    tracker = machine_with({("billing", ORDERS[0]): list(range(10, 110, 10)), ("billing", ORDERS[1]): [100]}, end=100)
    tracker.set_groups({"billing": ListedState("Stable", "consumer"), "quiet": ListedState("Empty", "classic")})
    now_ms = tracker.last_poll_ms + STEP_MS
    tracker.add_bounds(now_ms, {ORDERS[0]: LogBoundsRow(40, 140), ORDERS[1]: LogBoundsRow(120, 300)}, {})
    return tracker, tracker.groups(now_ms)


def text_of(granularity: str = "auto") -> str:
    tracker, groups = full_machine()
    return exposition(tracker, groups, MetricsOptions("main", granularity), is_up=True, poll_ms=7)


def test_names_and_labels_are_those_of_the_exporters() -> None:
    ours = {name: list(metric.labels) for name, metric in METRICS.items() if not name.startswith("odradek_")}
    assert ours == {name: row["labels"] for name, row in EXPORTERS.items()}


def test_each_metric_has_a_line_with_its_type_and_labels() -> None:
    text = text_of()
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {name: row["type"] for name, row in EXPORTERS.items()} == {name: types.get(name) for name in EXPORTERS}
    for name, rows in lines_of(text).items():
        assert {tuple(label for label, _ in labels) for labels in rows} == {METRICS[name].labels}
    assert "nan" not in text.lower()


def test_values_of_a_partition() -> None:
    found = lines_of(text_of())

    def of(name: str, partition: str = "0") -> float:
        (value,) = (value for labels, value in found[name].items() if ("partition", partition) in labels)
        return value

    assert (of("kafka_consumergroup_group_offset"), of("kafka_consumergroup_group_lag")) == (100, 40)
    assert of("kafka_consumergroup_group_retention_margin") == 60
    assert of("kafka_consumergroup_group_lag_retention_ratio") == 40
    assert 0 < of("kafka_consumergroup_group_lag_seconds") <= 1
    assert (of("kafka_consumergroup_group_messages_lost", "1"), of("kafka_consumergroup_group_lag", "1")) == (20, 180)
    assert of("kafka_consumergroup_group_lag_retention_ratio", "1") > 100
    assert of("burrow_kafka_topic_partition_status") in {1, 2, 4, 5, 6}
    assert list(found["burrow_kafka_consumer_current_offset"].values()) == [100]  # only full windows, as in Burrow


def test_values_of_groups() -> None:
    found = lines_of(text_of("group"))
    billing, quiet = ((("cluster_name", "main"), ("group", name)) for name in ("billing", "quiet"))
    assert found["kafka_consumergroup_group_sum_lag"] == {billing: 220}
    assert found["kafka_consumergroup_group_max_lag"] == {billing: 180}
    assert found["kafka_consumergroup_group_state"] == {billing: 3, quiet: 5}
    assert found["odradek_monitor_groups"] == {(("cluster_name", "main"),): 2}


@pytest.mark.parametrize(
    ("granularity", "has_topics", "has_partitions"),
    [("group", False, False), ("topic", True, False), ("partition", True, True), ("auto", True, True)],
)
def test_granularity(granularity: str, has_topics: bool, has_partitions: bool) -> None:
    found = lines_of(text_of(granularity))
    assert ("kafka_consumergroup_group_topic_sum_lag" in found) == has_topics
    assert ("kafka_consumergroup_group_lag" in found) == has_partitions
    assert "kafka_consumergroup_group_max_lag_seconds" in found


def test_label_values_are_escaped() -> None:
    name = 'a"b\\c\nd'
    tracker = machine_with({(name, ORDERS[0]): [10]})
    text = exposition(tracker, tracker.groups(tracker.last_poll_ms), MetricsOptions(), is_up=True, poll_ms=1)
    assert r'group="a\"b\\c\nd"' in text
    lines_of(text)


def test_before_the_first_poll_there_are_no_groups() -> None:
    tracker = machine_with({("billing", ORDERS[0]): [10]})
    found = lines_of(exposition(tracker, None, MetricsOptions(), is_up=False, poll_ms=0))
    assert list(found["odradek_monitor_up"].values()) == [0]
    assert "kafka_consumergroup_group_sum_lag" not in found


@pytest.mark.parametrize("size", [1, 3, 1 << 14])
def test_sums_by_topic_are_those_of_the_partitions_in_pieces_of_any_size(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a million keys, only the groups and their topics become objects."""
    places = [TopicPartition(topic, number) for topic in ("orders", "flights") for number in range(3)]
    offsets = {(group, tp): [at * 7 + len(group)] for group in ("billing", "b") for at, tp in enumerate(places)}
    tracker = machine_with({**offsets, ("other", places[0]): [100]})
    groups = tracker.groups(tracker.last_poll_ms)
    name, labels = "kafka_consumergroup_group_topic_sum_lag", ("cluster_name", "group", "topic")
    expected: dict[tuple[str, str], float] = {}
    of_partitions = lines_of(exposition(tracker, groups, MetricsOptions("x", "partition"), is_up=True, poll_ms=1))
    for row, lag in of_partitions["kafka_consumergroup_group_lag"].items():
        key = dict(row)["group"], dict(row)["topic"]
        expected[key] = expected.get(key, 0) + lag
    monkeypatch.setattr("odradek.monitor.group_tracker._CHUNK", size)
    monkeypatch.delattr(GroupTracker, "partitions_of")
    found = lines_of(exposition(tracker, groups, MetricsOptions("x", "topic"), is_up=True, poll_ms=1))[name]
    assert {tuple(label for label, _ in row) for row in found} == {labels}
    assert {(dict(row)["group"], dict(row)["topic"]): lag for row, lag in found.items()} == expected
    assert len(expected) == 5
