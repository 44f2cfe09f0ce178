"""The replication of one node: what its partitions share, the fetchers, the ticks, and the way to the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.remote import controller_messages
from odradek.broker.remote.peers import CONTROLLER_REQUESTS, REQUEST_TIMEOUT_MS
from odradek.broker.replication.isr_changes import IsrChangeQueue
from odradek.broker.replication.replica_fetcher import FetchLimits, ReplicaFetcher
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.deferred import Deferred
from odradek.core.ids import FetchingReplica, TopicPartition, java_string_hash

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from odradek.broker.loop.clock import TimerHandle
    from odradek.broker.loop.scheduler import Scheduler, Steps
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.remote.node_request import NodeRequest, R
    from odradek.broker.remote.peers import Channel, Peers
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.catalog.state import Topic
    from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
    from odradek.core.errors import ErrorCode
    from odradek.replication.effects import ReplicaBroker

    class ReplicatingNode(Protocol):
        """The parts of a broker that replication uses."""

        catalog: CommittedCatalog
        config: BrokerConfig
        directory: LogDirectory
        loop: asyncio.AbstractEventLoop
        scheduler: Scheduler

        @property
        def node_id(self) -> int: ...

        def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]:
            """Runs a job in a thread. The promise holds its exception, or None."""

        def now_ms(self) -> int: ...

        def steady_ms(self) -> int: ...


STEP_PARTITIONS = 50
"""The partitions that one step of a tick looks at."""


class NodeReplication:
    """``broker_epoch``: that of this node's registration. ``controller_id``: the controller among the peers.

    ``fetcher`` and ``isr_changes``: what ``ReplicatedPartition`` uses. ``begin`` starts the ticks, ``close`` ends
    everything.
    """

    def __init__(
        self, node: ReplicatingNode, peers: Peers, controller_id: int, broker_epoch: Callable[[], int]
    ) -> None:
        self._node, self._peers, self._controller_id = node, peers, controller_id
        self._broker_epoch = broker_epoch
        self._timer: TimerHandle | None = None
        self._is_closed = False
        self.holds_fetches = False
        """Whether no fetch is sent, and no reply is taken: a test wants that."""
        self.fetcher = ReplicaFetchers(self)
        self.isr_changes = IsrChangeQueue(self)
        self._notes = TruncationNotes(node)

    def begin(self) -> None:
        if not self._is_closed:
            self._timer = self._node.loop.call_later(self.max_lag_ms / 2000, self._tick)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.fetcher.close()
        self.isr_changes.close()

    def hold_fetches(self, is_held: bool) -> None:
        self.holds_fetches = is_held
        self.fetcher.wake()

    def new_partition(self, topic: Topic, registration: PartitionRegistration) -> Partition:
        """Returns the object of a partition with several replicas, for ``LogDirectory.new_partition``."""
        return ReplicatedPartition(topic.name, UUID(bytes=topic.id.bytes), registration.partition_id, self)

    def _tick(self) -> None:
        """Looks for followers that are behind."""
        self._node.scheduler.start(self._look_for_laggards()).then(lambda _: self.begin())

    def _look_for_laggards(self) -> Steps[None]:
        for number, partition in enumerate(tuple(self._node.directory.led.values())):
            if isinstance(partition, ReplicatedPartition):
                partition.tick(self.steady_ms())
            if not number % STEP_PARTITIONS:
                yield None

    # --- what partitions share ----------------------------------------------------------------------------------

    @property
    def local(self) -> FetchingReplica:
        return FetchingReplica(self._node.node_id, self._broker_epoch())

    @property
    def max_lag_ms(self) -> int:
        return self._node.config.replica_lag_time_max_ms

    @property
    def backoff_ms(self) -> int:
        return self._node.config.replica_fetch_backoff_ms

    def now_ms(self) -> int:
        return self._node.now_ms()

    def steady_ms(self) -> int:
        return self._node.steady_ms()

    def broker_state(self, broker_id: int) -> ReplicaBroker | None:
        return self._node.catalog.registered_brokers().get(broker_id)

    def note_truncation(self, partition: Partition, offset: int) -> Deferred[BaseException | None]:
        return self._notes.note(TopicPartition(partition.topic, partition.index), offset)

    # --- what fetchers share ------------------------------------------------------------------------------------

    @property
    def limits(self) -> FetchLimits:
        config = self._node.config
        return FetchLimits(
            config.replica_fetch_wait_max_ms, config.replica_fetch_min_bytes, config.replica_fetch_response_max_bytes,
            config.replica_fetch_max_bytes,
        )  # fmt: skip

    @property
    def fetchers_per_leader(self) -> int:
        return self._node.config.num_replica_fetchers

    def hand_over(self, partition: ReplicatedPartition, fetcher: ReplicaFetcher) -> None:
        self.fetcher.hand_over(partition, fetcher)

    def send(self, node_id: int, request: NodeRequest[R], channel: Channel) -> Deferred[R | None]:
        return self._peers.send(node_id, request, self._node.config.replica_socket_timeout_ms, channel=channel)

    def start(self, steps: Steps[None]) -> Deferred[BaseException | None]:
        return self._node.scheduler.start(steps)

    def call_later(self, delay_s: float, work: Callable[[], None]) -> TimerHandle:
        return self._node.loop.call_later(delay_s, work)

    # --- the controller -----------------------------------------------------------------------------------------

    def alter_isrs(
        self, changes: list[IsrProposal]
    ) -> Deferred[dict[tuple[UUID, int], IsrState | ErrorCode] | ErrorCode | None]:
        request = controller_messages.isr_changes(self._node.node_id, self._broker_epoch(), changes)
        return self._peers.send(self._controller_id, request, REQUEST_TIMEOUT_MS, channel=CONTROLLER_REQUESTS)


class ReplicaFetchers:
    """The fetchers of a node: ``num.replica.fetchers`` for each leader. A partition always has the same one of them,
    unless that number changes."""

    def __init__(self, replication: NodeReplication) -> None:
        self._replication = replication
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._places: dict[ReplicatedPartition, ReplicaFetcher] = {}

    def add(self, partition: ReplicatedPartition, leader: int) -> None:
        fetcher = self._places[partition] = self._fetcher(partition, leader)
        fetcher.add(partition)

    def _fetcher(self, partition: ReplicatedPartition, leader: int) -> ReplicaFetcher:
        count = self._replication.fetchers_per_leader
        index = (31 * java_string_hash(partition.topic) + partition.index) % count
        fetcher = self._fetchers.get((leader, index))
        if fetcher is None:
            fetcher = self._fetchers[leader, index] = ReplicaFetcher(self._replication, leader, index)
        return fetcher

    def hand_over(self, partition: ReplicatedPartition, fetcher: ReplicaFetcher) -> None:
        """Gives a partition to the fetcher that it has by the present num.replica.fetchers, if that is another one."""
        other = self._fetcher(partition, fetcher.leader)
        if other is not fetcher:
            self._places[partition] = other
            other.take(partition, fetcher.release(partition))

    def remove(self, partition: ReplicatedPartition) -> None:
        fetcher = self._places.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)

    def wake(self) -> None:
        """Lets all fetchers send what they may."""
        for fetcher in self._fetchers.values():
            fetcher.wake()

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._places.clear()


class TruncationNotes:
    """The notes of cuts on the disk, in a thread: after the death of a leader, many partitions are cut, and one write
    and sync of the file is for all that wait then."""

    def __init__(self, node: ReplicatingNode) -> None:
        self._node = node
        self._wanted: dict[TopicPartition, int] = {}
        self._waiting: list[Deferred[BaseException | None]] = []
        self._is_writing = False

    def note(self, name: TopicPartition, offset: int) -> Deferred[BaseException | None]:
        promise: Deferred[BaseException | None] = Deferred()
        self._wanted[name] = min(offset, self._wanted.get(name, offset))
        self._waiting.append(promise)
        if not self._is_writing:
            self._write()
        return promise

    def _write(self) -> None:
        wanted, self._wanted = self._wanted, {}
        waiting, self._waiting = self._waiting, []
        self._is_writing = True
        self._node.in_thread(lambda: self._node.directory.note_truncations(wanted)).then(
            lambda failure: self._end(waiting, failure)
        )

    def _end(self, waiting: list[Deferred[BaseException | None]], failure: BaseException | None) -> None:
        self._is_writing = False
        if self._waiting:
            self._write()
        for promise in waiting:
            promise.resolve(failure)
