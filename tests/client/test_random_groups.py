"""Random scenarios of groups whose members join, leave, die and commit: many groups at a time on one broker.

A partition never has two living owners. But an owner whose session has ended may learn of its loss later. A member
starts at the committed offset or later, and gets the records in order without gaps. No record is committed before it is
processed. In the end every record was processed at least once. Every record was processed exactly once if no member
died, no commit was refused and no member lost a partition.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from support.brokers import RunningBroker
from support.insides import engine_of

from odradek import Consumer, aio
from odradek.client import CommitFailed, NewTopic, TopicPartition, Wakeup, loop
from odradek.client.consumer.engine import ConsumerEngine
from odradek.core.errors import ErrorCode, KafkaError

CONFIG = {
    "group_consumer_min_heartbeat_interval_ms": "50",
    "group_consumer_heartbeat_interval_ms": "50",
    "group_consumer_assignment_interval_ms": "0",
    "group_consumer_min_session_timeout_ms": "500",
    "group_consumer_session_timeout_ms": "1000",
    "group_min_session_timeout_ms": "500",
}
KINDS = ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer", "mixed")
"""The kinds of groups. The first four are classic groups with these assignors. ``consumer``: KIP-848 groups. ``mixed``:
groups whose members change to the other protocol and back."""
EVENTS = 14
PATIENCE_S = 60


class Member:
    """A consumer and the task that polls it. ``commits`` says how the member commits processed records."""

    made: Callable[..., Any] = aio.Consumer

    def __init__(self, scenario: Scenario, number: int) -> None:
        dice = scenario.dice
        self.scenario = scenario
        self.name = f"m{number}"
        self.alive = True
        self.ends = False
        self.commits = dice.choice(("sync", "async", "auto"))
        self.next: dict[TopicPartition, int] = {}
        """For each owned partition, the offset of the next record; -1 before the first record."""
        kind = scenario.kind if scenario.kind != "mixed" else dice.choice(("cooperative-sticky", "consumer"))
        settings: dict[str, Any] = {"group_protocol": "consumer"} if kind == "consumer" else {
            "partition_assignment_strategy": [kind], "session_timeout_ms": 1_000, "heartbeat_interval_ms": 50,
        }  # fmt: skip
        self.consumer: Any = self.made(
            scenario.bootstrap, group_id=scenario.group, auto_offset_reset="earliest", fetch_max_wait_ms=20,
            enable_auto_commit=self.commits == "auto", auto_commit_interval_ms=dice.choice((1, 50, 5_000)),
            max_poll_records=dice.choice((1, 7, 500)), retry_backoff_ms=20, **settings,
        )  # fmt: skip
        self.pause_s = dice.choice((0.0, 0.0, 0.01, 0.05))
        self.dice = random.Random(dice.random())
        self.dies = False
        self.task = asyncio.ensure_future(self.poll_until_end())

    async def poll_until_end(self) -> None:
        await self.consumer.subscribe(
            [self.scenario.topic], on_assigned=self.on_assigned, on_revoked=self.on_revoked, on_lost=self.on_lost
        )
        while not self.ends:
            try:
                polled = await self.consumer.poll(self.dice.choice((0.0, 0.02, 0.1)))
            except KafkaError as error:
                if not self.scenario.cannot_change_over(error):
                    raise
                break
            self.process(polled)
            if polled and self.commits != "auto":
                await self.commit(dict(polled.next_offsets))
            if self.pause_s:
                await asyncio.sleep(self.pause_s)
        await self.consumer.close()
        self.has_closed()

    def has_closed(self) -> None:
        self.alive = False
        assert not self.next, f"{self.name} closed without a callback for {self.next}"

    def process(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        for tp, batches in polled.items():
            for batch in batches:
                self.process_batch(tp, batch.column("offset").to_pylist(), batch.column("value").to_pylist())

    def process_batch(self, tp: TopicPartition, offsets: Sequence[int], values: Sequence[bytes]) -> None:
        assert tp in self.next, f"{self.name} got records of {tp}, which it does not own"
        if self.next[tp] < 0:
            begin = offsets[0]
            assert all(self.scenario.processed[tp][offset] for offset in range(begin)), f"{tp} starts late at {begin}"
            self.next[tp] = begin
        assert list(offsets) == list(range(self.next[tp], self.next[tp] + len(offsets))), (self.name, tp, offsets)
        assert [int(value) for value in values] == list(offsets)
        self.next[tp] += len(offsets)
        self.scenario.processed[tp].update(offsets)

    async def commit(self, offsets: dict[TopicPartition, Any]) -> None:
        mine = {tp: place for tp, place in offsets.items() if tp in self.next}
        with self.scenario.may_be_refused():
            if self.commits == "sync":
                await self.consumer.commit(mine)
            else:
                await self.consumer.commit_async(mine, self.on_committed)

    def on_committed(self, offsets: object, error: Exception | None) -> None:
        self.scenario.refused += error is not None

    def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            owner = self.scenario.owners.get(tp)
            if owner is not None and owner.alive:
                self.scenario.taken[owner.name, tp] = f"{tp} was assigned to {self.name} while {owner.name} owned it"
            assert tp not in self.next
            self.scenario.owners[tp] = self
            self.next[tp] = -1
        self.scenario.assignments += 1

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        done = self.done(partitions)
        if done and self.commits != "auto":
            await self.commit(done)
        self.give_up(partitions)

    def done(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets to commit for revoked partitions, which no other member may own yet."""
        for tp in partitions:
            taken = self.scenario.taken.pop((self.name, tp), None)
            self.scenario.lost += taken is not None
            assert taken is None or self.ends, taken  # a closing member may not know of the loss yet
        return {tp: self.next[tp] for tp in partitions if self.next[tp] >= 0}

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.scenario.lost += 1
        for tp in partitions:
            self.scenario.taken.pop((self.name, tp), None)
        self.give_up(partitions)

    def give_up(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            del self.next[tp]
            if self.scenario.owners.get(tp) is self:
                del self.scenario.owners[tp]

    def has_died(self) -> None:
        self.alive = False
        for name, tp in list(self.scenario.taken):
            if name == self.name:
                del self.scenario.taken[name, tp]  # a dead member gets no callback

    async def die(self) -> None:
        """Closes the member's connections, without a last commit and without LeaveGroup."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.has_died()
        if self.consumer._made is not None:
            await close_connections(self.consumer._made)
        self.next.clear()


class ThreadedMember(Member):
    """A member with ``odradek.Consumer`` in its own thread."""

    made = Consumer

    async def poll_until_end(self) -> None:
        await asyncio.to_thread(self.poll_in_thread)

    def poll_in_thread(self) -> None:
        with suppress(Wakeup):
            self.consumer.subscribe(
                [self.scenario.topic],
                on_assigned=self.on_assigned,
                on_revoked=self.on_revoked_in_thread,
                on_lost=self.on_lost,
            )
            while not self.ends and not self.dies:
                try:
                    polled = self.consumer.poll(self.dice.choice((0.0, 0.02, 0.1)))
                except KafkaError as error:
                    if not self.scenario.cannot_change_over(error):
                        raise
                    break
                self.process(polled)
                if polled and self.commits != "auto":
                    self.commit_in_thread(dict(polled.next_offsets))
                time.sleep(self.pause_s)
        if not self.dies:
            self.consumer.close()
            self.has_closed()

    def on_revoked_in_thread(self, partitions: Sequence[TopicPartition]) -> None:
        done = self.done(partitions)
        if done and self.commits != "auto":
            self.commit_in_thread(done)
        self.give_up(partitions)

    def commit_in_thread(self, offsets: dict[TopicPartition, Any]) -> None:
        mine = {tp: place for tp, place in offsets.items() if tp in self.next}
        with self.scenario.may_be_refused():
            if self.commits == "sync":
                self.consumer.commit(mine)
            else:
                self.consumer.commit_async(mine, self.on_committed)

    async def die(self) -> None:
        if self.alive and not self.consumer._closed:
            self.dies = True
            self.consumer.wakeup()
        await asyncio.gather(self.task, return_exceptions=True)
        self.has_died()
        if not self.consumer._closed:
            self.consumer._closed = True
            await asyncio.wrap_future(loop.start(close_connections(engine_of(self.consumer))))
        self.next.clear()


async def close_connections(engine: ConsumerEngine) -> None:
    if engine.watch_task is not None:
        engine.watch_task.cancel()
    await engine.group.close()
    await engine.fetcher.close()
    await engine._cluster.close()


class Scenario:
    def __init__(self, bootstrap: str, seed: int, warnings: list[str], *, deaths: bool) -> None:
        self.warnings = warnings
        self.dice = random.Random(seed)
        self.bootstrap = bootstrap
        self.topic = self.group = f"chance-{seed}"
        self.kind = KINDS[seed % len(KINDS)]
        self.deaths = deaths
        self.partitions = [TopicPartition(self.topic, number) for number in range(self.dice.randint(1, 6))]
        self.sent = dict.fromkeys(self.partitions, 0)
        self.processed: dict[TopicPartition, Counter[int]] = {tp: Counter() for tp in self.partitions}
        self.owners: dict[TopicPartition, Member] = {}
        self.taken: dict[tuple[str, TopicPartition], str] = {}
        """Messages about partitions that got a new owner before the former owner's callback. This may happen if a busy
        machine lets a session end. The former owner then gets ``on_lost`` and no ``on_revoked``."""
        self.members: list[Member] = []
        self.died = self.refused = self.lost = self.assignments = 0

    @contextmanager
    def may_be_refused(self) -> Iterator[None]:
        try:
            yield
        except CommitFailed:
            self.refused += 1
        except KafkaError as error:
            if error.code is not ErrorCode.rebalance_in_progress:
                raise
            self.refused += 1

    def cannot_change_over(self, error: KafkaError) -> bool:
        """Whether a classic group cannot change its protocol yet, because it has had no rebalance. Apache Kafka then
        replies with UNKNOWN_SERVER_ERROR."""
        if "has no protocol yet" in str(error):
            return True
        on_kafka = bool(os.environ.get("ODRADEK_TEST_ORACLE"))
        return on_kafka and self.kind == "mixed" and error.code is ErrorCode.unknown_server_error

    def _join(self, number: int) -> None:
        self.members.append(self.dice.choice((Member, ThreadedMember))(self, number))

    async def run(self) -> Scenario:
        async with aio.Admin(self.bootstrap) as admin, aio.Producer(self.bootstrap, linger_ms=0) as producer:
            await admin.create_topics([NewTopic(self.topic, len(self.partitions), 1)])
            try:
                await asyncio.wait_for(self._run_events(admin, producer), PATIENCE_S)
            except TimeoutError:
                raise AssertionError(f"the scenario makes no progress: {self._state()}") from None
            finally:
                for member in self.members:
                    await member.die()
        return self

    async def _run_events(self, admin: aio.Admin, producer: aio.Producer) -> None:
        self._join(0)
        for number in range(1, EVENTS + 1):
            await self._send(producer)
            living = [member for member in self.members if member.alive and not member.ends]
            event = self.dice.random()
            if not living or (event < 0.4 and len(living) < 4):
                self._join(number)
            elif event < 0.55 and len(living) > 1:
                self.dice.choice(living).ends = True
            elif event < 0.7 and self.deaths:
                self.died += 1
                await self.dice.choice(living).die()
            elif event < 0.85:
                await self._check_commits(admin)
            await asyncio.sleep(self.dice.choice((0.0, 0.02, 0.1, 0.3)))
            self._raise_early()
        if not any(member.alive and not member.ends for member in self.members):
            self._join(EVENTS + 1)
        while any(len(self.processed[tp]) < count for tp, count in self.sent.items()):
            await asyncio.sleep(0.02)
            self._raise_early()
        for member in self.members:
            member.ends = True
        await asyncio.gather(*(member.task for member in self.members if member.alive))
        await self._check_commits(admin)
        # A group in the last phase of a rebalance refuses commits, as in Kafka. A refused automatic one is a warning.
        self.refused += sum(f"group {self.group}:" in line and "automatic commit" in line for line in self.warnings)
        twice = {tp: [n for n, times in seen.items() if times > 1] for tp, seen in self.processed.items()}
        assert not self.taken, list(self.taken.values())
        if not self.died and not self.refused and not self.lost:
            assert not any(twice.values()), f"without deaths, losses or refusals, records came twice: {twice}"

    async def _send(self, producer: aio.Producer) -> None:
        for _ in range(self.dice.choice((1, 10, 40))):
            tp = self.dice.choice(self.partitions)
            await producer.send(tp.topic, b"%d" % self.sent[tp], partition=tp.partition)
            self.sent[tp] += 1
        if self.dice.random() < 0.3:
            await producer.flush()

    async def _check_commits(self, admin: aio.Admin) -> None:
        for tp, place in (await admin.list_group_offsets(self.group)).items():
            missed = [n for n in range(place.offset) if not self.processed[tp][n]]
            assert not missed, f"{tp}: {place.offset} was committed, but {missed} were not processed"

    def _raise_early(self) -> None:
        for member in self.members:
            if member.task.done() and not member.task.cancelled() and (error := member.task.exception()) is not None:
                raise error

    def _state(self) -> str:
        left = {tp.partition: count - len(self.processed[tp]) for tp, count in self.sent.items()}
        owners = {tp.partition: owner.name for tp, owner in self.owners.items()}
        names = [f"{one.name}{'' if one.alive else ' dead'}{' ends' if one.ends else ''}" for one in self.members]
        return f"{self.kind}, members {names}, records left {left}, owners {owners}"


async def run_scenarios(bootstrap: str, seeds: Sequence[int], *, deaths: bool) -> list[Scenario]:
    """Runs the scenarios of all seeds concurrently."""

    warnings: list[str] = []
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: warnings.append(record.getMessage())

    async def run_one(seed: int) -> Scenario:
        try:
            return await Scenario(bootstrap, seed, warnings, deaths=deaths).run()
        except BaseException as error:
            error.add_note(f"in the scenario of seed {seed} (deaths={deaths})")
            raise

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(100))
    logging.getLogger("odradek.consumer").addHandler(listener)
    try:
        return list(await asyncio.gather(*(run_one(seed) for seed in seeds)))
    finally:
        logging.getLogger("odradek.consumer").removeHandler(listener)


@pytest.mark.claim(38)
@pytest.mark.claim(31, 35, 37, 61, 62, 70, part=True)
@pytest.mark.parametrize("deaths", [False, True], ids=["no deaths", "some deaths"])
def test_random_groups_process_every_record(own_broker: Callable[..., RunningBroker], *, deaths: bool) -> None:
    broker = own_broker(**CONFIG)
    scenarios = asyncio.run(run_scenarios(broker.bootstrap, range(12), deaths=deaths))
    assert sum(scenario.assignments for scenario in scenarios) > 30
    assert all(not scenario.died for scenario in scenarios) or deaths


@pytest.mark.slow
@pytest.mark.parametrize("round_number", range(8))
@pytest.mark.parametrize("deaths", [False, True], ids=["no deaths", "some deaths"])
def test_many_random_groups_process_every_record(
    own_broker: Callable[..., RunningBroker], round_number: int, *, deaths: bool
) -> None:
    broker = own_broker(**CONFIG)
    for first in range(100 + round_number * 60, 100 + (round_number + 1) * 60, 12):
        asyncio.run(run_scenarios(broker.bootstrap, range(first, first + 12), deaths=deaths))
