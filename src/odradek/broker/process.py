"""The broker as a process: event loop, signals, the parent it may depend on."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from odradek.broker.clock import Clock
from odradek.broker.config import BrokerConfig
from odradek.broker.garbage import Collector
from odradek.broker.server import BrokerServer

log = logging.getLogger("odradek.broker")

Ready = Callable[[str, int], None]


def run(
    config: BrokerConfig,
    data_dir: Path,
    listen: tuple[str, int],
    ready: Ready,
    *,
    exit_with_parent: bool = False,
    control: bool = False,
    clock: Clock | None = None,
    delete_configs: Sequence[str] = (),
) -> bool:
    """Serves until SIGTERM or SIGINT (with ``exit_with_parent`` also until stdin ends), then stops in peace.

    ``ready(host, port)`` is called once requests are taken. ``control``: stdin is a socket on which the parent
    commands (broker/control_channel), and the broker stops when it ends. ``delete_configs``: as for BrokerServer.
    Returns whether the end of stdin was why it stopped. Raises OdradekError where it cannot start.
    """
    _raise_file_limit()
    try:
        import uvloop

        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    except ImportError:
        new_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        broker = BrokerServer(config, data_dir, listen, clock, delete_configs)
        return runner.run(_serve(broker, ready, exit_with_parent=exit_with_parent, control=control))


def _raise_file_limit() -> None:
    """Takes as many open files as the system lets us: each partition has three, each connection one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):  # some systems refuse "unlimited": then it stays as it was
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(broker: BrokerServer, ready: Ready, *, exit_with_parent: bool, control: bool) -> bool:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    orphaned = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await broker.start()
    Collector(loop.call_later, lambda: broker.is_busy, broker.heap.trim_soon).start()
    # Logs that are made later stay too: a look at those of ten thousand partitions takes a tenth of a second.
    broker.directory.on_growth = gc.freeze
    if control:
        from odradek.broker.control_channel import open_channel

        def on_end() -> None:
            orphaned.set()
            stop.set()

        await open_channel(broker, os.dup(sys.stdin.fileno()), on_end)
    elif exit_with_parent:
        _watch_stdin(loop, stop)
    try:
        ready(*broker.address)
    except BrokenPipeError:
        log.error("nobody is there to be told that the broker is ready: it stops")
        _point_stdout_nowhere()
        stop.set()
    await stop.wait()
    was_orphaned = orphaned.is_set()
    await broker.stop()
    return was_orphaned


def _point_stdout_nowhere() -> None:
    """What is still in its buffer must not fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Sets ``stop`` at the end of stdin, which comes when whoever holds its other side has died."""
    descriptor = sys.stdin.fileno()

    def on_readable() -> None:
        try:
            ended = not os.read(descriptor, 4096)
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, on_readable)
