"""A broker's process that measures the turns of its event loop in CPU time of the loop's thread.

Other work of the machine does not change the result. A turn is the time between two looks at the sockets: another
client waits for it in any case. While the meter runs, a callback marks each turn, so the loop is never idle.

SIGUSR1 starts the meter, SIGUSR2 stops it and writes the longest turns to the file that `ODRADEK_TURNS` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ != "__main__":
    from target import CappedBroker

FILE = "ODRADEK_TURNS"


class Turns:
    """The meter, in the broker's process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        self._path = path
        self._runs = False
        self._since = 0.0
        self._longest = [0.0]

    def begin(self) -> None:
        self._runs, self._longest, self._since = True, [0.0], time.thread_time()
        self._loop.call_soon(self._mark)

    def _mark(self) -> None:
        now = time.thread_time()
        if now - self._since > self._longest[-1]:
            self._longest = sorted([*self._longest, now - self._since], reverse=True)[:5]
        self._since = now
        if self._runs:
            self._loop.call_soon(self._mark)

    def end(self) -> None:
        self._runs = False
        unfinished = self._path.with_suffix(".new")
        unfinished.write_text(json.dumps([1000 * turn for turn in self._longest]))
        unfinished.replace(self._path)


def main() -> None:
    from odradek.broker.server import BrokerServer

    start = BrokerServer.start

    async def start_metered(self: Any) -> None:
        await start(self)
        turns = Turns(asyncio.get_running_loop(), Path(os.environ[FILE]))
        self.loop.add_signal_handler(signal.SIGUSR1, turns.begin)
        self.loop.add_signal_handler(signal.SIGUSR2, turns.end)

    BrokerServer.start = start_metered
    runpy.run_module("odradek.broker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
else:

    class MeteredBroker(CappedBroker):
        """A broker in such a process. Its address space is limited."""

        @property
        def _turns_path(self) -> Path:
            return self.directory / "turns.json"

        def command_line(self) -> list[str]:
            command = super().command_line()
            at = command.index("-m")
            program = [f"{FILE}={self._turns_path.absolute()}", sys.executable, str(Path(__file__).resolve())]
            return [*command[: at - 1], "/usr/bin/env", *program, *command[at + 2 :]]

        @contextlib.contextmanager
        def turns(self, found: list[float]) -> Iterator[None]:
            """Measures the longest turns during the block, in ms of CPU time. Adds them to ``found``."""
            assert self.pid is not None
            self._turns_path.unlink(missing_ok=True)
            os.kill(self.pid, signal.SIGUSR1)
            yield
            os.kill(self.pid, signal.SIGUSR2)
            deadline = time.monotonic() + 60
            while not self._turns_path.exists():
                assert time.monotonic() < deadline, "the broker has not reported its turns"
                time.sleep(0.01)
            found += json.loads(self._turns_path.read_text())
