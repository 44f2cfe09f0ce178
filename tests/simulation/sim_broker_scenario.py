"""A schedule of a seed: what clients do and what goes wrong, at which times. It can be run without some of its entries.

After the last entry nothing goes wrong any more: the broker runs, all transactions end, and everything is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from sim_broker import BrokerStage, Gone
from sim_broker_clients import (
    SimulatedAdministrator,
    SimulatedClient,
    SimulatedCommitter,
    SimulatedProducer,
    SimulatedReader,
    SimulatedTransactions,
    check_offset,
    check_transaction,
    read_offset,
)
from sim_broker_members import GroupLedger, SimulatedMember

ENTRIES = 70
STEP_MS = 400
QUIET_MS = 60_000


class Entry(NamedTuple):
    """At ``at_ms`` after the start, somebody does something."""

    at_ms: int
    what: str
    who: int
    seed: int


WORK = {
    "send": 30, "transact": 24, "commit": 10, "read offset": 6, "read": 14, "administer": 10, "member": 8,
    "end of member": 3,
}  # fmt: skip
FAULTS = {"kill": 3, "power cut": 3, "torn power cut": 2, "stop": 2, "full disk": 2, "disk error": 1, "hang up": 4}


def schedule(seed: int) -> list[Entry]:
    """Returns the entries of a seed."""
    chance = random.Random(f"schedule {seed}")
    kinds = WORK | FAULTS
    names = chance.choices(list(kinds), list(kinds.values()), k=ENTRIES)
    at_ms, entries = 0, []
    for name in names:
        at_ms += int(chance.expovariate(1 / STEP_MS))
        entries.append(Entry(at_ms, name, chance.randrange(100), chance.getrandbits(32)))
    return entries


class BrokerScenario:
    """One run of a seed, without the entries whose numbers are in ``without``."""

    def __init__(self, seed: int, without: frozenset[int] = frozenset()) -> None:
        self.seed = seed
        self.stage = stage = BrokerStage(seed)
        self.entries = [entry for number, entry in enumerate(schedule(seed)) if number not in without]
        self.producers = [
            SimulatedProducer(stage, f"producer-{number}", seed, is_idempotent=number > 0) for number in range(3)
        ]
        self.transactions = [
            SimulatedTransactions(stage, f"transactions-{number}", seed, is_old=number == 1) for number in range(2)
        ]
        self.committers = [SimulatedCommitter(stage, f"committer-{number}", seed) for number in range(2)]
        self.readers = [SimulatedReader(stage, f"reader-{number}", seed) for number in range(2)]
        self.administrator = SimulatedAdministrator(stage, "administrator", seed)
        groups = [GroupLedger(stage, "classic"), GroupLedger(stage, "consumers")]
        self.members = [
            SimulatedMember(stage, f"{groups[number % 2].group}-{number}", seed, groups[number % 2],
                            is_classic=number % 2 == 0)
            for number in range(6)
        ]  # fmt: skip
        self._is_done = False

    def run(self) -> None:
        """Raises SimulationFailure if an invariant is violated."""
        stage, world = self.stage, self.stage.world
        stage.start(is_slow=stage.chance.random() < 0.5)
        began_ms = world.now_ms
        stage.spawn(self._make_topics())
        world.run_until(began_ms + 2_000)
        begin_ms = world.now_ms
        for entry in self.entries:
            world.at(begin_ms + entry.at_ms, lambda entry=entry: self._do(entry))
            world.run_until(begin_ms + entry.at_ms)
            stage.ledger.follow()
        self._settle()

    async def _make_topics(self) -> None:
        for name in ("t0", "t1", "kept"):
            for _ in range(5):
                await self.administrator.create(name)
                if name in self.stage.ledger.topics:
                    break

    def _do(self, entry: Entry) -> None:
        def one(clients: list[Any]) -> Any:
            return clients[entry.who % len(clients)]

        chance = random.Random(entry.seed)
        stage = self.stage
        clients: list[SimulatedClient] = [*self.producers, *self.transactions, *self.committers, *self.members]
        administrator = self.administrator
        actions: dict[str, Callable[[], object]] = {
            "send": lambda: (client := one(self.producers)).run(client.send()),
            "transact": lambda: (client := one(self.transactions)).run(client.transact()),
            "commit": lambda: (client := one(self.committers)).run(client.commit()),
            "read offset": lambda: (client := one(self.committers)).run(client.read()),
            "read": lambda: (client := one(self.readers)).run(client.read()),
            "administer": lambda: administrator.run(
                chance.choice([
                    administrator.create, administrator.create, administrator.delete, administrator.alter,
                    administrator.extend, administrator.delete_records,
                ])()
            ),
            "member": lambda: (member := one(self.members)).run(member.live()),
            "end of member": one(self.members).end,
            "kill": stage.kill,
            "power cut": lambda: stage.cut_power(None),
            "torn power cut": lambda: stage.cut_power(chance.random),
            "stop": stage.stop,
            "full disk": lambda: stage.fill_disk(chance.randrange(1000, 6000)),
            "disk error": stage.fail_disk,
            "hang up": one(clients).session.hang_up,
        }  # fmt: skip
        actions[entry.what]()

    def _settle(self) -> None:
        """Lets all work end on a healthy broker, and compares everything."""
        stage = self.stage
        stage.files.free_bytes = None
        for member in self.members:
            member.end()
        stage.world.advance(QUIET_MS)
        if stage.node is None:
            raise stage.fail("the broker does not run after two quiet minutes")
        stage.ledger.follow()
        stage.ledger.check_catalogue()
        for client in self.transactions:
            for is_commit, written in client.ended:
                check_transaction(stage, is_commit=is_commit, written=written, is_final=True)
            for written in client.unknown:
                self._check_unknown(written)
        self._check_open_transactions()
        stage.spawn(self._read_offsets())
        stage.world.advance(60_000)
        if not self._is_done:
            raise stage.fail("the committed offsets cannot be read a minute after the last fault")
        stage.kill()
        stage.world.advance(10_000)
        stage.ledger.follow()

    def _check_unknown(self, written: dict[Any, list[bytes]]) -> None:
        """A transaction with an unknown end is committed in all its partitions, or in none."""
        seen = {}
        for place, values in written.items():
            copy = self.stage.ledger.copies.get(place)
            if copy is None or self.stage.lost_power_ms >= 0 or not self.stage.ledger.is_there(place):
                continue
            fates = copy.fates()
            seen |= {value: fates[value] for value in values if value in fates}
        if len(set(seen.values())) > 1:
            raise self.stage.fail(f"a transaction is visible in part: {seen}")

    def _check_open_transactions(self) -> None:
        """No transaction stays open: its timeout has passed."""
        for place, name, _ in self.stage.ledger.logs():
            copy = self.stage.ledger.copies.get(place)
            if copy is not None and self.stage.lost_power_ms < 0 and copy.transactions()[0]:
                raise self.stage.fail(f"{name} has open transactions: {copy.transactions()[0]}", name)

    async def _read_offsets(self) -> None:
        stage = self.stage
        groups = [(client, client.group, 0, client.aborted) for client in self.transactions]
        groups += [(client, client.name, 1, -1) for client in self.committers]
        for client, group, index, aborted in groups:
            found = None
            while found is None:
                try:
                    found = await read_offset(client, group, index)
                except Gone:
                    found = None
                if found is None:
                    await stage.sleep(500)
            after_loss = {aborted} if stage.lost_power_ms >= 0 else set()
            check_offset(stage, group, client.possible | after_loss, found)
        self._is_done = True


def shrink(seed: int, run: Callable[[int, frozenset[int]], str]) -> frozenset[int]:
    """Returns the entries that a failing seed does not need. ``run`` returns the failure, or an empty text."""
    without: frozenset[int] = frozenset()
    size = ENTRIES // 2
    while size:
        for start in range(0, ENTRIES, size):
            more = without | frozenset(range(start, min(start + size, ENTRIES)))
            if more != without and run(seed, more):
                without = more
        size //= 2
    return without
