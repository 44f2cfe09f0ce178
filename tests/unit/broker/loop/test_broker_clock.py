"""A clock that tests move, and the alarms of this clock."""

from __future__ import annotations

import pytest
from support.loops import Loop

from odradek.broker.loop.clock import Alarms, Clock


class LoopClock(Clock):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self.set_by_ms = 0

    def now_ms(self) -> int:
        return self.steady_ms() + self.set_by_ms

    def steady_ms(self) -> int:
        return int(self._loop.now * 1000) + self._offset_ms


def test_alarms_call_back_at_their_time() -> None:
    loop = Loop()
    called: list[str] = []
    alarms = Alarms(loop, LoopClock(loop))
    alarms.call_at(500, lambda: called.append("a"))
    alarms.call_at(2000, lambda: called.append("b"))
    loop.run(0.4)
    assert called == []
    loop.run(0.2)
    assert called == ["a"]
    loop.run(10)
    assert called == ["a", "b"]
    assert not alarms.pending


def test_moving_the_clock_calls_the_alarms_that_are_due() -> None:
    loop = Loop()
    clock = LoopClock(loop)
    called: list[str] = []
    alarms = Alarms(loop, clock)
    alarms.call_at(8 * 86_400_000, lambda: called.append("week"))
    alarms.call_at(30 * 86_400_000, lambda: called.append("month"))
    clock.advance(8 * 86_400_000)
    loop.run()
    assert called == ["week"]
    loop.run(22 * 86_400)
    assert called == ["week", "month"]


def test_a_cancelled_alarm_does_not_call_back() -> None:
    loop = Loop()
    clock = LoopClock(loop)
    alarms = Alarms(loop, clock)
    alarm = alarms.call_at(10, lambda: pytest.fail("the alarm called back"))
    alarm.cancel()
    clock.advance(100)
    loop.run(1)
    assert not alarms.pending
    assert not loop.waiting


def test_the_clock_cannot_be_moved_backwards() -> None:
    with pytest.raises(ValueError, match="back"):
        Clock().advance(-1)


@pytest.mark.parametrize("jump_ms", [7_200_000, -7_200_000])
def test_a_change_of_the_system_time_does_not_change_alarms(jump_ms: int) -> None:
    loop = Loop()
    clock = LoopClock(loop)
    called: list[str] = []
    alarms = Alarms(loop, clock)
    alarms.call_at(clock.now_ms() + 10_000, lambda: called.append("before"))
    clock.set_by_ms = jump_ms
    alarms.call_at(clock.now_ms() + 10_000, lambda: called.append("after"))
    assert not alarms.due
    loop.run(9.9)
    assert called == []
    loop.run(0.2)
    assert called == ["before", "after"]


def test_a_clock_reads_the_system_time_and_the_monotonic_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, awake = 1_700_000_000_000, 5_000
    monkeypatch.setattr("time.time_ns", lambda: wall * 1_000_000)
    monkeypatch.setattr("time.monotonic_ns", lambda: awake * 1_000_000)
    clock = Clock()
    assert clock.now_ms() == clock.steady_ms() == wall
    wall += 3_600_000  # the process was suspended
    awake += 20
    assert (clock.now_ms(), clock.steady_ms()) == (wall, wall - 3_600_000 + 20)
    clock.advance(1_000)
    assert (clock.now_ms() - wall, clock.skew_ms) == (1_000, 3_600_000 - 20)
