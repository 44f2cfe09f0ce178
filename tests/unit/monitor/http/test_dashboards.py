"""The dashboards of Grafana: each query finds series in a page of metrics, with the labels that it names."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.offset_entries import STEP_MS, machine_with
from support.prometheus_text import read_metrics

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")

from odradek.broker.metrics.broker_metrics import METRICS as BROKER_METRICS
from odradek.core.ids import TopicPartition
from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.group_tracker import ListedState, LogBoundsRow
from odradek.monitor.http.metrics import METRICS, MetricsOptions, exposition
from odradek.monitor.incidents.announcements import HookRule
from odradek.monitor.incidents.bodies import json_body
from odradek.monitor.incidents.delivery import DeliveryFate
from odradek.monitor.incidents.incident import ConditionView, GroupCondition, Severity
from odradek.monitor.incidents.service import Incidents
from odradek.monitor.incidents.webhook_file import Webhook, Webhooks

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "examples" / "grafana"
_SELECTOR = re.compile(r"\b([a-z_]+_[a-z_]+)(?:\{([^}]*)\})")
_MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds."""


class Selector(NamedTuple):
    """``name`` with its matchers; ``legend``: the labels that the legend of the query shows."""

    name: str
    labels: frozenset[str]
    legend: frozenset[str]


def panels(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())["panels"]


def selectors(name: str) -> Iterator[Selector]:
    for panel in panels(name):
        for target in panel["targets"]:
            found = list(_SELECTOR.finditer(target["expr"]))
            assert found, target["expr"]
            legend = frozenset(re.findall(r"\{\{([a-z_]+)\}\}", target["legendFormat"]))
            for one in found:
                yield Selector(one[1], frozenset(label for label, _, _ in _MATCHER.findall(one[2])), legend)


def base_of(name: str, known: Any) -> str:
    """The metric of a series: a summary has two."""
    return next(
        (base for base in (name, name.removesuffix("_sum"), name.removesuffix("_count")) if base in known), name
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The metrics of a monitor in whose view everything has happened."""
    orders = [TopicPartition("orders", number) for number in range(2)]
    tracker = machine_with({("billing", orders[0]): [*range(10, 110, 10)], ("billing", orders[1]): [40, 60]}, end=100)
    tracker.set_groups({"billing": ListedState("Stable", "consumer")})
    for number in range(1, 5):
        bounds = {tp: LogBoundsRow(0, 120 + number) for tp in orders}
        tracker.add_bounds(tracker.last_poll_ms + STEP_MS, bounds, {})
    hook = Webhook(HookRule("hook"), "http://127.0.0.1:1/", json_body, "", {}, None, 1.0, 1, None)
    database = MonitorDatabase(tmp_path_factory.mktemp("data"))
    incidents = Incidents(database, Webhooks((hook,)), "main", keep_ms=10**12)
    incidents.observer.record(ConditionView(1, [GroupCondition("status", "billing", Severity.ERR, "bad")]))
    incidents.senders[0].counts[DeliveryFate.DELIVERED] += 1
    groups = tracker.groups(tracker.last_poll_ms)
    groups.clear_ms[:] = 1_000
    text = exposition(tracker, groups, MetricsOptions("main"), is_up=True, poll_ms=1, incidents=incidents)
    incidents.close()
    database.close()
    return text


def test_the_files_are_those_of_the_script() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import dashboards
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    assert {path.name: path.read_text() for path in FOLDER.glob("*.json")} == dashboards.files()


def test_each_query_about_groups_finds_series(page: str) -> None:
    series: dict[str, set[str]] = {}
    # Burrow's own name of a gauge, which promtool would refuse
    text = "".join(line for line in page.splitlines(keepends=True) if "burrow_kafka_consumer_lag_total" not in line)
    for name, labels in read_metrics(text):
        series.setdefault(name, {label for label, _ in labels})
    for one in selectors("groups.json"):
        assert one.name in series, one.name
        assert one.labels | one.legend <= series[one.name], one


def test_each_query_about_brokers_has_the_labels_of_its_metric() -> None:
    """``test_metrics_page`` finds a series of each metric at a broker."""
    for one in selectors("brokers.json"):
        metric = BROKER_METRICS[base_of(one.name, BROKER_METRICS)]
        assert metric.type == "summary" or base_of(one.name, BROKER_METRICS) == one.name
        assert (one.labels | one.legend) - OF_PROMETHEUS <= set(metric.labels), one


def test_the_variables_ask_for_labels_that_exist() -> None:
    for name in ("groups.json", "brokers.json"):
        for variable in json.loads((FOLDER / name).read_text())["templating"]["list"][1:]:
            query = variable["query"]["query"]
            match = re.fullmatch(r"label_values\(([a-z_]+)(?:\{.*\})?, ([a-z_]+)\)", query)
            assert match is not None, query
            assert match[2] in {*(METRICS | BROKER_METRICS)[match[1]].labels, *OF_PROMETHEUS}


def test_no_panel_lies_on_another() -> None:
    for name in ("groups.json", "brokers.json"):
        taken: set[tuple[int, int]] = set()
        for panel in panels(name):
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert max(x for x, _ in cells) < 24
            taken |= cells
