"""Real clients while brokers are killed, paused and restarted: the checker finds nothing in what they saw.

The same rounds run on three nodes of Apache Kafka 4.3.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support.apache_cluster import ApacheCluster
from support.brokers import unique
from support.go_programs import go_program
from support.history_rounds import (
    CUTS,
    FAULTS,
    ISOLATED_CONTROLLER,
    ApacheNodes,
    FaultyNodes,
    HistoryRounds,
    our_nodes,
    report,
)
from support.recorded_clients import (
    AioKafkaMember,
    AioKafkaProducer,
    ConfluentCommits,
    ConfluentMember,
    ConfluentProducer,
    ConfluentReader,
    JoiningMembers,
    KafkaPythonMember,
    KafkaPythonProducer,
    OdradekLookups,
    OdradekMember,
    OdradekProducer,
    OdradekReader,
)
from support.recorded_go_clients import SOURCES, FranzMember, FranzProducer, FranzProgram, FranzTransactions
from support.recorded_java_clients import JavaProgram, VerifiableConsumer, VerifiableProducer
from support.recorded_transactions import ConfluentTransactions, OdradekTransactions

import odradek

PARTITIONS = 3
MANY_PARTITIONS = 6
"""More than the members of a group: each of them has to go on after a fault."""
SHORT = (
    "the leader is killed", "a follower is killed", "a coordinator is killed", "the leader is paused",
    "the controller is killed", "a rolling restart", "two brokers are killed",
)  # fmt: skip
REPLICATED_TRANSACTIONS = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
ROUNDS_OF_A_HISTORY, HISTORIES = 10, 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with our_nodes() as made:
        yield made


def few_clients(rounds: HistoryRounds) -> None:
    for kind in (ConfluentProducer, OdradekProducer, ConfluentReader, OdradekReader):
        rounds.add(kind)
    rounds.add(ConfluentMember, group=f"{rounds.topic}.consumer", protocol="consumer")
    rounds.add(KafkaPythonMember, group=f"{rounds.topic}.classic")
    rounds.add(ConfluentCommits, group=f"{rounds.topic}.free")
    rounds.add(OdradekLookups, groups=[f"{rounds.topic}.{one}" for one in ("classic", "consumer", "free")])


def python_clients(rounds: HistoryRounds) -> None:
    rounds.add(AioKafkaProducer)
    rounds.add(KafkaPythonProducer)
    rounds.add(OdradekMember, group=f"{rounds.topic}.consumer", protocol="consumer")
    for kind in (AioKafkaMember, OdradekMember, ConfluentMember):
        rounds.add(kind, group=f"{rounds.topic}.classic")
    rounds.add(ConfluentCommits, group=f"{rounds.topic}.free")


def java_clients(rounds: HistoryRounds, kafka_cp: str, folder: Path) -> None:
    """``folder``: where the programs keep their logs."""
    JavaProgram.kafka_cp, JavaProgram.folder = kafka_cp, folder
    rounds.add(VerifiableProducer)
    rounds.add(VerifiableConsumer, group=f"{rounds.topic}.classic")
    rounds.add(VerifiableConsumer, group=f"{rounds.topic}.consumer", protocol="consumer")


def transactions(rounds: HistoryRounds) -> None:
    rounds.add(ConfluentTransactions)
    for one in ("first", "second"):
        rounds.add(OdradekTransactions, group=f"{rounds.topic}.{one}")
    rounds.add(OdradekLookups, groups=[f"{rounds.topic}.{one}" for one in ("first", "second")])


def go_clients(rounds: HistoryRounds) -> None:
    """franz-go with both group protocols and with transactions."""
    FranzProgram.program = go_program(SOURCES)
    rounds.add(FranzProducer)
    rounds.add(FranzTransactions)
    rounds.add(FranzMember, group=f"{rounds.topic}.classic")
    rounds.add(FranzMember, group=f"{rounds.topic}.consumer", protocol="consumer")


def test_seven_rounds_of_faults(cluster: odradek.Cluster, tmp_path: Path) -> None:
    with HistoryRounds(cluster, unique("h"), PARTITIONS, 1) as rounds:
        few_clients(rounds)
        rounds.begin()
        for name in SHORT:
            rounds.run(name)
        assert report(rounds.end(), rounds.history, tmp_path) == ""
        for op in ("send", "poll", "commit", "offset_fetch", "list_offsets"):
            assert rounds.history.count(op) > 20, op


def cast_of(rounds: HistoryRounds, seed: int, request: pytest.FixtureRequest) -> None:
    """The clients of a long history. All at once would be more than two cores can serve within the sessions."""
    few_clients(rounds)
    if seed % 4 == 0:
        python_clients(rounds)
    elif seed % 4 == 1:
        transactions(rounds)
        rounds.add(AioKafkaMember, group=f"{rounds.topic}.classic")
    elif seed % 4 == 2:
        go_clients(rounds)
    else:
        java_clients(rounds, request.getfixturevalue("kafka_cp"), request.getfixturevalue("tmp_path"))
        rounds.add(OdradekMember, group=f"{rounds.topic}.classic")


def findings(
    nodes: FaultyNodes, seed: int, faults: Iterable[str], tmp_path: Path, request: pytest.FixtureRequest
) -> str:
    """Runs these faults beside the clients of a long history. Returns what the checker finds."""
    with HistoryRounds(nodes, unique("h"), MANY_PARTITIONS, seed, tmp_path) as rounds:
        cast_of(rounds, seed, request)
        rounds.begin()
        for name in faults:
            rounds.run(name)
        return report(rounds.end(), rounds.history, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_many_rounds_of_faults(
    cluster: odradek.Cluster, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(seed)
    drawn = [dice.choice([*FAULTS, *CUTS]) for _ in range(ROUNDS_OF_A_HISTORY)]
    assert findings(cluster, seed, drawn, tmp_path, request) == ""


@pytest.mark.slow
def test_rounds_with_an_isolated_controller(cluster: odradek.Cluster, tmp_path: Path) -> None:
    with HistoryRounds(cluster, unique("h"), MANY_PARTITIONS, 1) as rounds:
        for kind in (AioKafkaProducer, OdradekProducer, OdradekReader, OdradekMember):
            rounds.add(kind, **{"group": f"{rounds.topic}.classic"} if kind is OdradekMember else {})
        go_clients(rounds)
        rounds.add(OdradekTransactions, group=f"{rounds.topic}.first")
        rounds.add(OdradekLookups, groups=[f"{rounds.topic}.{one}" for one in ("first", "classic", "consumer")])
        rounds.begin()
        for name in [*ISOLATED_CONTROLLER] * 5:
            rounds.run(name)
        assert report(rounds.end(), rounds.history, tmp_path) == ""


@pytest.mark.slow
def test_members_join_and_leave_while_brokers_fail(
    cluster: odradek.Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each fault comes during rebalances under KIP-848: no partition has two owners."""
    JavaProgram.kafka_cp, JavaProgram.folder = request.getfixturevalue("kafka_cp"), tmp_path
    FranzProgram.program = go_program(SOURCES)
    dice = random.Random("consumer")
    with HistoryRounds(cluster, unique("h"), MANY_PARTITIONS, 1, tmp_path) as rounds:
        rounds.add(OdradekProducer)
        for kind in (ConfluentMember, FranzMember, VerifiableConsumer, JoiningMembers):
            rounds.add(kind, group=f"{rounds.topic}.consumer", protocol="consumer")
        rounds.begin()
        for _ in range(ROUNDS_OF_A_HISTORY):
            rounds.run(dice.choice([name for name in (*FAULTS, *CUTS) if "coordinator" in name or "broker" in name]))
        assert report(rounds.end(), rounds.history, tmp_path) == ""
        assert rounds.history.count("revoke") > 20


@pytest.fixture
def apache_nodes(kafka_cp: str, tmp_path: Path) -> Iterator[ApacheNodes]:
    """Its nodes are brokers and controllers, so two that are down stop the controller, too."""
    apache = ApacheCluster(tmp_path, REPLICATED_TRANSACTIONS)
    try:
        apache.start()
        yield ApacheNodes(apache)
    finally:
        apache.stop()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_same_rounds_on_apache_kafka(
    apache_nodes: ApacheNodes, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    assert findings(apache_nodes, seed, SHORT, tmp_path, request) == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_many_rounds_on_apache_kafka(
    apache_nodes: ApacheNodes, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All faults that need no network of ours."""
    dice = random.Random(seed)
    drawn = [dice.choice([*FAULTS]) for _ in range(ROUNDS_OF_A_HISTORY)]
    assert findings(apache_nodes, seed, drawn, tmp_path, request) == ""
