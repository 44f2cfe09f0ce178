"""Sends generated requests to a broker in a separate process, and records their effects on the broker and on another
client.

One workload is one extreme request, or many requests in one of these ways: pipelined, parked, half-sent, over many
connections, or without reading the replies. During a workload another connection sends ApiVersions requests in a loop.
Its longest wait is attributed to that workload.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import select
import socket
import statistics
import time
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple

from attacks import committed, metadata, new_topic, until
from hostile import EXTREMES, Generator, Known, Request, Scale, packed
from other_client import ran_ms
from support.brokers import eventually
from target import GROWTH_BYTES, CappedBroker, Target, Use, is_alive, settled, unwanted_descriptors, use_of

from odradek.broker.loop.heap import TRIM_BYTES
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS, FETCH, JOIN_GROUP, PRODUCE, SYNC_GROUP

WAYS = ("pipelined", "parked", "half-sent", "connections", "unread")
SETTINGS = {
    "num.partitions": "4", "group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "true",
    "socket.listen.backlog.size": "500",
}  # fmt: skip
PATIENCE_S = 60.0
KEPT_HALVES = 8
TIDY_EVERY = 250
_AGES_MS = (600_000, 600_000, 600_000, 8 * 86_400_000)
"""The steps by which a test advances the broker's clock. Each of the first three steps ends rebalances and sessions,
also those that remain after the step before. The last step ends the retention of groups and producers."""
_MAY_WAIT = {FETCH, JOIN_GROUP, SYNC_GROUP}
_CONFIGURED = (16, 32)
"""Resources that exist only by their settings: client metrics subscriptions, and groups."""
_TOPICS = ("known-a", "known-b", "known-c")
_GROUPS = ("group-a", "group-b")


class Wait(NamedTuple):
    """One wait of another client during a workload.

    ``ran_ms`` is the time for which the broker's main thread ran during the wait. Other programs do not increase it.
    """

    ran_ms: float
    waited_ms: float
    workload: str


class Replies:
    """Counts the replies on a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.count = 0
        self._frames = frames.FrameReader(1 << 31)

    def receive(self) -> bool:
        """Reads once. Returns False if the connection has ended."""
        try:
            data = self.connection.recv(1 << 20)
        except ConnectionError:
            return False
        self.count += sum(1 for _ in self._frames.feed(data))
        return bool(data)


class WorkloadRun:
    """One run against one broker. The run starts the broker, and restarts it at the end."""

    def __init__(self, directory: Path, seed: int, scale: Scale, *, files: int | None = None) -> None:
        self.broker = CappedBroker(directory, SETTINGS, files=files)
        self.seed = seed
        self.answered: Counter[str] = Counter()
        self.faults: list[str] = []
        self.waits: list[float] = []
        self.worst: list[Wait] = []
        self._scale = scale
        self._halves: deque[socket.socket] = deque()
        self._at = 0

    # --- the broker ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.broker.start()
        known = self._prepared()
        self.generator = Generator(self.seed, known, self._scale)
        self._other = self._connected()

    @property
    def pid(self) -> int:
        pid = self.broker.pid
        assert pid is not None
        return pid

    def _prepared(self) -> Known:
        """Topics, and groups with commits. Creates those that are missing."""
        with Target(self.broker.bootstrap, patience_s=PATIENCE_S) as target:
            target.quietly(
                19, 7, {"topics": [new_topic(n, 4) for n in _TOPICS], "timeout": 10_000, "validate_only": False}
            )
            rows = [{"topic_id": None, "name": name} for name in _TOPICS]
            reply = until(
                target, 3, 12, metadata(rows, create=False), lambda r: all(len(t.partitions) >= 4 for t in r.topics)
            )
            for group in _GROUPS:
                committed(target, group, _TOPICS[0], range(4), "m")
            return Known(_TOPICS, tuple(topic.topic_id for topic in reply.topics), _GROUPS)

    def _connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.broker.port), timeout=PATIENCE_S)

    # --- workloads --------------------------------------------------------------------------------------------------

    def run(self, count: int) -> None:
        """Runs this number of workloads. Stops at the first workload that the broker does not survive."""
        for _ in range(count):
            self._at += 1
            if self._at % TIDY_EVERY == 0:
                self.tidy()
            way = self.generator.dice.choice((*EXTREMES, *EXTREMES, *WAYS))
            try:
                description = self._one(way)
            except OSError as error:
                description = f"{way}: {error!r}"
                if is_alive(self.pid):
                    self.faults.append(f"workload {self._at}, {description}")
                    with contextlib.suppress(OSError):
                        self._other = self._connected()
            if not is_alive(self.pid):
                self.faults.append(f"the broker is dead after workload {self._at}, {description}")
                return

    def warm_up(self, newest: int = 100) -> None:
        """Sends one request for each of the ``newest`` latest versions of each API.

        The broker builds each schema at its first use.
        """
        for request in self.generator.of_each_version(newest):
            self.single(request)

    def _one(self, way: str) -> str:
        if way in EXTREMES:
            return self.single(self.generator.request(extreme=way))
        return {
            "pipelined": self._pipelined, "parked": self._parked, "half-sent": self._half_sent,
            "connections": self._connections, "unread": self._unread,
        }[way]()  # fmt: skip

    def single(self, request: Request) -> str:
        with self._connected() as connection:
            self._send(connection, packed(request, 1), str(request))
            self._await(Replies(connection), 1, str(request), may_wait=request.api_key in _MAY_WAIT)
        return str(request)

    def _pipelined(self) -> str:
        request = self.generator.small()
        count = self.generator.dice.choice(self._scale.pipelined)
        description = f"{count} × {request}"
        with self._connected() as connection:
            replies = Replies(connection)
            self._send(connection, b"".join(packed(request, n) for n in range(count)), description, replies)
            self._await(replies, count, description, may_wait=request.api_key in _MAY_WAIT)
        return description

    def _parked(self) -> str:
        """Sends requests that wait, on one connection. In half of the cases, another connection sends records that
        complete waiting fetches. Then the first connection closes."""
        dice = self.generator.dice
        request = self.generator.request(api_key=dice.choice((FETCH, FETCH, JOIN_GROUP)), extreme="parked")
        count = dice.choice((10, 200, 1000))
        description = f"{count} parked × {request}"
        with self._connected() as connection:
            self._send(connection, b"".join(packed(request, n) for n in range(count)), description)
            self._observe(description)
            if dice.random() < 0.5:
                woken = self.generator.request(api_key=PRODUCE, extreme="plain")
                with self._connected() as producer:
                    self._send(producer, packed(woken, 1), description)
                    self._await(Replies(producer), 1, description, may_wait=False)
            self._observe(description)
        return description

    def _half_sent(self) -> str:
        request = self.generator.request()
        data = packed(request, 1)
        if self.generator.dice.random() < 0.3:
            data = (50 << 20).to_bytes(4, "big") + bytes(self.generator.dice.choice((1, 100_000, 8 << 20)))
        part = data[: self.generator.dice.randint(1, len(data) - 1)]
        description = f"{len(part):,} of {len(data):,} bytes of {request}"
        connection = self._connected()
        self._halves.append(connection)
        self._send(connection, part, description)
        self._observe(description)
        if len(self._halves) > KEPT_HALVES:
            self._halves.popleft().close()
        return description

    def _connections(self) -> str:
        request = self.generator.small()
        count = self.generator.dice.choice(self._scale.connections)
        description = f"{count} connections × {request}"
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(self._connected()) for _ in range(count)]
            for peer in peers:
                self._send(peer, packed(request, 1), description)
            for peer in peers:
                self._await(Replies(peer), 1, description, may_wait=request.api_key in _MAY_WAIT)
        return description

    def _unread(self) -> str:
        request = self.generator.request()
        description = f"20 unread × {request}"
        with self._connected() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.3)
            with contextlib.suppress(OSError):
                connection.sendall(packed(request, 1) * 20)
            self._observe(description)
        return description

    # --- sending, and the waits of the other client -------------------------------------------------------------

    def _send(self, connection: socket.socket, data: bytes, description: str, replies: Replies | None = None) -> None:
        """Sends data at the speed at which the broker reads it.

        Counts replies with ``replies``. Without ``replies``, it stops at the first reply. It also stops if the broker
        closes the connection or reads nothing until the end of ``PATIENCE_S``.
        """
        view = memoryview(data)
        deadline = time.monotonic() + PATIENCE_S
        connection.settimeout(0)
        while view:
            _, writable, _ = select.select([], [connection], [], 0.001)
            if writable:
                try:
                    view = view[connection.send(view[: 1 << 20]) :]
                except ConnectionError:
                    return
            elif time.monotonic() > deadline:
                return
            elif select.select([connection], [], [], 0)[0]:
                if replies is None or not replies.receive():
                    return
            else:
                self._observe(description)

    def _await(self, replies: Replies, count: int, description: str, *, may_wait: bool) -> None:
        """Reads replies up to this count, or until the connection ends."""
        deadline = time.monotonic() + (0.2 if may_wait else PATIENCE_S)
        replies.connection.settimeout(PATIENCE_S)
        while replies.count < count:
            self._observe(description)
            if not select.select([replies.connection], [], [], 0.001)[0]:
                if time.monotonic() > deadline:
                    self.answered["waits" if may_wait else "silent"] += 1
                    if not may_wait:
                        self.faults.append(f"workload {self._at}, no answer: {description}")
                    return
                continue
            if not replies.receive():
                self.answered["closed"] += 1
                return
        self.answered["answered"] += 1

    def _observe(self, description: str) -> None:
        """Sends an ApiVersions request on the other client's connection. Records the wait for the reply."""
        started, ran = time.perf_counter(), ran_ms(self.pid)
        self._other.sendall(frames.encode_request(API_VERSIONS, 0, 0, "other", {}))
        left = 4
        size = b""
        while left:
            data = self._other.recv(left)
            if not data:
                raise ConnectionError("the broker closed the other client's connection")
            size += data
            left = 4 - len(size) if len(size) < 4 else 4 + int.from_bytes(size[:4], "big") - len(size)
        waited_ms = (time.perf_counter() - started) * 1000
        self.waits.append(waited_ms)
        heapq.heappush(self.worst, Wait(ran_ms(self.pid) - ran, waited_ms, f"workload {self._at}, {description}"))
        if len(self.worst) > 20:
            heapq.heappop(self.worst)

    # --- the end ------------------------------------------------------------------------------------------------

    def tidy(self) -> None:
        """Deletes everything that the requests created: topics, groups, quotas, settings. Lets all sessions expire."""
        while self._halves:
            self._halves.popleft().close()
        with Target(self.broker.bootstrap, patience_s=PATIENCE_S) as target:
            reply = target.quietly(3, 12, {"topics": None, "allow_auto_topic_creation": False,
                                           "include_topic_authorized_operations": False})  # fmt: skip
            names = [topic.name for topic in reply.topics if topic.name not in _TOPICS and topic.name[:2] != "__"]
            for start in range(0, len(names), 200):
                rows = [{"name": name, "topic_id": None} for name in names[start : start + 200]]
                target.quietly(20, 6, {"topics": rows, "timeout": 30_000})
            self._remove_quotas(target)
            self._remove_settings(target)
            for by_ms in _AGES_MS:
                self.broker.command("advance", by_ms=by_ms)
            listed = target.quietly(16, 4, {"states_filter": []})
            groups = [group.group_id for group in listed.groups]
            for start in range(0, len(groups), 200):
                target.quietly(42, 2, {"groups_names": groups[start : start + 200]})
        known = self._prepared()
        if hasattr(self, "generator"):
            self.generator.known = known

    @staticmethod
    def _remove_quotas(target: Target) -> None:
        kept = target.quietly(48, 1, {"components": [], "strict": False})
        entries = [
            {"entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
             "ops": [{"key": value.key, "value": 0.0, "remove": True} for value in entry.values]}
            for entry in kept.entries or ()
        ]  # fmt: skip
        if entries:
            target.quietly(49, 1, {"entries": entries, "validate_only": False})

    @staticmethod
    def _remove_settings(target: Target) -> None:
        listed = target.quietly(74, 1, {"resource_types": list(_CONFIGURED)})
        names = [(each.resource_type, each.resource_name) for each in listed.config_resources]
        for start in range(0, len(names), 200):
            rows = [
                {"resource_type": kind, "resource_name": name, "configs": []}
                for kind, name in names[start : start + 200]
            ]
            target.quietly(33, 2, {"resources": rows, "validate_only": False})

    def _free_heap(self) -> None:
        """Sends long requests: the broker returns free heap memory after requests have freed `TRIM_BYTES`."""
        name = "n" * 32_000
        with Target(self.broker.bootstrap, patience_s=PATIENCE_S) as target:
            for _ in range(2 * TRIM_BYTES >> 20):
                target.quietly(16, 4, {"states_filter": [name] * 33})

    def growth(self, before: Use, within_s: float = 20) -> Use:
        """Returns the growth of the broker's memory and descriptors."""
        self._free_heap()

        def more() -> Use:
            now = self.held()
            return Use(now.resident - before.resident, now.descriptors - before.descriptors)

        return settled(more, lambda use: use.resident < GROWTH_BYTES and use.descriptors <= 0, within_s)

    def settled(self) -> Use:
        """Waits until neither memory nor descriptors have fallen for 4 seconds. Returns the use after the last fall."""
        self._free_heap()
        least, since = self.held(), time.monotonic()
        while time.monotonic() - since < 4:
            time.sleep(0.2)
            now = self.held()
            if now.resident < least.resident or now.descriptors < least.descriptors:
                least, since = now, time.monotonic()
        return least

    def held(self) -> Use:
        """Returns the bytes of memory, and the number of sockets and of deleted files that are open."""
        return Use(use_of(self.pid).resident, len(unwanted_descriptors(self.pid)))

    def tracebacks(self) -> list[str]:
        """Returns each traceback in the broker's log, and each line about an offline partition."""
        text = self.broker.log_path.read_text(errors="replace")
        return re.findall(r"^Traceback .*\n(?:[ ].*\n)+.*$|^.*is offline.*$", text, re.MULTILINE)

    def restart(self) -> None:
        self._other.close()
        self.broker.stop()
        self.broker.start()
        self._other = self._connected()
        eventually(lambda: self._observe("restart") is None, within_s=10)

    def close(self) -> None:
        for connection in (*self._halves, getattr(self, "_other", None)):
            if connection is not None:
                connection.close()
        self.broker.kill()

    def summary(self) -> str:
        """Returns the counts of replies, and the waits of the other client during which the broker ran longest."""
        lines = [
            f"  {wait.waited_ms:7.1f} ms, of which the broker ran {wait.ran_ms:6.1f} ms: {wait.workload}"
            for wait in sorted(self.worst, reverse=True)
        ]
        waits = self.waits or [0.0]
        return (
            f"{self._at} workloads, {dict(self.answered)}; others wait: median {statistics.median(waits):.1f} ms, "
            f"longest {max(waits):.1f} ms of {len(waits)}\n"
        ) + "\n".join(lines)
