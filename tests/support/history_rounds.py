"""Rounds of faults on three brokers while recorded clients work. The brokers are ours, or those of Apache Kafka."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import odradek
from bench.apache import ApacheBroker
from odradek.client import Admin
from odradek.client.model import NewTopic, PartitionDescription
from odradek.consistency.anomalies import Anomaly
from odradek.core.errors import OdradekError
from odradek.core.ids import LATEST, TopicPartition
from support.apache_cluster import ApacheCluster
from support.recorded_clients import (
    ConfluentCommits,
    OdradekMember,
    RecordedClient,
    RecordedHistory,
    RecordedMember,
    RecordedProducer,
    RecordedReader,
)
from support.recorded_go_clients import FranzMember

BROKERS = (1, 2, 3)
CONTROLLER = "controller"
Node = int | str
ANSWERS, PAUSE_S, SILENCE_S = 1_000, 0.1, 300.0
"""A wait has failed when the cluster has answered so many questions meanwhile, one after another with a pause between
them. On a busy machine the answers take longer, and so does all that the test waits for. A cluster that answers none
for ``SILENCE_S`` is not served at all."""
REQUESTS = 50


class FaultyNodes(Protocol):
    """Three brokers that a test may end, halt and start."""

    bootstrap_servers: str

    def address(self, node: Node) -> str: ...

    def kill(self, node: Node) -> None: ...

    def stop(self, node: Node) -> None: ...

    def start(self, node: Node) -> object: ...

    def pause(self, node: Node) -> None: ...

    def resume(self, node: Node) -> None: ...


class ApacheNodes:
    """``ApacheCluster`` as ``FaultyNodes``. Each node is broker and controller; the controller is the active one."""

    def __init__(self, cluster: ApacheCluster) -> None:
        self._cluster = cluster
        self.bootstrap_servers = cluster.bootstrap

    def address(self, node: Node) -> str:
        return self._cluster.nodes[int(node)].bootstrap

    def kill(self, node: Node) -> None:
        self._of(node).kill()

    def stop(self, node: Node) -> None:
        self._of(node).stop()

    def start(self, node: Node) -> object:
        return [one.start(180) for one in self._cluster.nodes.values() if not one.pids]

    def pause(self, node: Node) -> None:
        os.kill(self._of(node).pids[0], signal.SIGSTOP)

    def resume(self, node: Node) -> None:
        for pid in self._of(node).pids:
            os.kill(pid, signal.SIGCONT)

    def _of(self, node: Node) -> ApacheBroker:
        if node == CONTROLLER:
            with Admin(self.bootstrap_servers) as admin:
                node = next(one.node_id for one in admin.describe_nodes().nodes if one.is_active)
        return self._cluster.nodes[int(node)]


# --- faults ---------------------------------------------------------------------------------------------------------


@contextmanager
def killed(nodes: FaultyNodes, *victims: Node) -> Iterator[None]:
    for one in victims:
        nodes.kill(one)
    yield
    for one in victims:
        nodes.start(one)


@contextmanager
def paused(rounds: HistoryRounds, victim: int) -> Iterator[None]:
    rounds.nodes.pause(victim)
    yield
    rounds.resume(victim)


@contextmanager
def restarted(rounds: HistoryRounds) -> Iterator[None]:
    """Each broker stops cleanly and starts again, the next one when all replicas are in sync."""
    for one in BROKERS:
        rounds.nodes.stop(one)
        rounds.nodes.start(one)
        rounds.wait_until_in_sync()
    yield


@contextmanager
def alone_and_killed(rounds: HistoryRounds, victim: int) -> Iterator[None]:
    """A broker loses both others for a moment, works on, and is killed. What only it has must not be acknowledged."""
    others = [one for one in BROKERS if one != victim]
    for one in others:
        rounds.nodes.pause(one)
    rounds.wait_for_requests()
    rounds.nodes.kill(victim)
    with rounds.stale_lookups():
        for one in others:
            rounds.nodes.resume(one)
        rounds.wait_until_deposed(victim)
    yield
    rounds.nodes.start(victim)


@contextmanager
def without_followers(rounds: HistoryRounds) -> Iterator[None]:
    """Both followers are halted until the leader is alone in the ISR: producers repeat what it has written."""
    leader = leader_of(rounds)
    others = [one for one in BROKERS if one != leader]
    for one in others:
        rounds.nodes.pause(one)
    rounds.wait_for_isr((leader,))
    yield
    rounds.resume(*others)


@contextmanager
def stale_one_first(rounds: HistoryRounds) -> Iterator[None]:
    """A broker that missed records starts while those that have them are down."""
    stale = follower_of(rounds)
    rounds.nodes.kill(stale)
    rounds.wait_for_progress(rounds.producers)
    others = [one for one in BROKERS if one != stale]
    for one in others:
        rounds.nodes.kill(one)
    rounds.nodes.start(stale)
    yield
    for one in others:
        rounds.nodes.start(one)


@contextmanager
def cut_off(
    rounds: HistoryRounds, cut: Callable[[odradek.Cluster], None], deposed: int | None = None
) -> Iterator[None]:
    """The network between nodes is cut; clients reach all of them. Others lead in place of ``deposed``.

    A broker behind a cut answers lookups with what it has, as one of Apache Kafka does."""
    cluster = rounds.nodes
    assert isinstance(cluster, odradek.Cluster), "only our nodes have a network that a test can cut"
    with rounds.stale_lookups():
        cut(cluster)
        if deposed is not None:
            rounds.wait_until_deposed(deposed)
        rounds.wait_for_requests()
        yield
        cluster.heal()
        rounds.wait_for(rounds.agree_on_leaders, "all brokers show the same leaders")


def isolated(rounds: HistoryRounds, victim: int) -> AbstractContextManager[None]:
    return cut_off(rounds, lambda cluster: cluster.isolate(victim), victim)


def unheard_followers(rounds: HistoryRounds) -> AbstractContextManager[None]:
    """Nothing that the followers send reaches the leader; what it sends reaches them."""
    leader = leader_of(rounds)

    def cut(cluster: odradek.Cluster) -> None:
        for one in BROKERS:
            if one != leader:
                cluster.cut(one, leader)

    return cut_off(rounds, cut)


def unheard_broker(rounds: HistoryRounds) -> AbstractContextManager[None]:
    """Nothing that a leader sends reaches the controller: its session ends."""
    leader = leader_of(rounds)
    return cut_off(rounds, lambda cluster: cluster.cut(leader, CONTROLLER), leader)


def divided(rounds: HistoryRounds) -> AbstractContextManager[None]:
    """A leader and the other brokers do not reach each other; all reach the controller."""
    leader = leader_of(rounds)
    others = [one for one in BROKERS if one != leader]
    return cut_off(rounds, lambda cluster: cluster.partition([leader], others))


def leader_of(rounds: HistoryRounds) -> int:
    return rounds.leaders()[rounds.dice.randrange(rounds.partitions)]


def follower_of(rounds: HistoryRounds) -> int:
    return leader_of(rounds) % len(BROKERS) + 1


def coordinator_of(rounds: HistoryRounds) -> int:
    """The coordinator of a group, with members or without, or of a transactional id."""
    groups = [one for client in rounds.clients if (one := getattr(client, "group", None)) is not None]
    ids = [one for client in rounds.clients if (one := getattr(client, "transactional_id", None)) is not None]
    kind, name = rounds.dice.choice([*(("group", one) for one in groups), *(("id", one) for one in ids)])
    with Admin(rounds.nodes.bootstrap_servers) as admin:
        found = admin.coordinator(name) if kind == "group" else admin.coordinator(transactional_id=name)
    return found.node_id


def two_of(rounds: HistoryRounds) -> tuple[int, ...]:
    return tuple(rounds.dice.sample(BROKERS, 2))


@dataclass(frozen=True)
class Fault:
    """``is_survived``: all producers go on during the fault."""

    begin: Callable[[HistoryRounds], AbstractContextManager[None]]
    is_survived: bool = True


FAULTS: dict[str, Fault] = {
    "the leader is killed": Fault(lambda rounds: killed(rounds.nodes, leader_of(rounds))),
    "a follower is killed": Fault(lambda rounds: killed(rounds.nodes, follower_of(rounds))),
    "the leader is paused": Fault(lambda rounds: paused(rounds, leader_of(rounds))),
    "a coordinator is killed": Fault(lambda rounds: killed(rounds.nodes, coordinator_of(rounds))),
    "a coordinator is paused": Fault(lambda rounds: paused(rounds, coordinator_of(rounds))),
    "two brokers are killed": Fault(lambda rounds: killed(rounds.nodes, *two_of(rounds)), is_survived=False),
    "the controller is killed": Fault(lambda rounds: killed(rounds.nodes, CONTROLLER)),
    "a rolling restart": Fault(restarted),
    "the leader is alone and killed": Fault(
        lambda rounds: alone_and_killed(rounds, leader_of(rounds)), is_survived=False
    ),
    "a coordinator is alone and killed": Fault(
        lambda rounds: alone_and_killed(rounds, coordinator_of(rounds)), is_survived=False
    ),
    "the leader has no followers": Fault(without_followers, is_survived=False),
    "a stale broker starts first": Fault(stale_one_first, is_survived=False),
    "all brokers are killed": Fault(lambda rounds: killed(rounds.nodes, *BROKERS), is_survived=False),
}


CUTS: dict[str, Fault] = {
    "the leader is isolated": Fault(lambda rounds: isolated(rounds, leader_of(rounds)), is_survived=False),
    "a coordinator is isolated": Fault(lambda rounds: isolated(rounds, coordinator_of(rounds)), is_survived=False),
    "the leader hears no follower": Fault(unheard_followers, is_survived=False),
    "the controller does not hear a leader": Fault(unheard_broker, is_survived=False),
    "a leader is cut from the others": Fault(divided, is_survived=False),
}
"""Faults of a network, which only ``odradek.Cluster`` can have."""
ISOLATED_CONTROLLER = {
    "the controller is isolated": Fault(
        lambda rounds: cut_off(rounds, lambda cluster: cluster.isolate(CONTROLLER)), is_survived=False
    )
}
"""Not for librdkafka: the controller fences all brokers, whose replies to Metadata have no brokers until their next
heartbeat, in Apache Kafka, too. librdkafka never connects again then (github.com/confluentinc/librdkafka/issues/5301).
"""


@contextmanager
def paused_member(rounds: HistoryRounds) -> Iterator[None]:
    """A member of a classic group is halted until another one has its partitions. Then it goes on, and commits what it
    had polled."""
    halted = rounds.dice.choice([one for one in rounds.clients if isinstance(one, FranzMember)])
    others = [
        one
        for one in rounds.clients
        if isinstance(one, RecordedMember) and one.group == halted.group and one is not halted
    ]
    before = sum(rounds.history.count("assign", one.name) for one in others)
    with halted.halted():
        rounds.wait_for(
            lambda: sum(rounds.history.count("assign", one.name) for one in others) > before,
            f"others have the partitions of {halted.name}",
        )
        yield


@contextmanager
def joined_member(rounds: HistoryRounds) -> Iterator[None]:
    """One more member joins a group, and leaves it again."""
    groups = sorted({(one.group, one.protocol) for one in rounds.clients if isinstance(one, RecordedMember)})
    group, protocol = rounds.dice.choice(groups)
    rounds.add(OdradekMember, group=group, protocol=protocol)
    joined = rounds.clients.pop()
    joined.start()
    rounds.wait_for(lambda: rounds.history.count("commit", joined.name) > 0, f"{joined.name} commits")
    yield
    joined.ended.set()
    rounds.wait_for(lambda: not joined.is_alive(), f"the end of {joined.name}")
    assert joined.failure is None, f"{joined.name}: {joined.failure!r}"


MEMBER_FAULTS = {"a member is paused": Fault(paused_member), "a member joins": Fault(joined_member)}
"""Not for each cast: one needs a classic member that is a process, the other one fewer members than partitions."""


class HistoryRounds:
    """Some clients, and faults while they work. ``end`` stops the clients and checks their history.

    ``folder``: where a round that fails leaves its history, if given."""

    def __init__(self, nodes: FaultyNodes, topic: str, partitions: int, seed: int, folder: Path | None = None) -> None:
        self.nodes, self.topic, self.partitions, self._folder = nodes, topic, partitions, folder
        self.dice = random.Random(seed)
        self.history = RecordedHistory()
        self.clients: list[RecordedClient] = []
        self.faults: list[str] = []
        with Admin(nodes.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, partitions, len(BROKERS), {"min.insync.replicas": "2"})])
        self.wait_until_in_sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Ends the clients of a failed round, so that they do not disturb the next one."""
        for one in self.clients:
            one.ended.set()
        if error is not None and self._folder is not None:
            self.history.write(self._folder / "unfinished.jsonl")

    def add(self, kind: type[RecordedClient], **fields: object) -> None:
        self.clients.append(kind(self.history, self.nodes.bootstrap_servers, self.topic, self.partitions, **fields))

    def begin(self) -> None:
        for one in self.clients:
            one.start()
        self.wait_for_progress(self.clients)

    def run(self, name: str) -> None:
        """One fault. Afterwards all clients go on."""
        fault = (FAULTS | CUTS | ISOLATED_CONTROLLER | MEMBER_FAULTS)[name]
        self.faults.append(name)
        with fault.begin(self):
            if fault.is_survived:
                self.wait_for_progress(self.producers)
        self.wait_until_in_sync()
        self.wait_for_progress(self.clients)

    def resume(self, *brokers: int) -> None:
        """Lets paused brokers go on, and waits until they know the present leaders."""
        with self.stale_lookups():
            for one in brokers:
                self.nodes.resume(one)
            self.wait_for(self.agree_on_leaders, "all brokers show the same leaders")

    @contextmanager
    def stale_lookups(self) -> Iterator[None]:
        """Resumed brokers may answer lookups as former leaders here, as Apache Kafka's brokers do."""
        since = time.time()
        yield
        self.history.stale.append((since, time.time()))

    def agree_on_leaders(self) -> bool:
        """Whether all brokers show the same leaders."""
        try:
            first, *others = [self._leader_epochs(one) for one in BROKERS]
        except OdradekError:
            return False
        return all(one == first for one in others)

    def _leader_epochs(self, broker: int) -> list[int]:
        with Admin(self.nodes.address(broker), default_api_timeout_ms=2_000, bootstrap_timeout_ms=2_000) as admin:
            return [one.leader_epoch for one in admin.describe_topics([self.topic])[self.topic].partitions]

    def end(self) -> list[Anomaly]:
        """Stops the clients, readers last: they read to the end of the log. Returns what is wrong."""
        readers = [one for one in self.clients if isinstance(one, RecordedReader)]
        self._stop([one for one in self.clients if one not in readers])
        self._send_last()
        ends = self._ends()
        whole = [one for one in readers if not isinstance(one, RecordedMember)]
        self.wait_for(lambda: all(one.has_read(ends) for one in whole), f"readers reach the ends {ends}")
        self._stop(readers)
        return self.history.check()

    def _stop(self, clients: Sequence[RecordedClient]) -> None:
        for one in clients:
            one.ended.set()
        names = [one.name for one in clients]
        self.wait_for(lambda: not any(one.is_alive() for one in clients), f"the end of {names}")
        for one in clients:
            assert one.failure is None, f"{one.name}: {one.failure!r}"

    def _send_last(self) -> None:
        """One more record in each partition: the marker of a transaction would be an end that no reader shows."""
        with odradek.Producer(self.nodes.bootstrap_servers, acks="all") as producer:
            for one in range(self.partitions):
                start, value = time.time(), f"last.{one}"
                sent = producer.send(self.topic, value.encode(), partition=one)
                producer.flush(SILENCE_S)
                fields = {"topic": self.topic, "partition": one, "value": value, "offset": sent.result().offset}
                self.history.add("send", "last", start, end=time.time(), **fields)

    def _ends(self) -> dict[int, int]:
        with Admin(self.nodes.bootstrap_servers) as admin:
            asked = [TopicPartition(self.topic, one) for one in range(self.partitions)]
            start = time.time()
            found = admin.list_offsets(dict.fromkeys(asked, LATEST))
            for one in asked:
                fields = {"topic": one.topic, "partition": one.partition, "offset": found[one].offset}
                self.history.add("list_offsets", "last", start, end=time.time(), **fields)
            return {one.partition: found[one].offset for one in asked}

    # --- what goes on -------------------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until a condition holds. Fails when the cluster has answered ``ANSWERS`` questions meanwhile."""
        answers, last = 0, time.monotonic()
        with Admin(self.nodes.bootstrap_servers, default_api_timeout_ms=10_000) as admin:
            while not condition():
                try:
                    admin.describe_topics([self.topic])
                    answers, last = answers + 1, time.monotonic()
                except OdradekError:
                    assert time.monotonic() < last + SILENCE_S, f"no broker answers, while the test waits: {what}"
                assert answers < ANSWERS, f"{ANSWERS} questions were answered, and not this: {what}"
                time.sleep(PAUSE_S)

    def wait_for_progress(self, clients: Sequence[RecordedClient]) -> None:
        """Waits until each of these clients has one more answer to a request that began after now."""
        before = {one.name: one.done for one in clients}
        silent: list[str] = []

        def all_go_on() -> bool:
            for one in clients:
                if one.failure is not None:
                    raise RuntimeError(f"{one.name} has ended") from one.failure
            silent[:] = [one.name for one in clients if one.done < before[one.name] + 2]
            return not silent

        try:
            self.wait_for(all_go_on, "each client has an answer")
        except AssertionError as error:
            lines = [line for one in clients if one.name in silent for line in self._evidence(one)]
            head = f"{error}; no progress of {silent}, after {self.faults}"
            raise AssertionError("\n".join([head, *lines])) from error

    def _evidence(self, silent: RecordedClient) -> Iterator[str]:
        """What is known about a client that does not go on: its errors, where it waits, and its group."""
        yield f"{silent.name}, thread {silent.native_id}: errors {silent.errors}"
        frame = sys._current_frames().get(silent.ident or 0)
        yield from traceback.format_stack(frame)[-3:]
        yield from silent.evidence()
        if isinstance(silent, RecordedMember):
            with Admin(self.nodes.bootstrap_servers) as admin:
                yield f"{admin.describe_groups([silent.group])}"
                yield f"{admin.list_group_offsets(silent.group)}"
                asked = [TopicPartition(self.topic, one) for one in range(self.partitions)]
                yield f"{admin.list_offsets(dict.fromkeys(asked, LATEST))}"

    @property
    def producers(self) -> list[RecordedProducer]:
        return [one for one in self.clients if isinstance(one, RecordedProducer)]

    def wait_for_requests(self) -> None:
        """Waits until clients have sent some requests more, whether they are answered or not."""
        makers = [one for one in self.clients if isinstance(one, RecordedProducer | ConfluentCommits)]
        before = sum(one.sent for one in makers)
        self.wait_for(lambda: sum(one.sent for one in makers) >= before + REQUESTS, f"{REQUESTS} requests")

    def wait_for_isr(self, wanted: Sequence[int]) -> None:
        """Waits until the ISR of a partition is this one, as these brokers show it."""
        what = f"an ISR {wanted}"
        self._wait_for_partitions(wanted, lambda found: any(set(one.isr) == set(wanted) for one in found), what)

    def wait_until_deposed(self, broker: int) -> None:
        """Waits until a broker leads no partition, as the others show it."""
        others = [one for one in BROKERS if one != broker]
        what = f"{others} show another leader than {broker}"
        self._wait_for_partitions(others, lambda found: all(one.leader != broker for one in found), what)

    def _wait_for_partitions(
        self, asked: Sequence[int], wanted: Callable[[Sequence[PartitionDescription]], bool], what: str
    ) -> None:
        addresses = ",".join(self.nodes.address(one) for one in asked)

        def is_so() -> bool:
            try:
                with Admin(addresses) as admin:
                    return wanted(admin.describe_topics([self.topic])[self.topic].partitions)
            except OdradekError:
                return False

        self.wait_for(is_so, what)

    def leaders(self) -> list[int]:
        with Admin(self.nodes.bootstrap_servers) as admin:
            return [one.leader for one in admin.describe_topics([self.topic])[self.topic].partitions]

    def wait_until_in_sync(self) -> None:
        def is_in_sync() -> bool:
            try:
                with Admin(self.nodes.bootstrap_servers) as admin:
                    partitions = admin.describe_topics([self.topic])[self.topic].partitions
            except OdradekError:
                return False
            return all(set(one.isr) == set(BROKERS) and one.leader in BROKERS for one in partitions)

        self.wait_for(is_in_sync, "all replicas are in sync")


def report(anomalies: Sequence[Anomaly], history: RecordedHistory, folder: Path) -> str:
    """The findings as text; the history is kept for ``odradek check-history``."""
    if not anomalies:
        return ""
    kept = folder / "history.jsonl"
    history.write(kept)
    return "\n".join([f"{kept}:", *(line for one in anomalies for line in one.lines())])


def our_nodes(**settings: object) -> odradek.Cluster:
    return odradek.Cluster(3, config=SETTINGS | settings)


SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000, "replica.fetch.wait.max.ms": 100, "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0, "group.consumer.heartbeat.interval.ms": 3_000,
    "group.consumer.min.heartbeat.interval.ms": 500,
}  # fmt: skip
