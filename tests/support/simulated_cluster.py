"""Three simulated brokers as a consumer sees them: logs, leaders, stale metadata, fetch sessions, faults.

Each broker has its own view of the cluster. Until a broker learns of a change, a deposed leader serves its old log, and
a new leader refuses requests. A scenario (``tests/client/test_consumer_random_faults.py``) makes the events.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from odradek.batches.compression import compress
from odradek.broker.partitions.fetch_sessions import FetchContext, FetchSessions, RequestedPartition
from odradek.core.crc import crc32c
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.core.varints import varint
from odradek.wire import frames, schemas
from odradek.wire.api_keys import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)
from odradek.wire.schemas import Kind

NODES = (1, 2, 3)
ABORT, DONE = 0, 1
_PASSING = (
    ErrorCode.kafka_storage_error, ErrorCode.unknown_leader_epoch, ErrorCode.offset_not_available,
    ErrorCode.leader_not_available, ErrorCode.not_leader_or_follower,
)  # fmt: skip


class Row(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class Written(NamedTuple):
    row: Row
    epoch: int
    topic_id: UUID


class Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    data: bytes
    rows: dict[int, Row]
    producer_id: int = -1
    marker: int | None = None


def pack(
    base: int,
    last: int,
    epoch: int,
    rows: dict[int, Row],
    codec: int = 0,
    producer_id: int = -1,
    marker: int | None = None,
) -> Batch:
    """One batch for the offsets from ``base`` to ``last``; some records may be missing."""
    body = []
    first_ms = next(iter(rows.values())).timestamp_ms if rows else 0
    found = rows.items()
    if marker is not None:
        control = Row(struct.pack(">hh", 0, marker), struct.pack(">hi", 0, 0), 0, ())
        found, first_ms = {base: control}.items(), 0
    for offset, row in found:
        parts = [b"\0", varint(row.timestamp_ms - first_ms), varint(offset - base)]
        parts += [varint(-1) if blob is None else varint(len(blob)) + blob for blob in (row.key, row.value)]
        parts.append(varint(len(row.headers)))
        for name, value in row.headers:
            parts += [varint(len(name)), name.encode(), varint(-1) if value is None else varint(len(value)) + value]
        record = b"".join(parts)
        body.append(varint(len(record)) + record)
    payload = compress(codec, b"".join(body)) if found else b""
    attributes = (codec if found else 0) | (0x10 if producer_id >= 0 else 0) | (0x20 if marker is not None else 0)
    largest_ms = max((row.timestamp_ms for row in rows.values()), default=first_ms)
    checked = struct.pack(
        ">hiqqqhii", attributes, last - base, first_ms, largest_ms, producer_id, 0 if producer_id >= 0 else -1, -1,
        len(found),
    )  # fmt: skip
    crc = crc32c(payload, crc32c(checked))
    data = struct.pack(">qiibI", base, 49 + len(payload), epoch, 2, crc) + checked + payload
    return Batch(base, last, epoch, data, rows, producer_id, marker)


@dataclass
class Log:
    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs and their start offsets."""

    def copy(self) -> Log:
        return Log(list(self.batches), self.start, self.end, self.high_watermark, list(self.epochs))

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.end = batch.last + 1

    def cut(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < offset]
        self.end = min(self.end, max(offset, self.start))
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < offset]
        self.high_watermark = min(self.high_watermark, self.end)

    def bounds(self, low: int, high: int) -> list[int]:
        """``low``, ``high`` and the batch boundaries between them."""
        return [
            at for at in dict.fromkeys([low, *(batch.last + 1 for batch in self.batches), high]) if low <= at <= high
        ]

    def transactions(self) -> list[tuple[int, int, int, int]]:
        """Producer, first offset, and the offset and kind of its marker (both -1: the transaction is open)."""
        begun: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.marker is not None:
                if (first := begun.pop(batch.producer_id, None)) is not None:
                    found.append((batch.producer_id, first, batch.base, batch.marker))
            elif batch.producer_id >= 0:
                begun.setdefault(batch.producer_id, batch.base)
        return found + [(producer, first, -1, -1) for producer, first in begun.items()]

    def stable(self, high_watermark: int) -> int:
        firsts = [first for _, first, marker, _ in self.transactions() if marker < 0 or marker >= high_watermark]
        return min([high_watermark, *firsts])

    def limit(self, committed: bool, high_watermark: int | None = None) -> int:
        high_watermark = self.high_watermark if high_watermark is None else high_watermark
        return self.stable(high_watermark) if committed else high_watermark

    def visible(self, committed: bool) -> dict[int, Row]:
        gone = [row for row in self.transactions() if row[3] == ABORT] if committed else []
        limit = self.limit(committed)
        return {
            offset: row
            for batch in self.batches
            if batch.marker is None and not any(p == batch.producer_id and a <= batch.base < z for p, a, z, _ in gone)
            for offset, row in batch.rows.items()
            if self.start <= offset < limit
        }

    def read(self, offset: int, limit: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """The bytes, perhaps cut at ``max_bytes``, and the offset after the last batch that begins below ``limit``.
        Without bytes the returned offset is ``offset``."""
        found = [batch for batch in self.batches if batch.last >= offset and batch.base < limit]
        if not found or (max_bytes <= 0 and not at_least_one):
            return b"", offset
        first = len(found[0].data)
        if first > max_bytes and not at_least_one:
            return b"", offset
        data = b"".join(batch.data for batch in found)[: max(max_bytes, first)]
        return data, found[-1].last + 1

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Works like Kafka's LeaderEpochFileCache. A new leader's epoch starts at the log end."""
        known = dict(self.epochs)
        if known and epoch == max(known):
            return epoch, self.end
        higher = [one for one in known if one > epoch]
        if not higher:
            return -1, -1
        return max([one for one in known if one <= epoch], default=epoch), known[min(higher)]


@dataclass
class Lead:
    """A partition under one leader. A new leader has a separate log."""

    leader: int
    epoch: int
    log: Log
    lags: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Lagging followers: their log end offset and high watermark."""


@dataclass
class Topic:
    topic_id: UUID
    leads: list[Lead]

    def copy(self) -> Topic:
        return Topic(self.topic_id, list(self.leads))


class Chances(NamedTuple):
    """The probability of each fault for a request."""

    connection: float = 0.0
    silence: float = 0.0
    row: float = 0.0
    event: float = 0.0
    sloppy_preference: float = 0.0


class Node:
    def __init__(self, cluster: ChanceCluster, node_id: int) -> None:
        self.cluster, self.node_id = cluster, node_id
        self.view: dict[str, Topic] = {}
        self.forget_sessions(cluster.dice.choice((0, 1, 5)) if cluster.dice.random() < 0.2 else 5)
        self.is_down = False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def forget_sessions(self, slots: int = 5) -> None:
        self.sessions = FetchSessions(slots)
        self.sessions.new_id = lambda: self.cluster.dice.getrandbits(31)

    def close_connections(self) -> None:
        for one in self.open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.open = []

    def stop(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.close_connections()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            if self.is_down:
                connection.close()
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = frames.FrameReader()
        with connection, suppress(OSError):
            while data := connection.recv(65_536):
                for frame in reader.feed(data):
                    if not self._answer(connection, bytes(frame)):
                        return

    def _answer(self, connection: socket.socket, frame: bytes) -> bool:
        fate = self.cluster.fate()
        if fate == "unheard":
            return False
        try:
            reply = self.cluster.reply(self, frame)
        except Exception as error:
            self.cluster.wrongs.append(f"broker {self.node_id}: {error!r} {traceback.format_exc()[-600:]}")
            return False
        if fate == "unanswered" or self.is_down:
            return False
        if fate == "silent":
            return True
        if fate == "half":
            connection.sendall(reply[: max(1, len(reply) // 2)])
            return False
        if fate == "pieces":
            for at in range(0, len(reply), 1 + len(reply) // 3):
                connection.sendall(reply[at : at + 1 + len(reply) // 3])
                time.sleep(0)  # the client may receive this piece alone
            return True
        connection.sendall(reply)
        return True


class ChanceCluster:
    """The condition ``changed`` guards the whole state. Changes of logs and of brokers' views notify it."""

    def __init__(self, seed: int, partitions: dict[str, int], versions: dict[int, int]) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.dice = random.Random(f"cluster {seed}")
        self.chances = Chances()
        self.on_event: Callable[[], None] = lambda: None
        self.on_commit: Callable[[TopicPartition, int], None] = lambda tp, offset: None
        self.ranges = {
            key: (schemas.known_versions(key)[0], min(schemas.known_versions(key)[1], versions.get(key, 99)))
            for key in (
                FETCH,
                LIST_OFFSETS,
                METADATA,
                OFFSET_COMMIT,
                OFFSET_FETCH,
                FIND_COORDINATOR,
                OFFSET_FOR_LEADER_EPOCH,
                API_VERSIONS,
            )
        }
        self.topics: dict[str, Topic] = {}
        self.history: dict[tuple[TopicPartition, int], list[Written]] = {}
        """Every record that was ever at this offset of the partition."""
        self.commits: dict[TopicPartition, tuple[int, int]] = {}
        self.ever_committed: dict[TopicPartition, set[int]] = {}
        self.wrongs: list[str] = []
        self.codecs: tuple[int, ...] = (0,)
        self.serial = 0
        self.largest_batch = 0
        self.fetches = 0
        self.limits = (1 << 40, 1 << 40, 1 << 40)
        """The most that a consumer may ask for: its fetch_max_bytes, max_partition_fetch_bytes and buffer_memory."""
        self.seen: dict[str, int] = {}
        """The number of events of each kind."""
        for name, count in partitions.items():
            self.make(name, count)
        self.nodes = {node_id: Node(self, node_id) for node_id in NODES}
        self.coordinator = self.dice.choice(NODES)
        self.spread()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def note(self, what: str) -> None:
        self.seen[what] = self.seen.get(what, 0) + 1

    def fate(self) -> str:
        with self.changed:
            roll = self.dice.random()
            for name, share in (
                ("unheard", self.chances.connection), ("unanswered", self.chances.connection),
                ("half", self.chances.connection), ("silent", self.chances.silence), ("pieces", 0.05),
            ):  # fmt: skip
                roll -= share
                if roll < 0:
                    self.note(name)
                    return name
            return ""

    # --- events -----------------------------------------------------------------------------------------------

    def make(self, name: str, partitions: int) -> None:
        with self.changed:
            leads = [Lead(self.dice.choice(NODES), 0, Log()) for _ in range(partitions)]
            self.topics[name] = Topic(UUID(int=self.dice.getrandbits(100) + 1), leads)

    def lead(self, tp: TopicPartition) -> Lead:
        return self.topics[tp.topic].leads[tp.partition]

    def logs(self, tp: TopicPartition) -> list[Log]:
        """The log, and the logs that brokers with stale metadata serve."""
        found = [self.lead(tp).log] if tp.topic in self.topics else []
        views = [node.view[tp.topic] for node in self.nodes.values() if tp.topic in node.view]
        return found + [view.leads[tp.partition].log for view in views]

    def spread(self, node_id: int | None = None) -> None:
        """The broker, or each broker if none is given, learns the current state of the cluster."""
        with self.changed:
            for node in self.nodes.values() if node_id is None else [self.nodes[node_id]]:
                node.view = {name: topic.copy() for name, topic in self.topics.items()}
            self.changed.notify_all()

    def row(self, size: int) -> Row:
        self.serial += 1
        text = f"{self.serial}:".encode()
        value = (text + bytes([self.serial % 251]) * size)[: max(size, len(text))]
        headers = (("n", text), ("", None)) if self.serial % 7 == 0 else ()
        key = None if self.serial % 5 == 0 else text
        return Row(key, None if self.serial % 11 == 0 and key else value, 1_700_000_000_000 + self.serial, headers)

    def append(self, tp: TopicPartition, producer_id: int = -1, marker: int | None = None) -> None:
        with self.changed:
            lead = self.lead(tp)
            log, base = lead.log, lead.log.end
            if marker is not None:
                log.append(pack(base, base, lead.epoch, {}, 0, producer_id, marker))
            else:
                size = self.dice.choice((0, 5, 40, 300, 2_000)) if self.dice.random() < 0.97 else 80_000
                rows = {base + delta: self.row(size) for delta in range(self.dice.choice((1, 1, 2, 5, 20)))}
                log.append(
                    pack(base, base + len(rows) - 1, lead.epoch, rows, self.dice.choice(self.codecs), producer_id)
                )
                for offset, row in rows.items():
                    written = Written(row, lead.epoch, self.topics[tp.topic].topic_id)
                    self.history.setdefault((tp, offset), []).append(written)
            self.largest_batch = max(self.largest_batch, len(log.batches[-1].data))
            if self.dice.random() < 0.7:
                log.high_watermark = log.end
            self.changed.notify_all()

    def raise_high_watermark(self, tp: TopicPartition) -> None:
        with self.changed:
            log = self.lead(tp).log
            log.high_watermark = self.dice.choice(log.bounds(log.high_watermark, log.end))
            self.changed.notify_all()

    def end_transactions(self, tp: TopicPartition, kinds: tuple[int, ...] = (ABORT, DONE)) -> None:
        with self.changed:
            for producer, _, marker, _ in self.lead(tp).log.transactions():
                if marker < 0:
                    self.append(tp, producer, self.dice.choice(kinds))

    def move(self, tp: TopicPartition, leader: int, cut: int | None = None) -> Log:
        """Gives the partition another leader, or none (-1). The new leader's log ends at ``cut``, if given.

        Returns the log of the previous leader."""
        with self.changed:
            old = self.lead(tp)
            log = old.log.copy()
            if cut is not None:
                log.cut(cut)
            log.epochs.append((old.epoch + 1, log.end))
            self.topics[tp.topic].leads[tp.partition] = Lead(leader, old.epoch + 1, log)
            self.changed.notify_all()
            return old.log

    def retain(self, tp: TopicPartition) -> None:
        """Moves the log start, possibly into the middle of a batch."""
        with self.changed:
            log = self.lead(tp).log
            log.start = self.dice.randint(log.start, max(log.start, log.stable(log.high_watermark)))
            log.batches = [batch for batch in log.batches if batch.last >= log.start]
            gone = [epoch for epoch, start in log.epochs if start <= log.start][:-1]
            log.epochs = [(epoch, max(start, log.start)) for epoch, start in log.epochs if epoch not in gone]
            self.changed.notify_all()

    def compact(self, tp: TopicPartition) -> None:
        with self.changed:
            log = self.lead(tp).log
            limit = log.stable(log.high_watermark)
            kept = []
            for batch in log.batches:
                if batch.last >= limit or batch.producer_id >= 0 or self.dice.random() < 0.5:
                    kept.append(batch)
                    continue
                rows = {offset: row for offset, row in batch.rows.items() if self.dice.random() < 0.5}
                if rows or self.dice.random() < 0.5:
                    codec = self.dice.choice(self.codecs)
                    kept.append(pack(batch.base, batch.last, batch.epoch, rows, codec))
            log.batches = kept
            self.largest_batch = max([self.largest_batch, *(len(batch.data) for batch in kept)])
            self.changed.notify_all()

    def lag(self, tp: TopicPartition, node_id: int) -> None:
        with self.changed:
            lead = self.lead(tp)
            end = self.dice.choice(lead.log.bounds(lead.log.start, lead.log.end))
            high = self.dice.choice(lead.log.bounds(lead.log.start, min(end, lead.log.high_watermark)))
            lead.lags[node_id] = (end, high)

    def catch_up(self, tp: TopicPartition) -> None:
        with self.changed:
            self.lead(tp).lags.clear()
            self.changed.notify_all()

    def forget_sessions(self, node_id: int) -> None:
        with self.changed:
            self.nodes[node_id].forget_sessions()

    def take_down(self, node_id: int) -> None:
        with self.changed:
            self.nodes[node_id].is_down = True
            self.nodes[node_id].forget_sessions()
            self.nodes[node_id].close_connections()

    def end_faults(self) -> None:
        """Ends all faults: all written records can be read from now on."""
        with self.changed:
            self.chances = Chances()
            for name, topic in self.topics.items():
                for index, lead in enumerate(topic.leads):
                    tp = TopicPartition(name, index)
                    if lead.leader < 0:
                        self.move(tp, self.dice.choice(NODES))
                    self.end_transactions(tp)
                    log = self.lead(tp).log
                    log.high_watermark = log.end
                    self.catch_up(tp)
            for node in self.nodes.values():
                node.is_down = False
            self.spread()

    # --- requests ---------------------------------------------------------------------------------------------

    def reply(self, node: Node, frame: bytes) -> bytes:
        head = frames.read_request_head(frame)
        key, version = head.api_key, head.version
        low, high = self.ranges[key]
        if key == API_VERSIONS and version > high:
            version, body = 0, {"error_code": ErrorCode.unsupported_version.value, "api_keys": [], "throttle_time": 0}
        else:
            assert low <= version <= high, f"version {version} of {key} was never offered"
            message, _ = schemas.decode(key, version, Kind.REQUEST, frame, head.body)
            with self.changed:
                if key != API_VERSIONS and self.dice.random() < self.chances.event:
                    self.on_event()
                body = getattr(self, f"_answer_{key}")(node, message, version)
        return frames.frame(
            frames.reply_head(key, version, head.correlation_id), schemas.encode(key, version, Kind.RESPONSE, body)
        )

    def _answer_18(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        rows = [{"api_key": k, "min_version": low, "max_version": high} for k, (low, high) in self.ranges.items()]
        return {"error_code": 0, "api_keys": rows, "throttle_time": 0}

    def _answer_3(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        names = list(node.view) if message.topics is None else [topic.name for topic in message.topics]
        topics = []
        for name in names:
            known = node.view.get(name)
            code = ErrorCode.none if known else ErrorCode.unknown_topic_or_partition
            partitions = [
                {
                    "error_code": 0 if lead.leader >= 0 else ErrorCode.leader_not_available.value,
                    "partition_index": index, "leader_id": lead.leader, "leader_epoch": lead.epoch,
                    "replica_nodes": list(NODES), "isr_nodes": list(NODES), "offline_replicas": [],
                }
                for index, lead in enumerate(known.leads if known else ())
            ]  # fmt: skip
            topics.append({
                "error_code": code.value, "name": name, "topic_id": known.topic_id if known else UUID(int=0),
                "is_internal": False, "partitions": partitions, "topic_authorized_operations": 0,
            })  # fmt: skip
        brokers = [
            {"node_id": n.node_id, "host": "127.0.0.1", "port": n.port, "rack": f"r{n.node_id}"}
            for n in self.nodes.values()
        ]
        return {
            "throttle_time": 0, "cluster_id": "c", "controller_id": 1, "cluster_authorized_operations": 0,
            "topics": topics, "error_code": 0, "brokers": brokers,
        }  # fmt: skip

    def _lead_at(self, node: Node, topic: str | UUID, index: int, epoch: int) -> tuple[Lead | None, ErrorCode]:
        """The broker's view of the partition, None if it has none, and the error for the request, perhaps a random
        one."""
        if isinstance(topic, UUID):
            known = next((one for one in node.view.values() if one.topic_id == topic), None)
            unknown = ErrorCode.unknown_topic_id
        else:
            known, unknown = node.view.get(topic), ErrorCode.unknown_topic_or_partition
        if known is None or index >= len(known.leads):
            return None, unknown
        lead = known.leads[index]
        if self.dice.random() < self.chances.row:
            return lead, self.dice.choice(_PASSING)
        if 0 <= epoch < lead.epoch:
            return lead, ErrorCode.fenced_leader_epoch
        if epoch > lead.epoch:
            return lead, ErrorCode.unknown_leader_epoch
        return lead, ErrorCode.none

    def _answer_2(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        topics = []
        for topic in message.topics:
            rows = []
            for asked in topic.partitions:
                lead, code = self._lead_at(node, topic.name, asked.partition_index, -1)
                if code is ErrorCode.none and lead is not None and lead.leader != node.node_id:
                    code = ErrorCode.not_leader_or_follower
                offset = -1
                if code is ErrorCode.none and lead is not None:
                    when = asked.timestamp
                    log = lead.log
                    offset = log.start if when == -2 else log.limit(getattr(message, "isolation_level", 0) == 1)
                epoch = -1 if lead is None else lead.epoch
                rows.append({
                    "partition_index": asked.partition_index, "error_code": code.value, "timestamp": -1,
                    "offset": offset, "leader_epoch": epoch,
                })  # fmt: skip
            topics.append({"name": topic.name, "partitions": rows})
        return {"throttle_time": 0, "topics": topics}

    def _answer_23(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        topics = []
        for topic in message.topics:
            rows = []
            for asked in topic.partitions:
                lead, code = self._lead_at(node, topic.topic, asked.partition, asked.current_leader_epoch)
                if code is ErrorCode.none and lead is not None and lead.leader != node.node_id:
                    code = ErrorCode.not_leader_or_follower
                found, end = -1, -1
                if code is ErrorCode.none and lead is not None:
                    found, end = lead.log.epoch_end(asked.leader_epoch)
                rows.append(
                    {"error_code": code.value, "partition": asked.partition, "leader_epoch": found, "end_offset": end}
                )
            topics.append({"topic": topic.topic, "partitions": rows})
        self.note("leader epochs looked up")
        return {"throttle_time": 0, "topics": topics}

    def _answer_10(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        where = {
            "node_id": self.coordinator, "host": "127.0.0.1", "port": self.nodes[self.coordinator].port,
            "error_code": 0, "error_message": None,
        }  # fmt: skip
        return where | {"throttle_time": 0, "coordinators": [where | {"key": "g"}]}

    def _answer_8(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        topics = []
        for topic in message.topics:
            rows = []
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                self.on_commit(tp, row.committed_offset)
                self.commits[tp] = (row.committed_offset, row.committed_leader_epoch)
                self.ever_committed.setdefault(tp, set()).add(row.committed_offset)
                rows.append({"partition_index": row.partition_index, "error_code": 0})
            topics.append({"name": topic.name, "partitions": rows})
        return {"throttle_time": 0, "topics": topics}

    def _answer_9(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        wanted = message.groups[0].topics if hasattr(message, "groups") else message.topics
        topics = []
        for topic in wanted:
            rows = []
            for index in topic.partition_indexes:
                offset, epoch = self.commits.get(TopicPartition(topic.name, index), (-1, -1))
                rows.append({
                    "partition_index": index, "committed_offset": offset, "committed_leader_epoch": epoch,
                    "metadata": "", "error_code": 0,
                })  # fmt: skip
            topics.append({"name": topic.name, "partitions": rows})
        group = {"group_id": "g", "topics": topics, "error_code": 0}
        return {"throttle_time": 0, "topics": topics, "error_code": 0, "groups": [group]}

    # --- fetches ----------------------------------------------------------------------------------------------

    def _answer_1(self, node: Node, message: Any, version: int) -> dict[str, Any]:
        by_id = version >= 13
        wanted, forgotten = [], []
        for topic in message.topics:
            name = topic.topic_id if by_id else topic.topic
            for p in topic.partitions:
                epoch = getattr(p, "current_leader_epoch", -1)
                wanted.append(RequestedPartition(name, p.partition, p.fetch_offset, p.partition_max_bytes, epoch))
        for topic in getattr(message, "forgotten_topics_data", ()) or ():
            forgotten += [(topic.topic_id if by_id else topic.topic, index) for index in topic.partitions]
        self._check_bounds(message.max_bytes, wanted)
        self.fetches += 1
        empty = {"throttle_time": 0, "session_id": 0, "responses": []}
        try:
            session_id, epoch = getattr(message, "session_id", 0), getattr(message, "session_epoch", -1)
            context = node.sessions.begin(
                round(time.monotonic() * 1000), session_id, epoch, wanted, forgotten, by_id=by_id
            )
        except KafkaError as error:
            self.note(error.code.name)
            return empty | {"error_code": error.code.value}
        rows = self._wait(node, context, message, version)
        topics: dict[str | UUID, list[dict[str, Any]]] = {}
        for (topic, index), row in rows.items():
            is_changed = context.session is None or context.session.note(
                (topic, index), error_code=row["error_code"], size=len(row["records"]),
                high_watermark=row["high_watermark"], log_start_offset=row["log_start_offset"], names_other=False,
                full=context.full,
            )  # fmt: skip
            # A preferred read replica is always in the reply.
            if is_changed or row["preferred_read_replica"] >= 0:
                topics.setdefault(topic, []).append(row)
        responses = [
            {"topic": topic if isinstance(topic, str) else "", "partitions": found}
            | ({"topic_id": topic} if isinstance(topic, UUID) else {})
            for topic, found in topics.items()
        ]
        return {"throttle_time": 0, "error_code": 0, "session_id": context.session_id, "responses": responses}

    def _check_bounds(self, max_bytes: int, wanted: list[RequestedPartition]) -> None:
        most, most_of_one, memory = self.limits
        if max_bytes > min(most, memory):
            self.wrongs.append(f"asked for {max_bytes} bytes, allowed are {self.limits}")
        if any(one.max_bytes > most_of_one for one in wanted):
            self.wrongs.append(f"more of a partition than {most_of_one} bytes")

    def _wait(self, node: Node, context: FetchContext, message: Any, version: int) -> dict[Any, dict[str, Any]]:
        until = time.monotonic() + message.max_wait.total_seconds()
        while True:
            rows = self._read(node, context, message, version)
            size = sum(len(row["records"]) for row in rows.values())
            answer = any(row["error_code"] or row["preferred_read_replica"] >= 0 for row in rows.values())
            left_s = until - time.monotonic()
            if answer or size >= message.min_bytes or left_s <= 0 or node.is_down:
                return rows
            self.changed.wait(left_s)

    def _read(self, node: Node, context: FetchContext, message: Any, version: int) -> dict[Any, dict[str, Any]]:
        room, found = message.max_bytes, {}
        empty = True
        for one in context.wanted:
            row = self._read_one(node, one, message, version, room, empty)
            room -= len(row["records"])
            empty = empty and not row["records"]
            found[one.topic, one.partition] = row
        return found

    def _read_one(
        self, node: Node, one: RequestedPartition, message: Any, version: int, room: int, at_least_one: bool
    ) -> dict[str, Any]:
        row: dict[str, Any] = {
            "partition_index": one.partition, "error_code": 0, "high_watermark": -1, "last_stable_offset": -1,
            "log_start_offset": -1, "aborted_transactions": None, "preferred_read_replica": -1, "records": b"",
        }  # fmt: skip
        lead, code = self._lead_at(node, one.topic, one.partition, one.current_leader_epoch)
        if code is not ErrorCode.none or lead is None:
            return row | {"error_code": code.value}
        log, rack = lead.log, getattr(message, "rack_id", "")
        end, high = log.end, log.high_watermark
        if lead.leader != node.node_id:
            if version < 11 or not rack:
                return row | {"error_code": ErrorCode.not_leader_or_follower.value}
            end, high = lead.lags.get(node.node_id, (end, high))
            high = min(high, log.high_watermark)
        if not log.start <= one.fetch_offset <= end:
            self.note("out of range" if lead.leader == node.node_id else "out of a follower's range")
            return row | {"error_code": ErrorCode.offset_out_of_range.value}
        committed = message.isolation_level == 1
        row |= {
            "high_watermark": high, "log_start_offset": log.start,
            "last_stable_offset": log.stable(high) if version >= 4 else -1,
        }  # fmt: skip
        if lead.leader == node.node_id and version >= 11 and (near := self._near(lead, one, rack)) is not None:
            self.note("sent to a follower")
            return row | {"preferred_read_replica": near}
        limit = log.limit(committed, high)
        data, upper = log.read(one.fetch_offset, limit, min(one.max_bytes, room), at_least_one)
        if committed:
            row["aborted_transactions"] = [
                {"producer_id": producer, "first_offset": first}
                for producer, first, marker, kind in log.transactions()
                if kind == ABORT and marker >= one.fetch_offset and first < upper
            ]
        return row | {"records": data}

    def _near(self, lead: Lead, one: RequestedPartition, rack: str) -> int | None:
        near = next((node for node in self.nodes.values() if f"r{node.node_id}" == rack), None)
        if near is None or near.node_id == lead.leader:
            return None
        end, _ = lead.lags.get(near.node_id, (lead.log.end, 0))
        knows = not near.is_down and one.fetch_offset <= end
        return near.node_id if knows or self.dice.random() < self.chances.sloppy_preference else None


@contextmanager
def simulated_cluster(seed: int, partitions: dict[str, int], versions: dict[int, int]) -> Iterator[ChanceCluster]:
    cluster = ChanceCluster(seed, partitions, versions)
    try:
        yield cluster
    finally:
        for node in cluster.nodes.values():
            node.stop()
