"""Shares of the loop: their order and end, the promises that a generator waits for, and generators of lost clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from odradek.broker.loop.scheduler import SHARE_S, TICK_S, Callbacks, Scheduler, Steps, Task, finish
from odradek.core.deferred import Deferred

SHARES = round(TICK_S / SHARE_S)
"""The number of shares in a turn."""


class Loop:
    """Runs callbacks in rounds, as an event loop does. Its clock moves only when a test or a worker changes it."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()
        self.now_s = 0.0
        self.rounds = 0
        self.scheduler = Scheduler(self.ready.append, lambda: self.now_s)

    def round(self) -> None:
        self.rounds += 1
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def run(self) -> None:
        while self.ready:
            self.round()


class Worker:
    """Needs the given number of shares, and records each of them."""

    def __init__(self, loop: Loop, name: str, shares: int, cost_s: float = SHARE_S) -> None:
        self.loop, self.name, self.left, self.cost_s = loop, name, shares, cost_s
        self.served: list[tuple[int, str]] = []

    def run_share(self, until_s: float) -> bool:
        self.served.append((self.loop.rounds, self.name))
        self.loop.now_s += self.cost_s
        self.left -= 1
        return self.left > 0


def test_each_worker_gets_one_share_in_a_round() -> None:
    loop = Loop()
    workers = [Worker(loop, name, 3, cost_s=0.0) for name in "abc"]
    for worker in workers:
        loop.scheduler.add(worker)
    loop.run()
    served = sorted(share for worker in workers for share in worker.served)
    assert served == [(number, name) for number in (1, 2, 3) for name in "abc"]
    assert not loop.scheduler.busy


def test_a_round_ends_with_its_turn_and_continues_in_the_next() -> None:
    loop = Loop()
    workers = [Worker(loop, f"{number:02}", 1, cost_s=TICK_S / 4) for number in range(10)]
    for worker in workers:
        loop.scheduler.add(worker)
    loop.run()
    assert [worker.served for worker in workers] == [[(1 + n // 4, f"{n:02}")] for n in range(10)]


def test_shares_of_one_turn_end_with_the_turn() -> None:
    loop = Loop()
    scheduler = loop.scheduler
    scheduler.add(Worker(loop, "other", 3))
    for number in range(SHARES - 1):
        assert scheduler.begin_share() == loop.now_s + SHARE_S, number
        loop.now_s += SHARE_S * 1.1
        scheduler.end_share()
    assert scheduler.begin_share() == pytest.approx(TICK_S), "a share ends with its turn"
    loop.now_s += SHARE_S * 1.1
    scheduler.end_share()
    assert scheduler.begin_share() == 0.0, "no time of the turn is left"
    assert len(loop.ready) == 2
    loop.run()
    assert scheduler.begin_share() == loop.now_s + TICK_S, "the queue is empty"


def test_a_loop_with_little_work_gets_no_callbacks() -> None:
    loop = Loop()
    for _ in range(100):
        loop.scheduler.begin_share()
        loop.now_s += TICK_S / 201
        loop.scheduler.end_share()
    assert not loop.ready


def counting(loop: Loop, count: int, cost_s: float, done: list[int]) -> Steps[str]:
    for number in range(count):
        done.append(number)
        loop.now_s += cost_s
        yield None
    return "all"


@pytest.mark.parametrize(("others", "in_one_share", "rounds"), [(1, 2, 6), (0, 2 * SHARES, 10 // (2 * SHARES) + 1)])
def test_a_generator_is_interrupted_when_its_share_ends(others: int, in_one_share: int, rounds: int) -> None:
    """A share is short if another generator waits. Otherwise it lasts for the rest of the turn."""
    loop, done = Loop(), list[int]()
    promise = loop.scheduler.start(counting(loop, 10, SHARE_S / 2, done))
    for number in range(others):
        loop.scheduler.add(Worker(loop, f"{number}", 20, cost_s=0.0))
    loop.round()
    assert done == list(range(in_one_share))
    while not promise.resolved:
        loop.round()
    assert done == list(range(10))
    assert promise.value == "all"
    assert loop.rounds == rounds


def test_a_generator_waits_for_a_promise_and_gets_its_value() -> None:
    loop, asked = Loop(), Deferred[str]()

    def steps() -> Steps[Any]:
        first = yield Deferred.of("at once")
        second = yield asked
        return first, second

    promise = loop.scheduler.start(steps())
    loop.run()
    assert not promise.resolved
    assert not loop.scheduler.busy, "a generator that waits uses no shares"
    asked.resolve("later")
    loop.run()
    assert promise.value == ("at once", "later")


def test_an_error_becomes_the_value_of_the_promise() -> None:
    loop = Loop()

    def steps() -> Steps[None]:
        yield None
        raise ValueError("no")

    promise: Deferred[Any] = loop.scheduler.start(steps())
    loop.run()
    assert isinstance(promise.value, ValueError)


@pytest.mark.parametrize("must_finish", [False, True])
def test_an_abandoned_generator_is_closed_unless_it_must_finish(must_finish: bool) -> None:
    loop, done, ended = Loop(), list[int](), list[str]()

    def steps() -> Steps[str]:
        try:
            return (yield from counting(loop, 5, TICK_S, done))
        finally:
            ended.append("closed")

    task = Task(loop.scheduler, steps(), must_finish=lambda: must_finish)
    loop.scheduler.add(task)
    loop.round()
    task.abandon()
    loop.run()
    assert done == (list(range(5)) if must_finish else [0])
    assert ended == ["closed"]
    assert task.promise.resolved == must_finish


def test_the_seconds_of_each_share_are_counted() -> None:
    loop, shares = Loop(), list[float]()
    loop.scheduler.add(Task(loop.scheduler, counting(loop, 3, SHARE_S, []), on_share=shares.append))
    loop.run()
    assert sum(shares) == pytest.approx(3 * SHARE_S)


def test_stop_closes_the_generators_in_the_queue() -> None:
    loop, done = Loop(), list[int]()
    loop.scheduler.start(counting(loop, 5, TICK_S, done))
    loop.round()
    loop.scheduler.stop()
    loop.run()
    assert done == [0]


def test_finish_runs_a_generator_to_its_end() -> None:
    loop, done = Loop(), list[int]()
    assert finish(counting(loop, 5, SHARE_S, done)) == "all"

    def waits() -> Steps[None]:
        yield Deferred()

    with pytest.raises(RuntimeError, match="not resolved"):
        finish(waits())


def test_callbacks_due_at_the_same_time_are_called_in_shares_and_in_order() -> None:
    loop, done = Loop(), list[int]()
    callbacks = Callbacks(loop.scheduler)

    def callback(number: int) -> None:
        loop.now_s += SHARE_S
        done.append(number)
        if number == 7:
            raise ValueError("an error that must not stop the other callbacks")

    for number in range(100):
        callbacks.run(partial(callback, number))
    assert done == list(range(SHARES)), "the callbacks of one turn"
    counts = []
    while loop.scheduler.busy:
        before = len(done)
        loop.round()
        counts.append(len(done) - before)
    assert max(counts) <= TICK_S / SHARE_S + 1
    assert done == list(range(100))
    loop.run()
    callbacks.run(partial(callback, 100))
    assert done[-1] == 100, "a callback is called at once if there is time"
