"""Sends the fetches of a consumer, one at a time per broker, and puts their records into the fetch buffer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.batches.kernels.kernel_loader import has_kernels
from odradek.batches.record_sets import record_set
from odradek.batches.row_sets import sound_records
from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster
from odradek.client.consumer.ahead_decoder import WORTH_DECODING_BYTES, AheadDecoder
from odradek.client.consumer.fetch_buffer import CompletedFetch, FetchBuffer
from odradek.client.consumer.in_flight_fetches import InFlightFetch, InFlightFetches
from odradek.client.consumer.position_lookups import RANGE_LOOKUP, PositionLookups
from odradek.client.errors import LogTruncated, OffsetOutOfRange, corrupt_record, error_for
from odradek.client.group.config import ConsumerConfig, reset_timestamp
from odradek.client.group.errors import NoOffsetForPartition, OffsetStoreBehind, PartitionOwned
from odradek.client.group.offset_storage import OffsetStorage
from odradek.client.group.subscription import PartitionState, SubscriptionState
from odradek.client.metadata_wire import NAMES_LEADER
from odradek.client.model import Node
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.wire import fetch_messages
from odradek.wire.fetch_messages import FetchPartition, FetchReplyPartition

logger = logging.getLogger("odradek.consumer")

_MOVED = frozenset({
    ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available, ErrorCode.replica_not_available,
    ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.kafka_storage_error,
    ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id,
    ErrorCode.offset_not_available,
})  # fmt: skip
_NO_WAIT_INTERVAL_S = 0.1
"""The least time between two fetches to one broker that ask for a reply without a wait."""


@dataclass(slots=True)
class _DueRequests:
    """The fetches to send to each broker now, and the lookups that other fetches need first."""

    per_node: dict[int, dict[TopicPartition, FetchPartition]] = field(default_factory=dict)
    held_back: set[int] = field(default_factory=set)
    """Brokers of partitions whose buffered records must be returned before the next fetch."""
    leaderless: set[str] = field(default_factory=set)
    resets: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)
    suspects: dict[int, list[TopicPartition]] = field(default_factory=dict)
    """Partitions by their new leader, whose log may lack records that were read."""
    room_at: dict[TopicPartition, int] = field(default_factory=dict)


class Fetcher:
    """The fetches of a consumer. ``schedule_fetches`` starts all possible fetches and lookups; ``changed`` wakes a
    waiting poll."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, subscription: SubscriptionState, changed: Callable[[], None]
    ) -> None:
        self.config = config
        self.buffer = FetchBuffer(config.buffer_memory)
        self.failure: Exception | None = None
        self._cluster = cluster
        self._subscription = subscription
        self._changed = changed
        self._isolation = isolation(config.isolation_level)
        self.in_flight = InFlightFetches(
            config,
            cluster,
            prepare=self._load_decoder,
            on_reply=self.on_reply,
            on_lost=self._on_lost,
            on_end=self._on_end,
            fail=self._fail,
        )
        self.lookups = PositionLookups(
            config,
            cluster,
            subscription,
            drop=self.drop,
            fail=self._fail,
            schedule_fetches=self.schedule_fetches,
            schedule_fetches_soon=self._schedule_fetches_soon,
        )
        self.ahead_decoder = AheadDecoder(config, self.buffer, subscription, changed=changed, fail=self._fail)
        self._last_fetches: dict[int, int] = {}
        """The number of each broker's last fetch; ``_fetches`` numbers the fetches to all brokers."""
        self._fetches = 0
        self._followers: dict[TopicPartition, tuple[int, float]] = {}
        self.out_of_range: set[TopicPartition] = set()
        """Partitions that wait until their buffered records are returned or the log's range is looked up."""
        self.in_iteration: set[TopicPartition] = set()
        """Partitions with records in an iteration that has not yielded them yet."""
        self.is_closed = False
        self.storage: OffsetStorage | None = None
        """Knows which partitions may be fetched, by their owners in ZooKeeper. None without ZooKeeper."""
        self.will_schedule_fetches = False
        """Whether a call of ``schedule_fetches`` is pending."""
        self._room_at: dict[TopicPartition, int] = {}
        """Partitions that wait for room, each with the buffered bytes at which its next fetch may follow."""
        self._is_full = False
        self._must_wake = False
        """Whether ``_wake_poll`` has to wake a poll."""
        self._fetched_without_waiting_s: dict[int, float] = {}
        self._fetch_without_waiting_timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        self.is_closed = True
        if self._fetch_without_waiting_timer is not None:
            self._fetch_without_waiting_timer.cancel()
        self.ahead_decoder.close()
        lookups = self.lookups.cancel()
        await asyncio.gather(self.in_flight.close(), *lookups, return_exceptions=True)

    def drop(self, tp: TopicPartition) -> None:
        self.buffer.drop(tp)
        self._followers.pop(tp, None)
        self.out_of_range.discard(tp)
        self.lookups.forget(tp)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._changed()

    def take_failure(self) -> Exception | None:
        """Returns the error that a poll raises, or None, and clears it.

        Drops an error whose partitions have got new positions or are no longer assigned."""
        failure, self.failure = self.failure, None
        raised: Exception | None = failure
        if isinstance(failure, NoOffsetForPartition):
            missing = set(self._subscription.without_position()) & set(failure.partitions)
            raised = NoOffsetForPartition(missing) if missing else None
        elif isinstance(failure, OffsetStoreBehind | PartitionOwned):
            raised = failure if set(failure.partitions) & self._subscription.partitions.keys() else None
        elif isinstance(failure, LogTruncated | OffsetOutOfRange):
            state = self._subscription.partitions.get(failure.partition)
            if state is None or state.position != failure.offset:
                raised = None
        elif isinstance(failure, CorruptRecord) and failure.partition is not None:
            state = self._subscription.partitions.get(TopicPartition(*failure.partition))
            if state is None or state.position != failure.offset:
                raised = None
        if raised is None and failure is not None:
            self.schedule_fetches()
        return raised

    # --- requests that are due ------------------------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        """Whether records may arrive without a further poll."""
        return bool(self.in_flight.by_node) or self.will_schedule_fetches

    def schedule_fetches(self) -> None:
        self.will_schedule_fetches = False
        if self.is_closed or self.failure is not None:
            return
        self._is_full = True  # until the fetches are sent: a poll may take records and make room meanwhile
        if self.storage is not None or self._subscription.without_position():
            self.lookups.look_up_commits()
        due = self._due_requests()
        if due.leaderless or due.resets or due.suspects or self.lookups.has_missing_topics:
            self.lookups.look_up(due.leaderless, due.resets, due.suspects)
        is_full = self._send_fetches(due)
        if is_full and not self.in_flight.by_node:
            self._make_room()
        self._room_at, self._is_full = due.room_at, is_full

    def _due_requests(self) -> _DueRequests:
        due, ahead = _DueRequests(), self._most_buffered_bytes()
        for tp, state in self._subscription.partitions.items():
            if state.reset_to is not None:
                if (leader := self._cluster.leader(tp)) >= 0:
                    due.resets.setdefault(leader, {})[tp] = state.reset_to
                else:
                    due.leaderless.add(tp.topic)
            if not state.ready or state.paused or (self.storage is not None and not self.storage.may_read(tp)):
                continue
            if self.buffer.bytes_of(tp) > ahead:
                due.held_back.add(self._source(tp, self._cluster.leader(tp)))
                # The next fetch waits until only half of ``ahead`` is buffered: many small fetches cost too much.
                due.room_at[tp] = ahead // 2
                continue
            if tp in self.out_of_range:
                if self.buffer.bytes_of(tp) or tp in self.in_iteration or self.lookups.is_under_way(RANGE_LOOKUP):
                    due.room_at[tp] = 0
                    continue
                self.out_of_range.discard(tp)
            leader = self._cluster.leader(tp)
            if leader < 0:
                due.leaderless.add(tp.topic)
                continue
            epoch = self._cluster.leader_epoch(tp)
            if self.lookups.has_former_leader(tp, state):
                due.leaderless.add(tp.topic)
                continue
            if state.fetch_epoch >= 0 and epoch > state.fetch_epoch and epoch != state.confirmed_epoch:
                due.suspects.setdefault(leader, []).append(tp)
                continue
            topic = self._cluster.known_topic(tp.topic)
            wanted = FetchPartition(topic.topic_id if topic else None, state.fetch_offset, epoch,
                            self.config.max_partition_fetch_bytes)  # fmt: skip
            due.per_node.setdefault(self._source(tp, leader), {})[tp] = wanted
        return due

    def _send_fetches(self, due: _DueRequests) -> bool:
        """Sends the fetches that are possible now; returns whether a full buffer prevented one."""
        is_full, per_node = False, due.per_node
        in_turn = (
            sorted(per_node, key=lambda node_id: self._last_fetches.get(node_id, 0)) if len(per_node) > 1 else per_node
        )
        for node_id in in_turn:
            fetched_partitions = per_node[node_id]
            if node_id in self.in_flight.by_node:
                continue
            if self.buffer.room() <= 0:
                is_full = True
                continue
            wait_ms = self.config.fetch_max_wait_ms
            if node_id in due.held_back and all(self._at_end(tp) for tp in fetched_partitions):
                # These partitions are read to their end, so the broker would hold the fetch until a record arrives.
                # The partitions that are held back could not be fetched from this broker meanwhile. So the fetch asks
                # for a reply without a wait, and is sent at intervals.
                if not self._may_fetch_without_waiting(node_id):
                    continue
                wait_ms = 0
            self.send_fetch(node_id, fetched_partitions, max(1, len(per_node)), wait_ms)
        return is_full

    def _make_room(self) -> None:
        """Drops the records of paused partitions if only these fill the buffer; they are fetched again later."""
        held = self.buffer.partitions()
        states = [self._subscription.partitions.get(tp) for tp in held]
        if any(state is not None and not state.paused for state in states):
            return
        for tp, state in zip(held, states, strict=True):
            self.drop(tp)
            if state is not None:
                state.fetch_again()
        if held:
            self._schedule_fetches_soon()

    def _schedule_fetches_soon(self) -> None:
        self.will_schedule_fetches = True
        asyncio.get_running_loop().call_soon(self.schedule_fetches)

    def has_room_again(self, tp: TopicPartition) -> bool:
        """Returns whether a fetch waits for the room that taking records of ``tp`` has made. Thread-safe."""
        return self._is_full or self.buffer.bytes_of(tp) <= self._room_at.get(tp, -1)

    def _may_fetch_without_waiting(self, node_id: int) -> bool:
        now_s = time.monotonic()
        if now_s >= self._fetched_without_waiting_s.get(node_id, 0.0) + _NO_WAIT_INTERVAL_S:
            self._fetched_without_waiting_s[node_id] = now_s
            return True
        if self._fetch_without_waiting_timer is None:
            self._fetch_without_waiting_timer = asyncio.get_running_loop().call_later(
                _NO_WAIT_INTERVAL_S, self._on_fetch_without_waiting_timer
            )
        return False

    def _on_fetch_without_waiting_timer(self) -> None:
        self._fetch_without_waiting_timer = None
        self.schedule_fetches()

    def _most_buffered_bytes(self) -> int:
        """Returns how many bytes of one partition may be buffered when its next fetch is sent."""
        share = self.config.buffer_memory // (4 * max(1, len(self._subscription.partitions)))
        return max(self.config.max_partition_fetch_bytes, share)

    def _at_end(self, tp: TopicPartition) -> bool:
        state = self._subscription.partitions[tp]
        end = state.high_watermark if self._isolation == 0 else state.last_stable_offset
        return 0 <= end <= state.fetch_offset

    def _source(self, tp: TopicPartition, leader: int) -> int:
        if not self._followers:
            return leader
        follower, until_s = self._followers.get(tp, (leader, float("inf")))
        if time.monotonic() > until_s or self._cluster.node(follower) is None:
            self._followers.pop(tp, None)
            return leader
        return follower

    def send_fetch(self, node_id: int, wanted: dict[TopicPartition, FetchPartition], nodes: int, wait_ms: int) -> None:
        max_bytes = max(1, min(self.config.fetch_max_bytes, self.config.buffer_memory // nodes, self.buffer.room()))
        self.buffer.reserved += max_bytes
        self._fetches += 1
        self._last_fetches[node_id] = self._fetches
        versions = {tp: self._subscription.partitions[tp].version for tp in wanted}
        followed = [tp for tp in wanted if self._cluster.leader(tp) != node_id] if self._followers else ()
        self.in_flight.begin(InFlightFetch(node_id, wanted, versions, max_bytes, wait_ms, frozenset(followed)))

    async def _load_decoder(self) -> None:
        """Loads pyarrow in a thread: the import takes a tenth of a second, and the loop has to send heartbeats."""
        await asyncio.to_thread(record_set)

    def _on_lost(self, fetch: InFlightFetch) -> None:
        for tp in fetch.wanted:
            self._followers.pop(tp, None)

    def _on_end(self, fetch: InFlightFetch) -> None:
        self.buffer.reserved -= fetch.max_bytes
        try:
            self.schedule_fetches()
        except Exception as error:  # an error in a socket's callback closes the connection and reaches no caller
            self._fail(error)
        self._wake_poll()

    # --- one fetch --------------------------------------------------------------------------------------------

    def on_reply(self, fetch: InFlightFetch, reply: fetch_messages.FetchReply) -> set[str]:
        """Buffers the records of partitions whose version and fetch offset have not changed.

        Returns the topics whose metadata must be looked up again: not those whose new leaders the reply names."""
        wanted, versions = fetch.wanted, fetch.versions
        by_id = {one.topic_id: tp.topic for tp, one in wanted.items() if one.topic_id is not None}
        outdated: set[TopicPartition] = set()
        leaders: dict[TopicPartition, tuple[int, int]] = {}
        for row in reply.partitions:
            topic = row.topic if isinstance(row.topic, str) else by_id.get(row.topic, "")
            tp = TopicPartition(topic, row.partition)
            state = self._subscription.partitions.get(tp)
            one = wanted.get(tp)
            if state is None or one is None or state.version != versions[tp] or state.fetch_offset != one.offset:
                continue
            if row.error_code is ErrorCode.offset_out_of_range:
                self._followers.pop(tp, None)
                if tp not in fetch.of_followers:
                    self._on_out_of_range(tp, state, one.offset)
            elif self._on_row(tp, state, versions[tp], one, row):
                outdated.add(tp)
                if row.error_code in NAMES_LEADER and row.current_leader is not None:
                    leaders[tp] = row.current_leader
        if leaders:
            outdated -= self._cluster.take_leaders(leaders, (Node(*one) for one in reply.leader_nodes))
        if outdated:
            self._wake_poll()
        return {tp.topic for tp in outdated}

    def _wake_poll(self) -> None:
        """Wakes a poll if records have arrived. Usually ``_on_end`` calls it, after the next fetch is sent: a thread
        that wakes earlier only waits for the GIL. If the next fetch has to wait for metadata, ``on_reply`` calls it."""
        if self._must_wake:
            self._must_wake = False
            self._changed()

    def _on_row(
        self, tp: TopicPartition, state: PartitionState, version: int, one: FetchPartition, row: FetchReplyPartition
    ) -> bool:
        """Buffers the row's records; returns whether the topic's metadata must be looked up again."""
        code = row.error_code
        if code in _MOVED:
            self._followers.pop(tp, None)
            return True
        if code is ErrorCode.unknown_server_error:  # retried, as in Java: the cause is unknown
            logger.warning("fetching %s at offset %d: %s", tp, one.offset, code.name.upper())
            return True
        if code is not ErrorCode.none:
            self._fail(error_for(code, str(tp)))
            return False
        state.high_watermark, state.last_stable_offset = row.high_watermark, row.last_stable_offset
        state.log_start_offset = row.log_start_offset
        if row.preferred_read_replica >= 0:
            self._followers[tp] = (
                row.preferred_read_replica, time.monotonic() + self.config.metadata_max_age_ms / 1000
            )  # fmt: skip
            if self._cluster.node(row.preferred_read_replica) is None:
                return True  # the replica is newer than the cached metadata
        if row.diverging_epoch is not None:
            state.confirmed_epoch = -1
        if not len(row.records):
            return False
        try:
            records = sound_records(record_set(), row.records)
        except CorruptRecord as error:
            if self.buffer.bytes_of(tp) or tp in self.in_iteration:
                return True  # polls return the records before the corrupt batch first
            self._fail(corrupt_record(error, tp, one.offset))
            return False
        except KafkaError as error:
            self._fail(error)
            return False
        if records.next_offset <= one.offset:
            return True  # no complete batch or no new offset, which no broker should send: retry after a backoff
        aborted = tuple(AbortedTransaction(*pair) for pair in row.aborted) if row.aborted else ()
        after, epoch = records.next_offset, records.leader_epoch
        size = len(row.records)
        if state.paused and records.is_small_part:
            records = records.copy()  # the records may stay in the buffer for long
        if state.note_fetched(version, one.offset, after, epoch):
            self.buffer.put(CompletedFetch(tp, version, one.offset, after, epoch, aborted, records, size))
            if size < WORTH_DECODING_BYTES:
                self._must_wake = True
            else:
                self._changed()
                if has_kernels():  # a decoder in plain Python would hold the GIL, which the polling thread needs
                    self.ahead_decoder.schedule()
        return False

    # --- offsets out of range ---------------------------------------------------------------------------------

    def _on_out_of_range(self, tp: TopicPartition, state: PartitionState, offset: int) -> None:
        timestamp = reset_timestamp(self.config.auto_offset_reset, round(time.time() * 1000))
        if self.buffer.bytes_of(tp) or tp in self.in_iteration:
            self.out_of_range.add(tp)  # polls return the buffered records first; a later fetch gets the error again
        elif timestamp is None:
            self.out_of_range.add(tp)
            self.lookups.look_up_range(tp, state.version, offset)
        else:
            policy = self.config.auto_offset_reset
            logger.warning("offset %d of %s is out of range: auto.offset.reset=%s applies", offset, tp, policy)
            state.request_reset(timestamp)
            self._changed()
