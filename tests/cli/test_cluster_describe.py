"""``odradek cluster describe``: a cluster with a dead broker, and a lone broker."""

from __future__ import annotations

import json

import pytest
from support.brokers import eventually

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic

SETTINGS = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300}


def described(capsys: pytest.CaptureFixture[str], bootstrap: str) -> dict[str, object]:
    capsys.readouterr()
    assert run(["cluster", "describe", "-b", bootstrap, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_cluster_with_a_dead_broker(capsys: pytest.CaptureFixture[str]) -> None:
    with odradek.Cluster(2, racks=["left", "right"], config=SETTINGS) as cluster:
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 2)])
        found = described(capsys, cluster.address(2))
        assert found["cluster_id"] == cluster.cluster_id
        assert found["partitions_without_leader"] == 0
        one, two, controller = found["nodes"]
        assert (one["node_id"], one["roles"], one["rack"], one["fenced"], one["leaders"]) == (
            1,
            ["broker"],
            "left",
            False,
            1,
        )
        assert (two["node_id"], two["rack"], two["leaders"]) == (2, "right", 1)
        assert f"{one['host']}:{one['port']}" == cluster.address(1)
        assert (controller["node_id"], controller["roles"], controller["lag"]) == (100, ["controller"], 0)
        assert controller["active_controller"]
        assert f"{controller['host']}:{controller['port']}" == cluster.bootstrap_controllers
        cluster.kill(1)
        eventually(lambda: described(capsys, cluster.address(2))["partitions_without_leader"] == 1)
        assert run(["cluster", "describe", "-b", cluster.address(2)]) == 0
        head, first, second, third, last = capsys.readouterr().out.splitlines()
        assert head.split() == ["NODE", "ROLES", "ADDRESS", "RACK", "STATE", "LEADERS", "METADATA-LAG"]
        assert first.split()[:6] == ["1", "broker", cluster.address(1), "left", "fenced", "0"]
        assert second.split() == ["2", "broker", cluster.address(2), "right", "up", "1", "0"]
        assert third.split() == ["100", "controller", cluster.bootstrap_controllers, "-", "active", "-", "0"]
        assert last == f"Cluster {cluster.cluster_id}, controller epoch 1, 1 partition without a leader."


def test_a_lone_broker_is_both(capsys: pytest.CaptureFixture[str]) -> None:
    with odradek.Broker(in_thread=True) as broker:
        (node,) = described(capsys, broker.bootstrap_servers)["nodes"]
        assert (node["roles"], node["active_controller"], node["lag"]) == (["broker", "controller"], True, 0)


def test_no_broker_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cluster", "describe", "-b", "127.0.0.1:1"]) != 0
    assert capsys.readouterr().err.count("\n") == 1
