"""The client's view of a cluster, for one event loop: connections, metadata, leaders, coordinators, retries."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast
from uuid import UUID

from odradek.client import metadata_wire
from odradek.client.config import ClientConfig
from odradek.client.errors import (
    BrokerUnreachable,
    ConnectionLost,
    LastFailure,
    OffsetStoreUnreachable,
    RequestTimedOut,
    UnknownTopic,
    UnsupportedVersion,
    error_for,
    first_row,
)
from odradek.client.metadata_wire import Metadata, TopicMetadata, with_leader
from odradek.client.model import Node, PartitionDescription, TopicDescription
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net import transports
from odradek.net.connection import Access, BrokerConnection
from odradek.net.transports import Address
from odradek.security.protocols import PLAINTEXT
from odradek.text.log_lines import PATIENCE_S
from odradek.wire.api_keys import FIND_COORDINATOR, METADATA

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v6.response import Coordinator

    from odradek.net.transports import Connect

T = TypeVar("T")
logger = logging.getLogger("odradek.client")

_NOTE_EVERY_S = 10.0
_TWICE = re.compile(r"^cannot reach (\S+): \1:? (?=is |answers )")
"""An address that the reason repeats."""
"""The seconds between two log lines about a first connection that does not open."""
TOPIC_IDS_FROM = 12
# The types of keys that have a coordinator.
GROUP = 0
TRANSACTIONAL_ID = 1
_KEY_TYPES = {GROUP: "group", TRANSACTIONAL_ID: "transactional id"}
# An unknown topic becomes an error after this time: a new topic is not known to every broker at once.
UNKNOWN_TOPIC_GRACE_MS = 2_000
# If no connection opens within this time, the client also tries the next address.
STAGGER_S = 0.5

_RETRIABLE = frozenset({
    ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator,
    ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available, ErrorCode.replica_not_available,
    ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.kafka_storage_error,
    ErrorCode.request_timed_out, ErrorCode.network_exception, ErrorCode.not_controller,
    ErrorCode.not_enough_replicas, ErrorCode.not_enough_replicas_after_append, ErrorCode.offset_not_available,
    ErrorCode.unstable_offset_commit, ErrorCode.throttling_quota_exceeded, ErrorCode.rebalance_in_progress,
    ErrorCode.stale_member_epoch, ErrorCode.concurrent_transactions,
})  # fmt: skip


def _at_broker(connection: BrokerConnection) -> BrokerConnection:
    """Returns a connection that leads to a broker. Raises UnsupportedVersion for one to a controller, which knows no
    request that clients begin with."""
    if not connection.supports(METADATA):
        connection.close()
        text = f"{connection.address} is the listener of a controller, and not of a broker: check bootstrap_servers"
        raise UnsupportedVersion(text)
    return connection


def worth_retrying(error: BaseException) -> bool:
    """Returns whether a retry with new metadata can succeed."""
    if isinstance(error, KafkaError):
        return error.code in _RETRIABLE
    return isinstance(error, ConnectionLost | BrokerUnreachable | OffsetStoreUnreachable)


class Deadline:
    """The time at which retries end."""

    __slots__ = ("at_s", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self.at_s = time.monotonic() + limit_ms / 1000

    @property
    def left_ms(self) -> int:
        return max(0, round((self.at_s - time.monotonic()) * 1000))

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at_s


@dataclass(slots=True)
class _Metadata:
    nodes: dict[int, Node] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)
    newest: dict[str, TopicMetadata] = field(default_factory=dict)
    """Each topic's metadata with the newest leader epochs so far; ``forget_topics`` does not remove it. Otherwise a
    broker with old metadata could name a former leader, whose log may lack records that were read from the new one."""
    controller_id: int = -1
    cluster_id: str | None = None
    refreshed_s: float = float("-inf")


def _access(config: ClientConfig) -> Access | None:
    """Loads TLS and SASL only for clients that use them."""
    if config.security.protocol == PLAINTEXT:
        return None
    from odradek.client.authentication import access_of

    return access_of(config.security)


class Cluster:
    """Connections and metadata that all calls share. Belongs to the event loop of its first use.

    ``connect``: how connections are opened."""

    def __init__(self, config: ClientConfig, connect: Connect = transports.connect) -> None:
        self.config = config
        self._connect = connect
        self._access = _access(config)
        self.metadata = _Metadata()
        self.connections: dict[int, BrokerConnection] = {}
        self._any: BrokerConnection | None = None
        self._bootstrap_lock = asyncio.Lock()
        self._opening: dict[int, asyncio.Task[BrokerConnection]] = {}
        self._coordinators: dict[tuple[int, str], Node] = {}
        self._bootstrapped = False
        self._turn = 0

    async def close(self) -> None:
        for task in self._opening.values():
            task.cancel()
        for connection in [*self.connections.values(), *([self._any] if self._any else [])]:
            connection.close()
        self.connections.clear()
        self._any = None

    def deadline(self, limit_ms: int | None = None) -> Deadline:
        return Deadline(self.config.default_api_timeout_ms if limit_ms is None else limit_ms)

    # --- retries ----------------------------------------------------------------------------------------------

    async def retry(self, what: str, attempt: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """Awaits ``attempt()`` until it succeeds, with backoff between two attempts.

        Raises at once an error that a retry cannot solve. Raises RequestTimedOut at the deadline, or BrokerUnreachable
        if no broker was reachable. Raises the last error if no connection has opened within ``bootstrap_timeout_ms``.
        """
        backoff_ms: float = self.config.retry_backoff_ms
        last = LastFailure()
        first_contact = Deadline(min(self.config.bootstrap_timeout_ms, deadline.limit_ms))
        noted_s = 0.0
        while True:
            try:
                async with asyncio.timeout(max(deadline.left_ms, 1) / 1000):
                    return await attempt()
            except TimeoutError as error:
                if isinstance(last.error, BrokerUnreachable):
                    raise last.error from error  # it has the reason; the last attempt had no time left to connect
                before = f"; the attempt before it failed: {last}" if last.error is not None else ""
                raise RequestTimedOut(f"{what}: no answer within {deadline.limit_ms} ms{before}") from error
            except OdradekError as error:
                last.note(error)
                if not worth_retrying(error):
                    raise
                if not self._bootstrapped and first_contact.passed:
                    raise
                if not self._bootstrapped and time.monotonic() - noted_s > _NOTE_EVERY_S:
                    noted_s = time.monotonic()
                    logger.warning("%s; trying for %.0f s more", error, first_contact.left_ms / 1000)
                wait_ms = backoff_ms * random.uniform(0.8, 1.2)
                if deadline.left_ms <= wait_ms:
                    if isinstance(error, BrokerUnreachable):
                        raise
                    raise RequestTimedOut(f"{what}: not done within {deadline.limit_ms} ms: {last}") from error
                await asyncio.sleep(wait_ms / 1000)
                backoff_ms = min(backoff_ms * 2, self.config.retry_backoff_max_ms)

    # --- connections ------------------------------------------------------------------------------------------

    async def open_at(self, address: Address) -> BrokerConnection:
        return await BrokerConnection.open(
            address,
            client_id=self.config.client_id,
            request_timeout_ms=self.config.request_timeout_ms,
            setup_timeout_ms=self.config.socket_connection_setup_timeout_ms,
            max_reply_bytes=self.config.max_reply_bytes,
            access=self._access,
            connect=self._connect,
        )

    async def open_connection(self, node_id: int) -> BrokerConnection:
        """Opens a connection for the caller alone, who closes it.

        Raises BrokerUnreachable, and KafkaError for a broker that is not in the cluster."""
        node = self.node(node_id)
        if node is None:
            raise KafkaError(ErrorCode.leader_not_available, f"broker {node_id} is not in the cluster now")
        return await self.open_at(Address(node.host, node.port))

    async def any_connection(self) -> BrokerConnection:
        """Returns a connection to any broker: an open one, or else a new one to a known broker or a bootstrap address.

        An open connection that is throttled by a quota is the second choice."""
        throttled: BrokerConnection | None = None
        for connection in (self._any, *self.connections.values()):
            if connection is not None and not connection.closed:
                if not connection.throttle_left_s:
                    return connection
                throttled = throttled or connection
        if throttled is not None:
            return throttled
        async with self._bootstrap_lock:
            if self._any is None or self._any.closed:
                known = [Address(node.host, node.port) for node in self.metadata.nodes.values()]
                addresses = list(dict.fromkeys([*known, *self.config.addresses]))
                note = asyncio.get_running_loop().call_later(PATIENCE_S, self._note_silence, addresses)
                try:
                    self._any = _at_broker(await self._first_of(addresses))
                finally:
                    note.cancel()
                self._bootstrapped = True
            return self._any

    def _note_silence(self, addresses: list[Address]) -> None:
        """Logs that a first connection has no answer yet: a listener that is no broker may accept it and be silent."""
        if not self._bootstrapped:
            limit_s = self.config.socket_connection_setup_timeout_ms / 1000
            logger.warning("%s: no answer yet; waiting up to %.0f s", ", ".join(map(str, addresses)), limit_s)

    async def _first_of(self, addresses: list[Address]) -> BrokerConnection:
        """Connects to the addresses in order and returns the first connection that opens.

        If none opens within ``STAGGER_S``, also tries the next address."""
        pending: set[asyncio.Task[BrokerConnection]] = set()
        failures: list[str] = []
        left = list(addresses)
        try:
            while left or pending:
                if left:
                    pending.add(asyncio.ensure_future(self.open_at(left.pop(0))))
                done, pending = await asyncio.wait(
                    pending, timeout=STAGGER_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, BrokerUnreachable):
                        raise error
                    failures.append(str(error))
        finally:
            for task in pending:
                task.cancel()
                task.add_done_callback(_close_late)
        remedy = "is a broker running there? check bootstrap_servers"
        if all("too many open files" in failure for failure in failures):
            remedy = "raise the limit of this process (ulimit -n)"
        if len(failures) == 1 and "set security.protocol" in failures[0]:  # something listens there
            raise BrokerUnreachable(_TWICE.sub(r"cannot reach \1: it ", failures[0]))
        if len(failures) == 1 and "no Kafka broker" in failures[0]:
            once = _TWICE.sub(r"cannot reach \1: it ", failures[0])
            raise BrokerUnreachable(f"{once}: check bootstrap_servers")
        if len(failures) == 1:
            raise BrokerUnreachable(f"{failures[0]}: {remedy}")
        reasons = ", ".join(failure.removeprefix("cannot reach ") for failure in failures)
        raise BrokerUnreachable(f"cannot reach any broker: {reasons}: {remedy}")

    async def connection(self, node_id: int) -> BrokerConnection:
        """Returns the connection to one broker, which all callers share. Raises BrokerUnreachable, KafkaError."""
        current = self.connections.get(node_id)
        if current is not None and not current.closed:
            return current
        node = self.metadata.nodes.get(node_id)
        if node is None:
            await self.refresh(None)
            node = self.metadata.nodes.get(node_id)
            if node is None:
                raise KafkaError(ErrorCode.leader_not_available, f"broker {node_id} is not in the cluster now")
        opening = self._opening.get(node_id)
        if opening is None:
            opening = asyncio.ensure_future(self._open_to(node_id, Address(node.host, node.port)))
            opening.add_done_callback(_note_late_failure)
            self._opening[node_id] = opening
        try:
            return await asyncio.shield(opening)
        except BrokerUnreachable:
            self.metadata.refreshed_s = float("-inf")  # the broker may have another address: refresh the metadata
            raise

    def is_throttled(self, node_id: int) -> bool:
        """Returns whether the broker does not read from our connection now because of a quota."""
        connection = self.connections.get(node_id)
        return connection is not None and not connection.closed and connection.throttle_left_s > 0

    async def _open_to(self, node_id: int, address: Address) -> BrokerConnection:
        """Opens a connection and registers it at once: otherwise a second caller could open another one in between."""
        try:
            connection = self.connections[node_id] = await self.open_at(address)
            return connection
        finally:
            del self._opening[node_id]

    # --- metadata ---------------------------------------------------------------------------------------------

    async def refresh(self, topics: Iterable[str] | None) -> dict[str, ErrorCode]:
        """Sends one Metadata request for these topics, or all (None). Returns the error codes of failed topics."""
        return await self._refresh_at(await self.any_connection(), topics)

    async def refresh_elsewhere(self, topics: Iterable[str]) -> None:
        """Refreshes these topics; asks another broker at each call, since one broker may have old metadata."""
        nodes = sorted(self.metadata.nodes)
        if nodes:
            self._turn += 1
            await self._refresh_at(await self.connection(nodes[self._turn % len(nodes)]), topics)

    async def _refresh_at(self, connection: BrokerConnection, topics: Iterable[str] | None) -> dict[str, ErrorCode]:
        asked = None if topics is None else list(dict.fromkeys(topics))
        names = None if asked is None else [{"name": name, "topic_id": None} for name in asked]
        if not names and connection.version(METADATA, metadata_wire.NEWEST) == 0:
            asked, names = None, []  # version 0: an empty list means all topics
        request = _metadata_request(names, create=bool(self.config.allow_auto_create_topics))
        reply = await self._metadata_from(connection, request, asked)
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"{connection.address} refused the Metadata request")
        self.update_metadata(reply, everything=topics is None)
        return reply.errors

    async def _metadata_from(
        self, connection: BrokerConnection, request: Mapping[str, object], asked: Iterable[str | UUID] | None
    ) -> Metadata:
        wanted = None if asked is None else frozenset(asked)
        now_s = time.monotonic()
        version, reply = await connection.read(
            METADATA,
            request,
            lambda version, data: metadata_wire.read(version, data, now_s, wanted),
            ceiling=metadata_wire.NEWEST,
        )
        connection.note_throttle_time(METADATA, version, reply.throttle_ms)
        return reply

    def update_metadata(self, reply: Metadata, *, everything: bool) -> None:
        known = self.metadata
        for node_id, node in reply.nodes.items():
            if known.nodes.get(node_id, node) != node and (stale := self.connections.pop(node_id, None)):
                stale.close()
        known.nodes = reply.nodes
        if reply.cluster_id != known.cluster_id:
            known.newest = {}
        known.controller_id = reply.controller_id
        known.cluster_id = reply.cluster_id
        known.refreshed_s = time.monotonic()
        if everything:
            known.topics = {}
        for name, topic in reply.topics.items():
            known.topics[name] = known.newest[name] = _merge(topic, known.newest.get(name))
        for name in reply.errors:
            known.topics.pop(name, None)
        if everything:
            known.newest = {name: topic for name, topic in known.newest.items() if name in known.topics}

    async def topics(
        self, names: Iterable[str] | None, deadline: Deadline, *, missing_ok: bool = False
    ) -> dict[str, TopicDescription]:
        """Describes these topics, or all, from new metadata.

        Raises UnknownTopic with the topics that do not exist; with ``missing_ok`` the result leaves them out.
        """
        wanted = None if names is None else list(dict.fromkeys(names))
        grace = Deadline(min(UNKNOWN_TOPIC_GRACE_MS, deadline.limit_ms))

        async def attempt() -> dict[str, TopicDescription]:
            errors = await self.refresh(wanted)
            unknown = [name for name, code in errors.items() if code is ErrorCode.unknown_topic_or_partition]
            for name, code in errors.items():
                if code is not ErrorCode.unknown_topic_or_partition:
                    raise error_for(code, f"topic {_shown_topic(name)}")
            if unknown and not missing_ok:
                if grace.passed:
                    raise UnknownTopic(_unknown_text(unknown), unknown)
                raise KafkaError(ErrorCode.leader_not_available, _unknown_text(unknown))
            known = self.metadata.topics
            if left_out := [name for name in wanted or () if name not in known and name not in errors]:
                raise KafkaError(ErrorCode.leader_not_available, f"the broker's reply lacks topic {left_out[0]}")
            chosen = known if wanted is None else {name: known[name] for name in wanted if name in known}
            return {name: topic.description for name, topic in sorted(chosen.items())}

        return await self.retry("listing topics", attempt, deadline)

    async def topic_names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Looks up the names of topic ids with one Metadata request; the result leaves out unknown ids."""
        wanted = list(topic_ids)
        connection = await self.any_connection()
        if not connection.supports(METADATA, TOPIC_IDS_FROM):
            raise UnsupportedVersion(f"{connection.address} cannot look up topics by their ids")
        request = _metadata_request([{"topic_id": one, "name": None} for one in wanted])
        reply = await self._metadata_from(connection, request, wanted)
        self.update_metadata(reply, everything=False)
        ids = {name: topic.description.topic_id for name, topic in reply.topics.items()}
        return {topic_id: name for name, topic_id in ids.items() if topic_id is not None}

    def known_topic(self, name: str) -> TopicDescription | None:
        """Returns a topic's description in the cached metadata; None if the topic is not there."""
        topic = self.metadata.topics.get(name)
        return topic.description if topic is not None else None

    def node(self, node_id: int) -> Node | None:
        return self.metadata.nodes.get(node_id)

    def nodes(self) -> list[Node]:
        """Returns the brokers in the cached metadata."""
        return list(self.metadata.nodes.values())

    @property
    def cluster_id(self) -> str | None:
        return self.metadata.cluster_id

    @property
    def controller_id(self) -> int:
        return self.metadata.controller_id

    def take_leaders(
        self, leaders: Mapping[TopicPartition, tuple[int, int]], nodes: Iterable[Node]
    ) -> set[TopicPartition]:
        """Takes over the leaders, each with its leader epoch, that a reply to a refused request names, and ``nodes``,
        their addresses. Returns the partitions whose leader is newer than the known one: they can be asked at once."""
        known, taken = self.metadata, set()
        named = known.nodes | {node.node_id: node for node in nodes}
        for tp, (leader, epoch) in leaders.items():
            topic = known.topics.get(tp.topic)
            if topic is None or (changed := with_leader(topic, tp.partition, leader, epoch, named)) is None:
                continue
            known.topics[tp.topic] = known.newest[tp.topic] = changed
            if known.nodes.get(leader) != named[leader] and (stale := self.connections.pop(leader, None)):
                stale.close()
            known.nodes[leader] = named[leader]
            taken.add(tp)
        return taken

    def forget_topics(self, names: Iterable[str]) -> None:
        """Removes topics from the cached metadata: the next lookup asks the cluster."""
        for name in names:
            self.metadata.topics.pop(name, None)

    async def leaders(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Returns the leader of each partition.

        Asks the cluster if the cached metadata lacks the partition or is older than ``metadata_max_age_ms``. Raises
        UnknownTopic, and LEADER_NOT_AVAILABLE (retriable) for a partition without a leader.
        """
        wanted = list(partitions)
        fresh_s = self.config.metadata_max_age_ms / 1000
        stale = time.monotonic() - self.metadata.refreshed_s > fresh_s
        asked = {tp.topic for tp in wanted if stale or self._partition(tp) is None}
        if asked:
            await self.topics(asked, deadline)
        leaders: dict[TopicPartition, int] = {}
        for tp in wanted:
            partition = self._partition(tp)
            if partition is None:
                known = self.metadata.topics.get(tp.topic)
                count = len(known.partitions) if known else 0
                raise UnknownTopic(f"topic {tp.topic} has no partition {tp.partition} (it has {count})")
            if partition.leader < 0:
                self.forget_topics([tp.topic])
                raise KafkaError(ErrorCode.leader_not_available, f"{tp} has no leader now")
            leaders[tp] = partition.leader
        return leaders

    def _partition(self, tp: TopicPartition) -> PartitionDescription | None:
        topic = self.metadata.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic is not None else None

    def leader(self, tp: TopicPartition) -> int:
        """Returns the leader in the cached metadata; -1 if unknown."""
        partition = self._partition(tp)
        return -1 if partition is None else partition.leader

    def leader_epoch(self, tp: TopicPartition) -> int:
        partition = self._partition(tp)
        return -1 if partition is None else partition.leader_epoch

    # --- coordinators -----------------------------------------------------------------------------------------

    async def coordinator(self, key: str, key_type: int = GROUP) -> Node:
        """Returns the coordinator of a group or a transactional id, cached or from one FindCoordinator request.

        Does not retry."""
        if (known := self._coordinators.get((key_type, key))) is not None:
            return known
        connection = await self.any_connection()
        reply = await connection.call(
            FIND_COORDINATOR, {"key": key, "key_type": key_type, "coordinator_keys": [key]},
            ceiling=5 if key_type == GROUP else 6,
        )  # fmt: skip
        what = f"coordinator of {_KEY_TYPES[key_type]} {key}"
        row = first_row(reply.coordinators, what) if hasattr(reply, "coordinators") else cast("Coordinator", reply)
        if row.error_code is not ErrorCode.none:
            raise error_for(row.error_code, getattr(row, "error_message", None) or what)
        node = Node(row.node_id, row.host, row.port)
        if self.metadata.nodes.get(node.node_id) is None:
            self.metadata.nodes[node.node_id] = node
        self._coordinators[key_type, key] = node
        return node

    def forget_coordinator(self, key: str, key_type: int = GROUP) -> None:
        """Makes the next call for the group or transactional id look up its coordinator."""
        self._coordinators.pop((key_type, key), None)

    async def at_coordinator(
        self,
        key: str,
        what: str,
        call: Callable[[BrokerConnection], Awaitable[T]],
        deadline: Deadline,
        key_type: int = GROUP,
    ) -> T:
        """Runs ``call`` on a connection to the coordinator; a retry looks the coordinator up again."""

        async def attempt() -> T:
            node = await self.coordinator(key, key_type)
            try:
                return await call(await self.connection(node.node_id))
            except (KafkaError, ConnectionLost, BrokerUnreachable) as error:
                if worth_retrying(error):
                    self.forget_coordinator(key, key_type)
                raise

        return await self.retry(what, attempt, deadline)


def _metadata_request(topics: Sequence[Mapping[str, object]] | None, *, create: bool = False) -> dict[str, object]:
    return {
        "topics": topics,
        "allow_auto_topic_creation": create,
        "include_topic_authorized_operations": False,
        "include_cluster_authorized_operations": False,
    }


def _note_late_failure(task: asyncio.Task[BrokerConnection]) -> None:
    """Notes a failure whose callers were all cancelled. Otherwise asyncio would print it with a traceback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.debug("opening a connection: %s", error)


def _close_late(task: asyncio.Task[BrokerConnection]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def _shown_topic(name: str) -> str:
    """Returns a topic's name, in quotes if it has spaces at its ends, which are not visible otherwise."""
    return name if name == name.strip() else repr(name)


def _unknown_text(names: list[str]) -> str:
    shown = [_shown_topic(name) for name in sorted(names)]
    return f"unknown topic {shown[0]}" if len(shown) == 1 else f"unknown topics {', '.join(shown)}"


def _merge(topic: TopicMetadata, before: TopicMetadata | None) -> TopicMetadata:
    """Returns the new metadata, except for partitions in which ``before`` has a newer leader epoch."""
    if before is None or before.description.topic_id != topic.description.topic_id:
        return topic
    partitions, reply_s = topic.partitions, topic.reply_s
    is_changed = False
    for index, old in before.partitions.items():
        if index not in partitions or not 0 <= partitions[index].leader_epoch < old.leader_epoch:
            continue
        # Without a topic id the topic may have been recreated, and its leader epochs may have restarted.
        if (
            topic.description.topic_id is not None
            or reply_s[index] - before.reply_s[index] < UNKNOWN_TOPIC_GRACE_MS / 1000
        ):
            partitions[index], reply_s[index] = old, before.reply_s[index]
            is_changed = True
    if is_changed:
        of = topic.description
        rows = tuple(partitions[index] for index in sorted(partitions))
        topic.description = TopicDescription(of.name, of.topic_id, of.internal, rows)
    return topic
