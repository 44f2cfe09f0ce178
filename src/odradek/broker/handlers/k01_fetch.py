"""Fetch 4–18: returns the log's bytes, at once or when there are enough of them.

* 5: log start offset.
* 7: fetch sessions.
* 9: the reader's leader epoch.
* 11: preferred read replica and rack.
* 12: flexible; the last fetched epoch, and a diverging epoch in the reply.
* 13: topic ids.
* 15: replica state as a tagged field.
* 16: endpoints of nodes.
* 17: directory id.
* 18: the reader's high watermark.

With read_committed, a reply ends at the last stable offset and lists the aborted transactions of its records. The fetch
of a broker that follows a partition ends at the log end (broker/partitions/fetch_readers). From version 11 on, a
consumer may read at a follower, too (KIP-392): up to the high watermark that the follower knows. If the brokers have a
``replica.selector.class``, the leader names the follower in the consumer's rack.

The broker replies at once if the reply holds ``min_bytes``, an error, a diverging epoch or another replica, or if
``max_wait`` is 0 or the fetch has no partition. It also replies at once if a reader is not at the active segment yet
(with read_committed: at the segment with the last stable offset). Otherwise it parks the request
(broker/partitions/purgatory) until enough bytes have arrived or the time is over. Then it reads again if a partition
has changed; a large fetch always reads again. The first non-empty partition returns at least one batch of any size, so
that a reader always makes progress.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, overload
from uuid import UUID

from odradek.broker.limits.quotas import CONSUMER_BYTE_RATE
from odradek.broker.loop.long_lists import dict_in_steps, list_in_steps
from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.broker.partitions.fetch_readers import COMMITTED, CONSUMER, FollowerReader, RackReader
from odradek.broker.partitions.fetch_sessions import FetchContext, RequestedPartition, TopicKey
from odradek.broker.partitions.partition_roles import PartitionRole
from odradek.core.access.acl import CLUSTER_NAME, Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE, FetchingReplica
from odradek.storage.segments.slice import Slice
from odradek.wire.chunks import FILE_FROM_BYTES, Chunk
from odradek.wire.produce_fetch_replies import FetchedPartition, FetchedTopics, fetch_reply, fetch_reply_in_steps
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.fetch.v18 import request as v18
    from kio.schema.types import BrokerId, TopicName

    from odradek.broker.handlers.api import BrokerServices, Context, ControllerServices, Reply
    from odradek.broker.handlers.current_leaders import CurrentLeaders
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.broker.partitions.fetch_readers import ConsumerReader, Reader
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.purgatory import Wake

    class FetchTopic(v18.FetchTopic):
        topic: TopicName  # until version 12

    class ForgottenTopic(v18.ForgottenTopic):
        topic: TopicName  # until version 12

    class FetchRequest(v18.FetchRequest):
        replica_id: BrokerId  # until version 14
        topics: tuple[FetchTopic, ...]
        forgotten_topics_data: tuple[ForgottenTopic, ...]


_Result = FetchedPartition | ErrorCode
"""The result of one partition. A long request may have hundreds of thousands of errors, so an error has no row."""
_Positions = dict[TopicKey, "array[int]"]
"""The positions of each topic's partitions in the list that the session wants."""
_UNREAD = (
    ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition, ErrorCode.topic_authorization_failed,
)  # fmt: skip
_LED_ELSEWHERE = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
VERSIONS = (4, 18)
_AT_FOLLOWERS, STATES_EPOCH, NAMES_LEADERS = 11, 15, 16
"""The first versions whose consumers may read at a follower, that state the broker epoch of a follower, and that name
leaders with their endpoints."""
LISTENERS = ("client", "controller")
IS_FREQUENT = True
WAITS_FOR_OTHERS = True


AT_ONCE = 200
"""The most partitions that a fetch reads in one step. A larger fetch is served in steps."""
STEP_PARTITIONS = 50
MANY_FROM_BYTES = 2048
"""A request of up to this size lists few partitions, so its partitions are not counted."""


def handle(
    broker: BrokerServices, context: Context, message: FetchRequest
) -> list[Chunk] | Deferred[list[Chunk]] | Steps[list[Chunk] | Deferred[list[Chunk]]]:
    version = context.version
    reader = _reader(broker, context, message)
    if context.request_bytes > MANY_FROM_BYTES and _is_long(version, message):
        return _handle_in_steps(broker, context, message, reader)
    wanted = list(_wanted(version, message))
    if len(wanted) > 1:  # of several entries for one partition the last counts, as in Kafka
        wanted = list({(item.topic, item.partition): item for item in wanted}.values())
    forgotten = list(_forgotten(version, message)) if version >= 7 and message.forgotten_topics_data else ()
    try:
        session = broker.fetch_sessions.begin(
            broker.now_ms(),
            message.session_id if version >= 7 else 0,
            message.session_epoch if version >= 7 else -1,
            wanted,
            forgotten,
            by_id=version >= 13,
            owner=id(context.connection),
            is_follower=reader.is_follower,
        )
    except KafkaError as error:
        return fetch_reply(context.version, (), error_code=error.code)
    fetch = _Fetch(broker, context, message, session, reader)
    return fetch.begin() if len(session.wanted) <= AT_ONCE else fetch.begin_in_steps()


def handle_at_controller(
    controller: ControllerServices, context: Context, message: FetchRequest
) -> dict[str, object] | Deferred[Reply]:
    """Serves an observer of the metadata log."""
    from odradek.broker.handlers import observer_fetches  # here, because only a controller has observers

    replica = _replica(context.version, message)
    return observer_fetches.fetch(
        controller, context, message, replica.broker_id if replica.broker_id >= 0 else NO_NODE
    )


def _replica(version: int, message: FetchRequest) -> FetchingReplica:
    """Returns the broker that fetches; with a negative id, the fetch is that of a consumer."""
    if version < STATES_EPOCH:
        return FetchingReplica(message.replica_id)
    state = message.replica_state
    return FetchingReplica(state.replica_id, state.replica_epoch)


def _reader(broker: BrokerServices, context: Context, message: FetchRequest) -> Reader:
    broker_id = message.replica_id if context.version < STATES_EPOCH else message.replica_state.replica_id
    if broker_id < 0:
        reader = COMMITTED if message.isolation_level == 1 else CONSUMER
        if broker.config.replica_selector_class and context.version >= _AT_FOLLOWERS and message.rack_id:
            return _in_rack(broker, context, message.rack_id, reader)
        return reader
    return _follower(broker, context, _replica(context.version, message))


def _in_rack(broker: BrokerServices, context: Context, rack: str, reader: ConsumerReader) -> Reader:
    there = [one.broker_id for one in broker.brokers.reachable(context) if one.rack == rack]
    return RackReader(there, reader) if there else reader


def _follower(broker: BrokerServices, context: Context, replica: FetchingReplica) -> Reader:
    context.is_exempt = True
    return FollowerReader(replica, broker.steady_ms())


def _handle_in_steps(
    broker: BrokerServices, context: Context, message: FetchRequest, reader: Reader
) -> Steps[list[Chunk] | Deferred[list[Chunk]]]:
    """Serves a request that lists many partitions."""
    version = context.version
    # Of several entries for one partition the last counts, as in Kafka.
    wanted = yield from dict_in_steps(((item.topic, item.partition), item) for item in _wanted(version, message))
    forgotten = yield from list_in_steps(_forgotten(version, message))
    try:
        session = yield from broker.fetch_sessions.begin_in_steps(
            broker.now_ms(),
            message.session_id if version >= 7 else 0,
            message.session_epoch if version >= 7 else -1,
            list(wanted.values()),
            forgotten,
            by_id=version >= 13,
            owner=id(context.connection),
            is_follower=reader.is_follower,
        )
    except KafkaError as error:
        return fetch_reply(context.version, (), error_code=error.code)
    finally:
        broker.leftovers.add(wanted, forgotten)
    return (yield from _Fetch(broker, context, message, session, reader).begin_in_steps())


def _is_long(version: int, message: FetchRequest) -> bool:
    forgotten = message.forgotten_topics_data if version >= 7 else ()
    topics: list[FetchTopic | ForgottenTopic] = [*message.topics[:AT_ONCE], *forgotten[:AT_ONCE]]
    count = max(len(message.topics), len(forgotten), sum([len(topic.partitions) for topic in topics]))
    return count > AT_ONCE


def _forgotten(version: int, message: FetchRequest) -> Iterator[tuple[TopicKey, int]]:
    for topic in message.forgotten_topics_data if version >= 7 else ():
        key = _key(topic, version)
        for index in topic.partitions:
            yield key, index


def _wanted(version: int, message: FetchRequest) -> Iterator[RequestedPartition]:
    for topic in message.topics:
        key = _key(topic, version)
        for part in topic.partitions:
            yield RequestedPartition(
                key,
                part.partition,
                part.fetch_offset,
                part.partition_max_bytes,
                part.current_leader_epoch if version >= 9 else -1,
                part.last_fetched_epoch if version >= 12 else -1,
                part.log_start_offset if version >= 5 else -1,
            )


def _key(topic: FetchTopic | ForgottenTopic, version: int) -> TopicKey:
    return (topic.topic_id or NO_UUID) if version >= 13 else topic.topic


def _packed(topic: TopicKey) -> str | bytes:
    return topic.bytes if isinstance(topic, UUID) else topic


class _Fetch:
    """One fetch. If it was parked, it may read a second time."""

    _leaders: CurrentLeaders | None = None

    def __init__(
        self,
        broker: BrokerServices,
        context: Context,
        message: FetchRequest,
        session: FetchContext,
        reader: Reader,
    ) -> None:
        self._broker = broker
        self._context = context
        self._connection = context.connection
        self._version = context.version
        self._session = session
        self._reader = reader
        self._reads_followers = context.version >= _AT_FOLLOWERS and not reader.is_follower
        self._max_wait_ms = milliseconds(message.max_wait)
        self._max_bytes = min(message.max_bytes, broker.config.fetch_max_bytes)
        if not reader.is_follower:
            in_quota = broker.quotas.most_in_window(CONSUMER_BYTE_RATE, context.user, context.client_id)
            if in_quota is not None:
                self._max_bytes = min(self._max_bytes, in_quota)
        self._min_bytes = min(message.min_bytes, self._max_bytes)
        self._deferred: Deferred[list[Chunk]] = Deferred()
        self._slices: dict[tuple[TopicKey, int], Slice] = {}
        self._results: list[_Result] = []  # of the partitions that the session wants, in their order
        self._size = 0
        self._left = self._max_bytes
        self._is_urgent = False  # a partition has an error or a diverging epoch, or records before its active segment
        self._authorizer = broker.authorizer
        self._is_first = True
        if self._authorizer is not None:
            self._denied: dict[str, ErrorCode | None] = {}  # of the topics that this read has asked about

    def begin(self) -> list[Chunk] | Deferred[list[Chunk]]:
        self._read(self._session.wanted)
        if self._reader.has_moved and self._must_wait() and self._has_grown():
            self._is_first = False
            self._start_reading()
            self._read(self._session.wanted)
        if not self._must_wait():
            return self._reply()
        return self._park(self._complete)

    def begin_in_steps(self) -> Steps[list[Chunk] | Deferred[list[Chunk]]]:
        yield from self._read_in_steps()
        if self._must_wait() and self._has_grown():
            self._is_first = False
            yield from self._read_in_steps()
        if not self._must_wait():
            return (yield from self._reply_in_steps())
        # A large fetch keeps no results while it waits. It reads again when the wait ends.
        promise = self._park(lambda _: self._complete_in_steps())
        self._drop_results()
        return promise

    def _drop_results(self) -> None:
        """Drops the results of the read, which may be large."""
        self._broker.leftovers.add(self._results, self._slices)
        self._results, self._slices = [], {}

    def _must_wait(self) -> bool:
        return not (self._is_urgent or self._size >= self._min_bytes or self._max_wait_ms <= 0 or not self._results)

    def _has_grown(self) -> bool:
        """Returns whether a partition got records after it was read: between steps, or by an append that waited for the
        position of this follower in another partition. Nothing would end a wait for them."""
        for item, result in zip(self._session.wanted, self._results, strict=True):
            if type(result) is FetchedPartition and not result.size:
                partition = self._partition(item.topic, item.partition)
                if partition is not None and self._reader.bound(partition.log) > item.fetch_offset:
                    return True
        return False

    def _park(self, complete: Callable[[Wake | None], None]) -> Deferred[list[Chunk]]:
        self._is_first = False
        partitions = {
            partition
            for item in self._session.wanted
            if (partition := self._partition(item.topic, item.partition)) is not None
        }
        self._broker.purgatory.park(
            self._connection,
            partitions,
            self._min_bytes - self._size,
            self._max_wait_ms,
            complete,
            awaits=self._reader.awaits,
        )
        return self._deferred

    def _complete(self, wake: Wake | None) -> None:
        if wake is not None:
            self._start_reading()
            self._read(self._session.wanted)
        self._deferred.resolve(self._reply())

    def _complete_in_steps(self) -> None:
        def steps() -> Steps[list[Chunk]]:
            yield from self._read_in_steps()
            return (yield from self._reply_in_steps())

        self._broker.scheduler.start(steps()).then(self._deferred.resolve)

    def _partition(self, topic: TopicKey, index: int) -> Partition | None:
        if isinstance(topic, UUID):
            known = self._broker.catalog.topic_by_id(topic)
            if known is None:
                return None
            topic = known.name
        found = self._broker.partition(topic, index)
        return self._followed(topic, index) if found is None and self._reads_followers else found

    def _followed(self, topic: str, index: int) -> Partition | None:
        """Returns a partition that this broker follows. A consumer reads it up to the follower's high watermark."""
        found = self._broker.partitions.get((topic, index))
        return found if found is not None and found.role is PartitionRole.FOLLOWER else None

    def _denial(self, authorizer: Authorizer, topic: TopicKey) -> ErrorCode | None:
        """Returns the code of a topic that the client may not read; None also for an unknown topic id."""
        if self._reader.is_follower:
            topic = ""  # a broker may read all topics or none, also those that do not exist
        elif isinstance(topic, UUID):
            known = self._broker.catalog.topic_by_id(topic)
            if known is None:
                return None
            topic = known.name
        if topic not in self._denied:
            if self._reader.is_follower:
                allowed = authorizer.allows(self._context, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME)
            else:
                allowed = authorizer.allows(self._context, Operation.READ, Resource.TOPIC, topic)
            self._denied[topic] = None if allowed else ErrorCode.topic_authorization_failed
        return self._denied[topic]

    def _missing(self, topic: TopicKey, index: int) -> ErrorCode:
        """Returns the error of a partition that this broker does not lead."""
        if isinstance(topic, UUID):
            known = self._broker.catalog.topic_by_id(topic)
            if known is None:
                return ErrorCode.unknown_topic_id
            topic = known.name
        return self._broker.missing_partition(topic, index)

    def _start_reading(self) -> None:
        self._results = []
        self._slices.clear()
        if self._authorizer is not None:
            self._denied.clear()  # the ACLs may have changed while the fetch waited
        self._size = 0
        self._left = self._max_bytes
        self._is_urgent = False

    def _read_in_steps(self) -> Steps[None]:
        self._start_reading()
        wanted = self._session.wanted
        for first in range(0, len(wanted), STEP_PARTITIONS):
            self._read(wanted[first : first + STEP_PARTITIONS])
            yield None

    def _read(self, wanted: list[RequestedPartition]) -> None:
        """Reads these partitions and adds their results to ``_results``."""
        for item in wanted:
            result = self._read_one(item, min(self._left, item.max_bytes), self._size == 0)
            self._results.append(result)
            if type(result) is not FetchedPartition:
                self._is_urgent = True
                continue
            self._size += result.size
            self._left = max(self._left - result.size, 0)
            if result.diverging is not None or result.preferred_read_replica != NO_NODE:
                self._is_urgent = True

    def _read_one(self, item: RequestedPartition, max_bytes: int, min_one: bool) -> _Result:
        index = item.partition
        if self._authorizer is not None and (denied := self._denial(self._authorizer, item.topic)) is not None:
            return denied
        partition = self._partition(item.topic, index)
        if partition is None:
            return self._missing(item.topic, index)
        try:
            row, records, is_behind = self._reader.read(
                partition, item, max_bytes, min_one=min_one, is_first=self._is_first
            )
        except KafkaError as error:
            return error.code
        if row.size and records is not None:
            self._slices[item.topic, index] = records
            if is_behind:
                self._is_urgent = True
        return row

    def _with_records(self, item: RequestedPartition, result: _Result) -> _Result:
        """Returns the result with its records: a slice of the file for ``sendfile`` if it is large, else bytes.

        A follower gets bytes above the high watermark: a truncation may rewrite the file there while it is sent.
        """
        if type(result) is not FetchedPartition or not result.size:
            return result
        records = self._slices[item.topic, item.partition]
        if records.size >= FILE_FROM_BYTES and self._connection.sends_files and records.is_final:
            return result._replace(records=(records,))
        try:
            data = records.bytes()
        except OSError as error:
            records.report_failure(error)
            return ErrorCode.kafka_storage_error
        return result._replace(records=(data,), size=len(data))

    def _row(self, position: int) -> FetchedPartition:
        """Returns the row of the reply for the partition at this position."""
        result = self._results[position]
        if not isinstance(result, ErrorCode):
            return result
        aborted = () if result in _UNREAD else None
        item = self._session.wanted[position]
        names_leader = result in _LED_ELSEWHERE and self._version >= NAMES_LEADERS
        leader = self._current_leaders.of(item.topic, item.partition) if names_leader else None
        return FetchedPartition(item.partition, result, aborted=aborted, leader=leader)

    @property
    def _current_leaders(self) -> CurrentLeaders:
        """The leaders that the reply names, made at their first use: few replies name one."""
        if self._leaders is None:
            from odradek.broker.handlers.current_leaders import CurrentLeaders

            self._leaders = CurrentLeaders(self._broker, self._context)
        return self._leaders

    def _over_quota(self) -> bool:
        return (
            not self._reader.is_follower
            and self._broker.quotas.has_quota(CONSUMER_BYTE_RATE)
            and finish(self._over_quota_in_steps())
        )

    def _over_quota_in_steps(self) -> Steps[bool]:
        """Counts the reply's bytes towards the client's quota.

        A client over its quota is throttled and gets an empty reply, whose bytes do not count.
        """
        quotas, context = self._broker.quotas, self._context
        if self._reader.is_follower or not quotas.has_quota(CONSUMER_BYTE_RATE):
            return False
        topics: _Positions = {}
        size = 0
        wanted = self._session.wanted
        for position, result in enumerate(self._results):
            if isinstance(result, ErrorCode) or result.size:
                topics.setdefault(wanted[position].topic, array("I")).append(position)
            if not isinstance(result, ErrorCode):
                size += result.size
            if not position % STEP_PARTITIONS:
                yield None
        heads = yield from self._packed_in_steps(topics)
        size += sum(map(len, heads))
        throttle_ms = quotas.record(CONSUMER_BYTE_RATE, context.user, context.client_id, size)
        if not throttle_ms:
            return False
        quotas.take_back(CONSUMER_BYTE_RATE, context.user, context.client_id, size)
        context.throttle(throttle_ms)
        return True

    def _empty_reply(self) -> list[Chunk]:
        """Returns the reply to a throttled client.

        A client cannot begin a fetch session with an empty reply, so a session that this request created is removed.
        """
        session_id = self._session.session_id
        if self._session.full and session_id:
            self._broker.fetch_sessions.forget(session_id)
            session_id = 0
        return fetch_reply(self._version, (), session_id=session_id)

    def _reply(self) -> list[Chunk]:
        if self._over_quota():
            return self._empty_reply()
        wanted = self._session.wanted
        if len(wanted) == 1:  # most fetches: without the dictionary, they take 2 % less time
            row = self._finished(0, wanted[0])
            packed = [] if row is None else [(_packed(wanted[0].topic), [row])]
            return self._packed_at_once(packed)
        topics: dict[TopicKey, list[FetchedPartition]] = {}
        for position, item in enumerate(wanted):
            row = self._finished(position, item)
            if row is not None:
                topics.setdefault(item.topic, []).append(row)
        return self._packed_at_once([(_packed(key), rows) for key, rows in topics.items()])

    def _packed_at_once(self, topics: FetchedTopics) -> list[Chunk]:
        session_id = self._session.session_id
        if self._leaders is None:
            return fetch_reply(self._version, topics, session_id=session_id)
        return fetch_reply(self._version, topics, session_id=session_id, endpoints=self._leaders.nodes)

    def _reply_in_steps(self) -> Steps[list[Chunk]]:
        try:
            if (yield from self._over_quota_in_steps()):
                return self._empty_reply()
            topics: _Positions = {}
            for position, item in enumerate(self._session.wanted):
                if self._finished(position, item) is not None:
                    topics.setdefault(item.topic, array("I")).append(position)
                if not position % STEP_PARTITIONS:
                    yield None
            return (yield from self._packed_in_steps(topics))
        finally:
            self._drop_results()
            self._broker.leftovers.add(self._session.wanted)

    def _packed_in_steps(self, topics: _Positions) -> Steps[list[Chunk]]:
        """Packs a reply. The caller must not use ``topics`` afterwards."""
        packed = ((_packed(key), _LazyRows(self._row, positions)) for key, positions in topics.items())
        session_id, endpoints = self._session.session_id, self._current_leaders.nodes
        steps = fetch_reply_in_steps(self._version, len(topics), packed, session_id=session_id, endpoints=endpoints)
        try:
            return (yield from steps)
        finally:
            self._broker.leftovers.add(topics)

    def _finished(self, position: int, item: RequestedPartition) -> FetchedPartition | None:
        """Returns the row of a partition with its records; None if the reply of a fetch session does not need it."""
        self._results[position] = result = self._with_records(item, self._results[position])
        row = result if type(result) is FetchedPartition else self._row(position)
        session = self._session.session
        if session is None or session.note(
            (item.topic, item.partition),
            error_code=row.error_code,
            size=row.size,
            # A follower whose log diverges takes no high watermark from this reply, so the next one has it again.
            high_watermark=-1 if row.diverging and self._reader.is_follower else row.high_watermark,
            log_start_offset=row.log_start_offset,
            names_other=row.diverging is not None or row.preferred_read_replica != NO_NODE,
            full=self._session.full,
        ):
            return row
        return None


class _LazyRows(Sequence[FetchedPartition]):
    """Rows of a long reply, which are made when they are packed. ``row``: returns the row at a position."""

    def __init__(self, row: Callable[[int], FetchedPartition], positions: array[int]) -> None:
        self._row = row
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> FetchedPartition: ...
    @overload
    def __getitem__(self, index: slice) -> list[FetchedPartition]: ...
    def __getitem__(self, index: int | slice) -> FetchedPartition | list[FetchedPartition]:
        if isinstance(index, int):
            return self._row(self._positions[index])
        return [self._row(position) for position in self._positions[index]]
