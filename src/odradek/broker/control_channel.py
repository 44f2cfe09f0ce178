"""Commands from the parent process to the broker: moves of its clock, faults, checks of its state, and new topics.

A command is one line of JSON, ``{"do": "advance", "by_ms": 1000}``. Its reply is one line, ``{"result": …}`` or
``{"error": "…"}``. The broker inherits one end of a Unix socket pair as its stdin, so no other process can send
commands, and the end of the stream shows that the parent has died. A broker in a thread gets the commands as calls.

| do | with | result |
|---|---|---|
| ``advance`` | ``by_ms`` | the broker's time in ms, after all due alarms have run |
| ``now_ms`` | | the broker's time in ms |
| ``fault`` | ``kind``, ``api`` and the other arguments of ``FaultRules.add`` | the fault's number |
| ``faults`` | | ``fired`` (rows in the order of ``FaultHit``) and ``pending`` (numbers) |
| ``clear_faults`` | | |
| ``cleaner`` | | the state of the log cleaner: the fields of ``testing.broker.CleanerHealth`` |
| ``collect`` | | the number of objects that a full garbage collection freed |
| ``memory`` | | after a full garbage collection: ``blocks``, the interpreter's objects; ``bytes``, used in the C heap |
| ``network`` | ``faults``: a text for ``NodeNetwork`` | nothing, also while the node starts |
| ``create_topic`` | ``name``, ``partition_count`` (-1: the broker's default), ``configs`` | |
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from odradek.broker.controller.write_events import TopicSpec
from odradek.broker.loop.heap import bytes_in_use
from odradek.broker.settings.keys import UnknownConfig
from odradek.core.errors import OdradekError

if TYPE_CHECKING:
    from odradek.broker.fault_injection.middleware import FaultInjection
    from odradek.broker.fault_injection.node_network import NodeNetwork
    from odradek.broker.server import BrokerServer
    from odradek.catalog.state import Topic

MAX_COMMAND_BYTES = 1 << 20


class Control:
    """Executes commands on the broker's event loop. ``network``: what changes what reaches other nodes.

    Until ``begin``, commands wait for the end of the start, except for those to the network: a start may wait for
    another node."""

    def __init__(self, broker: BrokerServer, network: NodeNetwork | None = None) -> None:
        self._broker = broker
        self._network = network
        self._begun = asyncio.Event()
        self._fault_injection: FaultInjection | None = None

    @property
    def _faults(self) -> FaultInjection:
        if self._fault_injection is None:
            from odradek.broker.fault_injection.middleware import FaultInjection

            self._fault_injection = FaultInjection(self._broker)
        return self._fault_injection

    def begin(self) -> None:
        """The node serves: all commands are executed."""
        self._begun.set()

    def _change_network(self, faults: str) -> None:
        if self._network is None:
            raise ValueError("the node was started without --network-faults")
        self._network.change(faults)

    async def execute(self, command: Mapping[str, Any]) -> Any:
        """Executes a command and returns its result. Raises ValueError if the command is unknown or refused."""
        arguments = dict(command)
        do = arguments.pop("do", None)
        if do == "network":
            return self._change_network(**arguments)
        await self._begun.wait()
        if do == "advance":
            self._broker.clock.advance(arguments["by_ms"])
            await self._broker.run_due_alarms()
            return self._broker.now_ms()
        if do == "now_ms":
            return self._broker.now_ms()
        if do == "fault":
            return self._faults.add(**arguments)
        if do == "faults":
            return {"fired": list(self._faults.fired), "pending": self._faults.pending()}
        if do == "clear_faults":
            return self._faults.clear()
        if do == "cleaner":
            return self._cleaner()
        if do == "collect":
            return gc.collect()
        if do == "memory":
            gc.collect()
            return {"blocks": sys.getallocatedblocks(), "bytes": bytes_in_use()}
        if do == "create_topic":
            return await self._create_topic(**arguments)
        raise ValueError(f"unknown command {do!r}")

    def _cleaner(self) -> dict[str, object]:
        status = self._broker.log_cleaner.status()
        return {
            "thread_count": status.thread_count,
            "dead_thread_count": status.dead_thread_count,
            "last_run_ms": status.last_run_ms,
            "cleanings": status.cleanings,
            "in_progress": list(map(str, status.in_progress)),
            "dirty_bytes": {str(name): size for name, size in status.dirty_bytes.items()},
            "max_dirty_ratio": status.max_dirty_ratio,
            "uncleanable": {str(name): reason for name, reason in status.uncleanable.items()},
            "uncleanable_bytes": status.uncleanable_bytes,
        }

    async def _create_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        topic = TopicSpec(name, partition_count, configs=configs)
        created: asyncio.Future[Topic | Exception] = asyncio.get_running_loop().create_future()
        self._broker.scheduler.start(self._broker.controller.create_topic(topic)).then(created.set_result)
        result = await created
        if isinstance(result, UnknownConfig):
            raise ValueError(result.with_hint()) from result
        if isinstance(result, OdradekError):
            raise ValueError(str(result)) from result
        if isinstance(result, Exception):
            raise result


class ControlChannel(asyncio.Protocol):
    """Commands from a stream, executed one after another."""

    def __init__(self, control: Control, on_end: Callable[[], None]) -> None:
        self._control = control
        self._on_end = on_end
        self._buffer = b""
        self._commands: asyncio.Queue[bytes] = asyncio.Queue()
        self._transport: asyncio.WriteTransport
        self._work: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._work = asyncio.get_running_loop().create_task(self._reply_to_all(), name="control")

    def data_received(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._commands.put_nowait(line)
        if len(self._buffer) > MAX_COMMAND_BYTES:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._work.cancel()
        self._on_end()

    async def _reply_to_all(self) -> None:
        while True:
            line = await self._commands.get()
            reply: dict[str, object]
            try:
                reply = {"result": await self._control.execute(json.loads(line))}
            except Exception as error:
                reply = {"error": f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"}
            self._transport.write(json.dumps(reply).encode() + b"\n")


async def open_channel(control: Control, descriptor: int, on_end: Callable[[], None]) -> None:
    """Reads commands from an inherited Unix socket. Calls ``on_end`` when the other side closes the socket."""
    inherited = socket.socket(fileno=descriptor)
    inherited.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: ControlChannel(control, on_end), sock=inherited)
