"""The leader of a partition and the coordinator of a group are killed in the middle of the work of each of our clients.

No record is lost, repeated or skipped, no committed offset goes back, and no call fails.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from support.brokers import eventually
from support.worker_thread import WorkerThread

import odradek
from odradek import aio
from odradek.cli.main import run
from odradek.client import NewTopic, TopicPartition
from odradek.client.reader import PartitionReader
from odradek.core.ids import LATEST

TOPIC = "events"
TP = TopicPartition(TOPIC, 0)
SLICE = 50
"""The low-level reader reads so many offsets at a time, and waits for those that are not there yet."""
SYNC, ASYNC = "sync", "async"
STEPS = 20
"""The answers that each client gets before the next fault."""
WITHIN_S = 120.0


class Worker(WorkerThread):
    """One client. ``seen``: offsets and values; ``commits``: acknowledged and looked up offsets, in their order."""

    def __init__(self, cluster: odradek.Cluster, ended: threading.Event) -> None:
        super().__init__(type(self).__name__)
        self.cluster, self.ended = cluster, ended
        self.seen: list[tuple[int, bytes]] = []
        self.commits: list[int] = []
        self.steps = 0

    @property
    def settings(self) -> dict[str, object]:
        return {"bootstrap_servers": self.cluster.bootstrap_servers, "client_id": self.name}


class Sender(Worker):
    def work(self) -> None:
        with odradek.Producer(**self.settings, linger_ms=1) as producer:
            sent = []
            while not self.ended.is_set():
                value = b"s%d" % len(sent)
                sent.append((value, producer.send(TOPIC, value, partition=0)))
                self.steps = sum(one.done() for _, one in sent[-200:]) + max(0, len(sent) - 200)
                self.ended.wait(0.01)
            self.seen = [(one.result().offset, value) for value, one in sent]


class AsyncSender(Worker):
    def work(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        async with aio.Producer(**self.settings, linger_ms=1) as producer:
            while not self.ended.is_set():
                value = b"a%d" % len(self.seen)
                metadata = await producer.send_and_wait(TOPIC, value, partition=0)
                self.seen.append((metadata.offset, value))
                self.steps += 1
                await asyncio.sleep(0.01)  # its pace: the other clients share the machine


class GroupMember(Worker):
    def work(self) -> None:
        with odradek.Consumer(**self.settings, group_id=SYNC, auto_offset_reset="earliest",
                              enable_auto_commit=False) as consumer:  # fmt: skip
            consumer.subscribe([TOPIC])
            while not self.ended.is_set():
                polled = consumer.poll(0.2)
                self.seen += [(one.offset, one.value) for one in polled.records()]
                if polled.next_offsets:
                    consumer.commit(polled.next_offsets)
                    self.commits.append(polled.next_offsets[TP].offset)
                    self.steps += 1


class AsyncGroupMember(Worker):
    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with aio.Consumer(**self.settings, group_id=ASYNC, auto_offset_reset="earliest",
                                enable_auto_commit=False) as consumer:  # fmt: skip
            await consumer.subscribe([TOPIC])
            while not self.ended.is_set():
                polled = await consumer.poll(0.2)
                self.seen += [(one.offset, one.value) for one in polled.records()]
                if polled.next_offsets:
                    await consumer.commit(polled.next_offsets)
                    self.commits.append(polled.next_offsets[TP].offset)
                    self.steps += 1


class LowLevelReader(Worker):
    def work(self) -> None:
        reader = PartitionReader(odradek.client.ClientConfig(**self.settings), TP)
        position = 0
        while not self.ended.is_set():
            for row in reader.read_rows(position, position + SLICE):
                self.seen.append((row.offset, row.value))
                self.steps += 1
            position += SLICE


class Lookups(Worker):
    def work(self) -> None:
        with odradek.Admin(**self.settings) as admin:
            while not self.ended.is_set():
                found = admin.list_group_offsets(SYNC).get(TP)
                self.commits.append(0 if found is None else found.offset)
                names = {one.group_id for one in admin.list_groups()}
                if found is not None:
                    assert SYNC in names
                    members = [one.client_id for one in admin.describe_groups([SYNC])[SYNC].members]
                    assert members == ["GroupMember"] or self.ended.is_set()  # it leaves at the end
                self.steps += 1
                self.ended.wait(0.05)


class Failovers(NamedTuple):
    cluster: odradek.Cluster
    workers: dict[type[Worker], Worker]
    end: int

    def seen(self, kind: type[Worker]) -> list[tuple[int, bytes]]:
        return self.workers[kind].seen


def go_on(workers: list[Worker]) -> None:
    """Waits until each worker has so many more answers."""
    before = {one: one.steps for one in workers}

    def all_do() -> bool:
        for one in workers:
            if one.failure is not None:
                steps = {each.name: each.steps - before[each] for each in workers}
                raise RuntimeError(f"{one.name} has failed; further answers: {steps}") from one.failure
        return all(one.steps >= before[one] + (STEPS if not isinstance(one, Lookups) else 2) for one in workers)

    eventually(all_do, within_s=WITHIN_S, what=f"all go on: {[(one.name, one.steps) for one in workers]}")


def end_of(cluster: odradek.Cluster) -> int:
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        return int(admin.list_offsets({TP: LATEST})[TP].offset)


@pytest.fixture
def failovers() -> Iterator[Failovers]:
    """All clients work, while first the leader and then the coordinator is killed."""
    writing, reading = threading.Event(), threading.Event()
    with odradek.Cluster(3, config={"min.insync.replicas": 2}) as cluster:
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 3)])
        senders = [kind(cluster, writing) for kind in (Sender, AsyncSender)]
        readers = [kind(cluster, reading) for kind in (GroupMember, AsyncGroupMember, LowLevelReader, Lookups)]
        workers: list[Worker] = [*senders, *readers]
        try:
            for one in workers:
                one.start()
            go_on(workers)
            for victim_of in (cluster.leader, lambda _: cluster.coordinator(SYNC), cluster.leader):
                victim = victim_of(TOPIC)
                assert victim is not None
                cluster.kill(victim)
                go_on(workers)
                cluster.start(victim)
                cluster.wait_until_in_sync()
            finish(cluster, writing, senders)
            end = end_of(cluster)
            eventually(lambda: all(one.seen and one.seen[-1][0] == end - 1 for one in readers[:3]), within_s=WITHIN_S)
        finally:
            writing.set()
            reading.set()
        with odradek.Producer(cluster.bootstrap_servers) as producer:  # the reader waits for its next records
            for _ in range(SLICE):
                producer.send(TOPIC, b"end", partition=0)
        for one in readers:
            one.join(WITHIN_S)
            assert one.failure is None, one.name
        yield Failovers(cluster, {type(one): one for one in workers}, end)


def finish(cluster: odradek.Cluster, writing: threading.Event, senders: list[Worker]) -> None:
    """Ends the senders, and fills the last slice of the low-level reader."""
    writing.set()
    for one in senders:
        one.join(WITHIN_S)
        assert one.failure is None, one.name
    with odradek.Producer(cluster.bootstrap_servers) as producer:
        for _ in range(-end_of(cluster) % SLICE):
            producer.send(TOPIC, b"fill", partition=0)


def check_senders(failovers: Failovers) -> None:
    log = dict(failovers.seen(LowLevelReader))
    for kind, letter in ((Sender, b"s"), (AsyncSender, b"a")):
        sent = failovers.seen(kind)
        assert len(sent) > 3 * STEPS
        assert all(log[offset] == value for offset, value in sent)
        written = [value for _, value in sorted(log.items()) if value.startswith(letter)]
        assert written == [value for _, value in sent]


def check_reader(failovers: Failovers) -> None:
    offsets = [offset for offset, _ in failovers.seen(LowLevelReader)]
    assert offsets[: failovers.end] == list(range(failovers.end))


def check_member(failovers: Failovers, kind: type[Worker]) -> None:
    seen = failovers.seen(kind)
    assert [offset for offset, _ in seen][: failovers.end] == list(range(failovers.end))
    assert dict(seen).items() >= dict(failovers.seen(LowLevelReader)[: failovers.end]).items()
    commits = failovers.workers[kind].commits
    assert commits == sorted(commits)
    group = SYNC if kind is GroupMember else ASYNC
    with odradek.Admin(failovers.cluster.bootstrap_servers) as admin:
        assert admin.list_group_offsets(group)[TP].offset == commits[-1]


def check_lookups(failovers: Failovers) -> None:
    found = failovers.workers[Lookups].commits
    assert len(set(found)) > 3
    assert found == sorted(found)


def check_commands(cluster: odradek.Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """Commands for groups ask the coordinators of all brokers."""
    groups = [f"g{number}" for number in range(12)]
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.elect_leaders("preferred")
        for number, group in enumerate(groups):
            admin.alter_group_offsets(group, {TP: number})
        coordinators = {group: admin.coordinator(group).node_id for group in groups}
        assert set(coordinators.values()) == {1, 2, 3}
        assert set(groups) <= {one.group_id for one in admin.list_groups()}
        victim = coordinators[groups[0]]
        cluster.kill(victim)
        assert set(groups) <= {one.group_id for one in admin.list_groups()}
        for number, group in enumerate(groups):
            assert admin.list_group_offsets(group)[TP].offset == number
        eventually(lambda: victim not in {admin.coordinator(group).node_id for group in groups}, within_s=60)
    assert run(["groups", "list", "-b", cluster.bootstrap_servers]) == 0
    assert set(groups) <= set(capsys.readouterr().out.split())
    cluster.start(victim)


@pytest.mark.claim(60, by="by us")
@pytest.mark.claim(96, by="by us")
@pytest.mark.claim(108, by="by us")
@pytest.mark.claim(112, by="by us")
def test_our_clients_lose_skip_and_repeat_nothing_when_leaders_and_coordinators_die(
    failovers: Failovers, capsys: pytest.CaptureFixture[str]
) -> None:
    check_senders(failovers)
    check_reader(failovers)
    for kind in (GroupMember, AsyncGroupMember):
        check_member(failovers, kind)
    check_lookups(failovers)
    check_commands(failovers.cluster, capsys)
