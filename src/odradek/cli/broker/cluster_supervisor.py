"""The processes of a cluster's nodes under ``odradek serve --brokers N``: ``python -m`` this module, with the number of
a descriptor from which it reads the nodes.

It starts the controller again when it has died, and with ``--restart`` the brokers, too. A node ends when its standard
input ends: so no node outlives this process, however it ends. The module imports little, because it stays as long as
the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from odradek.cli.terminal import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK, error_line
from odradek.text.secret_file import secret_file, secrets_of

STOP_S = 30.0
"""A node that has not stopped after this time is killed."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 15.0
STEADY_S = 30.0
"""After this time of a node's life, its next restart comes after the first pause again."""


class SupervisedNode(NamedTuple):
    """``restart``: whether it is started again when it has died. ``add_scram``: a file with first users, or ""."""

    name: str
    data_dir: str
    address: str
    settings: Mapping[str, str]
    restart: bool
    add_scram: str = ""


def main() -> int:
    """Runs the nodes until SIGTERM or Ctrl-C. Returns the exit code."""
    with open(int(sys.argv[1]), "rb") as file:
        given = json.load(file)
    nodes = [SupervisedNode(**row) for row in given["nodes"]]
    return asyncio.run(_Supervisor(nodes, given["said"], exit_with_parent=given["exit_with_parent"]).run())


class _Supervisor:
    """The processes of the nodes, the controller first. ``said``: the line after that with the addresses. ``run``
    returns after the end of all."""

    def __init__(self, nodes: Sequence[SupervisedNode], said: str, *, exit_with_parent: bool) -> None:
        self._said = said
        self._nodes = [_NodeProcess(node) for node in nodes]
        self._exit_with_parent = exit_with_parent
        self._stop: asyncio.Event
        self._signals = 0
        self._code = EXIT_OK

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))  # blocked by the former program
        if self._exit_with_parent:
            loop.add_reader(sys.stdin.fileno(), self._on_parent)
        try:
            if await self._started():
                await self._serve()
        finally:
            await self._end()
        return self._code

    def _on_signal(self) -> None:
        self._signals += 1
        self._stop.set()
        if self._signals > 1:  # the user does not want to wait
            for node in self._nodes:
                node.kill()

    def _on_parent(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop.set()

    async def _started(self) -> bool:
        """Starts all nodes at once: the brokers wait for the controller. Returns False if a signal comes first, or if a
        node cannot start."""
        starts = [asyncio.ensure_future(node.start()) for node in self._nodes]
        stopping = asyncio.ensure_future(self._stop.wait())
        pending = set(starts)
        while pending and not self._stop.is_set():
            await asyncio.wait({*pending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            done = [one for one in starts if one in pending and one.done()]
            pending.difference_update(done)
            if fault := next(filter(None, (one.result() for one in done)), ""):
                error_line(fault)
                self._code = EXIT_BAD_INPUT
                self._stop.set()
        stopping.cancel()
        if self._stop.is_set():
            for one in starts:
                one.cancel()
            return False
        addresses = ",".join(node.node.address for node in self._nodes[1:])
        try:
            print(f"ready {addresses}\n{self._said}", flush=True)
        except BrokenPipeError:
            sys.stdout = None  # its buffer must not be written again
            return False
        return True

    async def _serve(self) -> None:
        """Watches the nodes until a signal comes or no broker is left."""
        controller, *brokers = (asyncio.ensure_future(self._watch(node)) for node in self._nodes)
        stopping = asyncio.ensure_future(self._stop.wait())
        left = set(brokers)
        while left and not self._stop.is_set():
            await asyncio.wait({*left, stopping}, return_when=asyncio.FIRST_COMPLETED)
            left = {one for one in left if not one.done()}
        if not self._stop.is_set():
            error_line("no broker is left: the cluster ends")
            self._code = EXIT_FAILED
            self._stop.set()
        for watch in (controller, *brokers):
            watch.cancel()
        stopping.cancel()
        await asyncio.gather(controller, *brokers, stopping, return_exceptions=True)

    async def _watch(self, node: _NodeProcess) -> None:
        """Says when a node has died, and starts it again where that is wanted."""
        pause_s = FIRST_PAUSE_S
        while True:
            lived_s = await node.wait()
            if self._stop.is_set():
                return
            remedy = "it is started again" if node.node.restart else (
                "partitions without another replica have no leader until it is back: start this command again, or use "
                "--restart"
            )  # fmt: skip
            error_line(f"{node.node.name} at {node.node.address} {node.ending()}: {remedy}")
            if not node.node.restart:
                return
            pause_s = FIRST_PAUSE_S if lived_s > STEADY_S else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)
            if not await node.start():
                error_line(f"{node.node.name} at {node.node.address} is ready again")

    async def _end(self) -> None:
        """Stops the brokers, which ask the controller for it, then the controller."""
        controller, *brokers = self._nodes
        for group in (brokers, [controller]):
            codes = await asyncio.gather(*(node.stop() for node in group))
            for node, code in zip(group, codes, strict=True):
                if code and not self._code and self._signals < 2:
                    error_line(f"{node.node.name} at {node.node.address} {node.ending()} while it was stopped")
                    self._code = EXIT_FAILED


class _NodeProcess:
    """The process of one node."""

    def __init__(self, node: SupervisedNode) -> None:
        self.node = node
        self._process: asyncio.subprocess.Process | None = None
        self._relay: asyncio.Task[None] | None = None
        self._last_line = ""
        self._started_s = 0.0

    async def start(self) -> str:
        """Starts the node and waits until it serves requests. Returns why it does not, or an empty text."""
        loop = asyncio.get_running_loop()
        self._last_line, self._started_s = "", loop.time()
        settings = self.node.settings
        secrets = secrets_of(settings)
        words = [f"{name}={text}" for name, text in settings.items() if name not in secrets]
        if self.node.add_scram:
            words.append(f"--add-scram={self.node.add_scram}")
        with secret_file(secrets) as number:
            if number is not None:
                words.append(f"--config-file=/dev/fd/{number}")
            # Its own process group: Ctrl-C is for this process, which then stops the nodes in order.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "odradek.broker", self.node.data_dir, "-", *words, "--exit-with-parent",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                process_group=0, pass_fds=() if number is None else (number,),
            )  # fmt: skip
        assert self._process.stdout is not None
        self._relay = loop.create_task(self._relay_log(self._process))
        line = (await self._process.stdout.readline()).decode().strip()
        if line.startswith("ready "):
            return ""
        self.kill()
        await self._process.wait()
        await self._relay
        reason = self._last_line.removeprefix("odradek broker: ") or self.ending()
        return f"{self.node.name} at {self.node.address} did not start: {reason}"

    async def _relay_log(self, process: asyncio.subprocess.Process) -> None:
        """Writes the node's log to standard error, each line with its name. ``start`` reports a refusal."""
        assert process.stderr is not None
        async for line in _lines(process.stderr):
            self._last_line = line
            if not line.startswith("odradek broker: "):
                with suppress(OSError):
                    sys.stderr.write(f"{self.node.name}: {line}\n")
                    sys.stderr.flush()

    async def wait(self) -> float:
        """Waits for the end of the process. Returns the seconds of its life."""
        if self._process is not None:
            await self._process.wait()
        return asyncio.get_running_loop().time() - self._started_s

    def ending(self) -> str:
        """Returns how the process has ended, for a line."""
        code = None if self._process is None else self._process.returncode
        if code is None:
            return "has ended"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        reason = self._last_line.removeprefix("odradek broker: ")
        return f"has ended with code {code}" + (f" ({reason})" if code and reason else "")

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal, unless the process has ended. asyncio's own methods would take its exit code away."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def stop(self) -> int:
        """Stops the node cleanly, and kills it after 30 seconds. Returns its exit code; 0 if it had ended before."""
        process = self._process
        if process is None or process.returncode is not None:
            return 0
        self._send(signal.SIGCONT)
        self._send(signal.SIGTERM)
        try:
            code = await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            self.kill()
            code = await process.wait()
        if self._relay is not None:
            await self._relay
        return code


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the lines of a stream, long ones in parts."""
    while True:
        try:
            line = await stream.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            line = error.partial
        except asyncio.LimitOverrunError as error:
            line = await stream.read(error.consumed)
        if not line:
            return
        yield line.decode(errors="replace").rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
