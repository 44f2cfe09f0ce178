"""Offsets in transactions beside rebalances: two members with two producers, in a classic and in a KIP-848 group.

Members join, leave and rebalance while transactions are open, and the coordinator restarts. A commit of a former member
gets UNKNOWN_MEMBER_ID, one of another generation or epoch ILLEGAL_GENERATION, and both change nothing. Rebalances and
restarts keep pending offsets. An aborted transaction leaves the committed offsets as they were.
"""

from __future__ import annotations

import random

import pytest
from support.consumer_harness import Client, settle
from support.transaction_harness import OTHER, PRODUCER, TransactionHarness

from odradek.core.errors import ErrorCode
from odradek.core.ids import ProducerIdentity

OK, UNKNOWN, ILLEGAL = ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.illegal_generation
PARTITIONS = 3
Member = tuple[str, int]
"""The id of a member, and its generation or epoch."""


class Group:
    """The group ``g`` and a model of its offsets."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.harness = TransactionHarness(partition_count=1)
        self.harness.catalog.add("t", PARTITIONS)
        self.number = 0
        self.committed: dict[int, tuple[int, int]] = {}
        self.pending: dict[ProducerIdentity, dict[int, tuple[int, int]]] = {PRODUCER: {}, OTHER: {}}
        self.gone: list[Member] = []
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def members(self) -> list[Member]:
        raise NotImplementedError

    def rebalance(self) -> None:
        raise NotImplementedError

    def replace(self) -> None:
        """One member leaves and another one joins."""
        raise NotImplementedError

    def in_rebalance(self) -> None:
        """Commits in the middle of a rebalance."""
        raise NotImplementedError

    # commits

    def commit(self, member: Member, expected: ErrorCode = OK) -> None:
        producer = self.chance.choice((PRODUCER, OTHER))
        partitions = self.chance.sample(range(PARTITIONS), self.chance.randrange(1, PARTITIONS + 1))
        self.number += 1
        offsets = dict.fromkeys(partitions, self.number)
        error = self.harness.txn_commit("g", "t", offsets, producer, member=member[0], generation=member[1])
        assert error is expected, f"{member} of {self.members()} got {error.name}"
        if expected is OK:
            self.pending[producer] |= dict.fromkeys(partitions, (self.number, self.number))

    def commit_plainly(self, member: Member) -> None:
        partition = self.chance.randrange(PARTITIONS)
        self.number += 1
        found = self.harness.commit("g", "t", {partition: self.number}, member=member[0], generation=member[1])
        assert found == {partition: OK}
        self.committed[partition] = self.number, self.number

    def end(self) -> None:
        producer, is_commit = self.chance.choice((PRODUCER, OTHER)), self.chance.random() < 0.5
        assert self.harness.end(producer, commit=is_commit) is OK
        for partition, record in self.pending[producer].items():
            if is_commit and record > self.committed.get(partition, (-1, -1)):
                self.committed[partition] = record
        self.pending[producer] = {}

    def restart(self) -> None:
        self.harness.restart()

    def check(self) -> None:
        asked = {"t": list(range(PARTITIONS))}
        there = {partition: self.committed.get(partition, (-1, -1))[1] for partition in range(PARTITIONS)}
        assert self.harness.fetched("g", asked, require_stable=False)["t"] == there
        unstable = {partition for offsets in self.pending.values() for partition in offsets}
        stable = {
            partition: ErrorCode.unstable_offset_commit if partition in unstable else offset
            for partition, offset in there.items()
        }
        assert self.harness.fetched("g", asked)["t"] == stable

    def step(self) -> None:
        members = self.members()
        member = self.chance.choice(members)
        choice = self.chance.randrange(12)
        match choice:
            case 0:
                self.rebalance()
            case 1:
                self.replace()
            case 2:
                self.in_rebalance()
            case 3:
                self.restart()
            case 4 | 5:
                self.end()
            case 6:
                self.commit_plainly(member)
            case 7:
                self.commit((member[0], member[1] + 1), ILLEGAL)
                self.commit(("no member", member[1]), UNKNOWN)
                for gone in self.gone[-2:]:
                    self.commit(gone, UNKNOWN if gone[0] not in {name for name, _ in members} else ILLEGAL)
            case 8:
                self.commit(("", -1))  # an older producer sends no member
            case _:
                self.commit(member)
        self.check()


class ClassicRebalances(Group):
    def begin(self) -> None:
        self.names = self.harness.stable("g", 2)

    def members(self) -> list[Member]:
        generation = self.harness.generation("g")
        return [(name, generation) for name in self.names]

    def _sync(self) -> None:
        generation = self.harness.generation("g")
        shares = {name: name.encode() for name in self.names}
        syncs = [self.harness.sync("g", name, generation, shares) for name in self.names]
        assert all(sync.reply.error_code is OK for sync in syncs)

    def rebalance(self) -> None:
        self.gone = self.members()
        for name in self.names:
            self.harness.join("g", name)
        self._sync()

    def replace(self) -> None:
        self.gone = self.members()[:1]
        assert self.harness.leave("g", self.names.pop(0)) == [OK]
        self.names.append(self.harness.member("g"))
        for name in self.names:
            self.harness.join("g", name)
        self._sync()

    def in_rebalance(self) -> None:
        before = self.members()
        self.harness.join("g", self.names[0])
        for member in before:
            self.commit(member)  # the old generation is the group's until all have joined
        self.end()
        self.harness.join("g", self.names[1])
        for member in self.members():
            self.commit(member)  # the assignment is not sent yet
        self.commit(before[0], ILLEGAL)
        self.check()
        self._sync()
        self.gone = before


class ConsumerRebalances(Group):
    def begin(self) -> None:
        self.count = 0
        self.clients: list[Client] = []
        self._join()
        self._join()

    def _join(self) -> None:
        self.count += 1
        self.clients.append(Client(self.harness, "g", f"member-{self.count}", ("t",)))
        settle(self.harness, *self.clients)

    def members(self) -> list[Member]:
        return [(client.member_id, client.epoch) for client in self.clients]

    def rebalance(self) -> None:
        """A third member joins and leaves."""
        self._join()
        self.gone = [(self.clients[-1].member_id, self.clients[-1].epoch)]
        self.clients.pop().leave()
        settle(self.harness, *self.clients)

    def replace(self) -> None:
        self.gone = self.members()[:1]
        self.clients.pop(0).leave()
        self._join()

    def in_rebalance(self) -> None:
        """A member has joined, and the other ones have not given up their partitions yet."""
        newcomer = Client(self.harness, "g", f"member-{self.count + 1}", ("t",))
        self.count += 1
        newcomer.beat()
        for member in self.members():
            self.commit(member)
        self.end()
        self.clients[0].beat()
        self.commit(self.members()[0])
        self.commit((newcomer.member_id, newcomer.epoch))
        self.check()
        self.clients.append(newcomer)
        settle(self.harness, *self.clients)
        self.gone = [(newcomer.member_id, newcomer.epoch)]
        self.clients.pop().leave()
        settle(self.harness, *self.clients)


@pytest.mark.parametrize("kind", [ClassicRebalances, ConsumerRebalances])
@pytest.mark.parametrize("seed", range(3))
def test_transactional_offsets_survive_rebalances_and_fence_members(kind: type[Group], seed: int) -> None:
    group = kind(seed)
    for _ in range(25):
        group.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ClassicRebalances, ConsumerRebalances])
@pytest.mark.parametrize("seed", range(100, 130))
def test_transactional_offsets_survive_thousands_of_rebalances(kind: type[Group], seed: int) -> None:
    group = kind(seed)
    for _ in range(150):
        group.step()
