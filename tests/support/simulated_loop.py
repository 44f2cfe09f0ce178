"""An event loop and threads in a simulated world: virtual time, and results of threads that come late."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from support.world import Process, SimulationFailure, World


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The event loop of one process in a world. Callbacks run in the world's order, until the process is killed.

    ``lateness_ms`` returns how long a job of a thread takes. Jobs run in the order of their ends.
    """

    def __init__(self, world: World, process: Process, lateness_ms: Callable[[], int] = lambda: 0) -> None:
        self.world = world
        self.process = process
        self.lateness_ms = lateness_ms
        self._tasks: list[asyncio.Task[Any]] = []

    def kill(self) -> None:
        """Ends the process. Its coroutines stay where they are: a killed process runs no ``finally``."""
        self.process.kill()
        for task in self._tasks:
            task._log_destroy_pending = False
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        self.world.remains.append(self._tasks)

    def time(self) -> float:
        return self.world.steady() / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self.world.at(self.world.now_ms, lambda: self._run(handle), self.process)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self.world.at(math.ceil(round(when * 1000, 2)), lambda: self._run(timer), self.process)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None: ...

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            self.run(handle._run)

    def run(self, callback: Callable[[], Any]) -> Any:
        """Calls a function as a callback of this loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            return callback()
        finally:
            asyncio._set_running_loop(before)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=self, name=options.get("name"))
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def work() -> None:
            try:
                value = function(*args)
            except Exception as error:
                future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(value)

        self.call_later(self.lateness_ms() / 1000, work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.process.is_alive

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error that no code expects ends the simulation."""
        error = context.get("exception")
        if not self.process.is_alive or "handle" not in context:  # other reports come from the collector of garbage
            return
        if isinstance(error, SimulationFailure):
            raise error
        raise SimulationFailure(f"{context.get('message')}: {error!r}") from error


class SimulatedThreads(Executor):
    """Threads whose jobs run on the loop, late. Those that close the logs of a node run at once."""

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self._loop = loop
        self._is_at_once = name == "closing"

    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                value = function(*args, **options)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(value)

        if self._is_at_once:
            work()
        else:
            self._loop.call_later(self._loop.lateness_ms() / 1000, work)
        return future
