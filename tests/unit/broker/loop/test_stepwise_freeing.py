"""Objects that a long request used are freed a few elements at a time, for any number of containers."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from odradek.broker.loop.leftovers import FEW, Container, Leftovers
from odradek.broker.loop.long_lists import STEP_ELEMENTS


def _sizes(*containers: Container) -> list[int]:
    """The number of elements that each step frees."""
    begun: list[Generator[None, None, None]] = []
    Leftovers(begun.append).add(*containers)
    sizes = []
    for steps in begun:
        before = sum(map(len, containers))
        for _ in steps:
            left = sum(map(len, containers))
            sizes.append(before - left)
            before = left
    return sizes


def test_a_few_elements_are_freed_without_a_step() -> None:
    assert not _sizes([0] * FEW)
    assert not _sizes(*([0] * 10 for _ in range(FEW // 10)))


@pytest.mark.parametrize(
    "containers",
    [
        [list(range(50_000))],
        [dict.fromkeys(range(2_000)), set(range(2_000)), list(range(2_000))],
        [list(range(999)) for _ in range(100)],
        [list(range(65)) for _ in range(1_000)],
        [[] for _ in range(10)] + [list(range(1_001))],
    ],
)
def test_many_elements_are_freed_in_steps(containers: list[Container]) -> None:
    total = sum(map(len, containers))
    sizes = _sizes(*containers)
    assert not any(containers)
    assert sum(sizes) == total
    assert max(sizes) <= STEP_ELEMENTS
    assert len(sizes) <= total // (STEP_ELEMENTS * 0.9) + 2


def test_elements_added_during_the_steps_are_freed_too() -> None:
    begun: list[Generator[None, None, None]] = []
    leftovers = Leftovers(begun.append)
    first, second = list(range(2_000)), list(range(2_000))
    leftovers.add(first)
    next(begun[0])
    leftovers.add(second)
    assert len(begun) == 1
    for _ in begun[0]:
        pass
    assert not first + second
