"""Commands for topics with several replicas, in a cluster of three brokers: a leader dies, and comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.brokers import eventually

import odradek
from odradek.cli.main import run
from odradek.client import Admin, KafkaError, NewTopic
from odradek.core.errors import ErrorCode

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
        patience = ["--timeout", "60000"] if words[0] == "create" else []  # a busy machine; others wait for leaders
        assert run(["topics", *words, "--json", *self._end, *patience]) == code, self._capsys.readouterr().err
        return json.loads(self._capsys.readouterr().out)

    def failure(self, *words: str) -> str:
        """The line of a command that fails in its table."""
        assert run(["topics", *words, *self._end]) == 1
        return self._capsys.readouterr().err

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
    assert tool.failure("elect", "t") == (
        f"odradek: t-{row['partition']}: the preferred leader, broker 3, does not run or is not in sync: start it, and "
        "elect again when odradek topics describe has it in the column ISR\n"
    )
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
    tool.rows("create", "u", "--replica-assignment", "2:3")

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
    assert tool.failure("elect", "u", "--unclean", "--yes") == (
        "odradek: u-0: no broker with a replica runs: start broker 2 or 3, and elect again if it does not lead then\n"
    )
    cluster.start(3)
    assert found()["leader"] == -1
    (row,) = tool.rows("elect", "--all", "--unclean", "--yes")
    assert (row["topic"], row["result"]) == ("u", "elected")
    eventually(lambda: found()["leader"] == 3)
    assert "u-0: broker 3 leads by an unclean election" in cluster.log_tail("controller")
    cluster.start(2)
    eventually(lambda: sorted(found()["isr"]) == [2, 3], within_s=60, what="both replicas in sync")


def test_replicas_are_placed_where_the_user_wants_them(cluster: odradek.Cluster, capsys: Capture) -> None:
    tool = Tool(cluster, capsys)
    assert run(["topics", "create", "wrong", "--replica-assignment", "1:9", "-b", cluster.bootstrap_servers]) == 2
    assert "broker 9, but no such broker is registered" in capsys.readouterr().err
    tool.rows("create", "placed", "--replica-assignment", "1:2:3, 3:1:2,2:3:1")
    (topic,) = tool.rows("describe", "placed")
    assert [p["leader"] for p in topic["partitions"]] == [1, 3, 2]
    assert [p["replicas"] for p in topic["partitions"]] == [[1, 2, 3], [3, 1, 2], [2, 3, 1]]
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics(
            [NewTopic("by-number", replica_assignments={1: [2], 0: [3]}, configs={"retention.ms": "7000"})]
        )
        found = admin.describe_topics(["by-number"])["by-number"].partitions
        assert [(one.partition, one.replicas) for one in found] == [(0, (3,)), (1, (2,))]
        wrong: list[Any] = [[[1], [2, 3]], [[1, 1]], [[7]], {1: [1]}]
        for assignments in wrong:
            with pytest.raises(KafkaError, match="topic by-hand: ") as refused:
                admin.create_topics([NewTopic("by-hand", replica_assignments=assignments)])
            assert refused.value.code is ErrorCode.invalid_replica_assignment
        with pytest.raises(ValueError, match="give replica_assignments, or num_partitions and replication_factor"):
            admin.create_topics([NewTopic("by-hand", 1, replica_assignments=[[1]])])
        with pytest.raises(ValueError, match="ids of brokers for each partition, for example"):
            admin.create_topics([NewTopic("by-hand", replica_assignments=[["1"]])])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--replica-assignment", "1:2,a"], "--replica-assignment '1:2,a': expected the brokers of each partition"),
        (
            ["--replica-assignment", "1:2", "--partitions", "1"],
            "takes the place of --partitions and --replication-factor",
        ),
        (["--replica-assignment", ""], "--replica-assignment is empty: give "),
    ],
)
def test_a_wrong_assignment_is_named(cluster: odradek.Cluster, capsys: Capture, words: list[str], line: str) -> None:
    assert run(["topics", "create", "t", *words, "-b", cluster.bootstrap_servers]) == 2
    assert line in capsys.readouterr().err


def test_the_only_replica_that_is_away_is_shown_as_eligible_and_its_return_is_no_loss(
    cluster: odradek.Cluster, capsys: Capture
) -> None:
    tool = Tool(cluster, capsys)
    tool.rows("create", "alone", "--replica-assignment", "2")
    before = cluster.log_sizes()["controller"]
    cluster.kill(2)
    eventually(lambda: tool.partitions("alone", "--unavailable") == [("alone", 0)], within_s=30)
    shown = tool.text("describe", "alone", "--unavailable")
    header, row = shown.strip().splitlines()[-2:]
    assert header.split() == ["PARTITION", "LEADER", "REPLICAS", "ISR", "ELR", "LAST-KNOWN-ELR"]
    assert row.split() == ["0", "-", "2", "-", "2", "2"]
    cluster.start(2)
    eventually(lambda: tool.partitions("alone", "--unavailable") == [], within_s=30)
    assert "unclean" not in cluster.log_tail("controller", before)
