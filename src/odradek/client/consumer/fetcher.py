"""Gets a consumer's bytes: one fetch at a time per broker, sessions, positions where there are none, truncation."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from odradek.batches.aborted import AbortedTransaction
from odradek.client.admin import operations
from odradek.client.arguments import isolation
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.consumer.config import ConsumerConfig, reset_timestamp
from odradek.client.consumer.errors import NoOffsetForPartition
from odradek.client.consumer.fetch_buffer import Chunk, FetchBuffer
from odradek.client.consumer.in_flight_requests import InFlightFetch, InFlightFetches
from odradek.client.consumer.subscription import PartitionState, SubscriptionState
from odradek.client.errors import LogTruncated, OffsetOutOfRange, RequestTimedOut, UnknownTopic, error_for
from odradek.client.model import EARLIEST, LATEST, EpochEnd, ListedOffset
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import NO_OFFSET, TopicPartition
from odradek.net import fetch_wire
from odradek.net.fetch_wire import FetchPartition, FetchReplyPartition

logger = logging.getLogger("odradek.consumer")

_MOVED = frozenset({
    ErrorCode.not_leader_or_follower, ErrorCode.leader_not_available, ErrorCode.replica_not_available,
    ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch, ErrorCode.kafka_storage_error,
    ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id,
    ErrorCode.offset_not_available,
})  # fmt: skip
_NO_WAIT_INTERVAL_S = 0.1
"""Between two fetches that the broker answers at once."""
_MUCH = 1 << 16
_READY_BYTES = 8 << 20
"""For so much of ``buffer_memory`` one RecordBatch may be ready that nobody has asked for; it takes about a third."""
_DEPOSED_GRACE_S = 5.0
RANGE_LOOKUP = "the log's range"
MISSING_TOPICS = "missing topics"


@dataclass(slots=True)
class _Expected:
    """A leader of ``epoch`` or a newer one, by a partition as it was ``placed``, from the first look for it on."""

    placed: int
    epoch: int
    until_s: float = 0.0


class Fetcher:
    """``schedule_fetches`` starts all work that is possible now; ``changed`` tells a waiting poll of news."""

    def __init__(
        self, config: ConsumerConfig, cluster: Cluster, subscription: SubscriptionState, changed: Callable[[], None]
    ) -> None:
        self.config = config
        self.buffer = FetchBuffer(config.buffer_memory)
        self.failure: Exception | None = None
        self.why_not_yet = ""
        """Why what a poll waits for is being tried again."""
        self.member_of: Callable[[], tuple[str | None, int]] = lambda: (None, -1)
        """Id and epoch of the KIP-848 member that asks for committed offsets."""
        self._cluster = cluster
        self._subscription = subscription
        self._changed = changed
        self._isolation = isolation(config.isolation_level)
        self.in_flight = InFlightFetches(
            config,
            cluster,
            prepare=self._load_kernel,
            on_reply=self.on_reply,
            on_lost=self._on_lost,
            on_end=self._on_end,
            fail=self._fail,
        )
        self._last_fetches: dict[int, int] = {}
        """When each broker was last asked, by the count of all fetches."""
        self._fetches = 0
        self._followers: dict[TopicPartition, tuple[int, float]] = {}
        self._out_of_range: set[TopicPartition] = set()
        """Not fetched until what came before is returned, or the log's range was looked up."""
        self._expected: dict[TopicPartition, _Expected] = {}
        """Partitions that begin at commits which are newer than the leaders known of them."""
        self._in_vain: set[tuple[TopicPartition, int]] = set()
        """Epochs of commits of which no leader was found."""
        self.in_hand: set[TopicPartition] = set()
        """Of which an iteration holds records that it has not yielded yet."""
        self._missing: set[str] = set()
        """Topics that did not exist when they were looked for; after a while they are looked for again."""
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._record_set: Any = None
        self.decodes_ahead_on_loop = False
        """Whether this loop decodes what the thread that polls has not come to. Where it is the user's own, a thread
        does that."""
        self.columns = config.columns
        """Those that were wanted last."""
        self._will_decode_ahead = False
        self._closed = False
        self.will_schedule_fetches = False
        """Whether somebody has asked for it."""
        self._room_at: dict[TopicPartition, int] = {}
        """Of partitions that wait until less of them is held: until it is no more than so many bytes."""
        self._is_full = False
        self._shall_tell = False
        """Whether a poll is to be woken for what came."""
        self._fetched_without_waiting_s: dict[int, float] = {}
        self._fetch_without_waiting_timer: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        self._closed = True
        if self._fetch_without_waiting_timer is not None:
            self._fetch_without_waiting_timer.cancel()
        chores = list(self._chores.values())
        for task in chores:
            task.cancel()
        await asyncio.gather(self.in_flight.close(), *chores, return_exceptions=True)

    def drop(self, tp: TopicPartition) -> None:
        self.buffer.drop(tp)
        self._followers.pop(tp, None)
        self._out_of_range.discard(tp)
        self._expected.pop(tp, None)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._changed()

    def take_failure(self) -> Exception | None:
        """What a poll shall raise. A partition that has been placed meanwhile lacks no offset any more, nor does it
        stand where there is nothing to read."""
        failure, self.failure = self.failure, None
        found: Exception | None = failure
        if isinstance(failure, NoOffsetForPartition):
            missing = set(self._subscription.unplaced()) & set(failure.partitions)
            found = NoOffsetForPartition(missing) if missing else None
        elif isinstance(failure, LogTruncated | OffsetOutOfRange):
            state = self._subscription.partitions.get(failure.partition)
            if state is None or state.position != failure.offset:
                found = None
        if found is None and failure is not None:
            self.schedule_fetches()
        return found

    def _chore(self, name: str, work: Callable[[], Any], *, patient: bool = True) -> None:
        """Starts a chore unless it runs. A passing failure is tried again after a while, where ``patient`` however long
        it lasts, as a poll in Java waits for its positions; another goes to the poll."""
        if name in self._chores or self._closed:
            return

        async def run() -> None:
            try:
                await work()
                self.why_not_yet = ""
            except OdradekError as error:
                is_missing = isinstance(error, UnknownTopic)
                is_slow = patient and isinstance(error, RequestTimedOut)
                if not (worth_retrying(error) or is_missing or is_slow):
                    self._fail(error)
                    return
                self.why_not_yet = f"{name}: {error}"
                logger.warning("%s: %s; trying again", name, error)
                wait_ms = self.config.retry_backoff_max_ms if is_missing else self.config.retry_backoff_ms
                await asyncio.sleep(wait_ms / 1000)

        def done(task: asyncio.Task[None]) -> None:
            self._chores.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error if isinstance(error, Exception) else RuntimeError(str(error)))
            self.schedule_fetches()

        task = asyncio.ensure_future(run())
        self._chores[name] = task
        task.add_done_callback(done)

    # --- what to do now ---------------------------------------------------------------------------------------

    @property
    def is_fetching(self) -> bool:
        """Whether something may come without a poll's doing."""
        return bool(self.in_flight.by_node) or self.will_schedule_fetches

    def schedule_fetches(self) -> None:
        self.will_schedule_fetches = False
        if self._closed or self.failure is not None:
            return
        self._is_full = True  # while it is found out: what is taken meanwhile may make room
        ahead = self._ahead()
        room_at: dict[TopicPartition, int] = {}
        if self._subscription.unplaced():
            self._chore("committed offsets", self._begin_at_commits)
        per_node: dict[int, dict[TopicPartition, FetchPartition]] = {}
        held_back: set[int] = set()
        """Brokers with more to read, once what came from them is returned."""
        leaderless: set[str] = set()
        resets: dict[int, dict[TopicPartition, int]] = {}
        suspects: dict[int, list[TopicPartition]] = {}
        is_full = False
        for tp, state in self._subscription.partitions.items():
            if state.reset_to is not None:
                if (leader := self._cluster.leader(tp)) >= 0:
                    resets.setdefault(leader, {})[tp] = state.reset_to
                else:
                    leaderless.add(tp.topic)
            if not state.ready or state.paused:
                continue
            if self.buffer.held(tp) > ahead:
                held_back.add(self._source(tp, self._cluster.leader(tp)))
                # Half of it at once: fetches of little, and as many turns of the threads, cost more than they bring.
                room_at[tp] = ahead // 2
                continue
            if tp in self._out_of_range:
                if self.buffer.held(tp) or tp in self.in_hand or RANGE_LOOKUP in self._chores:
                    room_at[tp] = 0
                    continue
                self._out_of_range.discard(tp)
            leader = self._cluster.leader(tp)
            if leader < 0:
                leaderless.add(tp.topic)
                continue
            epoch = self._cluster.leader_epoch(tp)
            if self._is_deposed(tp, state):
                leaderless.add(tp.topic)
                continue
            if state.fetch_epoch >= 0 and epoch > state.fetch_epoch and epoch != state.confirmed_epoch:
                suspects.setdefault(leader, []).append(tp)
                continue
            topic = self._cluster.known_topic(tp.topic)
            wanted = FetchPartition(topic.topic_id if topic else None, state.fetch_offset, epoch,
                            self.config.max_partition_fetch_bytes)  # fmt: skip
            per_node.setdefault(self._source(tp, leader), {})[tp] = wanted
        if leaderless or resets or suspects or self._missing:
            self._look_up(leaderless, resets, suspects)
        in_turn = (
            sorted(per_node, key=lambda node_id: self._last_fetches.get(node_id, 0)) if len(per_node) > 1 else per_node
        )
        for node_id in in_turn:
            found = per_node[node_id]
            if node_id in self.in_flight.by_node:
                continue
            if self.buffer.room() <= 0:
                is_full = True
                continue
            wait_ms = self.config.fetch_max_wait_ms
            if node_id in held_back and all(self._at_end(tp) for tp in found):
                # A broker holds a fetch of what is read to its end until something comes, and meanwhile answers no
                # other: so this only has a look, now and then.
                if not self._may_fetch_without_waiting(node_id):
                    continue
                wait_ms = 0
            self._send_fetch(node_id, found, max(1, len(per_node)), wait_ms)
        if is_full and not self.in_flight.by_node:
            self._make_room()
        self._room_at, self._is_full = room_at, is_full

    def _look_up(
        self,
        leaderless: set[str],
        resets: dict[int, dict[TopicPartition, int]],
        suspects: dict[int, list[TopicPartition]],
    ) -> None:
        if MISSING_TOPICS not in self._chores:
            self._missing.clear()
        leaderless -= self._missing
        if leaderless:
            self._chore("leaders", lambda: self._find_leaders(leaderless))
        # One after the other by broker: what one of them cannot tell keeps nobody from what others can.
        for node_id, wanted_of in resets.items():
            self._chore(f"offset reset at broker {node_id}", partial(self._reset, wanted_of))
        for node_id, suspected in suspects.items():
            self._chore(f"leader epochs at broker {node_id}", partial(self._check_history, suspected))

    def _is_deposed(self, tp: TopicPartition, state: PartitionState) -> bool:
        """Whether, of a partition that would be fetched now, a leader is known that was one before the place to begin
        at was committed: the broker that named it lags behind, and its log may end earlier. Where no newer one shows
        up for a while, the topic was made anew, and nobody waits for that epoch again."""
        expected = self._expected.get(tp)
        if expected is None:
            return False
        epoch = self._cluster.leader_epoch(tp)
        if epoch < 0 or state.paused or not state.ready:
            return False
        now_s = time.monotonic()
        if state.placed == expected.placed and epoch < expected.epoch:
            expected.until_s = expected.until_s or now_s + _DEPOSED_GRACE_S
            if now_s < expected.until_s:
                return True
            self._in_vain.add((tp, expected.epoch))
        del self._expected[tp]
        return False

    def _make_room(self) -> None:
        """Nobody takes of what paused partitions hold: where only that fills the memory, it is fetched again later."""
        held = self.buffer.holders()
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
        """Whether something waits that the caller, who has taken of ``tp``, made room for. From any thread."""
        return self._is_full or self.buffer.held(tp) <= self._room_at.get(tp, -1)

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

    def _ahead(self) -> int:
        """How many bytes of one partition may wait to be returned before no more of it is fetched."""
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

    def _send_fetch(self, node_id: int, wanted: dict[TopicPartition, FetchPartition], nodes: int, wait_ms: int) -> None:
        max_bytes = max(1, min(self.config.fetch_max_bytes, self.config.buffer_memory // nodes, self.buffer.room()))
        self.buffer.reserved += max_bytes
        self._fetches += 1
        self._last_fetches[node_id] = self._fetches
        versions = {tp: self._subscription.partitions[tp].version for tp in wanted}
        followed = [tp for tp in wanted if self._cluster.leader(tp) != node_id] if self._followers else ()
        self.in_flight.begin(InFlightFetch(node_id, wanted, versions, max_bytes, wait_ms, frozenset(followed)))

    async def _load_kernel(self) -> None:
        """numba takes a second to load: not on the loop, which has heartbeats to send."""
        self._record_set = await asyncio.to_thread(_record_set)

    def _on_lost(self, fetch: InFlightFetch) -> None:
        for tp in fetch.wanted:
            self._followers.pop(tp, None)

    def _on_end(self, fetch: InFlightFetch) -> None:
        self.buffer.reserved -= fetch.max_bytes
        try:
            self.schedule_fetches()
        except Exception as error:  # in the callback of a socket it would close the connection, and be told to nobody
            self._fail(error)
        self._tell()

    # --- positions --------------------------------------------------------------------------------------------

    async def _find_leaders(self, topics: set[str]) -> None:
        found = await self._cluster.topics(topics, self._cluster.deadline(), missing_ok=True)
        wanted = {tp: state for tp, state in self._subscription.partitions.items() if tp.topic in topics}
        if missing := {tp.topic for tp in wanted if tp.topic not in found}:
            self._missing |= missing
            self._chore(MISSING_TOPICS, self._wait_for_missing)
        present = {tp: state for tp, state in wanted.items() if tp.topic in found}
        if behind := {tp.topic for tp, state in present.items() if self._is_deposed(tp, state)}:
            await self._cluster.refresh_elsewhere(behind)
        if any(self._cluster.leader(tp) < 0 or self._is_deposed(tp, state) for tp, state in present.items()):
            self._schedule_fetches_soon()  # others may have one
            raise KafkaError(ErrorCode.leader_not_available, "no leader of a partition is known, or none so new")

    async def _wait_for_missing(self) -> None:
        """Longer than others are waited for, which it must not keep waiting."""
        logger.warning("unknown topics: %s; looking again", ", ".join(sorted(self._missing)))
        await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)

    async def _begin_at_commits(self) -> None:
        wanted = self._subscription.unplaced()
        committed = {}
        if self.config.group_id is not None:
            try:
                committed = await operations.list_group_offsets(
                    self._cluster, self.config.group_id, wanted, require_stable=True, member_of=self.member_of
                )
            except KafkaError as error:
                if error.code is not ErrorCode.unknown_member_id:
                    raise
                # Thrown out meanwhile: the next heartbeat tells, and then these partitions are somebody else's.
                await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)
                return
        missing = self._subscription.place_committed(committed, wanted)
        for tp, commit in committed.items():
            state = self._subscription.partitions.get(tp)
            if state is None or (state.fetch_offset, state.fetch_epoch) != (commit.offset, commit.leader_epoch):
                continue
            if commit.leader_epoch > self._cluster.leader_epoch(tp) and (tp, commit.leader_epoch) not in self._in_vain:
                self._expected[tp] = _Expected(state.placed, commit.leader_epoch)
        if not missing:
            return
        timestamp = reset_timestamp(self.config.auto_offset_reset, round(time.time() * 1000))
        if timestamp is None:
            raise NoOffsetForPartition(missing)
        for tp in missing:
            self._subscription.partitions[tp].ask_reset(timestamp)

    async def _reset(self, wanted: dict[TopicPartition, int]) -> None:
        states = {
            tp: state
            for tp, timestamp in wanted.items()
            if (state := self._subscription.partitions.get(tp)) is not None and state.reset_to == timestamp
        }
        wanted = {tp: wanted[tp] for tp in states}  # another time may have been asked for before this began
        versions = {tp: state.version for tp, state in states.items()}
        found: dict[TopicPartition, ListedOffset] = {}
        deadline = self._cluster.deadline()
        try:
            await operations.try_list_offsets(self._cluster, wanted, self._isolation, found, deadline)
            young = {tp: LATEST for tp, listed in found.items() if listed.offset == NO_OFFSET}
            if young:  # nothing is as young as the time asked for: the end
                for tp in young:
                    del found[tp]
                await operations.try_list_offsets(self._cluster, young, self._isolation, found, deadline)
                if endless := [str(tp) for tp in young if found[tp].offset == NO_OFFSET]:
                    raise KafkaError(ErrorCode.offset_not_available, f"no end of {', '.join(endless)} was told")
        finally:
            for tp, state in states.items():
                listed = found.get(tp)
                if listed is None or listed.offset == NO_OFFSET or state.version != versions[tp]:
                    continue
                if self._subscription.partitions.get(tp) is state:
                    self.drop(tp)
                    state.place(listed.offset)  # as in Java without an epoch: there is nothing read to be compared

    async def _check_history(self, suspects: list[TopicPartition]) -> None:
        """After a change of leader: does the new leader's log hold what was read?"""
        states = {
            tp: state
            for tp in suspects
            if (state := self._subscription.partitions.get(tp)) is not None and state.ready and state.fetch_epoch >= 0
        }
        stood = {tp: (state.version, state.fetch_offset) for tp, state in states.items()}
        epochs = {tp: self._cluster.leader_epoch(tp) for tp in states}
        found: dict[TopicPartition, EpochEnd] = {}
        read = {tp: state.fetch_epoch for tp, state in states.items()}
        truncated: LogTruncated | None = None
        try:
            await operations.try_epoch_ends(self._cluster, read, found, self._cluster.deadline())
        finally:
            for tp, state in states.items():
                parted, (version, offset) = found.get(tp), stood[tp]
                if parted is None or (state.version, state.fetch_offset) != (version, offset):
                    continue
                if self._subscription.partitions.get(tp) is not state:
                    continue
                if parted.is_before(offset):
                    truncated = self._part(tp, state, parted, epochs[tp]) or truncated
                else:
                    state.confirm(version, epochs[tp])
        if truncated is not None:
            raise truncated

    def _part(self, tp: TopicPartition, state: PartitionState, parted: EpochEnd, epoch: int) -> LogTruncated | None:
        """What was read from where the log parts is read again; under ``none`` the caller decides, if it was returned
        already: until a seek, each poll says so."""
        version, position = state.version, state.position
        if position > parted.end_offset and self.config.auto_offset_reset == "none":
            self.drop(tp)
            state.fetch_again()
            return LogTruncated(tp, position, parted.end_offset)
        if state.part(version, parted.end_offset, parted.leader_epoch, epoch):
            self.drop(tp)
            logger.warning("%s was truncated to offset %d: reading on there", tp, parted.end_offset)
        return None

    # --- one fetch --------------------------------------------------------------------------------------------

    def on_reply(self, fetch: InFlightFetch, reply: fetch_wire.FetchReply) -> set[str]:
        """Keeps what came for partitions that still stand where they stood; returns the topics that have to be looked
        for anew."""
        wanted, versions = fetch.wanted, fetch.versions
        by_id = {one.topic_id: tp.topic for tp, one in wanted.items() if one.topic_id is not None}
        moved: set[str] = set()
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
                moved.add(tp.topic)
        if moved:
            self._tell()
        return moved

    def _tell(self) -> None:
        """Who is woken before the next fetch is sent would wait for the interpreter, and be woken a second time."""
        if self._shall_tell:
            self._shall_tell = False
            self._changed()

    def _on_row(
        self, tp: TopicPartition, state: PartitionState, version: int, one: FetchPartition, row: FetchReplyPartition
    ) -> bool:
        """Keeps what came; whether the partition has to be looked for anew."""
        code = row.error_code
        if code in _MOVED:
            self._followers.pop(tp, None)
            return True
        if code is ErrorCode.unknown_server_error:  # as Java does: it may pass, and nothing is known of it
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
                return True  # it came, or came back, after the cluster was last looked at
        if row.diverging_epoch is not None:
            state.confirmed_epoch = -1
        if not len(row.records):
            return False
        try:
            records = self._record_set(row.records)
        except KafkaError as error:
            self._fail(error)
            return False
        if records.next_offset <= one.offset:
            return True  # not one whole batch, or only what was read before: no broker should do that, so no hurry
        aborted = tuple(AbortedTransaction(*pair) for pair in row.aborted) if row.aborted else ()
        after, epoch = records.next_offset, records.leader_epoch
        size = len(row.records)
        if state.paused and records.is_small_part:
            records = records.copy()  # it may lie here for long
        if state.fetched(version, one.offset, after, epoch):
            self.buffer.put(Chunk(tp, version, one.offset, after, epoch, aborted, records, size))
            if size < _MUCH:
                self._shall_tell = True
            else:
                self._changed()
                if not self._will_decode_ahead:
                    self._decode_ahead_soon()
        return False

    # --- decoding ahead ---------------------------------------------------------------------------------------

    def _decode_ahead_soon(self) -> None:
        self._will_decode_ahead = True
        loop = asyncio.get_running_loop()
        if self.decodes_ahead_on_loop:
            loop.call_soon(self._decode_ahead_on_loop)
        else:
            loop.run_in_executor(None, self._decode_ahead_in_thread, loop).add_done_callback(self._on_thread_end)

    def _decode_ahead_on_loop(self) -> None:
        """A RecordBatch at a time, since others wait for the loop."""
        self._will_decode_ahead = False
        if self._decode_one_ahead():
            self._changed()
            self._decode_ahead_soon()

    def _decode_ahead_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread of its own: as long as there is something to do."""
        while self._decode_one_ahead():
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed)

    def _on_thread_end(self, done: asyncio.Future[None]) -> None:
        self._will_decode_ahead = False
        if not done.cancelled() and (error := done.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _decode_one_ahead(self) -> bool:
        """Decodes a RecordBatch while another thread decodes, or works on, what came before; whether there was one."""
        if self._closed:
            return False
        most = self.config.buffer_memory // _READY_BYTES
        chunk = self.buffer.claim_for_decoding(self._subscription.paused(), least_bytes=_MUCH, most_ready=most)
        if chunk is None:
            return False
        try:
            chunk.begin(self.columns, check_crcs=self.config.check_crcs)
            chunk.decode_ahead()
        finally:
            self.buffer.release_claim(chunk)
        return True

    # --- the ends of a log ------------------------------------------------------------------------------------

    def _on_out_of_range(self, tp: TopicPartition, state: PartitionState, offset: int) -> None:
        timestamp = reset_timestamp(self.config.auto_offset_reset, round(time.time() * 1000))
        if self.buffer.held(tp) or tp in self.in_hand:
            self._out_of_range.add(tp)  # what came before is returned first; then the next fetch tells the same again
        elif timestamp is None:
            self._out_of_range.add(tp)
            self._chore(RANGE_LOOKUP, lambda: self._tell_range(tp, state.version, offset), patient=False)
        else:
            logger.warning("offset %d of %s is out of range: %s", offset, tp, self.config.auto_offset_reset)
            state.ask_reset(timestamp)
            self._changed()

    async def _tell_range(self, tp: TopicPartition, version: int, offset: int) -> None:
        start, end = [
            (await operations.list_offsets(self._cluster, {tp: when}, self._isolation))[tp].offset
            for when in (EARLIEST, LATEST)
        ]
        state = self._subscription.partitions.get(tp)
        if state is not None and state.version == version and not start <= offset <= end:
            raise OffsetOutOfRange(tp, offset, start, end)
        await asyncio.sleep(self.config.retry_backoff_ms / 1000)


def _record_set() -> Any:
    from odradek.batches.arrow import RecordSet

    return RecordSet
