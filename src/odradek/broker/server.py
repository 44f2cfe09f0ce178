"""The broker: one data directory, one listening socket, the machines between them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from odradek.broker.clock import Alarms, Clock
from odradek.broker.config import BrokerConfig, check_topic_configs, log_config
from odradek.broker.connection import Connection
from odradek.broker.fetch_sessions import FetchSessions
from odradek.broker.log_directory import LogDirectory
from odradek.broker.metadata_log import Catalog
from odradek.broker.partition import Partition
from odradek.broker.quotas import Quotas
from odradek.broker.router import Context, Router
from odradek.catalog.shard import (
    BROKER,
    PRODUCER_ID_BLOCK,
    TOPIC,
    AllocateProducerIds,
    AlterClientQuotas,
    AlterConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    Topic,
)
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import METADATA_TOPIC, OFFSETS_TOPIC

if TYPE_CHECKING:
    from odradek.broker.cleaning import Cleaning
    from odradek.broker.commit_lane import CommitLane
    from odradek.broker.runtime import Runtime

log = logging.getLogger("odradek.broker")

DRAIN_S = 1.0
LOAD_REST_S, LOAD_REST_PAUSE_S = 2.0, 0.02
_TICKS_TO_REPLAY = 3  # a timer makes records, the next tick appends and replays them, replies follow
_MAX_LONG = (1 << 63) - 1
_WILDCARDS = ("", "0.0.0.0", "::")


class ListenError(OdradekError):
    """The address cannot be listened on; the message says why."""


class BrokerServer:
    """A broker. ``start`` opens the data and the port, ``stop`` ends in peace.

    ``listen`` is (host, port); port 0 takes a free one, found in ``address`` after ``start``.
    """

    def __init__(
        self, config: BrokerConfig, data_dir: Path, listen: tuple[str, int], clock: Clock | None = None
    ) -> None:
        self.config = config
        self.clock = clock or Clock()
        self.directory = LogDirectory(data_dir, self.clock.now_ms)
        self.address = listen
        self.features: Mapping[str, int] = {"group.version": 1}  # 1: KIP-848 groups
        self.connections: set[Connection] = set()
        self.quotas = Quotas(config, self.clock.steady_ms)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots)
        self.catalog: Catalog
        self.router: Router
        self._addresses: Counter[str] = Counter()
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server | None = None
        self._alarms: Alarms
        self._producer_ids = range(0)
        self._stopping = False

    # Groups and the cleaner are loaded when there is work for them: a broker that only serves records starts without.

    @cached_property
    def runtime(self) -> Runtime:
        """The groups, made when the first of them is asked for."""
        from odradek.broker.group_surroundings import CatalogSurroundings, group_config
        from odradek.broker.runtime import Runtime

        runtime = Runtime(
            group_config(self.config),
            call_soon=self.loop.call_soon,
            call_at=self._alarms.call_at,
            clock=self.now_ms,
            steady=self.clock.steady_ms,
            topic_id=self._topic_id,
            surroundings=CatalogSurroundings(self.catalog, self.config),
        )
        self.clock.on_moved.append(runtime.on_clock_moved)
        return runtime

    @cached_property
    def commit_lane(self) -> CommitLane:
        from odradek.broker.commit_lane import CommitLane

        return CommitLane(self)

    @cached_property
    def cleaning(self) -> Cleaning:
        """The log cleaner, made when there is a compacted log."""
        from odradek.broker.cleaning import Cleaning

        return Cleaning(self.directory, self.config, now_ms=self.now_ms, call_at=self._alarms.call_at)

    @property
    def _runtime(self) -> Runtime | None:
        """The groups, if anybody has asked for any."""
        return self.__dict__.get("runtime")

    @property
    def _cleaning(self) -> Cleaning | None:
        return self.__dict__.get("cleaning")

    # --- what handlers ask --------------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self.directory.node_id

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def new_uuid(self) -> UUID:
        return uuid4()

    def advertised(self, context: Context) -> tuple[str, int]:
        """Host and port a client is told to come back to."""
        told = self.config.advertised_address()
        if told is not None:
            return told
        host, port = self.address
        return (context.connection.local_host if host in _WILDCARDS else host), port

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.directory.partitions.get((topic, index))

    def next_producer_id(self) -> int:
        """A producer id nobody has had; whole blocks of them are taken from the catalogue. Raises KafkaError."""
        if not self._producer_ids:
            first = self.catalog.apply(AllocateProducerIds(self.node_id))
            self._producer_ids = range(first, first + PRODUCER_ID_BLOCK)
        taken = self._producer_ids[0]
        self._producer_ids = self._producer_ids[1:]
        return taken

    # --- topics -------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        *,
        partition_count: int = -1,
        replication_factor: int = -1,
        assignments: Mapping[int, tuple[int, ...]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Topic | None:
        """Creates a topic; −1 takes the broker's default. Raises KafkaError or ConfigError.

        ``None`` after ``validate_only``.
        """
        config = self.config
        request = CreateTopic(
            name,
            self.new_uuid(),
            config.num_partitions if partition_count == -1 else partition_count,
            config.default_replication_factor if replication_factor == -1 else replication_factor,
            assignments or {},
            check_topic_configs(configs or {}, config),
        )
        if validate_only:
            self.catalog.check(request)
            return None
        self.catalog.apply(request)
        topic = self.catalog.topic(name)
        assert topic is not None
        self._open(topic)
        if self._runtime is not None:
            self._runtime.on_topics_changed([name], created=True)
        if name == OFFSETS_TOPIC:
            if topic.partition_count == config.offsets_topic_num_partitions:
                self._serve_groups(topic)
            else:
                # As Kafka does: the count is read at start, and a coordinator that reckons with another is none.
                log.warning(
                    "%s was created with %d partitions, not the %d of offsets.topic.num.partitions: groups are "
                    "served after a restart",
                    name, topic.partition_count, config.offsets_topic_num_partitions,
                )  # fmt: skip
        return topic

    def _open(self, topic: Topic) -> None:
        settings = log_config(self.config, self.catalog.topic_configs(topic.name))
        self.directory.open_topic(topic, settings)
        self._look_after(compacted=settings.is_compacted)

    def auto_create(self, name: str) -> Topic | None:
        """What asking for an unknown topic does: ``None`` where topics are not created so. Raises KafkaError."""
        if not self.config.auto_create_topics_enable or name == METADATA_TOPIC:
            return None
        if name == OFFSETS_TOPIC:
            self.ensure_offsets_topic()
            return self.catalog.topic(name)
        return self.create_topic(name)

    def delete_topic(self, topic: Topic) -> None:
        """Deletes a topic with its records and what groups have committed for it. Raises KafkaError."""
        self.catalog.apply(DeleteTopic(topic.id))
        if topic.name == OFFSETS_TOPIC:
            for index in range(topic.partition_count):
                self.runtime.unload(index)
            self.runtime.partition_count = None
        self.directory.drop_topic(topic.name, topic.partition_count, self.config.log_segment_delete_delay_ms)
        if self._cleaning is not None:
            self._cleaning.forget_dropped()
        if self._runtime is not None:
            self._runtime.on_topics_changed([topic.name])
            if topic.name != OFFSETS_TOPIC:
                self._runtime.on_topics_deleted([topic.name])

    def create_partitions(self, request: CreatePartitions, *, validate_only: bool) -> None:
        """Raises KafkaError."""
        if validate_only:
            self.catalog.check(request)
            return
        self.catalog.apply(request)
        topic = self.catalog.topic(request.name)
        assert topic is not None
        self._open(topic)
        if self._runtime is not None:
            self._runtime.on_topics_changed([topic.name])

    def alter_configs(self, request: AlterConfigs, *, validate_only: bool) -> None:
        """Values are checked by the caller. Raises KafkaError."""
        if validate_only:
            self.catalog.check(request)
            return
        self.catalog.apply(request)
        if request.resource_type == TOPIC:
            topics = [request.resource_name]
        elif request.resource_type != BROKER:
            return
        else:
            self._take_dynamic_configs()
            topics = [topic.name for topic in self.catalog.topics()]
        compacted = False
        for name in topics:
            settings = log_config(self.config, self.catalog.topic_configs(name))
            self.directory.reconfigure(name, settings)
            compacted |= settings.is_compacted
        self._look_after(compacted=compacted)

    def _take_dynamic_configs(self) -> None:
        self.config.set_dynamic(self.catalog.configs(BROKER, str(self.node_id)), self.catalog.configs(BROKER, ""))

    def alter_client_quotas(self, request: AlterClientQuotas) -> None:
        """Values are checked by the caller. Raises KafkaError."""
        self.catalog.apply(request)
        self.quotas.take(self.catalog.quotas())

    # --- groups -------------------------------------------------------------------------------------------------

    def ensure_offsets_topic(self) -> None:
        """Creates ``__consumer_offsets`` unless it is there. Where it cannot be made, that is logged, as in Kafka."""
        if self.catalog.topic(OFFSETS_TOPIC) is not None:
            return
        config = self.config
        try:
            self.create_topic(
                OFFSETS_TOPIC,
                partition_count=config.offsets_topic_num_partitions,
                replication_factor=config.offsets_topic_replication_factor,
                configs={
                    "cleanup.policy": "compact",
                    "compression.type": "producer",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                },
            )
        except OdradekError as error:
            log.error("%s cannot be created: %s", OFFSETS_TOPIC, error)

    def _serve_groups(self, topic: Topic) -> None:
        self.runtime.partition_count = topic.partition_count
        for described in topic.partitions:
            partition = self.partition(topic.name, described.index)
            if partition is not None and not partition.failure:
                self.runtime.load(described.index, partition)

    def _topic_id(self, name: str) -> bytes | None:
        topic = self.catalog.topic(name)
        return None if topic is None or topic.id is None else topic.id.bytes

    # --- compacted logs -----------------------------------------------------------------------------------------

    def _look_after(self, *, compacted: bool) -> None:
        """To be called after logs were opened or reconfigured, some of them compacted: the cleaner is at work then."""
        if self._cleaning is None and not compacted:
            return
        self.cleaning.forget_dropped()
        if self.config.log_cleaner_enable:
            self.cleaning.start()

    # --- living -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Takes the port and the directory, reads the logs, serves.

        Raises ListenError, StorageError, ConfigError.
        """
        loop = self.loop = asyncio.get_running_loop()
        listening = self._bind()
        try:
            self.directory.claim(self.config, self.address)
            self.directory.defer = lambda job: _in_thread(loop, job)
            self.directory.defer_removal = lambda delay_ms, job: self._remove_later(loop, delay_ms, job)
            self.catalog = self.directory.open_catalog()
            self._take_dynamic_configs()
            self.quotas.take(self.catalog.quotas())
            self.directory.open_all(self.catalog, self.config)
            self._alarms = Alarms(loop, self.clock)
            offsets_topic = self.catalog.topic(OFFSETS_TOPIC)
            if offsets_topic is not None:
                self._serve_groups(offsets_topic)
            self.router = Router(self)
        except BaseException:
            listening.close()
            self.directory.abandon()
            raise
        self._server = await loop.create_server(
            lambda: Connection(self), sock=listening, backlog=self.config.socket_listen_backlog_size
        )
        self._plan_upkeep()
        self._look_after(compacted=self.directory.was_cleaned() or self.directory.has_compacted())
        self.loop.call_later(LOAD_REST_S, self._load_rest)

    def _bind(self) -> socket.socket:
        host, port = self.address
        bare = host.strip("[]")
        family = socket.AF_INET6 if ":" in bare else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((bare, port))
            # A port that another socket listens on is found out here, before anything is read.
            listening.listen(self.config.socket_listen_backlog_size)
        except (OSError, OverflowError) as error:
            listening.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error
        listening.setblocking(False)
        self.address = (host, int(listening.getsockname()[1]))
        return listening

    def _plan_upkeep(self) -> None:
        config = self.config
        self._every(config.log_retention_check_interval_ms, self.directory.retain)
        self._every(config.log_flush_offset_checkpoint_interval_ms or 60_000, self.directory.checkpoint_recovery_points)
        self._every(
            config.log_flush_start_offset_checkpoint_interval_ms or 60_000, self.directory.checkpoint_log_starts
        )
        self._every(1000, self._flush_due)

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            if self._stopping:
                return
            try:
                work()
            except Exception:
                log.exception("upkeep failed; it is tried again in %d ms", interval_ms)
            self._alarms.call_at(self.now_ms() + interval_ms, run)

        self._alarms.call_at(self.now_ms() + interval_ms, run)

    def _load_rest(self, files: Iterator[Callable[[], object]] | None = None) -> None:
        """Loads, one at a time, what no client has needed yet: none has to wait for it then, and a broker never mixes
        its own files with those of a version that is installed while it runs."""
        if self._stopping:
            return
        if files is None:
            files = chain(
                self.router.loaders(), [lambda: self.runtime, lambda: self.commit_lane, lambda: self.cleaning]
            )
        load = next(files, None)
        if load is not None:
            load()
            self.loop.call_later(LOAD_REST_PAUSE_S, self._load_rest, files)

    def _remove_later(self, loop: asyncio.AbstractEventLoop, delay_ms: int, job: Callable[[], None]) -> None:
        self._alarms.call_at(self.now_ms() + delay_ms, lambda: _in_thread(loop, job))

    def _flush_due(self) -> None:
        self.directory.flush_due()

    # --- connections --------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, host: str) -> bool:
        """Whether one more connection is welcome."""
        config = self.config
        if (
            self._stopping
            or len(self.connections) >= config.max_connections
            or self._addresses[host] >= config.max_connections_per_ip
        ):
            log.info("refusing a connection of %s: too many", host)
            return False
        self.connections.add(connection)
        self._addresses[host] += 1
        return True

    def discharge(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            host = connection.client_host[1:]
            self._addresses[host] -= 1
            if not self._addresses[host]:
                del self._addresses[host]

    # --- ending -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Takes no more requests, answers those it has, syncs and closes the logs, frees the directory."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.close()
        if self._cleaning is not None:
            await self._cleaning.stop()
        if self._runtime is not None:
            self._runtime.stop()
        deadline = asyncio.get_running_loop().time() + DRAIN_S
        while any(c.busy for c in self.connections) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self.connections):
            connection.abort()
        self._alarms.cancel_all()
        # The directory last: its mark says that everything was closed, and its lock lets another broker in.
        whole = True
        try:
            self.catalog.close()
        except KafkaError as error:
            whole = False
            log.error("the catalogue was not closed: %s", error)
        self.directory.close(whole=whole)

    async def abandon(self) -> None:
        """Ends at once, for a broker in a thread what kill -9 is for a process: nobody is told, nothing flushed.

        The catalogue, which is small and written through anyway, is closed in peace.
        """
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.abort()
        if self._cleaning is not None:
            await self._cleaning.stop()
        self._alarms.cancel_all()
        self.catalog.close()
        self.directory.abandon()

    async def settle(self) -> None:
        """Returns when all that is due by the clock has been done (a cleaning only begun)."""
        while self._alarms.due:
            await asyncio.sleep(0)
        for _ in range(_TICKS_TO_REPLAY):
            await asyncio.sleep(0)


def _in_thread(loop: asyncio.AbstractEventLoop, job: Callable[[], None]) -> None:
    def report(done: asyncio.Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, KafkaError) and error.code is ErrorCode.kafka_storage_error:
            return  # the log went offline and has said so
        if error is not None:
            log.error("syncing a closed segment failed", exc_info=error)

    loop.run_in_executor(None, job).add_done_callback(report)
