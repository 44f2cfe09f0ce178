"""The timers of the groups share one alarm. Many due timers fire in several steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Hashable

import pytest
from support.group_harness import GroupHarness
from support.world import START_MS, Alarm, Process, World

from odradek.broker.loop.clock import Alarms, Clock
from odradek.coordinator_runtime.timers import AT_ONCE, Timers


class Owner:
    """Records each timer that fires, and may then set further timers."""

    def __init__(self) -> None:
        self.timers: dict[Hashable, int] = {}
        self.fired: list[Hashable] = []
        self.then: Callable[[Hashable], None] = lambda key: None

    def on_timer(self, key: Hashable) -> None:
        del self.timers[key]
        self.fired.append(key)
        self.then(key)


class TimerHarness:
    """A clock, alarms, and steps; a test runs the steps one at a time."""

    def __init__(self) -> None:
        self.world = World()
        self.steps: list[Generator[None, None, None]] = []
        self.timers = Timers(Process(self.world).call_at, self.world.steady, self.steps.append)
        self.owner = Owner()

    def set(self, key: Hashable, in_ms: int) -> None:
        self.timers.set(self.owner, key, self.world.now_ms + in_ms)

    def finish(self) -> None:
        for steps in self.steps:
            for _ in steps:
                pass
        self.steps.clear()


def test_a_few_due_timers_fire_in_the_same_turn() -> None:
    timer_harness = TimerHarness()
    for number in range(AT_ONCE - 1):
        timer_harness.set(number, 100 + number)
    timer_harness.world.now_ms += 1000
    timer_harness.timers.run_due()
    assert timer_harness.owner.fired == list(range(AT_ONCE - 1))
    assert not timer_harness.steps


def test_of_many_due_timers_a_few_fire_at_once_and_the_others_in_steps() -> None:
    timer_harness = TimerHarness()
    for number in range(1000):
        timer_harness.set(number, 100)
    timer_harness.world.advance(100)
    assert len(timer_harness.owner.fired) == AT_ONCE
    (steps,) = timer_harness.steps
    next(steps)
    assert len(timer_harness.owner.fired) == AT_ONCE + 1
    timer_harness.finish()
    assert timer_harness.owner.fired == list(range(1000))


def test_a_timer_that_is_set_while_others_fire_in_steps_fires() -> None:
    timer_harness = TimerHarness()
    for number in range(100):
        timer_harness.set(number, 100)
    timer_harness.owner.then = lambda key: timer_harness.set(("later", key), 500) if key == 50 else None
    timer_harness.world.advance(100)
    timer_harness.finish()
    timer_harness.world.advance(500)
    assert timer_harness.owner.fired[-1] == ("later", 50)


def test_an_alarm_that_calls_back_during_steps_is_set_again() -> None:
    timer_harness = TimerHarness()
    for number in range(100):
        timer_harness.set(number, 100)
    timer_harness.world.advance(100)  # the first timers fire, the others wait for steps
    timer_harness.set("soon", 50)
    timer_harness.world.advance(50)
    timer_harness.timers.run_due()  # as if the alarm had called back, or the clock had been moved
    timer_harness.finish()
    assert timer_harness.owner.fired[-1] == "soon"
    timer_harness.set("after", 50)
    timer_harness.world.advance(50)
    assert timer_harness.owner.fired[-1] == "after"


def test_moving_the_clock_replaces_the_alarm() -> None:
    timer_harness = TimerHarness()
    timer_harness.set("first", 60_000)
    timer_harness.world.now_ms += 120_000  # the clock is moved: the alarm has not called back
    timer_harness.timers.run_due()
    assert timer_harness.owner.fired == ["first"]
    timer_harness.set("second", 3_000)
    timer_harness.world.advance(3_000)
    assert timer_harness.owner.fired == ["first", "second"]


def test_a_cancelled_timer_does_not_fire_and_a_timer_set_again_fires_at_its_new_time() -> None:
    timer_harness = TimerHarness()
    for number in range(100):
        timer_harness.set(number, 100)
    timer_harness.set(30, 200)
    timer_harness.owner.then = lambda key: timer_harness.owner.timers.pop(60, None) and None
    timer_harness.world.advance(100)
    timer_harness.finish()
    assert timer_harness.owner.fired == [number for number in range(100) if number not in (30, 60)]
    timer_harness.world.advance(100)
    assert timer_harness.owner.fired[-1] == 30


class _Loop:
    """The timers of an event loop whose time does not pass: only timers without a delay fire."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self.timers: list[tuple[float, int, Alarm]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(callback)
        self.timers.append((delay, next(self._ids), alarm))
        return alarm

    def run(self) -> None:
        """Runs all due callbacks, and the due callbacks that these schedule."""
        while due := sorted(entry for entry in self.timers if entry[0] <= 0):
            self.timers.remove(due[0])
            if due[0][2].callback is not None:
                due[0][2].callback()


def test_a_join_is_answered_if_the_clock_is_moved_while_sessions_expire() -> None:
    """As in the broker: alarms are late when the loop is busy, and the command ``advance`` moves the clock."""
    loop, clock, put_off, steps = _Loop(), Clock(), [], []
    alarms = Alarms(loop, clock, put_off.append)
    timers = Timers(alarms.call_at, clock.steady_ms, steps.append)
    owner = Owner()
    clock.on_moved.append(timers.run_due)

    def work() -> None:
        for _ in range(1000):
            loop.run()
            while put_off:
                put_off.pop(0)()
            for one in steps:
                next(one, None)

    for number in range(100):
        timers.set(owner, number, clock.steady_ms() + 10_000)
    clock.advance(10_000)
    loop.run()
    timers.set(owner, "join", clock.steady_ms() + 3_000)
    clock.advance(3_500)
    timers.set(owner, "another", clock.steady_ms() + 3_000)
    clock.advance(3_500)
    work()
    assert [*owner.fired[-2:]] == ["join", "another"]


def test_a_rebalance_that_is_due_while_many_sessions_expire_completes() -> None:
    harness = GroupHarness(partition_count=1)
    for number in range(60):
        harness.member(f"g{number}", session_ms=10_000)
    joins = []
    member = harness.member("waits", session_ms=30_000)
    joins.append(harness.join("waits", member, session_ms=30_000, rebalance_ms=5_000))
    harness.world.now_ms = START_MS + 20_000
    harness.runtime.on_clock_moved()
    other = harness.member("waits", session_ms=30_000)
    joins.append(harness.join("waits", other, session_ms=30_000, rebalance_ms=5_000))
    harness.advance(6_000)
    assert all(join.answered for join in joins)


def test_a_timer_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    timer_harness = TimerHarness()
    for number in range(100):
        timer_harness.set(number, 100)

    def fail(key: Hashable) -> None:
        if key in (3, 50):
            raise RuntimeError("a bug")

    timer_harness.owner.then = fail
    timer_harness.world.advance(100)
    timer_harness.finish()
    assert timer_harness.owner.fired == list(range(100))
    assert [record.getMessage() for record in caplog.records] == ["a timer failed"] * 2
