"""The timers of the groups: one alarm for all, many that are due in shares, and a clock that can be moved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Hashable

import pytest
from support.group_rig import Rig
from support.world import START_MS, Alarm, Process, World

from odradek.broker.clock import Alarms, Clock
from odradek.coordinator.timers import AT_ONCE, Timers


class Owner:
    """Notes what fires, and may set further timers then."""

    def __init__(self) -> None:
        self.timers: dict[Hashable, int] = {}
        self.fired: list[Hashable] = []
        self.then: Callable[[Hashable], None] = lambda key: None

    def on_timer(self, key: Hashable) -> None:
        del self.timers[key]
        self.fired.append(key)
        self.then(key)


class Ringing:
    """A clock, alarms and steps that a test drives one at a time."""

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


def test_few_timers_fire_in_the_turn_in_which_they_are_due() -> None:
    ringing = Ringing()
    for number in range(AT_ONCE - 1):
        ringing.set(number, 100 + number)
    ringing.world.now_ms += 1000
    ringing.timers.run_due()
    assert ringing.owner.fired == list(range(AT_ONCE - 1))
    assert not ringing.steps


def test_of_many_timers_a_few_fire_at_once_and_the_others_one_by_one() -> None:
    ringing = Ringing()
    for number in range(1000):
        ringing.set(number, 100)
    ringing.world.advance(100)
    assert len(ringing.owner.fired) == AT_ONCE
    (steps,) = ringing.steps
    next(steps)
    assert len(ringing.owner.fired) == AT_ONCE + 1
    ringing.finish()
    assert ringing.owner.fired == list(range(1000))


def test_a_timer_set_while_others_fire_in_steps_rings() -> None:
    ringing = Ringing()
    for number in range(100):
        ringing.set(number, 100)
    ringing.owner.then = lambda key: ringing.set(("later", key), 500) if key == 50 else None
    ringing.world.advance(100)
    ringing.finish()
    ringing.world.advance(500)
    assert ringing.owner.fired[-1] == ("later", 50)


def test_an_alarm_that_rings_while_timers_fire_in_steps_is_not_taken_for_one_that_will() -> None:
    ringing = Ringing()
    for number in range(100):
        ringing.set(number, 100)
    ringing.world.advance(100)  # the first fire, the others are left to steps
    ringing.set("soon", 50)
    ringing.world.advance(50)
    ringing.timers.run_due()  # as if it had rung, or the clock had been moved
    ringing.finish()
    assert ringing.owner.fired[-1] == "soon"
    ringing.set("after", 50)
    ringing.world.advance(50)
    assert ringing.owner.fired[-1] == "after"


def test_a_clock_that_is_moved_leaves_no_alarm_for_the_time_before() -> None:
    ringing = Ringing()
    ringing.set("first", 60_000)
    ringing.world.now_ms += 120_000  # somebody moves the clock: the alarm has not rung
    ringing.timers.run_due()
    assert ringing.owner.fired == ["first"]
    ringing.set("second", 3_000)
    ringing.world.advance(3_000)
    assert ringing.owner.fired == ["first", "second"]


def test_timers_that_were_cancelled_or_set_again_do_not_fire() -> None:
    ringing = Ringing()
    for number in range(100):
        ringing.set(number, 100)
    ringing.set(30, 200)
    ringing.owner.then = lambda key: ringing.owner.timers.pop(60, None) and None
    ringing.world.advance(100)
    ringing.finish()
    assert ringing.owner.fired == [number for number in range(100) if number not in (30, 60)]
    ringing.world.advance(100)
    assert ringing.owner.fired[-1] == 30


class _Loop:
    """An event loop's timers, by a clock of its own that stands still."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self.timers: list[tuple[float, int, Alarm]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(callback)
        self.timers.append((delay, next(self._ids), alarm))
        return alarm

    def run(self) -> None:
        """Rings what is due at once, until nothing is."""
        while due := sorted(entry for entry in self.timers if entry[0] <= 0):
            self.timers.remove(due[0])
            if due[0][2].callback is not None:
                due[0][2].callback()


def test_a_join_is_answered_when_the_clock_of_the_broker_is_moved_while_sessions_end() -> None:
    """As in the broker: its alarms ring later when there is much to do, and the command ``advance`` moves its clock."""
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


def test_a_rebalance_completes_that_was_due_when_many_sessions_ended() -> None:
    rig = Rig(partition_count=1)
    for number in range(60):
        rig.member(f"g{number}", session_ms=10_000)
    joins = []
    member = rig.member("waits", session_ms=30_000)
    joins.append(rig.join("waits", member, session_ms=30_000, rebalance_ms=5_000))
    rig.world.now_ms = START_MS + 20_000
    rig.runtime.on_clock_moved()
    other = rig.member("waits", session_ms=30_000)
    joins.append(rig.join("waits", other, session_ms=30_000, rebalance_ms=5_000))
    rig.advance(6_000)
    assert all(join.answered for join in joins)


def test_a_timer_that_fails_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    ringing = Ringing()
    for number in range(100):
        ringing.set(number, 100)

    def fail(key: Hashable) -> None:
        if key in (3, 50):
            raise RuntimeError("a bug")

    ringing.owner.then = fail
    ringing.world.advance(100)
    ringing.finish()
    assert ringing.owner.fired == list(range(100))
    assert [record.getMessage() for record in caplog.records] == ["a timer failed"] * 2
