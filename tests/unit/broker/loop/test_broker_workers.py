"""Reservations of memory and calls in threads, also of abandoned work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from mmap import mmap
from typing import Any

import pytest

from odradek.batches.steps import BatchSteps, Call, Map, Reserve, begin, finish
from odradek.broker.loop.scheduler import Scheduler
from odradek.broker.loop.workers import LARGE_MEMORY_BYTES, SMALL_MEMORY_BYTES, SMALL_RESERVATION_BYTES, Memory, Workers

MIB = 1 << 20


def test_reservations_are_granted_in_order_while_memory_is_free() -> None:
    memory = Memory(100)
    first, second, third, fourth = (memory.reserve(size) for size in (60, 50, 10, 40))
    assert [reservation.granted.resolved for reservation in (first, second, third, fourth)] == [
        True,
        False,
        False,
        False,
    ]
    third.release()
    assert memory.used == 60, "the reservation was not granted yet"
    first.release()
    assert [one.granted.resolved for one in (second, third, fourth)] == [True, False, True]
    assert memory.used == 90
    second.release()
    fourth.release()
    assert memory.used == 0


def test_a_withdrawn_reservation_lets_later_ones_be_granted() -> None:
    memory = Memory(100)
    held, large, small = memory.reserve(50), memory.reserve(100), memory.reserve(50)
    assert held.granted.resolved
    assert not small.granted.resolved
    large.release()
    assert small.granted.resolved


def test_a_reservation_above_the_total_gets_the_total() -> None:
    memory = Memory(100)
    reservation = memory.reserve(1000)
    assert reservation.granted.resolved
    assert memory.used == 100
    reservation.release()
    assert memory.used == 0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


class WorkersHarness:
    """Workers and a scheduler on a loop that tests run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.workers = Workers(loop.call_soon_threadsafe)
        self.scheduler = Scheduler(loop.call_soon)

    def until(self, condition: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(20):
                while not condition():
                    await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())

    def result(self, steps: BatchSteps[Any]) -> Any:
        promise = self.scheduler.start(self.workers.run(steps))
        self.until(lambda: promise.resolved)
        return promise.value

    @property
    def used(self) -> int:
        return self.workers.large.used + self.workers.small.used


@pytest.fixture
def harness(loop: asyncio.AbstractEventLoop) -> Iterator[WorkersHarness]:
    harness = WorkersHarness(loop)
    yield harness
    harness.workers.stop()


def test_steps_get_memory_and_the_values_of_calls(harness: WorkersHarness) -> None:
    used: list[int] = []
    kept: list[mmap] = []

    def work() -> BatchSteps[tuple[int, str]]:
        yield Reserve(1000)
        memory = yield Map(20 * MIB)
        kept.append(memory)
        used.append(harness.used)
        memory[5:8] = b"abc"
        name = yield Call(lambda: threading.current_thread().name)
        yield None
        return len(memory), name

    size, name = harness.result(work())
    assert (size, used) == (20 * MIB, [20 * MIB + 1000])
    assert name.startswith("odradek-worker")
    harness.until(lambda: harness.used == 0)
    assert kept[0].closed


def test_an_error_of_a_call_is_raised_in_the_steps_and_an_error_of_the_steps_is_the_result(
    harness: WorkersHarness,
) -> None:
    def work(*, handles: bool) -> BatchSteps[str]:
        yield Reserve(10)
        try:
            yield Call(lambda: 1 // 0)
        except ZeroDivisionError:
            if handles:
                return "handled"
            raise
        return "nothing was raised"

    assert harness.result(work(handles=True)) == "handled"
    assert isinstance(harness.result(work(handles=False)), ZeroDivisionError)
    assert harness.used == 0
    assert finish(work(handles=True)) == "handled"
    with pytest.raises(ZeroDivisionError):
        finish(work(handles=False))


def test_abandoned_work_keeps_its_memory_until_its_thread_ends(harness: WorkersHarness) -> None:
    entered, may_end = threading.Event(), threading.Event()

    def work() -> BatchSteps[None]:
        memory = yield Map(SMALL_RESERVATION_BYTES)

        def write() -> None:
            entered.set()
            may_end.wait(20)
            memory[0] = 1

        yield Call(write)

    steps = harness.workers.run(work())
    assert next(steps) is not None
    steps.send(None)
    assert entered.wait(20)
    steps.close()
    assert harness.used == SMALL_RESERVATION_BYTES, "a thread still writes into the memory"
    may_end.set()
    harness.until(lambda: harness.used == 0)


def test_abandoned_work_stops_waiting_for_memory(harness: WorkersHarness) -> None:
    def work() -> BatchSteps[None]:
        yield Map(LARGE_MEMORY_BYTES)
        yield None

    first, second = harness.workers.run(work()), harness.workers.run(work())
    assert next(first).resolved
    waiting = next(second)
    assert waiting is not None
    assert not waiting.resolved
    second.close()
    first.close()
    assert not waiting.resolved
    harness.until(lambda: harness.used == 0)


def test_small_reservations_do_not_wait_behind_large_ones(harness: WorkersHarness) -> None:
    def work(size: int) -> BatchSteps[None]:
        yield Reserve(size)
        yield None

    large = [harness.workers.run(work(LARGE_MEMORY_BYTES)) for _ in range(3)]
    small = [harness.workers.run(work(SMALL_RESERVATION_BYTES)) for _ in range(5)]
    granted = [next(steps) for steps in (*large, *small)]
    assert [promise.resolved for promise in granted if promise is not None] == [
        True, False, False, True, True, True, True, False,
    ]  # fmt: skip
    assert harness.used <= LARGE_MEMORY_BYTES + SMALL_MEMORY_BYTES


def test_work_that_is_submitted_after_the_close_fails(harness: WorkersHarness) -> None:
    harness.workers.stop()

    def work() -> BatchSteps[None]:
        yield Call(lambda: None)

    assert isinstance(harness.result(work()), RuntimeError)


def test_begin_runs_one_step_and_returns_the_rest() -> None:
    seen: list[Any] = []

    def work(first: int) -> BatchSteps[list[Any]]:
        for number in range(first):
            seen.append(number)
            yield None
        seen.append((yield Call(lambda: "value")))
        try:
            yield Call(lambda: 1 // 0)
        except ZeroDivisionError:
            seen.append("raised")
        return seen

    rest = begin(work(2))
    assert seen == [0], "one step was run"
    assert not isinstance(rest, list)
    assert finish(rest) == [0, 1, "value", "raised"]

    def nothing() -> BatchSteps[int]:
        return 7
        yield None

    assert begin(nothing()) == 7
    closed: list[bool] = []

    def watched() -> BatchSteps[None]:
        try:
            yield None
            yield None
        finally:
            closed.append(True)

    left = begin(watched())
    assert left is not None
    next(left)
    left.close()
    assert closed == [True]
