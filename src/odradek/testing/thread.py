"""A broker in a thread of this process, with its own event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from odradek.broker.control_channel import Control
from odradek.broker.loop.clock import Clock
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.node.writer_role import NO_CHANGES, StartChanges
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.testing.ports import PortOwner
from odradek.testing.process import COMMAND_TIMEOUT_S, START_TIMEOUT_S, STOP_TIMEOUT_S, BrokerFailed, bracketed

log = logging.getLogger("odradek.broker")


class BrokerThread(PortOwner):
    """One broker, with the same data directory and port over ``kill``, ``stop`` and ``start``.

    ``kill`` ends the broker at once: the broker writes and sends nothing more and leaves no mark of a clean stop. As
    after kill -9, the data that was already written to files is still there. ``world``: instead of this process's;
    the clock is always one of this process.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        config: Mapping[str, str],
        host: str = "127.0.0.1",
        port: int = 0,
        add_scram: Path | None = None,
        world: NodeWorld | None = None,
    ) -> None:
        self._add_scram = add_scram
        self._world = world
        self.data_dir = data_dir
        self.config = dict(config)
        self.host = bracketed(host)
        self.port = port
        self.clock_ahead_ms = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._control: Control
        self.server: BrokerServer
        """The broker, from the first start on. Only its own loop may change it."""
        self._end: asyncio.Future[bool]

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> None:
        """None: the broker has no process of its own."""
        return

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether the broker ended without ``stop`` or ``kill``."""
        return self._thread is not None and not self.running

    def start(self) -> BrokerThread:
        """Starts the broker and waits until it accepts requests. Raises the exception that prevented the start."""
        if self.running:
            raise BrokerFailed("the broker is running already")
        ready: Future[int] = Future()
        with self.choosing_port():
            self._thread = threading.Thread(target=self._run, args=(ready,), name="odradek broker", daemon=True)
            self._thread.start()
            self.port = ready.result(START_TIMEOUT_S)
        return self

    def _run(self, ready: Future[int]) -> None:
        try:
            import uvloop

            new_loop = uvloop.new_event_loop
        except ImportError:
            new_loop = asyncio.new_event_loop
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._serve(ready))
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _serve(self, ready: Future[int]) -> None:
        clock = Clock()
        clock.advance(self.clock_ahead_ms)
        world = NodeWorld.of_process(clock) if self._world is None else self._world._replace(clock=clock)
        listen = None if "listeners" in self.config else (self.host, self.port)
        changes = NO_CHANGES
        if self._add_scram is not None:
            from odradek.broker.logins import first_users

            changes = StartChanges(first_users=first_users.read(self._add_scram))
        new_role = partial(LoneRole, changes=changes)
        broker = BrokerServer(BrokerConfig(self.config), self.data_dir, listen, world, new_role)
        self._loop = asyncio.get_running_loop()
        self._control = Control(broker)
        self._control.begin()
        self.server = broker
        self._end = self._loop.create_future()
        broker.on_failure = lambda: self._set_end(clean=False)
        await broker.start()
        ready.set_result(broker.address[1])
        if await self._end:
            await broker.stop()
        else:
            await broker.abandon()
            if broker.failure:
                log.error("the broker ends: %s; the next start checks the logs", broker.failure)

    def command(self, do: str, **arguments: object) -> Any:
        """Sends a command of broker/control_channel. Raises ValueError; BrokerFailed if the broker sends no reply."""
        if not self.running:
            raise BrokerFailed("the broker is not running")
        work = self._control.execute({"do": do, **arguments})
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(COMMAND_TIMEOUT_S)
        except TimeoutError as error:
            raise BrokerFailed(f"the broker did not reply within {COMMAND_TIMEOUT_S} s") from error

    def stop(self) -> int:
        """Stops the broker cleanly; returns 0."""
        self._finish(clean=True)
        return 0

    def kill(self) -> None:
        self._finish(clean=False)

    def _finish(self, *, clean: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None or not thread.is_alive():
            return
        self._loop.call_soon_threadsafe(lambda: self._set_end(clean=clean))
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise BrokerFailed(f"the broker did not stop within {STOP_TIMEOUT_S} s")

    def _set_end(self, *, clean: bool) -> None:
        if not self._end.done():
            self._end.set_result(clean)

    def log_tail(self, start: int | None = None) -> str:
        """Returns "": the broker logs through this process's ``logging`` (logger ``odradek``)."""
        return ""

    def log_size(self) -> int:
        """Returns 0."""
        return 0
