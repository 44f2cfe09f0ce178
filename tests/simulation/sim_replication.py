"""Replicated partitions in a seeded world: real leaders and followers, the real catalogue and the real elections.

The logs are abstract (``support/replica_log``). Three to five brokers have one to three partitions; producers write
with each kind of acks; topics are deleted and created again. Messages are lost, late, repeated and out of order; links
are cut in one direction; brokers are killed, lose power, pause and stop; clocks drift; the controller is away.

What must hold after each event is in ``sim_replication_ledger``. At the end the faults stop, except that a minority of
the brokers is dead. Then each partition has a leader, all living replicas are in sync, and a record is accepted and
read.

A schedule is a list of faults at their times. It can be run without some of them (``shrunk``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from sim_replication_broker import ProduceRequest, ProduceResult, Replica, ReplicaBroker
from sim_replication_clients import ReplicaProducer
from sim_replication_controller import SESSION_MS, ClusterView, IsrAnswer, PartitionName, SimulatedController
from sim_replication_ledger import PartitionLedger, ReplicationLedger
from sim_replication_schedules import ENTRIES, FAULTS_MS, Fault, schedule
from support.replica_log import AbstractBatch
from support.world import START_MS, SimulationFailure, World

from odradek.cluster.partitions.isr_proposals import IsrProposal
from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica
from odradek.replication.effects import FindOffset
from odradek.replication.follower import FetchedPart, NextFetch

PEACE_MS = 8_500
CONTROLLER = 0
LATE_MS = 2_300
"""For how long the requests of a fault "late ISR" come late. A session ends before, and another one can begin."""


class ReplicationScenario:
    """One run of a seed, without the faults whose numbers are in ``without``. ``run`` raises SimulationFailure."""

    def __init__(self, seed: int, without: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.rules, faults = schedule(seed)
        self.faults = [fault for number, fault in enumerate(faults) if number not in without]
        self.world = World(seed, events_at_most=40_000)
        self.dice = self.world.rng
        self.counts: Counter[str] = Counter()
        self.late_work = self.rules.late_work
        self.most_batches = 4
        self._trace: list[tuple[int, str, object]] = []
        self._numbers = 0
        self._has_faults = True
        self._has_lost_power = False
        self._hit: set[int] = set()
        self._written: set[int] = set()
        self._heard: dict[int, int] = {}
        self._cuts: Counter[tuple[int, int]] = Counter()
        self._storms: Counter[int] = Counter()
        self._late: list[Fault] = []
        self._late_since: dict[int, int] = {}
        self.ledger = ReplicationLedger(self.replicas_of, self.may_lose, self.fail)
        unclean = "true" if self.rules.unclean else "false"
        self.controller = SimulatedController(
            seed, self.world.steady, self._on_change, unclean_leader_election_enable=unclean
        )
        drift = self.rules.drift
        self.brokers = {
            number: ReplicaBroker(self, number, self.dice.uniform(1 - drift, 1 + drift))
            for number in range(1, self.rules.brokers + 1)
        }
        self.producers: list[ReplicaProducer] = []
        self.world.checks.append(self.ledger.check)

    # --- the run ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        world = self.world
        for broker in self.brokers.values():
            broker.start()
        self._sessions()
        world.advance(400)
        for number in range(len(self.rules.topics)):
            self._create(number)
        for fault in self.faults:
            world.after(fault.at_ms, partial(self._begin, fault))
        if self.rules.idle_from_ms:
            world.after(self.rules.idle_from_ms, self._rest)
        world.advance(FAULTS_MS + 300)
        self._end_faults()
        self._check_peace()

    def note(self, what: str, about: object = "") -> None:
        self.counts[what] += 1
        self._trace.append((self.world.now_ms, what, about))

    def fail(self, text: str) -> NoReturn:
        raise SimulationFailure(f"seed {self.seed}: {text}")

    def trace(self, last: int = 60) -> list[str]:
        return [f"{(at_ms - START_MS) / 1000:.3f} {what} {about}" for at_ms, what, about in self._trace[-last:]]

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def replicas_of(self, name: PartitionName) -> dict[int, Replica]:
        return {number: broker.replicas[name] for number, broker in self.brokers.items() if name in broker.replicas}

    def may_lose(self, ledger: PartitionLedger) -> bool:
        """Whether committed records of a partition may be lost: the issue's table."""
        if self.rules.unclean:
            return True
        return self._has_lost_power and (not self.rules.is_careful or ledger.min_isr == 1)

    @property
    def longest_pause_ms(self) -> int:
        """Before a producer tries again."""
        return self.rules.patience_ms if self._has_faults else 120

    def some_view(self) -> ClusterView:
        """The metadata that a client gets from some broker."""
        views = [broker.view for broker in self.brokers.values() if broker.is_up and broker.view is not None]
        return self.dice.choice(views) if views else self.controller.view

    # --- the network --------------------------------------------------------------------------------------------

    def send(self, source: int, target: int, work: Callable[[], None]) -> None:
        """A message over the network, from a node to a node. Clients have no cuts."""
        if self._cuts[source, target] > 0:
            return
        times, delay = 1, self.dice.randrange(1, 12)
        if self._has_faults:
            rules, dice = self.rules, self.dice
            storm = self._storms[source] > 0 or self._storms[target] > 0
            if dice.random() < (0.4 if storm else rules.loss):
                return
            times += dice.random() < rules.repeats
            if dice.random() < (0.4 if storm else rules.slow):
                delay = dice.randrange(20, 900 if dice.random() < 0.8 else 4_000)

        def deliver() -> None:
            if self._cuts[source, target] <= 0:
                work()

        for _ in range(times):
            self.world.after(delay, deliver)
            delay += self.dice.randrange(1, 300)

    def _to_controller(self, broker: ReplicaBroker, ask: Callable[[], Callable[[], None] | None]) -> None:
        """``ask`` runs at the controller and returns what the process of the broker does with the answer."""
        number = broker.broker_id

        def arrive() -> None:
            if self.controller.is_up:
                work = ask()
                if work is not None:
                    self.send(CONTROLLER, number, back(work))

        def back(work: Callable[[], None]) -> Callable[[], None]:
            incarnation = broker.incarnation
            return lambda: broker.receive(broker.guarded(work)) if broker.incarnation == incarnation else None

        self.send(number, CONTROLLER, arrive)

    def register(self, broker: ReplicaBroker, incarnation: int, previous_epoch: int) -> None:
        def ask() -> Callable[[], None] | None:
            if broker.incarnation != incarnation:
                return None
            answer = self.controller.register(broker.broker_id, incarnation, previous_epoch)
            if isinstance(answer, ErrorCode):
                return None
            return lambda: broker.on_registered(answer)

        self._to_controller(broker, ask)

    def beat(self, broker: ReplicaBroker, epoch: int, offset: int, *, is_ready: bool, stops: bool) -> None:
        number = self.next_number()

        def ask() -> Callable[[], None] | None:
            if number <= self._heard.get(broker.broker_id, 0):
                return None  # the heartbeats of a process stay in order: they have one connection
            self._heard[broker.broker_id] = number
            answer = self.controller.beat(broker.broker_id, epoch, offset, is_ready=is_ready, stops=stops)
            view = self.controller.view

            def take() -> None:
                broker.learn(view)
                broker.on_beat(answer)

            return take

        self._to_controller(broker, ask)

    def alter(
        self, broker: ReplicaBroker, changes: list[IsrProposal], answer: Callable[[IsrAnswer | ErrorCode], None]
    ) -> None:
        """An AlterPartition. Requests that are sent again have other connections, so they come in any order, but only
        to the process that the connection was opened to."""
        epoch, number, process = broker.epoch, self.next_number(), self.controller.incarnation

        def ask() -> Callable[[], None] | None:
            if self.controller.incarnation != process:
                return None
            answered = self.controller.alter_isrs(broker.broker_id, epoch, changes, number)
            for result in (answered,) if isinstance(answered, ErrorCode) else answered.values():
                self.counts["alter: " + (result.name if isinstance(result, ErrorCode) else "changed")] += 1
            return lambda: answer(answered)

        self.world.after(self._lateness(broker, changes), partial(self._to_controller, broker, ask))

    def _lateness(self, leader: ReplicaBroker, changes: list[IsrProposal]) -> int:
        """Returns how long a request is on its way before the network has it. A fault "late ISR" is for the next leader
        that asks to add a follower: its requests come late, the first one last, and something happens to the follower.
        """
        now_ms, joins = self.world.now_ms, self._joins(changes)
        if self._late and joins:
            self._late_since[leader.broker_id] = now_ms
            self._meanwhile(self._late.pop(), self.brokers[joins[0]], leader.broker_id)
        since_ms = now_ms - self._late_since.get(leader.broker_id, now_ms - LATE_MS)
        if since_ms >= LATE_MS:
            return 0
        first, last = (1_600, LATE_MS) if since_ms else (LATE_MS, 2 * LATE_MS)
        return self.dice.randrange(max(first - since_ms, 20), last - since_ms + 20)

    def _joins(self, changes: list[IsrProposal]) -> list[int]:
        """Returns the brokers that would join an ISR."""
        known = self.controller.view.partitions
        names = [(PartitionName(change.topic_id.int, change.partition_id), change) for change in changes]
        return [
            member.broker_id
            for name, change in names
            for member in change.isr
            if name in known and member.broker_id not in known[name].isr
        ]

    def _meanwhile(self, fault: Fault, broker: ReplicaBroker, leader: int) -> None:
        """The follower begins again with fewer records, or is fenced for some time and does not reach its leader."""
        if self._cuts_power(fault):
            self._begin(Fault(0, "power", broker.broker_id - 1, 0, 200))
            return
        self.note("a follower that joins is cut off", broker.broker_id)
        for whom, for_ms in ((CONTROLLER, 2_000), (leader, 2 * LATE_MS)):
            link = broker.broker_id, whom
            self._cuts[link] += 1
            self.world.after(for_ms, partial(self._cuts.subtract, (link,)))

    def _to_broker(self, source: ReplicaBroker, target: int, work: Callable[[ReplicaBroker], None]) -> None:
        other = self.brokers[target]
        self.send(source.broker_id, target, lambda: other.receive(lambda: work(other)))

    def fetch(
        self,
        broker: ReplicaBroker,
        leader: int,
        name: PartitionName,
        asked: NextFetch,
        answer: Callable[[FetchedPart, list[AbstractBatch]], None],
    ) -> None:
        incarnation, fetching = broker.incarnation, FetchingReplica(broker.broker_id, broker.epoch)

        def reply(part: FetchedPart, batches: list[AbstractBatch]) -> None:
            def take() -> None:
                if broker.incarnation == incarnation:
                    answer(part, batches)

            self.send(leader, broker.broker_id, lambda: broker.receive(take))

        self._to_broker(broker, leader, lambda other: other.on_fetch(name, fetching, asked, reply))

    def find(
        self,
        broker: ReplicaBroker,
        leader: int,
        name: PartitionName,
        asked: FindOffset,
        answer: Callable[[int | ErrorCode], None],
    ) -> None:
        incarnation = broker.incarnation

        def reply(result: int | ErrorCode) -> None:
            def take() -> None:
                if broker.incarnation == incarnation:
                    answer(result)

            self.send(leader, broker.broker_id, lambda: broker.receive(take))

        self._to_broker(broker, leader, lambda other: other.find_offset(name, asked, reply))

    def produce(
        self, client: int, leader: int, request: ProduceRequest, answer: Callable[[ProduceResult], None]
    ) -> None:
        other = self.brokers[leader]

        def reply(result: ProduceResult) -> None:
            lost = self.rules.lost_replies
            if not (lost and self._has_faults and self.dice.random() < lost):
                self.send(leader, client, lambda: answer(result))

        self.send(client, leader, lambda: other.receive(lambda: other.produce(request, reply)))

    # --- the controller and administrators ----------------------------------------------------------------------

    def _on_change(self, before: ClusterView, after: ClusterView) -> None:
        self.ledger.on_change(before, after)
        for name, registration in after.partitions.items():
            if registration is not before.partitions.get(name):
                self.note("partition", (*name, registration))
        for number, broker in self.brokers.items():
            self.send(CONTROLLER, number, partial(broker.receive, partial(broker.learn, after)))

    def _sessions(self) -> None:
        self.controller.end_sessions()
        self.world.after(SESSION_MS // 8, self._sessions)

    def _create(self, number: int) -> None:
        partitions, factor, min_isr = self.rules.topics[number]
        topic_id = 10_000 + self.next_number()
        places = {
            index: tuple(self.dice.sample(list(self.brokers), min(factor, len(self.brokers))))
            for index in range(partitions)
        }
        for index, replicas in places.items():
            self.ledger.add(PartitionName(topic_id, index), min(min_isr, len(replicas)))
        if not self.controller.create(f"t{number}", topic_id, places, min_insync_replicas=str(min_isr)):
            self.world.after(300, lambda: self._create(number))
            return
        if number not in self._written:
            self._written.add(number)
            for index in range(partitions):
                for kind in self._kinds_of_producers():
                    acks = {"acks=1": 1, "acks=0": 0}.get(kind, -1)
                    producer = ReplicaProducer(self, len(self.producers), f"t{number}", index, acks)
                    if kind == "idempotent":
                        producer.make_idempotent()
                    self.producers.append(producer)
                    producer.run()

    def _kinds_of_producers(self) -> list[str]:
        if self.rules.lost_replies:
            return ["idempotent", "acks=1"]
        return self.dice.sample(("plain", "idempotent", "acks=1", "acks=0"), self.dice.randrange(1, 3))

    def _delete(self, number: int) -> None:
        topic_id = self.controller.view.topics.get(f"t{number}")
        if topic_id is not None and self.controller.is_up:
            self.note("topic deleted", topic_id)
            self.controller.delete(topic_id)
            self.world.after(self.dice.randrange(100, 1_500), lambda: self._create(number))

    # --- faults -------------------------------------------------------------------------------------------------

    def _may_hit(self, broker: ReplicaBroker) -> bool:
        """Whether one more broker may be lost. Fewer than the minimum at a time, in careful schedules with losses of
        power: then the former must be in sync again."""
        if not self.rules.is_careful or not any(map(self._cuts_power, self.faults)):
            return True
        minima = [ledger.min_isr for ledger in self.ledger.partitions.values() if ledger.min_isr > 1]
        if not minima:
            return True
        if self._is_in_sync():
            self._hit.clear()
        if len(self._hit | {broker.broker_id}) >= min(minima):
            return False
        self._hit.add(broker.broker_id)
        return True

    @staticmethod
    def _cuts_power(fault: Fault) -> bool:
        return fault.kind == "power" or (fault.kind == "late ISR" and fault.whom % 2 == 1)

    def _is_in_sync(self) -> bool:
        view = self.controller.view
        for name, registration in view.partitions.items():
            living = 0
            for number in registration.isr:
                broker = self.brokers[number]
                if broker.is_up and broker.epoch == view.brokers[number].epoch:
                    living += 1
                else:
                    return False
            if living < self.ledger.partitions[name].min_isr:
                return False
        return True

    def _begin(self, fault: Fault) -> None:
        broker = self.brokers[fault.who + 1]
        number = broker.broker_id
        after = self.world.after
        if fault.kind in ("kill", "power"):
            if self._may_hit(broker):
                self._has_lost_power |= fault.kind == "power"
                broker.kill(power=fault.kind == "power")
                after(fault.for_ms, broker.start)
        elif fault.kind == "pause" and broker.is_up and not broker.is_paused:
            broker.pause()
            after(fault.for_ms, broker.resume)
        elif fault.kind in ("cut", "one-way cut"):
            links = (
                {(number, fault.whom)} if fault.kind == "one-way cut" else {(number, fault.whom), (fault.whom, number)}
            )
            self.note(fault.kind, f"{number} {fault.whom}")
            self._cuts.update(links)
            after(fault.for_ms, lambda: self._cuts.subtract(links))
        elif fault.kind == "storm":
            self.note("storm", number)
            self._storms[number] += 1
            after(fault.for_ms, lambda: self._storms.subtract((number,)))
        elif fault.kind == "isolate":
            self._isolate(fault)
        elif fault.kind == "late ISR":
            self._late.append(fault)
        elif fault.kind == "stop":
            if broker.is_up and self._may_hit(broker):
                broker.stops = True
                after(2_000 + fault.for_ms, broker.start)
        elif fault.kind == "controller" and self.controller.is_up:
            self.note("the controller is away")
            self.controller.is_up = False
            after(fault.for_ms, self.controller.restart)
        elif fault.kind == "delete":
            self._delete(fault.who % len(self.rules.topics))
        elif fault.kind == "elect" and self.controller.is_up:
            self.controller.elect(unclean=self.rules.unclean and fault.whom % 2 == 0)
        elif fault.kind == "retention" and broker.is_up and not broker.is_paused:
            broker.delete_records()
        elif fault.kind == "store" and broker.is_up and not broker.is_paused:
            broker.store()

    def _isolate(self, fault: Fault) -> None:
        """Cuts a leader off from all nodes. Clients reach it."""
        leaders = [one.leader for one in self.controller.view.partitions.values() if one.leader > 0]
        if not leaders or any(self._cuts.values()):
            return
        self.note("isolate", leaders[0])
        others = {CONTROLLER, *self.brokers} - {leaders[0]}
        links = {(leaders[0], one) for one in others} | {(one, leaders[0]) for one in others}
        self._cuts.update(links)
        self.world.after(fault.for_ms, lambda: self._cuts.subtract(links))

    def _rest(self) -> None:
        for producer in self.producers:
            producer.is_idle = True

    # --- the end ------------------------------------------------------------------------------------------------

    def _end_faults(self) -> None:
        """Everything works again, but a minority of the brokers is dead."""
        self.note("the faults end")
        self._has_faults, self.late_work, self.most_batches = False, 0.0, 50
        self._cuts.clear()
        self._late.clear()
        self._late_since.clear()
        self.controller.restart()
        for broker in self.brokers.values():
            if broker.is_paused:
                broker.resume()
            if broker.stops and broker.is_up:
                broker.end_cleanly()  # the loss of one more broker is no part of the schedule
            broker.start()
        self.world.advance(2 * PEACE_MS // 5)
        for producer in self.producers:
            producer.is_idle = self.rules.is_idle or self.rules.idle_from_ms > 0
        self.dead = self._minority()
        for number in self.dead:
            self.brokers[number].kill()
        self.world.advance(2 * PEACE_MS // 5)

    def _minority(self) -> list[int]:
        """Returns brokers without which each partition has enough replicas, and one that may lead."""
        dead: list[int] = []
        for number in self.dice.sample(list(self.brokers), (len(self.brokers) - 1) // 2):
            gone = {*dead, number}
            for name, one in self.controller.view.partitions.items():
                may_lead = set(one.isr or one.elr or one.last_known_elr) - gone
                if not may_lead or len(set(one.replicas) - gone) < self.ledger.partitions[name].min_isr:
                    break
            else:
                dead.append(number)
        return dead

    def _check_peace(self) -> None:
        if self.rules.idle_from_ms:
            self._check_replicas(0)
        self._check_replicas(20 if not self.rules.is_idle else 0)
        accepted = {producer: producer.accepted for producer in self.producers}
        for producer in self.producers:
            producer.is_idle = False
        self.world.advance(PEACE_MS // 5)
        for producer, before in accepted.items():
            if producer.acks and producer.accepted == before:
                self.fail(f"no record of {producer.about} is accepted at the end")
        self._check_replicas(20)
        for name in self.controller.view.partitions:
            ledger = self.ledger.partitions[name]
            self.counts.update({"lost": ledger.lost, "acknowledged": ledger.acknowledged})

    def _check_replicas(self, most: int) -> None:
        """Each partition has a leader, its living replicas are in sync, and readers are at most so far behind."""
        for name, registration in self.controller.view.partitions.items():
            living = {number for number in registration.replicas if number not in self.dead}
            if registration.leader not in living:
                self.fail(f"{name} has no leader at the end: {registration}")
            if missing := living - set(registration.isr):
                self.fail(f"{name}: brokers {missing} live and are not in the ISR at the end: {registration}")
            end = self.brokers[registration.leader].replicas[name].log.log_end_offset
            for number in living:
                behind = end - self.brokers[number].replicas[name].log.high_watermark
                if behind > most:
                    self.fail(f"{name}: readers of broker {number} are {behind} records behind {end} at the end")


def shrunk(seed: int, failure: Callable[[int, frozenset[int]], str]) -> frozenset[int]:
    """Returns the faults without which a seed still fails in the same way, tried one after another."""
    without: frozenset[int] = frozenset()
    kind = _kind(failure(seed, without))
    for number in range(ENTRIES):
        if _kind(failure(seed, without | {number})) == kind:
            without |= {number}
    return without


def _kind(failure: str) -> str:
    return re.sub(r"[^a-z ]", "", failure)[:200]
