"""A broker's machines at a controller of Apache Kafka: registration, its metadata log, restarts, snapshots, shutdown.

Clusters of both are not supported. Here Apache Kafka shows that requests and replies are read as in Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from record_controller import OF_A_FORMAT, apache_controller
from support.blocking_broker import BlockingBroker
from support.brokers import Wire

from bench.apache import ApacheBroker
from odradek.batches.rows import iter_records
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.cluster.nodes.lifecycle import LifecycleState, LifecycleTimes
from odradek.core.errors import ErrorCode
from odradek.storage.disk.files import OsFiles

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("kafka_cp")]
CONTROLLER, BROKER, SESSION_MS = 100, 3, 3_000
CREATE_TOPICS = 19
Start = Callable[..., BlockingBroker]


@pytest.fixture
def controller(request: pytest.FixtureRequest) -> Iterator[tuple[ApacheBroker, str]]:
    settings = {"broker.session.timeout.ms": str(SESSION_MS), **getattr(request, "param", {})}
    with apache_controller(settings, CONTROLLER) as made:
        yield made


@pytest.fixture
def start(controller: tuple[ApacheBroker, str], tmp_path: Path) -> Start:
    node, cluster_id = controller

    def started(incarnation: int = 1, clean_epoch: int = -1, home: str = "broker") -> BlockingBroker:
        (tmp_path / home).mkdir(exist_ok=True)
        return BlockingBroker(
            tmp_path / home,
            OsFiles(),
            (BROKER, cluster_id, CONTROLLER),
            lambda: Wire(f"127.0.0.1:{node.port}"),
            lambda: int(time.monotonic() * 1000),
            lambda ms: time.sleep(ms / 1000),
            incarnation=incarnation,
            clean_epoch=clean_epoch,
            times=LifecycleTimes(SESSION_MS, 500, 60_000),
            skipped=OF_A_FORMAT,
        )

    return started


def create(node: ApacheBroker, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    with Wire(f"127.0.0.1:{node.port}") as wire:
        reply = wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    code: ErrorCode = reply.topics[0].error_code
    return code


def has(broker: BlockingBroker, topic: str) -> Callable[[], bool]:
    return lambda: topic in broker.image.topics


def leads(broker: BlockingBroker, topic: str) -> Callable[[], bool]:
    """Whether the broker knows that it leads both partitions of a topic."""

    def done() -> bool:
        found = broker.image.topics.get(topic)
        return found is not None and [one.leader for one in found.partitions] == [BROKER, BROKER]

    return done


def runs(broker: BlockingBroker) -> Callable[[], bool]:
    return lambda: broker.lifecycle.state is LifecycleState.RUNNING


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / DIRECTORY).glob("*.log")))


def test_a_broker_starts_follows_and_stops(controller: tuple[ApacheBroker, str], start: Start, tmp_path: Path) -> None:
    node, _ = controller
    broker = start()
    broker.run_until(runs(broker))
    assert create(node, "one") is ErrorCode.none
    broker.run_until(leads(broker, "one"))
    node.stop()
    node.start()
    broker.run_until(lambda: broker.observer.epoch == 2)
    assert create(node, "two") is ErrorCode.none
    broker.run_until(has(broker, "two"))
    assert broker.lifecycle.state is LifecycleState.RUNNING
    broker.membership.begin_shutdown()
    broker.run_until(lambda: broker.lifecycle.state is LifecycleState.ENDED)
    assert not broker.lifecycle.failure
    broker.log.metadata_log.close()
    copy = log_bytes(tmp_path / "broker")
    assert len(copy) > 1000
    assert log_bytes(node.directory / "data")[: len(copy)] == copy

    time.sleep(SESSION_MS / 1000 + 1)
    again = start(2, broker.lifecycle.epoch)
    again.run_until(runs(again))
    again.run_until(leads(again, "two"))


@pytest.mark.parametrize("controller", [{"metadata.log.max.snapshot.interval.ms": "1"}], indirect=True)
def test_an_empty_copy_takes_a_snapshot(controller: tuple[ApacheBroker, str], start: Start, tmp_path: Path) -> None:
    node, _ = controller
    broker = start()
    broker.run_until(runs(broker))
    for number in range(5):
        assert create(node, f"t{number}") is ErrorCode.none
        broker.run_until(has(broker, f"t{number}"))
    deadline = time.monotonic() + 30
    while not [path for path in (node.directory / "data" / DIRECTORY).glob("*.checkpoint") if int(path.name[:20])]:
        assert time.monotonic() < deadline, "the controller makes no snapshot"
        broker.step()
    broker.membership.begin_shutdown()
    broker.run_until(lambda: broker.lifecycle.state is LifecycleState.ENDED)
    time.sleep(SESSION_MS / 1000 + 1)
    fresh = start(2, broker.lifecycle.epoch, home="fresh")
    fresh.run_until(runs(fresh))
    assert fresh.snapshots > 0
    fresh.run_until(has(fresh, "t4"))
    known = {name: topic.id for name, topic in broker.image.topics.items()}
    assert {name: topic.id for name, topic in fresh.image.topics.items()} == known
    names = {path.name for path in (tmp_path / "fresh" / DIRECTORY).glob("*.checkpoint")}
    theirs = {path.name: path for path in (node.directory / "data" / DIRECTORY).glob("*.checkpoint")}
    for name in names & theirs.keys():
        assert (tmp_path / "fresh" / DIRECTORY / name).read_bytes() == theirs[name].read_bytes()
    assert names & theirs.keys()
    assert not any(row.is_control and row.offset == 0 for row in iter_records(log_bytes(tmp_path / "fresh")))
