"""The node: a data directory and the parts that serve requests, without sockets.

Its role is what differs between a lone broker (``lone_role``), a broker of a cluster (``cluster_role``) and a
controller (``controller_role``). ``broker/server`` adds the listeners. A test drives a node with the bytes of
connections: ``Connection.connection_made`` with a transport of its own, then ``data_received``. Loop, files, clocks,
ids and threads are passed in.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from odradek.broker.controller.write_events import TopicSpec
from odradek.broker.coordinators.registry import TYPES, Coordinators
from odradek.broker.coordinators.transaction_coordinator import TRANSACTIONS
from odradek.broker.limits.admissions import Admissions, protected_listener
from odradek.broker.limits.host_limits import HostLimits
from odradek.broker.limits.quotas import REQUEST_PERCENTAGE, Quotas
from odradek.broker.limits.reply_memory import ReplyMemory
from odradek.broker.limits.request_memory import RequestMemory
from odradek.broker.loop.clock import Alarms
from odradek.broker.loop.disk_work import DiskWork
from odradek.broker.loop.heap import Heap
from odradek.broker.loop.scheduler import Callbacks, Scheduler, Steps, finish
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.upkeep import LOAD_REST_S, Upkeep, load_in_turn
from odradek.broker.partitions.fetch_sessions import FetchSessions
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.log_opener import LogWork
from odradek.broker.partitions.purgatory import Purgatory
from odradek.broker.publishers.order import authorizer_of, tokens_of
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.listener import CLIENT, WILDCARDS
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire.api_keys import OFFSET_COMMIT

if TYPE_CHECKING:
    from odradek.batches.steps import BatchSteps
    from odradek.broker.controller.write_events import Controller
    from odradek.broker.coordinators.group_runtime import GroupRuntime
    from odradek.broker.front_end.bound_sockets import OwnerFactory
    from odradek.broker.front_end.commit_fast_path import CommitFastPath
    from odradek.broker.front_end.connection import Connection
    from odradek.broker.front_end.request_quota import RequestQuota
    from odradek.broker.front_end.request_times import RequestStatistics
    from odradek.broker.front_end.router import Api, Router
    from odradek.broker.handlers.api import Client
    from odradek.broker.limits.request_elements import RequestElements
    from odradek.broker.logins.parts import Logins
    from odradek.broker.loop.leftovers import Leftovers
    from odradek.broker.loop.workers import Workers
    from odradek.broker.metadata.brokers import Brokers, ClientRequest
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.metadata.loader import MetadataLoader
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.node.node_role import NodeRole
    from odradek.broker.partitions.log_cleaner import BrokerLogCleaner
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.broker.settings.listener import Listener
    from odradek.catalog.state import Topic
    from odradek.coordinator_runtime.runtime import Environment
    from odradek.wire.chunks import Chunk

T = TypeVar("T")
log = logging.getLogger("odradek.broker")

DRAIN_S = 1.0
_TICKS_TO_REPLAY = 3  # a timer makes records, the next tick appends and replays them, then come the replies
_COMMIT = OFFSET_COMMIT.to_bytes(2, "big")


class Node:
    """A node. ``begin`` opens the data directory, ``end`` is a clean shutdown.

    ``listeners``: where clients reach it; replies have the address of the first, if none is advertised. ``new_role``:
    makes the role of the node, from which ``begin`` gets the other parts. ``loop``: the event loop, which need not run
    yet.
    """

    def __init__(
        self,
        config: BrokerConfig,
        data_dir: Path,
        listeners: tuple[Listener, ...],
        world: NodeWorld,
        new_role: Callable[[Node], NodeRole],
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.world = world
        self.clock = world.clock
        self.loop = loop
        self.directory = LogDirectory(data_dir, self.clock.now_ms, world=world)
        of_clients = tuple(one for one in listeners if one.kind == CLIENT)
        self.listeners = of_clients or listeners
        """The listeners of the node's own requests: those of clients, or of a controller alone."""
        self.other_listeners = tuple(one for one in listeners if one not in self.listeners)
        """The listeners of a controller in the process of a broker."""
        self.connections: set[Connection] = set()
        self.quotas = Quotas(config, self.clock.steady_ms)
        slots = config.max_incremental_fetch_session_cache_slots
        self.fetch_sessions = FetchSessions(slots, new_uuid=world.new_uuid)
        self.now_ms, self.new_uuid, self.check_room = self.clock.now_ms, world.new_uuid, self.directory.check_room
        self._stopping = False
        self._make_loop_parts(config)
        # ``begin`` gets the next parts from the role.
        self.router: Router
        self.catalog: CommittedCatalog
        self.metadata_log: MetadataLog
        self.quorum: MetadataQuorum
        self.controller: Controller
        self.loader: MetadataLoader
        self.producer_ids: ProducerIds
        self.existing_log_cleaner: BrokerLogCleaner | None = None
        self.existing_workers: Workers | None = None
        self.coordinators = Coordinators(self)
        for kind in TYPES:
            self.coordinators.register(kind)
        self.authorizer, self.tokens = authorizer_of(config), tokens_of(config)
        self.role = new_role(self)
        self.host_limits = HostLimits(config, world.look_up, world.begin_thread)
        self.request_times: RequestStatistics | None = None
        """Counts the requests, if it is set before ``begin``."""
        protected = protected_listener(config, self.listeners)
        self.admissions = Admissions(config, self.host_limits, self.connections, protected)
        self._request_quota: RequestQuota | None = None
        self.failure = ""
        """Why the broker cannot go on, after a failed write. ``on_failure`` is called then."""
        self.dismissal = ""
        """Why the broker has to end although its disk is well: its cluster does not want it. ``on_failure`` is called
        then."""
        self.on_failure: Callable[[], object] = lambda: None

    def _make_loop_parts(self, config: BrokerConfig) -> None:
        """Makes what uses the loop."""
        self.scheduler = Scheduler(self.loop.call_soon, self.world.share_clock)
        self.purgatory = Purgatory(self.loop, self.scheduler)
        self._alarms = Alarms(self.loop, self.clock, Callbacks(self.scheduler).run)
        self._disk_work = DiskWork(
            self.loop, self.directory.failures.retry,
            lambda delay_ms, job: self._alarms.call_at(self.now_ms() + delay_ms, job), lambda: self._stopping,
        )  # fmt: skip
        self.in_thread = self._disk_work.in_thread
        self.heap = Heap(self.loop.call_later, self.in_thread, lambda: self.is_busy)
        count_freed = self.heap.count_freed
        self.reply_memory = ReplyMemory(self.loop.time, on_freed=count_freed)
        most = config.queued_max_request_bytes
        self.request_memory = RequestMemory(most, self.loop.call_later, self.loop.time, count_freed)

    # The next parts are made at their first use, and some of them by ``_load_rest``, so that a start is short.

    @cached_property
    def brokers(self) -> Brokers:
        """The brokers that replies name."""
        return self.role.new_brokers()

    @cached_property
    def groups(self) -> GroupRuntime:
        return self.coordinators.groups

    @property
    def partitions_of_transactions(self) -> PartitionsOfTransactions:
        return self.coordinators.runtime(TRANSACTIONS).partitions_of_transactions

    @property
    def coordinator_environment(self) -> Environment:
        from odradek.coordinator_runtime.runtime import Environment

        return Environment(
            call_soon=self.loop.call_soon,
            call_at=self._alarms.call_at,
            clock=self.now_ms,
            steady=self.clock.steady_ms,
            start=self.scheduler.start,
            long_work=self._long_work,
            share_clock=self.world.share_clock,
        )

    @cached_property
    def commit_fast_path(self) -> CommitFastPath:
        from odradek.broker.front_end.commit_fast_path import CommitFastPath

        return CommitFastPath(self)

    @cached_property
    def leftovers(self) -> Leftovers:
        from odradek.broker.loop.leftovers import Leftovers

        return Leftovers(self.scheduler.start)

    @cached_property
    def request_elements(self) -> RequestElements:
        from odradek.broker.limits.request_elements import RequestElements

        return RequestElements()

    @cached_property
    def log_cleaner(self) -> BrokerLogCleaner:
        """The log cleaner, made at its first use: for the first compacted log, or by ``_load_rest``."""
        from odradek.broker.partitions.log_cleaner import BrokerLogCleaner

        made = BrokerLogCleaner(self.directory, self.config, now_ms=self.now_ms, call_at=self._alarms.call_at)
        self.existing_log_cleaner = made
        return made

    @cached_property
    def workers(self) -> Workers:
        """Threads and memory for work that takes longer than a share, made at the first use."""
        from odradek.broker.loop.workers import Workers

        made = self.existing_workers = Workers(self.loop.call_soon_threadsafe, self.world.new_threads)
        return made

    def _long_work(self, steps: BatchSteps[object]) -> Steps[object]:
        return self.workers.run(steps)

    # --- services for handlers ----------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self.directory.node_id

    def check_own_name(self, name: str) -> None:
        """Raises KafkaError (INVALID_REQUEST) for the name of another broker. The name "" means all brokers."""
        if name not in ("", str(self.node_id)):
            raise KafkaError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {self.node_id}, but received {name}"
            )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        return self.listeners[0].host, self.listeners[0].port

    @property
    def most_request_bytes(self) -> int:
        return self.config.socket_request_max_bytes + self.role.envelope_bytes

    @property
    def apis(self) -> Mapping[int, Api]:
        return self.router.apis

    @property
    def cluster_id(self) -> str:
        return self.directory.cluster_id

    def steady_ms(self) -> int:
        """Returns the time of a clock that no test moves and that never jumps."""
        return int(self.loop.time() * 1000)

    def advertised_address(self, context: ClientRequest) -> tuple[str, int]:
        """Returns the host and port at which this client reaches this node."""
        listener = context.connection.listener or self.listeners[0]
        if listener.advertised is not None:
            return listener.advertised
        return (context.connection.local_host if listener.host in WILDCARDS else listener.host), listener.port

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.directory.led.get((topic, index))

    def missing_partition(self, topic: str, index: int) -> ErrorCode:
        known = self.catalog.topic(topic)
        is_known = known is not None and 0 <= index < known.partition_count
        return ErrorCode.not_leader_or_follower if is_known else ErrorCode.unknown_topic_or_partition

    @property
    def partitions(self) -> Mapping[tuple[str, int], Partition]:
        return self.directory.partitions

    @property
    def log_dir(self) -> Path:
        return self.directory.path

    def checkpoint_log_starts(self) -> None:
        self.directory.upkeep.checkpoint_log_starts()

    # --- topics -------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, partition_count: int = -1, configs: Mapping[str, str | None] | None = None
    ) -> Topic:
        """Creates a topic at once, for a program that runs this broker. Raises KafkaError or ConfigError."""
        return self.finish(self.controller.create_topic(TopicSpec(name, partition_count, configs=configs or {})))

    def finish(self, steps: Steps[T]) -> T:
        """Runs the steps of a change of the catalogue to their end at once. Raises RuntimeError if another one runs."""
        with self.quorum.at_once():
            return finish(steps)

    def _on_quotas_replaced(self) -> None:
        """Installs the middleware of the request quota while such a quota exists."""
        if self._request_quota is not None:
            self.router.remove(self._request_quota)
            self._request_quota = None
        if self.quotas.has_quota(REQUEST_PERCENTAGE):
            from odradek.broker.front_end.request_quota import RequestQuota

            self._request_quota = RequestQuota(self.quotas)
            self.router.install(self._request_quota)

    # --- start --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Locks the directory and reads the logs. Then connections may be admitted.

        Raises StorageError, ConfigError: then call ``give_up``.
        """
        directory, opener = self.directory, self.directory.opener
        directory.acquire(self.config, self.address)
        directory.steady_ms = self.steady_ms
        opener.work = LogWork(self._disk_work.sync_later, self._disk_work.remove_later, self.scheduler.start)
        opener.on_opened = self.coordinators.load_opened
        directory.failures.on_begin = self._disk_work.retry_later
        directory.failures.on_end = lambda reason: self.loop.call_soon_threadsafe(self._fail, reason)
        self.catalog, self.metadata_log, self.quorum = self.role.open_catalog()
        self.controller = self.role.new_controller()
        self.metadata_log.on_snapshot_due = self.controller.begin_snapshot
        self.router = self.role.new_router()
        self.quotas.on_replaced = self._on_quotas_replaced
        self.producer_ids = self.role.new_producer_ids()
        self.loader = self.role.new_loader()
        self.role.follow_catalog()

    async def give_up(self) -> None:
        """Releases everything after a failed ``begin``."""
        self.role.close()
        self.scheduler.stop()
        if self.existing_log_cleaner is not None:
            await self.existing_log_cleaner.stop()
        self.coordinators.stop()
        self.directory.abandon()

    def begin_upkeep(self) -> None:
        """Begins the periodic work. Call it when the node serves clients."""
        upkeep = Upkeep(self, self._alarms.call_at, lambda: self._stopping)
        upkeep.begin()
        self.role.begin_upkeep(upkeep)
        self.loop.call_later(LOAD_REST_S, self._load_rest)

    def connection_owners(self, listener: Listener) -> OwnerFactory:
        """Returns the factory of the owners of a listener's connections."""
        side = self.role.side
        owner = side if side is not None and listener in self.other_listeners else self
        return self.logins.sessions(listener, owner) if listener.has_sasl else lambda accepted_s: owner

    @cached_property
    def logins(self) -> Logins:
        from odradek.broker.logins.parts import Logins

        return Logins(self, self.catalog, self.tokens, self.directory, self.now_ms)

    def _load_rest(self) -> None:
        """Imports modules that are needed soon, unless they are imported."""
        load_in_turn(self.loop, self.role.loads_later(), lambda: self._stopping)

    def loaders(self) -> Iterator[Callable[[], object]]:
        """Yields functions that import the modules of frequent requests and of the log cleaner."""
        own: list[Callable[[], object]] = [lambda: self.commit_fast_path, lambda: self.log_cleaner]
        return chain(self.router.loaders(), self.coordinators.loaders(), own)

    def _fail(self, reason: str) -> None:
        """Ends the broker after a failed write whose result on the disk is unknown."""
        if not self.failure:
            self.failure = reason
            self.on_failure()

    def dismiss(self, reason: str) -> None:
        """Ends the node although its disk is well."""
        if not self.failure and not self.dismissal:
            self.dismissal = reason
            self.on_failure()

    def log_failure(self, topic: str, partition_count: int) -> str:
        """Returns why a log of a new topic could not be created, or an empty text."""
        if not len(self.directory.failures):
            return ""
        partitions = (self.partitions.get((topic, index)) for index in range(partition_count))
        return next((f"{p.topic}-{p.index}: {p.failure}" for p in partitions if p is not None and p.failure), "")

    def fast_path(self, frame: bytes) -> CommitFastPath | None:
        return self.commit_fast_path if frame[:2] == _COMMIT and not self.router.has_middleware else None

    def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
        return self.router.dispatch(frame, connection)

    # --- connections --------------------------------------------------------------------------------------------

    def admit(self, connection: Connection, host: str, *, is_counted: bool = False) -> bool:
        """Registers a new connection. Returns False if a limit is reached or the broker stops.

        ``is_counted``: ``admissions`` has counted it before."""
        listener = "" if connection.listener is None else connection.listener.name
        if not is_counted and not self.admissions.enter(host, listener):
            return False
        if self._stopping:
            self.admissions.leave(host)
            return False
        self.connections.add(connection)
        return True

    def remove(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.fetch_sessions.owner_gone(id(connection))
            self.admissions.leave(connection.client_host[1:])

    # --- stop ---------------------------------------------------------------------------------------------------

    async def end(self) -> None:
        """Accepts no more requests, completes the present ones, syncs and closes the logs, releases the directory."""
        self.role.close()
        self._stopping = True
        if not self.role.has_loaded():
            await self._end_work()
            await self.give_up()  # no log was opened, so the mark of an earlier clean stop stays
            return
        for connection in tuple(self.connections):
            connection.close()
        if self.existing_log_cleaner is not None:
            await self.existing_log_cleaner.stop()
        self.coordinators.stop()
        deadline = self.loop.time() + DRAIN_S
        while any(c.busy for c in self.connections) and self.loop.time() < deadline:
            await asyncio.sleep(0.01)
        await self._end_work()
        # The directory is last: it gets the mark of a clean stop, and the release of its lock admits another broker.
        whole = True
        try:
            self.metadata_log.close()
        except KafkaError as error:
            whole = False
            log.error("the metadata log could not be closed: %s", error)
        self.directory.close(whole=whole)

    async def abandon(self) -> None:
        """Stops at once, as kill -9 stops a process: without replies and without syncs. For a broker in a thread.

        Only the metadata log is closed cleanly: it is small, and its records are synced already. After a failed write
        nothing is written any more.
        """
        self.role.close()
        self._stopping = True
        await self._end_work()
        with suppress(KafkaError):  # the log has logged the reason
            self.metadata_log.abandon() if self.failure else self.metadata_log.close()
        self.directory.abandon()

    async def _end_work(self) -> None:
        """Ends the connections, and the work of timers and threads. Then the metadata log can be closed."""
        for connection in tuple(self.connections):
            connection.abort()
        self.scheduler.stop()
        if self.existing_workers is not None:
            self.existing_workers.stop()
        if self.existing_log_cleaner is not None:
            await self.existing_log_cleaner.stop()
        self._alarms.cancel_all()
        while self.quorum.is_syncing:
            await asyncio.sleep(0.001)

    @property
    def is_busy(self) -> bool:
        """Whether work longer than one tick of the loop is in progress, for a request or for the broker itself."""
        return self.scheduler.busy or any(connection.is_making_reply for connection in self.connections)

    async def run_due_alarms(self) -> None:
        """Runs all alarms that are due by the broker's clock, and returns after them. A due cleaning may still run."""
        while self._alarms.due or self.scheduler.busy or self.quorum.is_syncing:
            await asyncio.sleep(0)
        for _ in range(_TICKS_TO_REPLAY):
            await asyncio.sleep(0)
