"""The broker as a process: its event loop, signals, and the connection to its parent process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.loop.clock import Clock
from odradek.broker.loop.garbage import Collector
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.node.writer_role import NO_CHANGES, StartChanges
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.core.errors import OdradekError, StorageError
from odradek.core.operating_system import require_posix
from odradek.text.log_lines import open_security_logs

try:
    import resource
except ImportError:  # Windows, where no broker runs
    pass

if TYPE_CHECKING:
    from odradek.broker.fault_injection.node_network import NodeNetwork
    from odradek.broker.node.cluster_role import ClusterRole
    from odradek.broker.node.controller_role import ControllerRole

log = logging.getLogger("odradek.broker")

Ready = Callable[[str], None]
"""Gets ``HOST:PORT`` of each listener in the order of the settings, with spaces between them. A node with both roles
gives those of its broker."""
EXIT_DISK_FAILED = 74
"""The exit code after a failed write: EX_IOERR of sysexits.h."""


class ParentLink(Enum):
    """What stdin is to a broker that another process has started."""

    NONE = "none"
    STDIN = "stdin"
    """The broker stops at the end of stdin."""
    CONTROL = "control"
    """A socket with commands (``control_channel``). The broker stops when the parent closes it."""


class Extras(NamedTuple):
    """What a node has besides its service. ``metrics``: host and port of the page of metrics; None for no metrics.
    ``network_faults``: the first text for ``NodeNetwork``, which changes what reaches other nodes; None: no text does.
    """

    metrics: tuple[str, int] | None = None
    network_faults: str | None = None


NO_EXTRAS = Extras()


class DiskFailed(StorageError):
    """A write has failed and its result on the disk is unknown, so the broker has ended without a clean stop."""


class NodeDismissed(OdradekError):
    """The broker has ended because its cluster does not want it. Its logs are closed cleanly."""


def run(
    config: BrokerConfig,
    data_dir: Path,
    listen: tuple[str, int] | None,
    ready: Ready,
    *,
    parent: ParentLink = ParentLink.NONE,
    clock: Clock | None = None,
    changes: StartChanges = NO_CHANGES,
    extras: Extras = NO_EXTRAS,
) -> bool:
    """Serves until SIGTERM, SIGINT or, with a link to the parent process, the end of stdin. Then stops cleanly.

    ``ready(addresses)`` is called as soon as the broker accepts requests. ``listen``: as for BrokerServer. Returns
    whether the broker stopped because the parent closed its socket. Raises OdradekError if the broker cannot start,
    DiskFailed if it ended after a failed write, NodeDismissed if its cluster does not want it.
    """
    require_posix("the broker")
    _raise_file_limit()
    open_security_logs()
    os.umask(0o077)  # the metadata log may have credentials, whatever the listeners are
    try:
        import uvloop

        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    except ImportError:
        new_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        choose_roles(config, data_dir)
        new_role = partial(role_class(config), changes=changes)
        world = NodeWorld.of_process(clock)
        faults = None
        if extras.network_faults is not None:
            from odradek.broker.fault_injection.node_network import NodeNetwork

            faults = NodeNetwork(extras.network_faults)
            world = world._replace(connect=faults.connect)
        broker = BrokerServer(config, data_dir, listen, world, new_role, loop=runner.get_loop())
        if faults is not None:
            faults.follow(broker.role.hold_fetches)
        if extras.metrics is not None:
            from odradek.broker.metrics.page import add_metrics

            add_metrics(broker, extras.metrics, runner.get_loop())
        return runner.run(_serve(broker, ready, parent, faults))


def choose_roles(config: BrokerConfig, data_dir: Path) -> None:
    """Makes a node with both roles one of a cluster if its directory was formatted for that; otherwise it is a lone
    broker. Raises ConfigError, StorageError."""
    if not config.may_be_combined:
        return
    from odradek.broker.metadata_log import bootstrap
    from odradek.storage.disk.files import OsFiles

    try:
        is_of_a_cluster = bootstrap.is_of_both_roles(data_dir, OsFiles())
    except OSError as error:
        raise StorageError(f"{data_dir} cannot be read: {error.strerror or error}") from error
    if is_of_a_cluster:
        config.use_both_roles()
        return
    log.warning(
        "process.roles=broker,controller: the node is a lone broker, because %s was not formatted for a node of a "
        "cluster: other nodes cannot join it", data_dir,
    )  # fmt: skip


def role_class(config: BrokerConfig) -> type[LoneRole] | type[ClusterRole] | type[ControllerRole]:
    """Returns the role that the settings describe. Only nodes of a cluster load its modules."""
    if config.roles is None:
        return LoneRole
    if config.roles.is_controller and config.roles.is_broker:
        from odradek.broker.node.combined_role import CombinedRole

        return CombinedRole
    if config.roles.is_controller:
        from odradek.broker.node.controller_role import ControllerRole

        return ControllerRole
    from odradek.broker.node.cluster_role import ClusterRole

    return ClusterRole


async def _started(broker: BrokerServer, stop: asyncio.Event) -> bool:
    """Starts the broker. Returns False if it has to stop before it serves: the start of a broker of a cluster waits for
    its controller. Raises DiskFailed."""
    if broker.role.joined is None:
        await broker.start()
        return True
    starting, stopping = asyncio.ensure_future(broker.start()), asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        _check_disk(broker)
        return False
    starting.result()  # or its exception
    return True


def _check_disk(broker: BrokerServer) -> None:
    """Raises DiskFailed after a failed write whose result is unknown."""
    if broker.failure:
        raise DiskFailed(f"the broker ends: {broker.failure}; the next start checks the logs")


def _raise_file_limit() -> None:
    """Raises the limit of open files to the system's maximum: a partition needs three files, a connection one."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):  # some systems refuse "unlimited": then the limit does not change
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(broker: BrokerServer, ready: Ready, parent: ParentLink, faults: NodeNetwork | None) -> bool:
    loop, control = asyncio.get_running_loop(), None
    stop = asyncio.Event()
    orphaned = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker.on_failure = stop.set
    if parent is ParentLink.STDIN:
        _watch_stdin(loop, stop)
    if parent is ParentLink.CONTROL:
        from odradek.broker.control_channel import Control, open_channel

        def on_end() -> None:
            orphaned.set()
            stop.set()

        control = Control(broker, faults)
        await open_channel(control, os.dup(sys.stdin.fileno()), on_end)
    try:
        is_started = await _started(broker, stop)
    except BaseException:
        for number in (signal.SIGTERM, signal.SIGINT):  # those of a closed loop would ignore signals
            loop.remove_signal_handler(number)
        raise
    if not is_started:
        return orphaned.is_set()
    Collector(loop.call_later, lambda: broker.is_busy, broker.heap.trim_soon).start()
    # Garbage collections also skip the logs that are made after the start: a visit to the logs of 10,000 partitions
    # takes a tenth of a second.
    broker.directory.on_growth = gc.freeze
    if control is not None:
        control.begin()
    try:
        ready(" ".join(listener.address for listener in broker.listeners))
    except BrokenPipeError:
        log.error("the broker stops: it cannot report that it is ready, because the reader of its stdout has exited")
        _redirect_stdout()
        stop.set()
    await stop.wait()
    if broker.failure:
        await broker.abandon()
        _check_disk(broker)
    was_orphaned = orphaned.is_set()
    await broker.stop()
    _check_disk(broker)
    if broker.dismissal:
        node = "broker" if broker.role.has_broker_settings else "controller"
        raise NodeDismissed(f"the {node} ends: {broker.dismissal}")
    return was_orphaned


def _redirect_stdout() -> None:
    """Redirects stdout to the null device: the write of its buffer must not fail again when the interpreter ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Sets ``stop`` at the end of stdin, which shows that the process at its other side has died."""
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
