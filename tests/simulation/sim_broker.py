"""A whole broker in a simulated world: its process, its disk, and sessions of clients that speak Kafka's frames.

The broker is the real node with real logs in memory files. It is killed, its power is cut, its disk fills up or fails,
its threads are slow. ``BrokerStage`` notes what must hold after each of these.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from sim_broker_ledger import BrokerLedger
from support.memory_files import MemoryFiles
from support.simulated_loop import SimulatedLoop
from support.simulated_node import HOME, SimulatedNode, Wire
from support.world import Process, SimulationFailure, World

from odradek.core.errors import StorageError
from odradek.storage.disk.checkpoints import CLEAN_SHUTDOWN
from odradek.wire import frames

RESTART_MS = (20, 4_000)
LOST_REPLIES = 0.04
"""The part of requests whose connection ends before the reply has arrived."""
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "num.partitions": "2",
    "auto.create.topics.enable": "false",
    "metadata.log.max.record.bytes.between.snapshots": "3000",
}


class Gone(Exception):
    """The connection ended, or no reply came in time. The request may have taken effect."""


class Session:
    """A client's connection, made again when it has ended. ``ask`` sends a request and waits for its reply."""

    def __init__(self, stage: BrokerStage, name: str, chance: random.Random) -> None:
        self.name = name
        self._stage = stage
        self._chance = chance
        self._wire: Wire | None = None
        self._delay_ms = 0
        self._number = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, key: int, version: int, message: dict[str, Any] | bytes, timeout_ms: int = 20_000) -> Any:
        """Returns the decoded reply. Raises Gone."""
        wire = self._connected()
        self._number = number = self._number + 1
        world, loop = self._stage.world, self._stage.loop
        reply = self._waiting[number] = loop.create_future()
        request = frames.encode_request(key, version, number, self.name, message)
        world.at(world.now_ms + self._delay_ms, lambda: wire.send(request))
        if self._chance.random() < LOST_REPLIES:
            world.at(world.now_ms + self._delay_ms + self._chance.randrange(3), lambda: self._give_up(wire))
        timer = loop.call_later(timeout_ms / 1000, self._give_up, wire)
        try:
            data = await reply
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        return frames.decode_reply(key, version, data)[1]

    def _connected(self) -> Wire:
        if self._wire is None or not self._wire.is_open:
            node = self._stage.node
            if node is None or self._stage.is_stopping:
                raise Gone
            self._delay_ms = self._chance.randrange(0, 4)
            self._wire = wire = node.connect(lambda frame: self._on_frame(wire, frame), lambda: self._on_end(wire))
            if not wire.is_open:
                raise Gone
        return self._wire

    def _on_frame(self, wire: Wire, frame: bytes) -> None:
        number = int.from_bytes(frame[:4], "big")
        world = self._stage.world
        world.at(world.now_ms + self._delay_ms, lambda: self._resolve(wire, number, frame))

    def _resolve(self, wire: Wire, number: int, frame: bytes) -> None:
        reply = self._waiting.get(number)
        if wire is self._wire and reply is not None and not reply.done():
            reply.set_result(frame)

    def _on_end(self, wire: Wire) -> None:
        if wire is self._wire:
            self._wire = None
            for reply in tuple(self._waiting.values()):
                if not reply.done():
                    reply.set_exception(Gone())

    def _give_up(self, wire: Wire) -> None:
        if wire.is_open:
            wire.hang_up()
            self._on_end(wire)

    def hang_up(self) -> None:
        """Closes the connection. Requests in progress may have taken effect."""
        if self._wire is not None:
            self._give_up(self._wire)


class BrokerStage:
    """The world with one broker. ``is_synced``: each record is synced before its reply, so a power cut loses none."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, 400_000)
        self.chance = random.Random(self.world.rng.getrandbits(64))
        self.files = MemoryFiles(self.world.now_ms)
        self.loop = SimulatedLoop(self.world, Process(self.world))
        self.is_synced = self.chance.random() < 0.5
        self.settings = SETTINGS | ({"log.flush.interval.messages": "1"} if self.is_synced else {})
        self.node: SimulatedNode | None = None
        self.is_stopping = False
        self.lost_power_ms = -1
        """The time of the newest power cut that may have lost records, or -1."""
        self.ledger = BrokerLedger(self)
        self.counts = {"starts": 0, "kills": 0, "power cuts": 0, "disk errors": 0, "replies": 0}
        self.failure: Exception | None = None
        self.world.checks.append(self._raise_failure)

    def note(self, who: str, what: str, *values: Any) -> None:
        self.world.note(who, what, *values)

    # --- the process ----------------------------------------------------------------------------------------------

    def start(self, *, is_slow: bool) -> None:
        self.files.fail_write = self.files.fail_sync = self.files.fail_read = lambda path: False
        node = SimulatedNode(self.world, self.files, self.settings, is_slow=is_slow)
        self.counts["starts"] += 1
        try:
            node.begin()
        except StorageError as error:
            node.kill()
            if self.files.free_bytes is None:
                raise
            self.note("broker", "does not start on the full disk: {}", error)
            self._start_later(is_slow=is_slow)
            return
        self.node = node
        self.is_stopping = False
        node.broker.on_failure = lambda: self.world.at(self.world.now_ms, lambda: self._end_after_failure(node))
        self.note("broker", "starts{}", ", slow" if is_slow else "")
        self.ledger.check_start()

    def _end_after_failure(self, node: SimulatedNode) -> None:
        if self.node is node:
            self.note("broker", "ends: {}", node.broker.failure)
            self.counts["disk errors"] += 1
            self._end(is_slow=False)

    def kill(self) -> None:
        """kill -9: the page cache stays."""
        if self.node is not None:
            self.note("broker", "is killed")
            self.counts["kills"] += 1
            self.ledger.note_end()
            self._end(is_slow=self.chance.random() < 0.5)

    def cut_power(self, kept: Callable[[], float] | None) -> None:
        """Everything that was not synced is gone, or with ``kept`` a part of it."""
        if self.node is None:
            return
        self.note("broker", "loses its power")
        self.counts["power cuts"] += 1
        self.ledger.note_power_cut()
        if not self.is_synced:
            self.lost_power_ms = self.world.now_ms
        node, self.node = self.node, None
        node.kill()
        self.files.power_cut(kept) if kept is not None else self.files.power_cut()
        self._start_later(is_slow=self.chance.random() < 0.5)

    def stop(self) -> None:
        """A clean stop, after which the broker starts again."""
        node = self.node
        if node is None or self.is_stopping:
            return
        self.is_stopping = True
        self.note("broker", "stops")
        node.stop().add_done_callback(lambda done: self._on_stopped(node))

    def _on_stopped(self, node: SimulatedNode) -> None:
        if self.node is node:
            self.node = None
            node.kill()
            is_clean = self.files.free_bytes is None and not node.broker.failure
            if is_clean and self.files.exists(HOME / CLEAN_SHUTDOWN) and self.chance.random() < 0.5:
                self.files.power_cut()  # a clean stop has synced all
                self.note("broker", "loses its power after a clean stop")
            self._start_later(is_slow=False)

    def _end(self, *, is_slow: bool) -> None:
        node, self.node = self.node, None
        assert node is not None
        node.kill()
        self._start_later(is_slow=is_slow)

    def _start_later(self, *, is_slow: bool) -> None:
        self.world.at(self.world.now_ms + self.chance.randint(*RESTART_MS), lambda: self.start(is_slow=is_slow))

    # --- the disk -------------------------------------------------------------------------------------------------

    def fill_disk(self, duration_ms: int) -> None:
        self.note("broker", "has a full disk")
        self.files.free_bytes = self.chance.randrange(0, 300)

        def free() -> None:
            self.files.free_bytes = None

        self.world.at(self.world.now_ms + duration_ms, free)

    def fail_disk(self) -> None:
        """The next write or sync of a random kind of file fails; then the broker has to end."""
        kind = self.chance.choice(["write", "sync"])
        part = self.chance.choice(["__cluster_metadata", "__consumer_offsets", "__transaction_state", "t0", "t1"])
        self.note("broker", "has a disk whose next {} of {} fails", kind, part)
        setattr(self.files, f"fail_{kind}", lambda path: part in str(path) and path.suffix == ".log")

    # --- clients --------------------------------------------------------------------------------------------------

    def spawn(self, work: Awaitable[Any]) -> None:
        """Starts a client's work. What it raises, except Gone, ends the simulation."""
        self.loop.create_task(self._until_gone(work))

    async def _until_gone(self, work: Awaitable[Any]) -> None:
        try:
            await work
        except Gone:
            return
        except Exception as error:
            self.failure = self.failure or error

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    async def sleep(self, duration_ms: int) -> None:
        future = self.loop.create_future()
        self.world.at(self.world.now_ms + duration_ms, lambda: future.done() or future.set_result(None))
        await future

    def fail(self, text: str, *about: str) -> SimulationFailure:
        return SimulationFailure(text, *about)
