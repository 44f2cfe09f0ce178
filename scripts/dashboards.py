"""Writes the dashboards of Grafana in ``examples/grafana``: ``python scripts/dashboards.py``.

A test compares the files with what this script makes, and looks for the series of each query in pages of metrics.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent.parent / "examples" / "grafana"
Json = dict[str, Any]
_WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${source}"}
OF_GROUP = 'cluster_name="$cluster",group=~"$group"'
OF_CLUSTER = 'cluster_name="$cluster"'
_STATUS = 'burrow_kafka_consumer_status{cluster="$cluster",consumer_group=~"$group"}'
OF_BROKER = 'instance=~"$instance"'


class Panel(NamedTuple):
    """``queries``: pairs of an expression and the legend of its series. ``width``: of 24."""

    title: str
    kind: str
    queries: tuple[tuple[str, str], ...]
    width: int = 12
    unit: str = "short"
    height: int = 8


GROUPS = (
    Panel("Groups that are WARN or ERR", "stat", ((f"count({_STATUS} > 1) or vector(0)", ""),), 4),
    Panel("Open incidents", "stat", ((f"sum(odradek_incidents_open{{{OF_CLUSTER}}}) or vector(0)", ""),), 4),
    Panel("Sum of all lags", "stat", ((f"sum(kafka_consumergroup_group_sum_lag{{{OF_GROUP}}})", ""),), 4),
    Panel("Records lost to retention", "stat", ((f"sum(odradek_group_messages_lost{{{OF_GROUP}}})", ""),), 4),
    Panel("The newest poll succeeded", "stat", ((f"odradek_monitor_up{{{OF_CLUSTER}}}", ""),), 4),
    Panel("Duration of a poll", "stat", ((f"kafka_consumergroup_poll_time_ms{{{OF_CLUSTER}}}", ""),), 4, "ms"),
    Panel("Lag", "timeseries", ((f"topk(20, kafka_consumergroup_group_sum_lag{{{OF_GROUP}}})", "{{group}}"),)),
    Panel(
        "Time lag of the worst partition", "timeseries",
        ((f"topk(20, kafka_consumergroup_group_max_lag_seconds{{{OF_GROUP}}})", "{{group}}"),), unit="s",
    ),
    Panel(
        "Records per second", "timeseries",
        (
            (f"topk(10, odradek_group_records_per_second{{{OF_GROUP}}})", "{{group}} reads"),
            (f"topk(10, odradek_group_arrivals_per_second{{{OF_GROUP}}})", "{{group}} has to read"),
        ),
    ),
    Panel(
        "Time until the lag is gone", "timeseries",
        ((f"topk(20, odradek_group_clear_seconds{{{OF_GROUP}}})", "{{group}}"),), unit="s",
    ),
    Panel(
        "Lag by topic", "timeseries",
        ((f"topk(20, kafka_consumergroup_group_topic_sum_lag{{{OF_GROUP}}})", "{{group}} {{topic}}"),),
    ),
    Panel("State of the groups", "timeseries", ((f"kafka_consumergroup_group_state{{{OF_GROUP}}}", "{{group}}"),)),
    Panel("Stale partitions", "timeseries", ((f"odradek_group_stale_partitions{{{OF_GROUP}}} > 0", "{{group}}"),)),
    Panel(
        "Announcements to deliver", "timeseries",
        (
            (f"odradek_webhook_pending{{{OF_CLUSTER}}}", "{{webhook}}"),
            (f"rate(odradek_webhook_attempts_total{{{OF_CLUSTER}}}[5m])", "{{webhook}} {{fate}}"),
        ),
    ),
)  # fmt: skip
BROKERS = (
    Panel(
        "Requests per second", "timeseries",
        ((f"sum by (request) (rate(kafka_network_requestmetrics_requests_total{{{OF_BROKER}}}[1m]))", "{{request}}"),),
        unit="reqps",
    ),
    Panel(
        "Mean time of a request", "timeseries",
        ((
            f"sum by (request) (rate(kafka_network_requestmetrics_totaltimems_sum{{{OF_BROKER}}}[1m])) / "
            f"sum by (request) (rate(kafka_network_requestmetrics_totaltimems_count{{{OF_BROKER}}}[1m]))",
            "{{request}}",
        ),),
        unit="ms",
    ),
    Panel(
        "Bytes per second", "timeseries",
        (
            (f"sum(rate(kafka_network_requestmetrics_requestbytes_sum{{{OF_BROKER}}}[1m]))", "requests"),
            (f"sum(rate(odradek_reply_bytes_total{{{OF_BROKER}}}[1m]))", "replies"),
        ),
        unit="Bps",
    ),
    Panel(
        "Connections", "timeseries",
        ((f"kafka_server_socket_server_metrics_connection_count{{{OF_BROKER}}}", "{{instance}} {{listener}}"),),
    ),
    Panel(
        "Lag of the event loop", "timeseries",
        ((f"odradek_event_loop_lag_max_seconds{{{OF_BROKER}}}", "{{instance}}"),), unit="s",
    ),
    Panel(
        "Partitions", "timeseries",
        (
            (f"kafka_server_replicamanager_partitioncount{{{OF_BROKER}}}", "{{instance}}"),
            (f"kafka_server_replicamanager_leadercount{{{OF_BROKER}}}", "{{instance}} leads"),
            (f"kafka_server_replicamanager_offlinereplicacount{{{OF_BROKER}}}", "{{instance}} offline"),
        ),
    ),
    Panel(
        "Size of the logs", "timeseries",
        ((f"topk(20, kafka_log_log_size{{{OF_BROKER}}})", "{{topic}} {{partition}}"),), unit="bytes",
    ),
    Panel(
        "Groups", "timeseries",
        ((f"kafka_server_group_coordinator_metrics_group_count{{{OF_BROKER}}}", "{{instance}} {{protocol}}"),),
    ),
)  # fmt: skip


def dashboard(title: str, uid: str, variables: list[Json], panels: tuple[Panel, ...]) -> Json:
    """Returns a dashboard, with the panels in rows from left to right."""
    source = {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return {
        "title": title, "uid": uid, "schemaVersion": 39, "editable": True, "refresh": "30s", "tags": ["odradek"],
        "time": {"from": "now-3h", "to": "now"}, "timezone": "", "annotations": {"list": []}, "links": [],
        "templating": {"list": [source, *variables]}, "panels": list(_placed(panels)),
    }  # fmt: skip


def _placed(panels: tuple[Panel, ...]) -> list[Json]:
    placed, left, top, deepest = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        height = 4 if panel.kind == "stat" else panel.height
        if left + panel.width > _WIDTH:
            left, top, deepest = 0, top + deepest, 0
        placed.append(
            {
                "id": number, "title": panel.title, "type": panel.kind, "datasource": _SOURCE,
                "gridPos": {"x": left, "y": top, "w": panel.width, "h": height},
                "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
                "targets": [
                    {"refId": chr(65 + at), "datasource": _SOURCE, "expr": text, "legendFormat": legend or "__auto"}
                    for at, (text, legend) in enumerate(panel.queries)
                ],
            }
        )  # fmt: skip
        left, deepest = left + panel.width, max(deepest, height)
    return placed


def _variable(name: str, query: str, *, has_all: bool = False) -> Json:
    found: Json = {
        "name": name, "type": "query", "datasource": _SOURCE, "query": {"query": query, "refId": name}, "refresh": 2,
        "sort": 1,
    }  # fmt: skip
    return found | ({"multi": True, "includeAll": True, "allValue": ".*"} if has_all else {})


def files() -> dict[str, str]:
    """Returns the texts of the files by name."""
    groups = dashboard(
        "Consumer groups (odradek monitor)", "odradek-groups",
        [
            _variable("cluster", "label_values(odradek_monitor_up, cluster_name)"),
            _variable(
                "group", f"label_values(kafka_consumergroup_group_sum_lag{{{OF_CLUSTER}}}, group)", has_all=True
            ),
        ],
        GROUPS,
    )  # fmt: skip
    brokers = dashboard(
        "Brokers (odradek serve --metrics)", "odradek-brokers",
        [_variable("instance", "label_values(kafka_server_replicamanager_partitioncount, instance)", has_all=True)],
        BROKERS,
    )  # fmt: skip
    return {
        name: json.dumps(one, indent=1, ensure_ascii=False) + "\n"
        for name, one in (("groups.json", groups), ("brokers.json", brokers))
    }


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
