"""Threads and memory for work that takes too long for the event loop (see batches/steps).

Decompressed records can have many times their compressed size, so their memory is limited for all requests together.
Reservations wait until there is room for them, in their order. Those of up to ``SMALL_RESERVATION_BYTES`` have a
separate budget, so that they do not wait for a large batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from mmap import mmap
from typing import TYPE_CHECKING, Any, TypeVar, cast

from odradek.batches.compression import DEFAULT_MAX_BYTES, STEP_BYTES
from odradek.batches.steps import BatchSteps, Call, Map, Reserve, Step, map_memory
from odradek.broker.loop.world import new_threads
from odradek.core.deferred import Deferred

if TYPE_CHECKING:
    from odradek.broker.loop.scheduler import Steps

T = TypeVar("T")

LARGE_MEMORY_BYTES = DEFAULT_MAX_BYTES
SMALL_MEMORY_BYTES = 64 << 20
SMALL_RESERVATION_BYTES = 16 << 20
THREADS = 2
OUTLIVING_BYTES = 64 << 20
"""The limit for the bytes of requests with acks=0 that continue after their client has disconnected."""


class Memory:
    """A budget of ``size`` bytes. Reservations get parts of it in their order; a larger one gets the whole budget."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._waiting: deque[Reservation] = deque()

    def reserve(self, size: int) -> Reservation:
        reservation = Reservation(self, min(size, self.size))
        self._waiting.append(reservation)
        self._grant()
        return reservation

    def withdraw(self, reservation: Reservation) -> None:
        if reservation.granted.resolved:
            self.used -= reservation.size
        else:
            self._waiting.remove(reservation)
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self.used + self._waiting[0].size <= self.size:
            reservation = self._waiting.popleft()
            self.used += reservation.size
            reservation.granted.resolve(None)


class Reservation:
    """Reserved memory. ``granted`` is resolved when the memory may be used."""

    __slots__ = ("_memory", "granted", "size")

    def __init__(self, memory: Memory, size: int) -> None:
        self._memory = memory
        self.size = size
        self.granted: Deferred[None] = Deferred()

    def release(self) -> None:
        self._memory.withdraw(self)


class Workers:
    """The threads and memory budgets of a broker. ``call_soon_threadsafe`` is the loop's."""

    def __init__(
        self,
        call_soon_threadsafe: Callable[..., object],
        new_threads: Callable[[int, str], Executor] = new_threads,
    ) -> None:
        self.large = Memory(LARGE_MEMORY_BYTES)
        self.small = Memory(SMALL_MEMORY_BYTES)
        self.outliving = 0
        self._call_soon_threadsafe = call_soon_threadsafe
        self._threads = new_threads(THREADS, "odradek-worker")

    def run(self, steps: BatchSteps[T]) -> Steps[T]:
        """Runs ``steps`` for the scheduler. Releases their reservations when the steps end or are closed."""
        reservations: list[Reservation] = []
        maps: list[mmap] = []
        running: Deferred[Future[object]] | None = None
        advance: Callable[[Any], Step] = steps.send
        value: object = None
        try:
            while True:
                try:
                    step = advance(value)
                except StopIteration as end:
                    return cast(T, end.value)
                advance, value = steps.send, None
                try:
                    if isinstance(step, Call):
                        running = self._call(step.function)
                        done = yield running
                        running = None
                        value = done.result()
                    elif isinstance(step, Reserve | Map):
                        memory = self.small if step.size <= SMALL_RESERVATION_BYTES else self.large
                        reservations.append(memory.reserve(step.size))
                        yield reservations[-1].granted
                        if isinstance(step, Map):
                            value = map_memory(step.size)
                            maps.append(value)
                    else:
                        yield None
                except Exception as error:
                    advance, value = steps.throw, error
        finally:
            steps.close()
            if running is None:
                self._give_back(reservations, maps)
            else:  # a thread still uses the maps
                running.then(lambda _: self._give_back(reservations, maps))

    def stop(self) -> None:
        """Cancels the calls that no thread has begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _give_back(self, reservations: list[Reservation], maps: list[mmap]) -> None:
        if sum(map(len, maps)) <= STEP_BYTES:
            _close(maps)
            _release(reservations)
        else:  # in a thread, because the system needs some time to unmap large maps
            self._call(partial(_close, maps)).then(lambda _: _release(reservations))

    def _call(self, function: Callable[[], object]) -> Deferred[Future[object]]:
        promise: Deferred[Future[object]] = Deferred()

        def report(done: Future[object]) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                self._call_soon_threadsafe(promise.resolve, done)

        try:
            self._threads.submit(function).add_done_callback(report)
        except RuntimeError as error:  # the broker stops
            failed: Future[object] = Future()
            failed.set_exception(error)
            promise.resolve(failed)
        return promise


def _close(maps: list[mmap]) -> None:
    while maps:
        with suppress(BufferError):  # a memoryview still uses the map: it is closed together with this view
            maps.pop().close()


def _release(reservations: list[Reservation]) -> None:
    for reservation in reservations:
        reservation.release()
    reservations.clear()
