"""Rounds of kill -9, SIGSTOP and cuts of the network in a cluster of processes, while producers wait for all replicas.

Each acknowledged record is at its offset on each replica afterwards, and the files of the replicas are equal. A record
of an idempotent producer is there once. Those live for all rounds, so their sequences go on at each new leader.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.idempotent_senders import IdempotentSender, Librdkafka, Own, check_once, end_all
from support.worker_thread import WorkerThread

import odradek
from odradek.batches.encode import encode_batch
from odradek.batches.rows import iter_records
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.testing.broker import BrokerFailed
from odradek.wire.api_keys import CREATE_TOPICS, METADATA, PRODUCE

log = logging.getLogger("tests.rounds")

BROKERS = (1, 2, 3)
SETTINGS = {
    "broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "replica.lag.time.max.ms": 3_000,
    "replica.socket.timeout.ms": 3_000, "replica.fetch.wait.max.ms": 100, "min.insync.replicas": 2,
}  # fmt: skip
REPLY_S, LOOK_UP_S, PATIENCE_S = 4.0, 2.0, 120.0
TOPIC, ONCE, PARTITIONS = "t", "once", 3
SENDERS: tuple[tuple[type[IdempotentSender], ...], ...] = ((Librdkafka,), (Own,), (Librdkafka, Own))
"""The idempotent producers of each partition of ``ONCE``."""
ROUNDS, MORE_ROUNDS = 6, 194
RETRIED = {
    ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append,
    ErrorCode.request_timed_out, ErrorCode.unknown_topic_or_partition,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, config=SETTINGS) as made:
        for topic in (TOPIC, ONCE):
            row = {
                "name": topic, "num_partitions": PARTITIONS, "replication_factor": 3, "assignments": [], "configs": []
            }  # fmt: skip
            reply = ask(made, 1, CREATE_TOPICS, 7, {"topics": [row], "timeout": 4000, "validate_only": False})
            assert reply.topics[0].error_code is ErrorCode.none, reply
        yield made


def ask(
    cluster: odradek.Cluster, broker: int, api: int, version: int, message: dict[str, Any], within_s: float = REPLY_S
) -> Any:
    """Raises OSError if no reply comes."""
    with Wire(cluster.address(broker)) as wire:
        wire.socket.settimeout(within_s)
        return wire.call(api, version, message)


def partitions_of(cluster: odradek.Cluster, broker: int) -> list[Any]:
    message = {"topics": [{"topic_id": None, "name": TOPIC}], "allow_auto_topic_creation": False,
               "include_topic_authorized_operations": False}  # fmt: skip
    found = ask(cluster, broker, METADATA, 12, message, LOOK_UP_S).topics[0].partitions
    return sorted(found, key=lambda one: one.partition_index)


class Producing(WorkerThread):
    """Produces to one partition with acks=all, one batch at a time. ``acknowledged``: base offset → key. ``attempts``:
    the requests that were answered or given up."""

    def __init__(self, cluster: odradek.Cluster, index: int, ended: threading.Event) -> None:
        super().__init__(f"producing-{index}")
        self.acknowledged: dict[int, bytes] = {}
        self.refusals: set[ErrorCode] = set()
        self.attempts = 0
        self._cluster, self._index, self._ended = cluster, index, ended
        self._number = 0
        self._leader = 1

    def work(self) -> None:
        while not self._ended.is_set():
            try:
                self._produce()
            except OSError:
                self._look_up()
            self.attempts += 1

    def _produce(self) -> None:
        self._number += 1
        key = f"p{self._index}.{id(self)}.{self._number}".encode()
        data = encode_batch([SimpleRecord(key, random.randbytes(300))], now_ms=int(time.time() * 1000))
        row = {"name": TOPIC, "partition_data": [{"index": self._index, "records": data}]}
        message = {"transactional_id": None, "acks": -1, "timeout": 2_000, "topic_data": [row]}
        reply = ask(self._cluster, self._leader, PRODUCE, 9, message).responses[0].partition_responses[0]
        if reply.error_code is ErrorCode.none:
            self.acknowledged[reply.base_offset] = key
            return
        assert reply.error_code in RETRIED, reply.error_code
        self.refusals.add(reply.error_code)
        self._look_up()

    def _look_up(self) -> None:
        """Asks who leads, the last leader last: a paused broker does not answer."""
        for broker in sorted(BROKERS, key=lambda one: one == self._leader):
            with suppress(OSError):
                leader = partitions_of(self._cluster, broker)[self._index].leader_id
                if leader in BROKERS:
                    self._leader = leader
                    break
        self._ended.wait(0.05)


class Round:
    """One round: what happens to the broker ``victim``, while all partitions are written."""

    def __init__(self, cluster: odradek.Cluster, producers: list[Producing], dice: random.Random) -> None:
        self._cluster, self._producers, self._dice = cluster, producers, dice
        self._victim, self._other, _ = dice.sample(BROKERS, 3)

    def kill(self) -> None:
        self._cluster.kill(self._victim)
        self._wait_for_records()
        self._cluster.start(self._victim)

    def pause(self) -> None:
        self._cluster.pause(self._victim)
        self._wait_for_records()
        self._cluster.resume(self._victim)

    def isolate(self) -> None:
        """Clients reach the broker, and it takes itself for a leader: it must acknowledge nothing."""
        self._cluster.isolate(self._victim)
        self._wait_for_records()
        self._cluster.heal()

    def isolate_and_kill(self) -> None:
        """One of the two brokers that go on is killed, too. No partition has two replicas then."""
        self._cluster.isolate(self._victim)
        self._wait_for_records()
        self._cluster.kill(self._other)
        self._wait_for_attempts()
        self._cluster.heal()
        self._cluster.start(self._other)

    def cut(self) -> None:
        """Cuts one direction between two nodes, or a broker from the other brokers alone. A leader that does not reach
        its followers, and reaches the controller, stays the leader and refuses all records."""
        kind = self._dice.randrange(4)
        if kind == 0:
            self._cluster.partition({self._victim}, set(BROKERS) - {self._victim})
        elif kind == 1:
            self._cluster.cut(self._victim, "controller")
        elif kind == 2:
            self._cluster.cut("controller", self._victim)
        else:
            self._cluster.cut(self._victim, self._other)
        self._wait_for_attempts()
        self._cluster.heal()

    def _wait_for_records(self) -> None:
        """Waits until a record of each partition is acknowledged."""
        before = [len(one.acknowledged) for one in self._producers]
        self._wait(lambda: [len(one.acknowledged) for one in self._producers], before, "acknowledged")

    def _wait_for_attempts(self) -> None:
        """Waits until two requests for each partition were answered or given up: the later one was sent after this."""
        before = [one.attempts + 1 for one in self._producers]
        self._wait(lambda: [one.attempts for one in self._producers], before, "answered")

    def _wait(self, counts: Callable[[], list[int]], before: list[int], what: str) -> None:
        eventually(
            lambda: all(now > had for now, had in zip(counts(), before, strict=True))
            or any(one.failure for one in self._producers),
            within_s=PATIENCE_S, what=f"no record of each partition is {what}",
        )  # fmt: skip


KINDS: tuple[Callable[[Round], None], ...] = (
    Round.kill, Round.isolate, Round.pause, Round.cut, Round.isolate_and_kill, Round.kill
)  # fmt: skip
"""What the first rounds do, in this order. The later ones choose one of them."""


def run_round(cluster: odradek.Cluster, number: int, kept: list[dict[int, bytes]]) -> None:
    """One fault while all partitions are written. Afterwards all replicas are in sync again."""
    dice, ended = random.Random(number), threading.Event()
    producers = [Producing(cluster, index, ended) for index in range(PARTITIONS)]
    for one in producers:
        one.start()
    eventually(lambda: all(one.acknowledged or one.failure for one in producers), within_s=PATIENCE_S)
    kind = KINDS[number] if number < len(KINDS) else dice.choice(KINDS)
    kind(Round(cluster, producers, dice))
    cluster.wait_until_in_sync([TOPIC, ONCE], within_s=PATIENCE_S)
    ended.set()
    for index, one in enumerate(producers):
        one.join(2 * REPLY_S + 5)
        assert one.failure is None, one.failure
        assert not kept[index].keys() & one.acknowledged.keys(), "an offset was given twice"
        kept[index].update(one.acknowledged)
    log.info("round %d: %s", number, kind.__name__)


def run_rounds(cluster: odradek.Cluster, numbers: range) -> None:
    kept: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
    idempotent = [
        [kind(cluster.bootstrap_servers, ONCE, index) for kind in SENDERS[index]] for index in range(PARTITIONS)
    ]
    for number in numbers:
        run_round(cluster, number, kept)
    end_all([one for senders in idempotent for one in senders])
    for index, acknowledged in enumerate(kept):
        found = {row.offset: row.key for row in iter_records(equal_files(cluster, TOPIC, index))}
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    for index, senders in enumerate(idempotent):
        check_once(equal_files(cluster, ONCE, index), senders)
    assert all(kept)


def files_of(cluster: odradek.Cluster, broker: int, topic: str, index: int) -> bytes:
    folder = cluster.data_dir / str(broker) / f"{topic}-{index}"
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def equal_files(cluster: odradek.Cluster, topic: str, index: int) -> bytes:
    """Waits until all replicas have the same bytes, and returns them."""

    def common() -> bytes | None:
        found = {files_of(cluster, one, topic, index) for one in BROKERS}
        return found.pop() if len(found) == 1 else None

    return eventually(common, what=f"{topic}-{index} is not the same on all brokers")


def test_acknowledged_records_survive_kills_pauses_and_cuts(cluster: odradek.Cluster) -> None:
    run_rounds(cluster, range(ROUNDS))


@pytest.mark.slow
def test_acknowledged_records_survive_many_rounds(cluster: odradek.Cluster) -> None:
    run_rounds(cluster, range(ROUNDS, ROUNDS + MORE_ROUNDS))


def test_the_cluster_says_who_leads_and_who_is_behind(cluster: odradek.Cluster) -> None:
    cluster.wait_until_in_sync()
    leader = cluster.leader(TOPIC)
    assert leader in BROKERS
    with pytest.raises(ValueError, match="t has no partition 9: it has 3"):
        cluster.leader(TOPIC, 9)
    cluster.kill(leader)
    eventually(lambda: cluster.leader(TOPIC) not in (leader, None))
    with pytest.raises(BrokerFailed, match=rf"after 1 s, 3 partitions are not in sync: t-0 lacks \[{leader}\]"):
        cluster.wait_until_in_sync([TOPIC], within_s=1)
    cluster.start(leader)
    cluster.wait_until_in_sync()
