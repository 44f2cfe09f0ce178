"""``odradek.Cluster`` cuts the network between its nodes, and holds followers back, on processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.brokers import eventually

import odradek
from odradek.client.model import PartitionDescription
from odradek.core.errors import OdradekError
from odradek.testing.broker import BrokerFailed

SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "replica.lag.time.max.ms": 2_500,
    "replica.fetch.backoff.ms": 100, "initial.broker.registration.timeout.ms": 60_000, "log.initial.task.delay.ms": 0,
}  # fmt: skip
BROKERS = (1, 2, 3)


@pytest.fixture(scope="module")
def shared() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, config=SETTINGS) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        topics = [
            NewTopic(f"led-by-{one}", 1, replica_assignment=[[one, *sorted({1, 2, 3} - {one})]]) for one in BROKERS
        ]
        for created in admin.create_topics(topics).values():
            created.result()
        yield made


@pytest.fixture
def cluster(shared: odradek.Cluster) -> Iterator[odradek.Cluster]:
    yield shared
    shared.heal()
    for node in shared.nodes:
        shared.resume(node)
    shared.start()
    shared.wait_until_in_sync()
    with odradek.Admin(shared.bootstrap_servers) as admin:
        admin.elect_leaders("preferred")
        eventually(lambda: all(seen(shared, one, f"led-by-{one}").leader == one for one in BROKERS))


def seen(cluster: odradek.Cluster, broker: int, topic: str) -> PartitionDescription:
    """A partition, as one broker describes it: clients reach every node."""
    with odradek.Admin(cluster.address(broker)) as admin:
        found: PartitionDescription = admin.describe_topics([topic])[topic].partitions[0]
        return found


def until(
    condition: Callable[[PartitionDescription], object], cluster: odradek.Cluster, broker: int, topic: str
) -> None:
    def holds() -> bool:
        try:
            return bool(condition(seen(cluster, broker, topic)))
        except OdradekError:
            return False

    eventually(holds, within_s=60, what=f"{topic} at broker {broker}")


def send(cluster: odradek.Cluster, topic: str, count: int, acks: str, within_ms: int = 60_000) -> list[int]:
    """Returns the offset, or the error code, which is negative here, with which each record is answered."""
    answers: list[int] = []
    settings = {"bootstrap.servers": cluster.bootstrap_servers, "acks": acks, "delivery.timeout.ms": within_ms}
    producer = confluent_kafka.Producer(settings)
    for number in range(count):
        producer.produce(
            topic,
            str(number),
            on_delivery=lambda error, sent: answers.append(-abs(error.code()) if error else sent.offset()),
        )
    producer.flush()
    return answers


def test_an_isolated_leader_is_replaced_and_comes_back(cluster: odradek.Cluster) -> None:
    cluster.isolate(2)
    until(lambda one: one.leader in (1, 3) and 2 not in one.isr, cluster, 1, "led-by-2")
    assert seen(cluster, 2, "led-by-2").leader == 2, "it has learned of its end, although it is isolated"
    assert cluster.running()
    assert min(send(cluster, "led-by-1", 3, "all")) >= 0
    cluster.heal()
    until(lambda one: one.leader in (1, 3) and set(one.isr) == set(BROKERS), cluster, 2, "led-by-2")


def test_an_isolated_broker_is_not_asked_who_leads(cluster: odradek.Cluster) -> None:
    """Broker 1 is the first that a client asks, and shows itself as the leader until the cut has healed."""
    cluster.isolate(1)
    eventually(lambda: cluster.leader("led-by-1") in (2, 3), within_s=60)
    assert seen(cluster, 1, "led-by-1").leader == 1
    with pytest.raises(BrokerFailed, match=r"not in sync: .*led-by-1-0 lacks \[1\]"):
        cluster.wait_until_in_sync(within_s=0)
    cluster.heal()
    cluster.wait_until_in_sync(["led-by-1"])
    for broker in BROKERS:
        assert set(seen(cluster, broker, "led-by-1").isr) == set(BROKERS)


def test_a_partition_of_brokers_leaves_the_controller_to_both_sides(cluster: odradek.Cluster) -> None:
    """The followers of the other side leave the ISR when they lack a record, and no broker is fenced."""
    cluster.partition({1}, {2, 3})
    for broker in BROKERS:
        send(cluster, f"led-by-{broker}", 1, "1")
    until(lambda one: set(one.isr) == {1}, cluster, 2, "led-by-1")
    until(lambda one: set(one.isr) == {2, 3}, cluster, 1, "led-by-2")
    until(lambda one: set(one.isr) == {2, 3}, cluster, 1, "led-by-3")
    cluster.heal()
    for broker in BROKERS:
        until(lambda one: set(one.isr) == set(BROKERS), cluster, broker, "led-by-1")


def test_a_controller_may_be_on_one_side(cluster: odradek.Cluster) -> None:
    cluster.partition({1, "controller"}, {2, 3})
    until(lambda one: one.leader == 1, cluster, 1, "led-by-2")
    until(lambda one: one.leader == 1, cluster, 1, "led-by-3")
    assert seen(cluster, 2, "led-by-3").leader == 3, "the other side knows nothing of it"
    assert seen(cluster, 3, "led-by-2").leader == 2


@pytest.mark.parametrize(("source", "target"), [(2, "controller"), ("controller", 2)])
def test_a_cut_of_one_direction_fences_a_broker(cluster: odradek.Cluster, source: int | str, target: int | str) -> None:
    cluster.cut(source, target)
    until(lambda one: one.leader in (1, 3), cluster, 1, "led-by-2")
    until(lambda one: set(one.isr) == {1, 3}, cluster, 3, "led-by-1")


def test_a_follower_that_is_held_back_has_seven_of_ten_records(cluster: odradek.Cluster) -> None:
    """The high watermark stays at seven until the follower leaves the ISR, and its broker stays a member."""
    offsets = send(cluster, "led-by-3", 7, "all")
    cluster.hold_back(2)
    offsets += send(cluster, "led-by-3", 3, "1")
    assert [offset - offsets[0] for offset in offsets] == list(range(10))
    until(lambda one: set(one.isr) == {1, 3}, cluster, 1, "led-by-3")
    size = {
        one: (cluster.data_dir / str(one) / "led-by-3-0/00000000000000000000.log").stat().st_size for one in BROKERS
    }
    assert size[1] == size[3] > size[2] > 0
    assert seen(cluster, 1, "led-by-2").leader == 2
    cluster.heal()
    until(lambda one: set(one.isr) == set(BROKERS), cluster, 1, "led-by-3")


def test_a_node_keeps_its_cuts_over_a_restart_and_joins_when_they_heal(cluster: odradek.Cluster) -> None:
    cluster.isolate(2)
    cluster.hold_back(3)
    cluster.kill(2)
    cluster.kill(3)
    cluster.start(3)
    starting = threading.Thread(target=cluster.start, args=[2])
    starting.start()
    until(lambda one: set(one.isr) == {1}, cluster, 1, "led-by-1")
    assert starting.is_alive()
    cluster.heal()
    starting.join(60)
    assert cluster.running(2)
    until(lambda one: set(one.isr) == set(BROKERS), cluster, 2, "led-by-1")


def test_a_paused_node_takes_the_cuts_when_it_goes_on(cluster: odradek.Cluster) -> None:
    cluster.pause(2)
    cluster.isolate(2)
    cluster.heal()
    cluster.isolate(2)
    cluster.resume(2)
    until(lambda one: one.leader in (1, 3) and set(one.isr) == {1, 3}, cluster, 1, "led-by-2")
    cluster.heal()
    until(lambda one: set(one.isr) == set(BROKERS), cluster, 2, "led-by-2")


def test_a_change_that_meets_the_start_of_a_process_reaches_it(
    shared: odradek.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is made with the former faults, while the change looks whether it runs."""
    shared.stop(3)
    shared.isolate(3)
    process = shared._find(3)
    starting, is_begun, may_go_on = process.start_process, threading.Event(), threading.Event()

    def slow(stdin: int, stderr: int) -> object:
        made = starting(stdin, stderr)
        is_begun.set()
        may_go_on.wait(20)
        return made

    monkeypatch.setattr(process, "start_process", slow)
    start, heal = threading.Thread(target=shared.start, args=[3]), threading.Thread(target=shared.heal)
    start.start()
    assert is_begun.wait(20)
    heal.start()
    heal.join(0.2)
    may_go_on.set()
    for thread in (start, heal):
        thread.join(25)
    assert shared.running(3)


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda cluster: cluster.isolate(4), "there is no node 4: the nodes are 1, 2, 3 and 'controller'"),
        (
            lambda cluster: cluster.partition({1, 2}, {2, 3}),
            "one group of partition.. only, and these are in two: 2",
        ),
        (lambda cluster: cluster.partition({1}), "two groups of nodes or more, .*, not one group"),
        (lambda cluster: cluster.partition(1, {2, 3}), "two groups of nodes or more, .*, not 1"),
        (lambda cluster: cluster.cut(1, 1), "takes two nodes, not 1 twice"),
        (lambda cluster: cluster.hold_back("controller"), "give the number of a broker"),
    ],
)
def test_wrong_nodes_are_named(shared: odradek.Cluster, call: Callable[[odradek.Cluster], None], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        call(shared)
