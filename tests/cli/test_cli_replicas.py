"""Commands for topics with several replicas, in a cluster of three brokers: a leader dies, and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.cli.main import run
from odradek.client import Admin
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CREATE_TOPICS

SETTINGS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "200"}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, config=SETTINGS) as made:
        yield made


class Tool:
    """``odradek topics`` with a cluster."""

    def __init__(self, cluster: odradek.Cluster, capsys: Capture) -> None:
        self._end = ["-b", cluster.bootstrap_servers]
        self._capsys = capsys

    def rows(self, *words: str, code: int = 0) -> Any:
        """What the command prints as JSON."""
        assert run(["topics", *words, "--json", *self._end]) == code, self._capsys.readouterr().err
        return json.loads(self._capsys.readouterr().out)

    def text(self, *words: str) -> str:
        assert run(["topics", *words, *self._end]) == 0
        return self._capsys.readouterr().out

    def partitions(self, *words: str) -> list[tuple[str, int]]:
        """The chosen partitions of topics that are not internal."""
        return [(t["topic"], p["partition"]) for t in self.rows("describe", *words) for p in t["partitions"]]


def test_replicas_are_shown_chosen_and_elected(cluster: odradek.Cluster, capsys: Capture) -> None:
    tool = Tool(cluster, capsys)
    tool.rows("create", "t", "--replication-factor", "3", "--partitions", "3", "--config", "min.insync.replicas=2")
    (topic,) = tool.rows("describe", "t")
    assert topic["replicas"] == 3
    assert sorted(p["leader"] for p in topic["partitions"]) == [1, 2, 3]
    assert all(sorted(p["replicas"]) == sorted(p["isr"]) == [1, 2, 3] for p in topic["partitions"])
    assert all(p["elr"] == p["last_known_elr"] == [] for p in topic["partitions"])
    first = {p["partition"]: p["replicas"][0] for p in topic["partitions"]}
    for option in ("--under-replicated", "--under-min-isr", "--at-min-isr", "--unavailable"):
        assert tool.partitions("t", option) == []
    all_of_t = [("t", 0), ("t", 1), ("t", 2)]
    cluster.kill(3)
    eventually(lambda: tool.partitions("--under-replicated") == all_of_t, within_s=30, what="the fence of broker 3")
    assert tool.partitions("--at-min-isr", "t") == all_of_t
    assert tool.partitions("t", "--under-min-isr") == tool.partitions("t", "--unavailable") == []
    (row,) = tool.rows("elect", f"t:{next(p for p, leader in first.items() if leader == 3)}", code=1)
    assert (row["result"], row["leader"] in (1, 2)) == ("PREFERRED_LEADER_NOT_AVAILABLE", True)
    cluster.kill(2)
    eventually(lambda: tool.partitions("t", "--under-min-isr") == all_of_t, within_s=30, what="the fence of broker 2")
    (topic,) = tool.rows("describe", "t")
    assert [(p["isr"], p["elr"]) for p in topic["partitions"]] == [([1], [2])] * 3
    assert "ELR" in tool.text("describe", "t")
    cluster.start(2)
    cluster.start(3)
    eventually(lambda: tool.partitions("t", "--under-replicated") == [], within_s=60, what="all replicas in sync")
    found = {row["partition"]: row["result"] for row in tool.rows("elect", "t")}
    assert sorted(found.values()) == ["elected", "elected", "not needed"]
    eventually(lambda: leaders(cluster) == first, what="the preferred leaders")
    assert {row["result"] for row in tool.rows("elect", "t")} == {"not needed"}


def leaders(cluster: odradek.Cluster) -> dict[int, int]:
    with Admin(cluster.bootstrap_servers) as admin:
        return {p.partition: p.leader for p in admin.describe_topics(["t"])["t"].partitions}


def test_an_unclean_leader_is_elected_on_request(cluster: odradek.Cluster, capsys: Capture) -> None:
    """Broker 3 dies, then broker 2, which alone has all records. Broker 3 comes back: only a request makes it lead."""
    tool = Tool(cluster, capsys)
    rows = [{"partition_index": 0, "broker_ids": [2, 3]}]
    topic = {"name": "u", "num_partitions": -1, "replication_factor": -1, "assignments": rows, "configs": []}
    with Wire(cluster.address(1)) as wire:
        made = wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False}).topics[0]
    assert made.error_code is ErrorCode.none

    def found() -> dict[str, Any]:
        (partition,) = tool.rows("describe", "u")[0]["partitions"]
        return dict(partition)

    cluster.kill(3)
    eventually(lambda: found()["isr"] == [2], within_s=30, what="the fence of broker 3")
    cluster.kill(2)
    eventually(lambda: found()["leader"] == -1, within_s=30, what="the fence of broker 2")
    assert (found()["isr"], found()["elr"], found()["last_known_elr"]) == ([], [2], [2])
    assert tool.partitions("u", "--unavailable") == [("u", 0)]
    (row,) = tool.rows("elect", "u", "--unclean", "--yes", code=1)
    assert row == {"topic": "u", "partition": 0, "leader": -1, "result": "ELIGIBLE_LEADERS_NOT_AVAILABLE"}
    cluster.start(3)
    assert found()["leader"] == -1
    (row,) = tool.rows("elect", "--all", "--unclean", "--yes")
    assert (row["topic"], row["result"]) == ("u", "elected")
    eventually(lambda: found()["leader"] == 3)
    assert "u-0: broker 3 leads by an unclean election" in cluster.log_tail("controller")
    cluster.start(2)
    eventually(lambda: sorted(found()["isr"]) == [2, 3], within_s=60, what="both replicas in sync")
