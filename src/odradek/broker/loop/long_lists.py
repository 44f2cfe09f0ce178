"""Lists, dictionaries and counters of a long request's elements, built in steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from odradek.broker.loop.scheduler import Steps

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)

STEP_ELEMENTS = 500


def list_in_steps(values: Iterable[T], made: list[T] | None = None) -> Steps[list[T]]:
    """Returns ``list(values)``. ``made``: an empty list to use, which the caller frees if its client disconnects."""
    made = [] if made is None else made
    for value in values:
        made.append(value)
        if not len(made) % STEP_ELEMENTS:
            yield None
    return made


def dict_in_steps(rows: Iterable[tuple[H, T]], made: dict[H, T] | None = None) -> Steps[dict[H, T]]:
    """Returns ``dict(rows)``. Of several rows with the same key, the last one counts. ``made``: as above."""
    made = {} if made is None else made
    for number, (key, value) in enumerate(rows, 1):
        made[key] = value
        if not number % STEP_ELEMENTS:
            yield None
    return made


def count_in_steps(values: Iterable[H]) -> Steps[Counter[H]]:
    """Returns ``Counter(values)``."""
    made: Counter[H] = Counter()
    for number, value in enumerate(values, 1):
        made[value] += 1
        if not number % STEP_ELEMENTS:
            yield None
    return made
