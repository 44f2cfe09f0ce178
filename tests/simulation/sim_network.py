"""Connections between members and the coordinator: they delay requests, keep their order, and break."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim_coordinator import Coordinator
from support.world import Alarm, World

NOT_LISTENING_MS = 50


@dataclass
class NetworkFaults:
    """The probabilities of faults. ``late``: a request on a broken connection still arrives, much later."""

    slow: float = 0.0
    lost_request: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    slow_ms: int = 3_000

    def end_faults(self) -> None:
        self.slow = self.lost_request = self.lost_reply = self.late = 0.0


class Call:
    __slots__ = ("alarm", "take")

    def __init__(self, take: Callable[[Any | None], None], alarm: Alarm) -> None:
        self.take = take
        self.alarm = alarm


class Connection:
    """The connection of one member to its coordinator. ``call`` passes the reply to ``take``, or None if the connection
    broke."""

    def __init__(self, world: World, coordinator: Coordinator, network_faults: NetworkFaults, name: str) -> None:
        self._world = world
        self._coordinator = coordinator
        self._faults = network_faults
        self._name = name
        self._generation = 0
        self._there_ms = self._back_ms = 0
        self._calls: list[Call] = []

    def call(
        self,
        group_id: str,
        request: Any,
        take: Callable[[Any | None], None],
        *,
        timeout_ms: int = 30_000,
        may_arrive_late: Callable[[], bool] = lambda: True,
    ) -> None:
        world, network_faults, generation = self._world, self._faults, self._generation
        call = Call(take, world.after(timeout_ms, lambda: self.break_off("timed out", generation)))
        self._calls.append(call)
        if world.chance(network_faults.lost_request):
            world.after(self._delay_ms(), lambda: self.break_off("request lost", generation))
            return
        self._there_ms = max(self._there_ms, world.now_ms + self._delay_ms())

        def arrive() -> None:
            if generation != self._generation and not (world.chance(network_faults.late) and may_arrive_late()):
                return
            if not self._coordinator.submit(group_id, request, lambda reply: self._answer(call, reply, generation)):
                world.after(NOT_LISTENING_MS, lambda: self.break_off("refused", generation))

        world.at(self._there_ms, arrive)

    def _answer(self, call: Call, reply: Any, generation: int) -> None:
        world = self._world
        if call not in self._calls:
            return
        if world.chance(self._faults.lost_reply):
            world.after(self._delay_ms(), lambda: self.break_off("reply lost", generation))
            return
        self._back_ms = max(self._back_ms, world.now_ms + self._delay_ms())
        world.at(self._back_ms, lambda: self._end(call, reply))

    def _end(self, call: Call, reply: Any | None) -> None:
        if call in self._calls:
            call.alarm.cancel()
            self._calls.remove(call)
            call.take(reply)

    def break_off(self, why: str, generation: int | None = None) -> None:
        """Requests in flight get no reply. The next call uses a new connection."""
        if generation is not None and generation != self._generation:
            return
        self._generation += 1
        self._there_ms = self._back_ms = 0
        self._world.note(self._name, "connection breaks: {}", why)
        waiting, self._calls = self._calls, []
        for call in waiting:
            call.alarm.cancel()
        for call in waiting:
            call.take(None)

    def close(self) -> None:
        """Closes the connection of a process that has ended: no more replies are delivered."""
        self._generation += 1
        for call in self._calls:
            call.alarm.cancel()
        self._calls = []

    def _delay_ms(self) -> int:
        world = self._world
        if world.chance(self._faults.slow):
            return world.between(100, self._faults.slow_ms)
        return world.between(0, 5)
