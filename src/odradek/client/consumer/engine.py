"""The asynchronous engine of consumers: ``odradek.Consumer`` and ``odradek.aio.Consumer`` are thin faces of it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from odradek.client import offset_requests, topic_requests
from odradek.client.arguments import as_offsets, isolation
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.consumer.fetch_buffer import CompletedFetch
from odradek.client.consumer.fetcher import Fetcher
from odradek.client.consumer.records import Polled, Record, offset_at, records_of
from odradek.client.consumer.wakeup import WakeupSignal
from odradek.client.errors import RequestTimedOut
from odradek.client.group.classic_coordination import ClassicCoordination
from odradek.client.group.commits import Offsets, OnCommit
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.coordination import Coordination, OnPartitions
from odradek.client.group.errors import IllegalState, InvalidGroupId, Wakeup
from odradek.client.group.kip848_coordination import Kip848Coordination
from odradek.client.group.subscription import FormerPosition, PartitionState, SubscriptionState
from odradek.client.model import ListedOffset, TopicDescription
from odradek.core.errors import OdradekError
from odradek.core.ids import EARLIEST, LATEST, ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("odradek.consumer")


class _WakeableCall:
    """A waiting call. To end the call, ``wakeup`` cancels its task, as ``asyncio.timeout`` does."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self.ended = False

    def end(self) -> None:
        self.ended = True
        self._task.cancel()

    def retract(self) -> bool:
        """Takes the cancellation back. Returns False if other code has cancelled the task, too."""
        self.ended = False
        return self._task.uncancel() <= self._cancelling


class ConsumerEngine:
    """The engine of a consumer, on one event loop. ``run`` calls user code, on the caller's thread or on the loop."""

    def __init__(self, config: ConsumerConfig, run: Callable[..., Awaitable[object]]) -> None:
        self.config = config
        self.subscription = SubscriptionState()
        self._cluster = Cluster(config.client())
        self._wakeup_signal = WakeupSignal()
        self.fetcher = Fetcher(config, self._cluster, self.subscription, self._wakeup_signal.notify)
        kind = Kip848Coordination if config.group_protocol == "consumer" else ClassicCoordination
        self.group: Coordination = kind(config, self._cluster, self.subscription, self._wakeup_signal.notify, run)
        self.group.dropped = self.fetcher.drop
        self.group.wakeable = self._wakeable
        if self.group.storage.store is not None:
            self.fetcher.storage = self.fetcher.lookups.storage = self.group.storage
        if config.group_protocol == "consumer":
            self.fetcher.lookups.member_of = self._member_of
        self.unfinished: dict[TopicPartition, FormerPosition] = {}
        """The partitions in the last poll's result, with their positions before that poll."""
        self._taken: dict[TopicPartition, tuple[PartitionState, int]] = {}
        """The partitions of the last ``take``, each with its state and the version of the fetch that was taken."""
        self._end_iteration: Callable[[], None] | None = None
        self.wakeup_pending = False
        self._waiting: list[_WakeableCall] = []
        self._closing = False
        self.watch_task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    # --- subscribing ------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: Iterable[str] | re.Pattern[str] | None,
        pattern: str | re.Pattern[str] | None,
        callbacks: tuple[OnPartitions | None, OnPartitions | None, OnPartitions | None],
    ) -> None:
        if self.config.group_id is None:
            raise InvalidGroupId("subscribe()")
        if isinstance(topics, re.Pattern):
            topics, pattern = None, topics
        if (topics is None) == (pattern is None):
            raise ValueError("subscribe() takes topics or a pattern")
        if pattern is not None:
            is_matched_here = self.config.group_protocol == "classic" or isinstance(pattern, re.Pattern)
            self.subscription.subscribe_pattern(re.compile(pattern) if is_matched_here else pattern)
        else:
            assert topics is not None
            names = [topics] if isinstance(topics, str) else list(topics)
            if not names:
                await self.unsubscribe()
                return
            self.subscription.subscribe(names)
        self.group.on_assigned, self.group.on_revoked, self.group.on_lost = callbacks
        self.group.on_subscription_changed("the subscription has changed")
        if self.watch_task is None:
            self.watch_task = asyncio.ensure_future(self.watch())

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        wanted = list(partitions)
        if self.subscription.by_hand and self.group.auto.enabled:
            self.group.commit_async(self.subscription.positions(), None)
        gone = set(self.subscription.partitions) - {TopicPartition(*tp) for tp in wanted}
        for tp in gone:
            self.fetcher.drop(tp)
        self.subscription.assign_from_user(wanted)
        await self.group.storage.release(gone)
        self.fetcher.schedule_fetches()
        self.group.auto.start()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Runs on the caller's thread. Copies the partitions' buffered records out of large fetch replies."""
        chosen = list(partitions)
        self.subscription.pause(chosen)
        if self.subscription.taking is not self.unfinished:
            for tp in chosen:
                self.fetcher.buffer.copy_from_replies(TopicPartition(*tp))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Runs on the caller's thread."""
        self.subscription.resume(partitions)
        self._schedule_fetches_soon()

    async def unsubscribe(self) -> None:
        if self.subscription.subscribed:
            await self.group.leave("unsubscribed", self.config.default_api_timeout_ms, commit=False)
        gone = list(self.subscription.partitions)
        for tp in gone:
            self.fetcher.drop(tp)
        self.subscription.unsubscribe()
        await self.group.storage.release(gone)

    def _member_of(self) -> tuple[str | None, int]:
        if not self.subscription.subscribed or not self.group.in_group:
            return None, -1
        epoch, member_id, _ = self.group.member_of()
        return member_id, epoch

    async def watch(self) -> None:
        """Looks for new topics and partitions every ``metadata_max_age_ms``, more often while a topic is missing."""
        # Without this minimum, metadata_max_age_ms=0 would cause requests without a pause.
        least_ms = max(self.config.retry_backoff_ms, 10)
        while True:
            missing = {name for name in self.subscription.read_topics if not self._cluster.known_topic(name)}
            wait_ms = self.config.metadata_max_age_ms
            if missing or (self.subscription.pattern is not None and not self.subscription.topics):
                wait_ms = min(wait_ms, max(self.config.retry_backoff_max_ms, 100))
            await asyncio.sleep(max(wait_ms, least_ms) / 1000)
            try:
                await self._match()
                if topics := self.subscription.read_topics:
                    await self._cluster.topics(topics, self._cluster.deadline(), missing_ok=True)
                await self.group.look_for_changes()
            except OdradekError as error:
                logger.warning("looking for new partitions: %s", error)
            except Exception:  # a bug of this client or of the user's assignor: a later round may succeed
                logger.exception("looking for new partitions")

    async def _match(self) -> None:
        if self.subscription.pattern is None:
            return
        names = await self._cluster.topics(None, self._cluster.deadline(), missing_ok=True)
        if self.subscription.match(name for name, topic in names.items() if not topic.internal):
            self.group.on_subscription_changed("the topics that match the pattern have changed")
            self._wakeup_signal.notify()

    def group_metadata(self) -> ConsumerGroupMetadata:
        if self.config.group_id is None:
            raise InvalidGroupId("group_metadata()")
        self.group.storage.check_transactions()
        generation, member_id, instance_id = self.group.member_of()
        if not self.subscription.subscribed or not member_id:
            return ConsumerGroupMetadata(self.config.group_id, instance_id=self.config.group_instance_id)
        return ConsumerGroupMetadata(self.config.group_id, generation, member_id, instance_id)

    # --- polling ----------------------------------------------------------------------------------------------

    def begin_poll(self) -> None:
        """Marks the previous poll's records as processed. The rest of an iteration over records is fetched again."""
        if self._end_iteration is not None:
            self._end_iteration()
        self.fetcher.in_iteration.clear()
        self.unfinished.clear()

    def can_take(self) -> bool:
        """Returns whether a poll only has to ``take`` buffered records. Thread-safe."""
        return self._is_quiet() and self.has_records()

    def _is_quiet(self) -> bool:
        if self.wakeup_pending or self.fetcher.failure is not None or not self.subscription.partitions:
            return False
        return self.group.auto.left_ms > 0 and self.group.quiet and not self.group.has_lost_ownership

    def has_records(self) -> bool:
        """Returns whether there are buffered records to ``take``."""
        return self.fetcher.buffer.front(self.subscription.paused()) is not None

    def must_wait(self) -> bool:
        """Returns whether a poll has no group work and no records, and fetches are in flight or due. Thread-safe."""
        return self._is_quiet() and not self.has_records() and self.fetcher.is_fetching

    def wait_in_thread(self, timeout_s: float) -> None:
        """If ``must_wait``, waits on the caller's thread for the wakeup signal, at most ``timeout_s``."""
        self._wakeup_signal.wait_in_thread(self._wait_limit_s(timeout_s), lambda: not self.must_wait())

    async def poll(self, timeout_s: float) -> None:
        """Does the group's work, then waits until there are records to ``take`` or the time has passed."""
        deadline_s = time.monotonic() + timeout_s
        if not self.subscription.subscribed and not self.subscription.by_hand:
            raise IllegalState("poll() before subscribe() or assign()")
        while True:
            if self._closing:
                raise IllegalState("this Consumer was closed while it polled")
            self._wakeup_signal.clear()
            self.group.note_poll()
            self._raise_if_woken()
            self.group.auto_commit_if_due()
            await self.group.callbacks()
            if self.group.has_lost_ownership:
                await self.group.reassign_lost_partitions()
            if self.subscription.subscribed:
                if self.subscription.pattern is not None and not self.subscription.topics:
                    await self._match_within(deadline_s)
                await self.group.step()
            self.fetcher.schedule_fetches()
            if self.has_records():
                return
            if (failure := self.fetcher.take_failure()) is not None:
                raise failure
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return
            await self._wakeup_signal.wait(self._wait_limit_s(left_s))

    def _wait_limit_s(self, left_s: float) -> float:
        """Returns how long a poll may wait before it checks the group again."""
        until_commit_s = self.group.auto.left_ms / 1000
        still_here_s = min(1.0, self.config.max_poll_interval_ms / 2000)  # a wait in a poll counts as a poll
        return max(0.001, min(left_s, until_commit_s, still_here_s))

    async def _match_within(self, deadline_s: float) -> None:
        try:
            with self._wakeable():
                async with asyncio.timeout(max(0.001, deadline_s - time.monotonic())):
                    await self._match()
        except TimeoutError:
            return

    def take(self, columns: tuple[str, ...] | None = None) -> Polled:
        """Takes up to ``max_poll_records`` buffered records and decodes them on the calling thread.

        ``record_by_record`` sets ``columns``. Raises CorruptRecord, unless there are other records to return."""
        wanted = columns or self.config.columns
        polled = Polled(wanted)
        self._taken = {}
        left = self.config.max_poll_records
        paused = self.subscription.paused()
        self.fetcher.ahead_decoder.columns = wanted
        while left > 0 and (fetch := self.fetcher.buffer.front(paused, take=True)) is not None:
            state = self.subscription.partitions.get(fetch.tp)
            if state is None or state.version != fetch.version:
                self.fetcher.buffer.remove_returned(fetch)
                continue
            fetch.begin(wanted, check_crcs=self.config.check_crcs)
            if columns is not None:
                self.fetcher.in_iteration.add(fetch.tp)
            try:
                left -= self._take_from(fetch, state, left, polled)
            except OdradekError:
                if not polled:
                    self._fetch_again(fetch, state)
                    raise
                break  # the poll returns the records before the corrupt batch; the next poll raises the error
            if not self.fetcher.will_schedule_fetches and self.fetcher.has_room_again(fetch.tp):
                self._schedule_fetches_soon()
        self.fetcher.in_iteration.intersection_update(polled)
        return polled

    @contextmanager
    def taking_in_a_thread(self) -> Iterator[None]:
        """Keeps the positions before this poll visible to other tasks of the loop while a thread takes records."""
        self.subscription.taking = self.unfinished
        try:
            yield
        finally:
            self.subscription.taking = {}
            for tp in self.subscription.paused():  # a task may have paused them meanwhile
                self.fetcher.buffer.copy_from_replies(tp)

    def drop_stale(self, polled: Polled) -> None:
        """Removes records of partitions that got a new position or were given up while a thread took these records."""
        for tp in [tp for tp in polled if self._is_stale(tp)]:
            del polled[tp], polled.next_offsets[tp]

    def _is_stale(self, tp: TopicPartition) -> bool:
        state, version = self._taken[tp]
        return state.position_version > version or self.subscription.partitions.get(tp) is not state

    def _fetch_again(self, fetch: CompletedFetch, state: PartitionState) -> None:
        """Fetches corrupt records again. If the broker's disk has them so, a later poll raises the error again."""
        self.fetcher.buffer.remove_returned(fetch)  # the next line makes the fetches behind it outdated
        state.fetch_again(fetch.version)
        self._schedule_fetches_soon()

    def _schedule_fetches_soon(self) -> None:
        self.fetcher.will_schedule_fetches = True
        try:
            self._loop.call_soon_threadsafe(self.fetcher.schedule_fetches)
        except RuntimeError:
            logger.debug("the loop has ended")

    def _take_from(self, fetch: CompletedFetch, state: PartitionState, left: int, polled: Polled) -> int:
        if fetch.rest is None:
            fetch.rest = fetch.next()
        batch = fetch.rest
        if batch is None:
            self.fetcher.buffer.remove_returned(fetch)
            if state.advance(fetch.version, fetch.next_offset, fetch.leader_epoch) and fetch.tp in polled:
                polled.next_offsets[fetch.tp] = OffsetAndMetadata(fetch.next_offset, fetch.leader_epoch)
            return 0
        rows = int(batch.num_rows)
        is_last = rows <= left and fetch.is_over
        piece = batch.slice(0, left) if rows > left else batch
        before, before_epoch = state.position, state.position_epoch
        # A producer can give the records of a batch any offsets: the position must not decrease.
        position = fetch.next_offset if is_last else max(before, offset_at(piece, -1) + 1)
        known = self.unfinished.get(fetch.tp)
        if known is None or state.position_version > known.version:
            # Stored before the position moves, because an interrupt may come between these two steps.
            self.unfinished[fetch.tp] = FormerPosition(fetch.version, before, before_epoch)
        if not state.advance(fetch.version, position, fetch.leader_epoch):
            self.fetcher.buffer.remove_returned(fetch)  # the position was changed while the fetch was decoded
            return 0
        fetch.rest = batch.slice(left) if rows > left else None
        if fetch.tp in polled and self._is_stale(fetch.tp):  # another task called seek
            del polled[fetch.tp]
        self._taken[fetch.tp] = (state, fetch.version)
        polled.setdefault(fetch.tp, []).append(piece)
        polled.next_offsets[fetch.tp] = OffsetAndMetadata(position, fetch.leader_epoch)
        fetch.start = position
        if is_last:
            self.fetcher.buffer.remove_returned(fetch)
        return min(rows, left)

    @contextmanager
    def record_by_record(self, polled: Polled) -> Iterator[Iterator[Record]]:
        """Iterates over a poll's records. The position passes a record when the next is requested.

        If the caller stops, the remaining records of a partition are fetched again."""
        taken = {tp: self._taken[tp] for tp in polled}
        for tp, (state, version) in taken.items():
            first = offset_at(polled[tp][0], 0)
            state.set_returned(version, first, polled.next_offsets[tp].leader_epoch)
        open_ones = dict(taken)

        def records() -> Iterator[Record]:
            subscription = self.subscription
            for tp, batches in polled.items():
                state, version = taken[tp]
                after = polled.next_offsets[tp]
                set_returned, epoch, change = state.set_returned, after.leader_epoch, -1
                for record in records_of(tp, batches):
                    # The caller may seek, pause or give up the partition inside its loop, or the log may be truncated.
                    # Then the remaining records are fetched again from the position.
                    if state.version != version or state.paused:
                        break
                    if subscription.change != change:
                        change = subscription.change
                        if subscription.partitions.get(tp) is not state:
                            break
                    yield record
                    set_returned(version, record.offset + 1, epoch)
                else:
                    if state.advance(version, after.offset, epoch):
                        self.fetcher.in_iteration.discard(tp)
                        del open_ones[tp]

        def end() -> None:
            self._end_iteration = None
            self.fetcher.in_iteration.clear()
            for state, version in open_ones.values():
                state.fetch_again(version)

        self._end_iteration = end
        try:
            yield records()
        finally:
            if self._end_iteration is end:
                end()

    # --- waking -----------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Ends the waiting call or the next one. Thread-safe."""
        self.wakeup_pending = True
        try:
            self._loop.call_soon_threadsafe(self._end_waiting)
        except RuntimeError:
            logger.debug("the loop has ended")

    def _end_waiting(self) -> None:
        if self.wakeup_pending and self._waiting and not self._waiting[-1].ended:
            self.wakeup_pending = False
            self._waiting[-1].end()
        self._wakeup_signal.notify()

    def _raise_if_woken(self) -> None:
        if self.wakeup_pending:
            self.wakeup_pending = False
            raise Wakeup

    @contextmanager
    def _wakeable(self) -> Iterator[None]:
        """Wraps code that waits for a broker. Raises Wakeup if ``wakeup`` was called before, or when it is called.

        User code must not run inside, since ``wakeup`` would cancel it. Does nothing during ``close``."""
        if self._closing:
            yield
            return
        self._raise_if_woken()
        waiting = _WakeableCall()
        self._waiting.append(waiting)
        try:
            yield
        except asyncio.CancelledError:
            if waiting.ended:
                if waiting.retract():
                    raise Wakeup from None
                self.wakeup_pending = True
            raise
        finally:
            self._waiting.remove(waiting)
            if waiting.ended:  # the wakeup was too late for this call: the next call raises Wakeup
                waiting.retract()
                self.wakeup_pending = True

    # --- positions --------------------------------------------------------------------------------------------

    async def seek(self, tp: TopicPartition, offset: int, leader_epoch: int) -> None:
        if offset < 0:
            raise ValueError(f"seek to {offset}: an offset is at least 0")
        state = self.subscription.state(TopicPartition(*tp))
        self.fetcher.drop(TopicPartition(*tp))
        state.set_position(offset, leader_epoch)
        self.fetcher.schedule_fetches()

    async def seek_to(self, partitions: Iterable[TopicPartition], timestamp: int) -> None:
        chosen = [TopicPartition(*tp) for tp in partitions] or list(self.subscription.partitions)
        for state in [self.subscription.state(tp) for tp in chosen]:
            state.request_reset(timestamp)
        for tp in chosen:
            self.fetcher.drop(tp)
        self.fetcher.schedule_fetches()

    async def position(self, tp: TopicPartition, timeout_ms: int | None) -> int:
        state = self.subscription.state(TopicPartition(*tp))
        deadline = self._cluster.deadline(timeout_ms)
        while not state.ready:
            self._raise_if_woken()
            self._wakeup_signal.clear()
            self.fetcher.schedule_fetches()
            if (failure := self.fetcher.take_failure()) is not None:
                raise failure
            if deadline.passed:
                why = f" ({self.fetcher.lookups.retry_reason})" if self.fetcher.lookups.retry_reason else ""
                raise RequestTimedOut(
                    f"the position of {TopicPartition(*tp)} was not found within {deadline.limit_ms} ms{why}"
                )
            await asyncio.sleep(0.002)
        return self.subscription.position(TopicPartition(*tp), state).offset

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        if self.config.group_id is None:
            raise InvalidGroupId("committed()")
        wanted = [TopicPartition(*tp) for tp in partitions]
        if not wanted:
            return {}
        with self._wakeable():
            in_kafka = await offset_requests.list_group_offsets(
                self._cluster, self.config.group_id, wanted, require_stable=True, timeout_ms=timeout_ms
            )
            stored = await self.group.storage.committed(wanted, in_kafka)
        return {tp: stored.get(tp) for tp in wanted}

    async def list_offsets(
        self, wanted: Mapping[TopicPartition, int], timeout_ms: int | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        if not wanted:
            return {}
        asked = {TopicPartition(*tp): when for tp, when in wanted.items()}
        with self._wakeable():
            return await offset_requests.list_offsets(
                self._cluster, asked, isolation(self.config.isolation_level), timeout_ms
            )

    async def bounds(
        self, partitions: Iterable[TopicPartition], *, end: bool, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        listed = await self.list_offsets(dict.fromkeys(partitions, LATEST if end else EARLIEST), timeout_ms)
        return {tp: bound.offset for tp, bound in listed.items()}

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        with self._wakeable():
            description = (await topic_requests.describe_topics(self._cluster, [topic]))[topic]
        return [TopicPartition(topic, row.partition) for row in description.partitions]

    async def list_topics(self) -> dict[str, TopicDescription]:
        with self._wakeable():
            return await topic_requests.describe_topics(self._cluster, None)

    async def lag(self, partitions: Iterable[TopicPartition] | None) -> dict[TopicPartition, int]:
        chosen = list(self.subscription.partitions) if partitions is None else [TopicPartition(*t) for t in partitions]
        ends = await self.bounds(chosen, end=True)
        return {tp: ends[tp] - await self.position(tp, None) for tp in chosen}

    # --- commits ----------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None, timeout_ms: int | None
    ) -> None:
        await self.group.commit(self.to_commit(offsets), timeout_ms)

    async def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None, callback: OnCommit | None
    ) -> None:
        self.group.commit_async(self.to_commit(offsets), callback)

    def to_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None) -> Offsets:
        positions = self.subscription.positions() if offsets is None else as_offsets(offsets)
        if self.subscription.taking is self.unfinished:
            return positions  # positions of earlier polls; the records of the running poll stay unfinished
        if offsets is None:
            self.unfinished.clear()
        for tp in self.unfinished.keys() & positions.keys():
            self.unfinished[tp] = FormerPosition(
                self.unfinished[tp].version, positions[tp].offset, positions[tp].leader_epoch
            )
        return positions

    def unreturn_last_poll(self) -> None:
        """Moves the positions back before the last poll's records, which the caller failed to process. Later commits
        do not include these records."""
        for tp, before in list(self.unfinished.items()):  # a copy, since a thread may add partitions
            state = self.subscription.partitions.get(tp)
            if state is not None:
                state.set_returned(*before)

    def refetch_last_poll(self) -> None:
        """Fetches the records of an interrupted poll again, since they did not reach the caller."""
        self.unreturn_last_poll()
        self.unfinished.clear()
        for state in self.subscription.partitions.values():
            state.fetch_again()  # of all partitions: the interrupt may have lost a batch of any of them
        self._schedule_fetches_soon()

    async def enforce_rebalance(self, reason: str) -> None:
        if not self.subscription.subscribed:
            raise IllegalState("enforce_rebalance() without subscribe()")
        self.group.enforce_rebalance(reason)

    # --- close ------------------------------------------------------------------------------------------------

    async def close(self, timeout_ms: int) -> None:
        """Makes the last automatic commit, runs callbacks, leaves the group, closes connections. Ignores ``wakeup``."""
        self._closing, self.wakeup_pending = True, False
        self.group.leaving = True
        self._wakeup_signal.notify()
        deadline = self._cluster.deadline(timeout_ms)
        if self.watch_task is not None:
            self.watch_task.cancel()
        try:
            await self.group.flush(deadline)
            if self.subscription.subscribed:
                await self.group.leave("closed", max(deadline.left_ms, 1), commit=True)
            elif self.subscription.by_hand and self.group.auto.enabled and self.subscription.positions():
                try:
                    await self.group.commit(self.subscription.positions(), max(deadline.left_ms, 1))
                except OdradekError as error:
                    if not worth_retrying(error) and not isinstance(error, RequestTimedOut):
                        raise
                    logger.warning("last automatic commit: %s", error)
            await self.group.callbacks()
        finally:
            await self.group.close()
            await self.fetcher.close()
            await self._cluster.close()
