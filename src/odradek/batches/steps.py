"""Long work on records in steps: a generator and its requests to its runner.

A generator of ``BatchSteps`` yields ``None`` where other code may run. It yields a ``Reserve`` before it keeps bytes
for longer than a step, a ``Map`` for a large piece of memory, and a ``Call`` for work that can run in a thread. The
broker (broker/loop/workers) grants memory from its budgets and runs calls in threads. ``finish`` runs all steps at
once, without budgets and threads.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")


class Reserve(NamedTuple):
    """A request for ``size`` bytes of the memory budget. The generator continues when the budget has room for them."""

    size: int


class Map(NamedTuple):
    """A request for a ``mmap`` of ``size`` bytes. The broker closes the ``mmap`` after the generator's end."""

    size: int


class Call(NamedTuple):
    """A function for the runner to call, if possible in a thread. The generator gets its result or exception."""

    function: Callable[[], object]


Step = Reserve | Map | Call | None
BatchSteps = Generator[Step, Any, T]

if sys.platform == "win32":
    _PRIVATE: dict[str, int] = {}
else:
    _PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}


def map_memory(size: int) -> mmap.mmap:
    """Returns anonymous memory, which the system allocates page by page at the first write. Raises OSError."""
    return mmap.mmap(-1, size, **_PRIVATE)


def finish(steps: BatchSteps[T]) -> T:
    """Runs a generator to its end at once."""
    advance: Callable[[Any], Step] = steps.send
    value: object = None
    while True:
        try:
            step = advance(value)
        except StopIteration as end:
            return cast(T, end.value)
        advance, value = steps.send, None
        try:
            if isinstance(step, Map):
                value = map_memory(step.size)
            elif isinstance(step, Call):
                value = step.function()
        except Exception as error:
            advance, value = steps.throw, error


def begin(steps: BatchSteps[T]) -> T | BatchSteps[T]:
    """Runs the first step. Returns the generator's value if it ended, otherwise the rest of the steps."""
    try:
        step = next(steps)
    except StopIteration as end:
        return cast(T, end.value)
    return _rest_of(steps, step)


def _rest_of(steps: BatchSteps[T], step: Step) -> BatchSteps[T]:
    advance: Callable[[Any], Step]
    value: Any
    while True:
        try:
            sent = yield step
        except GeneratorExit:
            steps.close()
            raise
        except Exception as error:
            advance, value = steps.throw, error
        else:
            advance, value = steps.send, sent
        try:
            step = advance(value)
        except StopIteration as end:
            return cast(T, end.value)
