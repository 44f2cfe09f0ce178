"""Random sequences of requests: members send valid and invalid requests in any order. The group is described after each
request.

Some of the seeds once found a difference from Apache Kafka.
"""

from __future__ import annotations

import functools
import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from group_requests import Consumer, GroupRequests, Member
from recording import Pending, Run, Scenario
from scenarios_groups_consumer import eager

from odradek.core.errors import ErrorCode

STEPS = 60
NAMES = ("a", "b", "d")
INSTANCES = (None, None, None, "i1", "i2")
PARTITIONS = 5


class Chance:
    """One sequence of requests. Equal seeds give equal sequences."""

    def __init__(self, run: Run, seed: int) -> None:
        self.random = random.Random(seed)
        self.requests: GroupRequests = eager(run)
        self.topic = self.requests.known_topic("a", PARTITIONS)
        self.ghost = run.topic("ghost")
        self.members = [Consumer(self.requests, name) for name in NAMES]
        # A member keeps its instance id over all joins: if it changed, Kafka would look for it under the old one.
        for member in self.members:
            member.instance = self.random.choice(INSTANCES)

    def subscription(self) -> list[str]:
        return self.random.choice(([self.topic], [self.topic], [self.topic, self.ghost], [self.ghost], []))

    def row(self) -> tuple[str, int, int]:
        return self.topic, self.random.randrange(PARTITIONS + 1), self.random.randrange(100)

    def some_of(self, owned: Mapping[uuid.UUID, Sequence[int]]) -> dict[uuid.UUID, list[int]]:
        chosen = {key: [index for index in indexes if self.random.random() < 0.6] for key, indexes in owned.items()}
        return {key: indexes for key, indexes in chosen.items() if indexes}

    def other_epoch(self, member: Consumer) -> int:
        return max(member.epoch + self.random.choice((-2, -1, -1, 1, 2)), 1)

    # --- possible requests --------------------------------------------------------------------------------------

    def join(self, member: Consumer) -> None:
        said: dict[str, Any] = {
            "instance_id": member.instance,
            # Never an empty subscription: Kafka sees no change in it, and may assign partitions of the other members'
            # topics to this member.
            "subscribed_topic_names": self.subscription() or [self.ghost],
            "server_assignor": self.random.choice((None, None, "range", "uniform")),
        }
        member.join(**said)

    def beat(self, member: Consumer) -> None:
        member.beat()

    def confirm(self, member: Consumer) -> None:
        member.confirm()

    def give_up(self, member: Consumer) -> None:
        member.beat(owned=self.some_of(member.assigned))

    def repeat(self, member: Consumer) -> None:
        member.beat(epoch=self.other_epoch(member), owned=self.random.choice((None, {}, self.some_of(member.assigned))))

    def send_all_fields(self, member: Consumer) -> None:
        member.confirm(rebalance_timeout=30_000, subscribed_topic_names=self.subscription())

    def change(self, member: Consumer) -> None:
        said = {"subscribed_topic_names": self.subscription(), "server_assignor": self.random.choice((None, "range"))}
        member.beat(**said)

    def be_another(self, member: Consumer) -> None:
        member.beat(instance_id=self.random.choice(("i1", "i2", None)))

    def leave(self, member: Consumer) -> None:
        member.leave(self.random.choice((-1, -2, -2)))

    def commit(self, member: Consumer) -> None:
        rows = [self.row() for _ in range(self.random.randint(1, 2))]
        epoch = self.random.choice((member.epoch, member.epoch, self.other_epoch(member), -1))
        member.commit(*rows, generation=epoch)

    def fetch(self, member: Consumer) -> None:
        member.fetch(epoch=self.random.choice((member.epoch, self.other_epoch(member))))

    def administer(self, member: Consumer) -> None:
        act = self.random.randrange(4)
        if act == 0:
            self.requests.commit(self.row())
        elif act == 1:
            self.requests.delete_offsets({self.topic: [self.random.randrange(PARTITIONS)]})
        elif act == 2:
            self.requests.leave((member.id, self.random.choice((None, member.instance))))
        elif not self.random.randrange(3):
            self.requests.delete()


WEIGHTS = {
    Chance.join: 6, Chance.beat: 8, Chance.confirm: 14, Chance.give_up: 5, Chance.repeat: 4, Chance.send_all_fields: 3,
    Chance.change: 4, Chance.be_another: 1, Chance.leave: 4, Chance.commit: 5, Chance.fetch: 2, Chance.administer: 3,
}  # fmt: skip


def converse(run: Run, seed: int) -> None:
    chance = Chance(run, seed)
    acts = chance.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    for act in acts:
        act(chance, chance.random.choice(chance.members))
        chance.requests.inspect()
    chance.requests.log()


# --- the classic protocol ---------------------------------------------------------------------------------------

PROTOCOLS = (
    (("range", b"1"), ("roundrobin", b"1")),
    (("range", b"1"), ("roundrobin", b"1")),
    (("range", b"2"), ("roundrobin", b"1")),
    (("roundrobin", b"1"), ("range", b"1")),
    (("range", b"1"),),
    (("sticky", b"1"),),
)


class ClassicChance:
    """Requests of two classic members, one dynamic and one static. With two members the leader is always clear."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run = run
        self.random = random.Random(seed)
        self.requests = GroupRequests(run)
        self.topic = run.topic()
        run.create(self.topic, 2)
        long = {"session_ms": 600_000, "rebalance_ms": 600_000}
        self.members = [Member(self.requests, "a", **long), Member(self.requests, "s", instance="i1", **long)]
        self.waiting: dict[Member, tuple[str, Pending]] = {}
        self.leader = ""

    def look(self) -> None:
        """Receives the replies that have arrived, and adds them to the trace."""
        for member, (kind, pending) in tuple(self.waiting.items()):
            if not pending.is_answered(0.03):
                continue
            del self.waiting[member]
            reply = member.receive_join(pending) if kind == "join" else pending.receive()
            if kind == "join" and reply.error_code is ErrorCode.none:
                self.leader = reply.leader
            self.run.note("answered", {}, [member.client, kind, reply.error_code])

    def other_generation(self, member: Member) -> int:
        return member.generation + self.random.choice((-1, 1, 1))

    # --- possible requests --------------------------------------------------------------------------------------

    def join(self, member: Member) -> None:
        protocols = self.random.choice(PROTOCOLS)
        if member.instance is not None and not self.random.randrange(3):
            member.id = ""  # the member is a new process
        if member.id or member.instance is not None or self.random.random() < 0.8:
            self.waiting[member] = ("join", member.send_join(protocols=protocols))
        else:
            member.name_member(self.requests.join(member.client, protocols=protocols).receive().member_id)

    def sync(self, member: Member) -> None:
        given = {other: b"for " + other.client.encode() for other in self.members if other.id}
        leads = member.id == self.leader and self.random.random() < 0.9
        generation = member.generation if self.random.random() < 0.9 else self.other_generation(member)
        pending = member.syncing(given if leads else {}, generation=generation)
        self.waiting[member] = ("sync", pending)

    def beat(self, member: Member) -> None:
        member.beat(
            self.random.choice((member.generation, member.generation, self.other_generation(member))), client="c"
        )

    def leave(self, member: Member) -> None:
        if self.waiting.get(member, ("",))[0] == "sync":
            return  # Kafka would never reply to the waiting sync
        by_name = member.instance is not None and self.random.random() < 0.5
        self.requests.leave(("" if by_name else member.id, member.instance))
        if member not in self.waiting and self.random.random() < 0.7:
            member.id = ""

    def forget(self, member: Member) -> None:
        # only the static member: a dynamic one would join as a third member, and any of the three could be the leader
        if member not in self.waiting and member.instance is not None:
            member.id = ""

    def commit(self, member: Member) -> None:
        generation = self.random.choice((member.generation, member.generation, self.other_generation(member), -1))
        instance = self.random.choice((member.instance, member.instance, None))
        row = (self.topic, self.random.randrange(2), self.random.randrange(100))
        member.commit(row, generation=generation, instance=instance, client="c")

    def administer(self, member: Member) -> None:
        act = self.random.randrange(4)
        if act == 0:
            self.requests.commit((self.topic, 0, self.random.randrange(100)))
        elif act == 1:
            self.requests.delete_offsets({self.topic: [0]})
        elif act == 2:
            self.requests.fetch()
        elif not self.random.randrange(3):
            self.requests.delete()


CLASSIC_WEIGHTS = {
    ClassicChance.join: 10, ClassicChance.sync: 10, ClassicChance.beat: 5, ClassicChance.leave: 3,
    ClassicChance.forget: 1, ClassicChance.commit: 4, ClassicChance.administer: 2,
}  # fmt: skip
ALONE = (ClassicChance.join, ClassicChance.sync)  # not while the member waits for a reply on its connection


def converse_classic(run: Run, seed: int) -> None:
    chance = ClassicChance(run, seed)
    acts = chance.random.choices(list(CLASSIC_WEIGHTS), list(CLASSIC_WEIGHTS.values()), k=STEPS)
    for act in acts:
        member = chance.random.choice(chance.members)
        if act in ALONE and member in chance.waiting:
            member = chance.members[1 - chance.members.index(member)]
            if member in chance.waiting:
                continue
        act(chance, member)
        chance.look()
        chance.requests.describe()
    chance.requests.log()


def conversation(seed: int) -> Scenario:
    made = functools.partial(converse, seed=seed)
    made.__name__ = f"conversation_{seed}"
    return made


def classic_conversation(seed: int) -> Scenario:
    made = functools.partial(converse_classic, seed=seed)
    made.__name__ = f"classic_conversation_{seed}"
    return made


SCENARIOS: tuple[Scenario, ...] = (
    *(conversation(seed) for seed in (1, 5, 7, 12, 17, 32)),
    *(classic_conversation(seed) for seed in range(6)),
)
