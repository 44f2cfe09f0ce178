"""The schedules of simulated replicas: what is the same in a whole one, and a list of faults at their times.

Seeds from ``OF_TRUNCATIONS`` on have schedules of another kind: leaders are isolated while they go on to append. So
they truncate when they are back, and lead again. Replies to producers are lost, and their next attempt may come after
two elections. The last elections are of leaders to whom no producer writes.
"""

from __future__ import annotations

import random
from typing import NamedTuple

FAULTS_MS = 8_000
ENTRIES = 34
OF_TRUNCATIONS = 1_000_000

KINDS = {
    "kill": 7, "power": 4, "pause": 6, "cut": 5, "one-way cut": 6, "storm": 5, "stop": 3, "controller": 3, "delete": 2,
    "retention": 4, "store": 9, "elect": 4, "late ISR": 6,
}  # fmt: skip


class Fault(NamedTuple):
    """At ``at_ms`` after the start, something goes wrong for ``for_ms``. ``who``, ``whom``: numbers of brokers."""

    at_ms: int
    kind: str
    who: int
    whom: int
    for_ms: int


class Rules(NamedTuple):
    """What is the same in a whole schedule. ``is_careful``: fewer brokers than the minimum are lost at a time."""

    brokers: int
    topics: tuple[tuple[int, int, int], ...]
    """Of each topic: partitions, replicas, min.insync.replicas."""
    unclean: bool
    is_careful: bool
    loss: float
    repeats: float
    slow: float
    late_work: float
    drift: float
    is_idle: bool
    """After the faults, the producers write nothing for some time."""
    lost_replies: float = 0.0
    """The share of the replies to producers that are lost."""
    patience_ms: int = 120
    """The longest pause of a producer before it tries again."""
    idle_from_ms: int = 0
    """From this time on, the producers write nothing until the end; 0: they do."""


def schedule(seed: int) -> tuple[Rules, list[Fault]]:
    """Returns the schedule of a seed."""
    if seed >= OF_TRUNCATIONS:
        return _of_truncations(seed)
    dice = random.Random(f"replication {seed}")
    brokers = dice.choice((3, 3, 3, 4, 5))
    topics = []
    for _ in range(dice.choice((1, 1, 1, 2))):
        factor = dice.choice((2, 3, 3, 3, min(4, brokers)))
        topics.append((dice.choice((1, 1, 2)), factor, dice.choice((1, 2, 2, 2, 3))))
    rules = Rules(
        brokers, tuple(topics), dice.random() < 0.2, dice.random() < 0.75, dice.choice((0.0, 0.01, 0.06)),
        dice.choice((0.0, 0.02, 0.08)), dice.choice((0.0, 0.02, 0.1)), dice.choice((0.0, 0.2)), dice.choice((0.0, 0.1)),
        dice.random() < 0.4,
    )  # fmt: skip
    kinds = {kind: weight for kind, weight in KINDS.items() if dice.random() < 0.75 or kind == "store"}
    faults = [
        Fault(
            dice.randrange(300, FAULTS_MS), kind, dice.randrange(brokers), dice.randrange(brokers + 1),
            dice.choice((200, 600, 1_500, 3_000)),
        )
        for kind in dice.choices(list(kinds), list(kinds.values()), k=ENTRIES)
    ]  # fmt: skip
    return rules, sorted(faults)


def _of_truncations(seed: int) -> tuple[Rules, list[Fault]]:
    dice = random.Random(f"truncations {seed}")
    idle_from_ms = dice.choice((0, dice.randrange(5_000, FAULTS_MS)))
    rules = Rules(
        3, ((1, 3, dice.choice((1, 2))),), False, True, 0.0, 0.0, 0.0, 0.0, 0.0, False,
        dice.choice((0.4, 0.8)), dice.choice((1_000, 3_500)), idle_from_ms,
    )  # fmt: skip
    kinds = dice.choices(("isolate", "elect", "retention"), (6, 14, 2), k=ENTRIES)
    faults = [
        Fault(dice.randrange(300, FAULTS_MS), kind, dice.randrange(3), 1, dice.choice((600, 1_500, 2_000)))
        for kind in kinds
    ]
    return rules, sorted(faults)
