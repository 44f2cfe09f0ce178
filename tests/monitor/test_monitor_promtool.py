"""``promtool check metrics`` about the monitor's metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.monitor_view import ViewFollower
from support.promtool import problems

from odradek.monitor.http.metrics import MetricsOptions, exposition

EXPORTERS = json.loads((Path(__file__).parents[1] / "data/verdicts/exporters_metrics.json").read_text())["metrics"]
NAMES_OF_OTHERS = {
    "burrow_kafka_consumer_lag_total": 'non-counter metrics should not have "_total" suffix',
    "kafka_consumergroup_poll_time_ms": "metric names should not contain abbreviated units",
}
"""These names are those of the exporters, and dashboards have them."""


def text_of(granularity: str) -> str:
    reader = ViewFollower(more=20)
    return exposition(reader.tracker, reader.groups, MetricsOptions("main", granularity), is_up=True, poll_ms=7)


@pytest.mark.parametrize("granularity", ["group", "topic", "partition"])
def test_it_objects_only_to_names_of_the_exporters(granularity: str) -> None:
    assert problems(text_of(granularity)) == [f"{name} {text}" for name, text in NAMES_OF_OTHERS.items()]
    assert NAMES_OF_OTHERS.keys() <= EXPORTERS.keys()


def test_it_finds_a_planted_fault() -> None:
    assert [line for line in problems(text_of("group") + "odradek_planted 1\n") if "odradek_planted" in line]
