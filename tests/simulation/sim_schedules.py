"""Many schedules of one kind of scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol


class CountedScenario(Protocol):
    """A scenario of a seed. ``counts``: how often each of its events has happened."""

    counts: Counter[str]

    def run(self) -> object: ...


def counted(scenario: Callable[[int], CountedScenario], first: int, count: int) -> Counter[str]:
    """Runs the scenarios of ``count`` seeds from ``first`` on. Returns the events of all of them."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        made = scenario(seed)
        made.run()
        counts += made.counts
    return counts
