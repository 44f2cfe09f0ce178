"""``odradek cluster unregister``: a stopped broker leaves its cluster, and what is no such broker is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.brokers import eventually

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.core.errors import ErrorCode, KafkaError

SETTINGS = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300}


@pytest.fixture(scope="module")
def shared() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(2, config=SETTINGS) as made:
        with odradek.Admin(made.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("alone", replica_assignments=[[2]]), NewTopic("both", 3, 2)])
        yield made


@pytest.fixture
def cluster(shared: odradek.Cluster) -> odradek.Cluster:
    return shared.start()


def brokers(cluster: odradek.Cluster) -> list[int]:
    with odradek.Admin(cluster.address(1)) as admin:
        return [node.node_id for node in admin.describe_nodes().nodes if "broker" in node.roles]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["cluster", "unregister", *words]) != 0
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line.strip()


def test_a_stopped_broker_is_unregistered(cluster: odradek.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("-b", cluster.address(1))
    cluster.stop(2)
    eventually(lambda: "add --yes" in refused(capsys, "2", *where))
    assert refused(capsys, "2", *where) == (
        "odradek: Unregister broker 2? 4 partitions have a replica there, 1 of them no other: their records are out of "
        "reach until it joins again. No terminal to ask at: add --yes"
    )
    assert brokers(cluster) == [1, 2]
    assert run(["cluster", "unregister", "2", *where, "--yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"unregistered": 2, "partitions": 4, "without_other_replica": 1}
    assert brokers(cluster) == [1]
    assert refused(capsys, "2", *where, "--yes") == "odradek: no broker 2 is registered: the brokers are 1"
    cluster.start(2)
    assert brokers(cluster) == [1, 2], "its next start joins it again"
    cluster.kill(2)
    eventually(lambda: run(["cluster", "unregister", "2", *where, "--yes"]) == 0)
    assert capsys.readouterr().out == "Unregistered broker 2.\n"
    with odradek.Admin(cluster.address(1)) as admin, pytest.raises(KafkaError) as unknown:
        admin.unregister_broker(2)
    assert unknown.value.code is ErrorCode.broker_id_not_registered


def test_a_running_broker_and_a_controller_are_refused(
    cluster: odradek.Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("-b", cluster.address(1), "--yes")
    assert refused(capsys, "1", *where) == (
        "odradek: broker 1 is running: stop it first. After a kill -9, wait for broker.session.timeout.ms"
    )
    assert refused(capsys, "100", *where) == "odradek: no broker 100 is registered: the brokers are 1, 2"
    assert brokers(cluster) == [1, 2]


@pytest.mark.parametrize("words", [("cluster", "describe"), ("cluster", "unregister", "1"), ("topics", "list")])
def test_the_listener_of_a_controller_is_named(
    cluster: odradek.Cluster, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "-b", cluster.bootstrap_controllers]) != 0
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    where = cluster.bootstrap_controllers
    assert line.endswith(f": {where} is the listener of a controller, and not of a broker: check -b\n")
