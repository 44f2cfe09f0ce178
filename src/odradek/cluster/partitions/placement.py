"""The placement of new replicas over racks and brokers: Kafka's StripedReplicaPlacer.

Each partition takes its replicas from one rack after another. The next partition begins at the next rack, and within
each rack at the next broker. Fenced brokers of a rack come after all others. The first replica becomes the leader, so
it is on a broker that is not fenced. After as many partitions as there are unfenced brokers, racks and brokers are
shuffled. So the same sets of replicas do not come again and again.

Chance is passed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any, NamedTuple, Protocol

from odradek.core.errors import ErrorCode, KafkaError


class Dice(Protocol):
    """A source of chance, such as ``random.Random``."""

    def randrange(self, stop: int, /) -> int: ...

    def shuffle(self, values: MutableSequence[Any], /) -> None: ...


class UsableBroker(NamedTuple):
    """A broker that may get replicas."""

    broker_id: int
    rack: str | None
    is_fenced: bool


def place(count: int, factor: int, brokers: Iterable[UsableBroker], dice: Dice) -> Iterator[tuple[int, ...]]:
    """Yields the replicas of each of ``count`` partitions. Raises KafkaError (INVALID_REPLICATION_FACTOR) at once."""
    racks = _RackList(brokers, dice)
    fault = ""
    if factor <= 0:
        fault = f"Invalid replication factor {factor}: the replication factor must be positive."
    elif not racks.unfenced_count:
        fault = "All brokers are currently fenced, or have all their log directories cordoned."
    elif factor > racks.count:
        fault = (
            f"The target replication factor of {factor} cannot be reached because only {racks.count} broker(s) are "
            "registered or some brokers have all their log directories cordoned."
        )
    if fault:
        text = f"Unable to replicate the partition {factor} time(s): {fault}"
        raise KafkaError(ErrorCode.invalid_replication_factor, text)
    return (racks.place(factor) for _ in range(count))


class _Ring:
    """Brokers that are taken one after another, in each round from the next one on."""

    def __init__(self) -> None:
        self.brokers: list[int] = []
        self._taken = self._start = self._round = 0

    def begin(self, dice: Dice) -> None:
        if self.brokers:
            self.brokers.sort()
            self._start = dice.randrange(len(self.brokers))

    def take(self, turn: int) -> int | None:
        """Returns the next broker of this round; None if the round has taken all."""
        if not self.brokers:
            return None
        if self._round != turn:
            self._round, self._taken = turn, 0
            self._start = (self._start + 1) % len(self.brokers)
        if self._taken == len(self.brokers):
            return None
        self._taken += 1
        return self.brokers[(self._start + self._taken - 1) % len(self.brokers)]


class _Rack:
    def __init__(self) -> None:
        self.unfenced, self.fenced = _Ring(), _Ring()

    @property
    def rings(self) -> tuple[_Ring, _Ring]:
        return self.fenced, self.unfenced

    def take(self, turn: int) -> int | None:
        broker = self.unfenced.take(turn)
        return self.fenced.take(turn) if broker is None else broker


class _RackList:
    def __init__(self, brokers: Iterable[UsableBroker], dice: Dice) -> None:
        self._dice = dice
        racks: dict[str | None, _Rack] = {}
        self.count = self.unfenced_count = 0
        for broker_id, name, is_fenced in brokers:
            rack = racks.setdefault(name, _Rack())
            (rack.fenced if is_fenced else rack.unfenced).brokers.append(broker_id)
            self.count += 1
            self.unfenced_count += not is_fenced
        for rack in racks.values():
            for ring in rack.rings:
                ring.begin(dice)
        names = sorted(racks, key=lambda name: (name is not None, name or ""))
        self._racks = [racks[name] for name in names]
        self._turn = 0
        self._first = dice.randrange(len(names)) if names else 0

    def place(self, factor: int) -> tuple[int, ...]:
        """Returns the replicas of the next partition. There must be ``factor`` brokers, one of them unfenced."""
        if self._turn == self.unfenced_count and self.unfenced_count > 1:
            self._shuffle()
            self._turn = 0
        racks, turn = self._racks, self._turn
        self._first %= len(racks)
        at = self._first
        while (leader := racks[at].unfenced.take(turn)) is None:
            at = (at + 1) % len(racks)
        chosen, passes_over = [leader], at
        at = self._first
        while len(chosen) < factor:
            if at == passes_over:
                passes_over = -1  # the rack of the leader has had its turn, once
            elif (broker := racks[at].take(turn)) is not None:
                chosen.append(broker)
            at = (at + 1) % len(racks)
        self._turn += 1
        self._first += 1
        return tuple(chosen)

    def _shuffle(self) -> None:
        self._dice.shuffle(self._racks)
        for rack in self._racks:
            for ring in rack.rings:
                self._dice.shuffle(ring.brokers)
