"""The fetches of a follower node from one leader, as Kafka's ReplicaFetcherThread: one request at a time, in a session.

A request names the partitions whose state machines (``replication/follower``) ask for something. The reply is passed
on, one partition after another, in steps. The next request follows when the records of the reply are in the logs. A
truncation may take long, so it holds no other partition up: its partition is not fetched until then.

What is wrong with one partition, an error of the leader or damaged bytes, concerns only this partition: nothing of it
is appended, one line names it, and it is fetched again after ``replica.fetch.backoff.ms``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, assert_never
from uuid import UUID

from odradek.broker.remote.node_request import NodeRequest, schema_request
from odradek.broker.remote.peers import Channel
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import LATEST, FetchingReplica, TopicPartition
from odradek.replication.effects import (
    Append,
    DeleteBefore,
    FindOffset,
    MoveWatermark,
    RestartAt,
    Retry,
    Stop,
    Truncate,
)
from odradek.replication.follower import FetchedPart, FollowerPhase
from odradek.wire import fetch_messages
from odradek.wire.api_keys import FETCH, LIST_OFFSETS
from odradek.wire.fetch_messages import FetchPartition, FetchReply, FetchReplyPartition, Limits
from odradek.wire.fetch_session import FetchSession

if TYPE_CHECKING:
    from typing import Protocol

    from kio.schema.list_offsets.v11.response import ListOffsetsResponse

    from odradek.broker.loop.clock import TimerHandle
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.remote.node_request import R
    from odradek.broker.replication.replicated_partition import ReplicatedPartition
    from odradek.core.deferred import Deferred
    from odradek.replication.effects import FollowerEffect
    from odradek.replication.follower import NextFetch, PartitionFollower

    class FetcherServices(Protocol):
        """What the fetchers of a node share."""

        @property
        def local(self) -> FetchingReplica:
            """This node, with its broker epoch."""

        @property
        def limits(self) -> FetchLimits: ...

        @property
        def holds_fetches(self) -> bool:
            """Whether no fetch is sent, and no reply is taken."""

        @property
        def fetchers_per_leader(self) -> int:
            """num.replica.fetchers."""

        def hand_over(self, partition: ReplicatedPartition, fetcher: ReplicaFetcher) -> None:
            """Gives a partition to the fetcher that it has by the present ``fetchers_per_leader``."""

        def steady_ms(self) -> int: ...

        def send(self, node_id: int, request: NodeRequest[R], channel: Channel) -> Deferred[R | None]:
            """Sends a request to another node. The promise has None if there is no reply."""

        def start(self, steps: Steps[None]) -> Deferred[BaseException | None]:
            """Runs long work. The promise has its exception, or None."""

        def call_later(self, delay_s: float, work: Callable[[], None]) -> TimerHandle: ...


log = logging.getLogger("odradek.broker")

_FETCH_VERSION, _LIST_OFFSETS_VERSION = 17, 11
_SESSION_ERRORS = (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch)
_UNREMARKABLE = (
    ErrorCode.none, ErrorCode.not_leader_or_follower, ErrorCode.unknown_leader_epoch, ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition,
)  # fmt: skip
"""The codes of a leader that does not lead yet, or no more: they come at each change of leaders."""
_AT_WORK = (FollowerPhase.WORKING, FollowerPhase.SEARCHING)


class FetchLimits(NamedTuple):
    """The settings ``replica.fetch.*`` of a request: its longest wait, its least and most bytes, and the most bytes of
    a partition."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_bytes: int


class Asked(NamedTuple):
    """What a request asks for one partition: by which state machine, and what it said."""

    partition: ReplicatedPartition
    follower: PartitionFollower
    fetch: NextFetch


class ReplicaFetcher:
    """The fetches from one leader. ``index``: this fetcher among those from the same leader."""

    def __init__(self, services: FetcherServices, leader: int, index: int) -> None:
        self.partitions: dict[TopicPartition, ReplicatedPartition] = {}
        self._services = services
        self.leader = leader
        self._count = services.fetchers_per_leader
        """The number of fetchers by which all partitions are at their fetcher."""
        self._channel = Channel(f"replica fetcher {index}")
        self._requests = Channel(f"replica requests {index}")
        self._session = FetchSession()
        self._is_busy = False
        """Whether a request is in flight, or its reply is being passed on."""
        self._timer: TimerHandle | None = None
        self._due_ms = 0
        self._retries: dict[TopicPartition, int] = {}
        """When the partitions that wait after an error are fetched again."""
        self._refused: set[TopicPartition] = set()
        """The partitions whose last reply was refused with a line in the log."""
        self._is_closed = False

    def add(self, partition: ReplicatedPartition) -> None:
        """Begins to fetch a partition, with the state machine that it has now."""
        name = TopicPartition(partition.topic, partition.index)
        self.partitions[name] = partition
        follower = partition.follower
        assert follower is not None
        self._carry_out(partition, follower, follower.follow(partition.leader_epoch))
        self.wake()

    def remove(self, partition: ReplicatedPartition) -> None:
        name = TopicPartition(partition.topic, partition.index)
        if self.partitions.get(name) is partition:
            del self.partitions[name]
            self._refused.discard(name)
            self._retries.pop(name, None)

    def take(self, partition: ReplicatedPartition, retry_ms: int | None) -> None:
        """Goes on with a partition of another fetcher. ``retry_ms``: as ``release`` returned it."""
        name = TopicPartition(partition.topic, partition.index)
        self.partitions[name] = partition
        if retry_ms is not None:
            self._retries[name] = retry_ms
        self.wake()

    def release(self, partition: ReplicatedPartition) -> int | None:
        """Ends the fetches of a partition that goes on at another fetcher. Returns when it is due after an error."""
        retry_ms = self._retries.get(TopicPartition(partition.topic, partition.index))
        self.remove(partition)
        return retry_ms

    def _hand_over(self) -> None:
        """Gives partitions to other fetchers after a change of num.replica.fetchers, between two requests, as Kafka
        does. One whose log is being changed, or that has asked for an offset, follows when that has ended."""
        count = self._services.fetchers_per_leader
        for partition in tuple(self.partitions.values()):
            follower = partition.follower
            if follower is not None and follower.phase in _AT_WORK:
                count = self._count
            else:
                self._services.hand_over(partition, self)
        self._count = count

    def close(self) -> None:
        self._is_closed = True
        self.partitions.clear()
        if self._timer is not None:
            self._timer.cancel()

    # --- requests -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Sends the next request in the next tick: partitions come and go in groups."""
        self._wake_at(self._services.steady_ms())

    def _wake_at(self, at_ms: int) -> None:
        if self._is_closed or (self._timer is not None and self._due_ms <= at_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = at_ms
        delay_ms = max(at_ms - self._services.steady_ms(), 0)
        self._timer = self._services.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send()

    def _send(self) -> None:
        """Sends a request for the partitions that ask for something, unless one is in flight."""
        services = self._services
        if self._is_busy or self._is_closed or services.holds_fetches:
            return
        if self._count != services.fetchers_per_leader:
            self._hand_over()
        now_ms, limits = services.steady_ms(), services.limits
        asked: dict[TopicPartition, Asked] = {}
        wanted: dict[TopicPartition, FetchPartition] = {}
        for name, partition in self.partitions.items():
            follower = partition.follower
            fetch = None if follower is None else follower.next_fetch(now_ms)
            if follower is not None and fetch is not None:
                asked[name] = Asked(partition, follower, fetch)
                wanted[name] = FetchPartition(
                    partition.topic_id, fetch.offset, fetch.leader_epoch, limits.partition_bytes, fetch.last_epoch,
                    fetch.log_start,
                )  # fmt: skip
        self._retries = {name: at_ms for name, at_ms in self._retries.items() if at_ms > now_ms}
        if self._retries:  # a timer may fire a fraction of a millisecond early
            self._wake_at(min(self._retries.values()))
        if not wanted:
            return  # who begins to ask for something wakes the fetcher
        self._is_busy = True
        head = Limits(
            limits.max_wait_ms, limits.min_bytes, limits.max_bytes, isolation_level=0, replica=services.local
        )  # fmt: skip
        packed = fetch_messages.pack(_FETCH_VERSION, head, self._session.request(wanted))
        count = len(wanted)
        request = NodeRequest(
            FETCH, _FETCH_VERSION, packed,
            lambda frame: fetch_messages.parse_reply(_FETCH_VERSION, memoryview(frame), count),
        )  # fmt: skip
        services.send(self.leader, request, self._channel).then(lambda reply: self._on_reply(asked, reply))

    def _on_reply(self, asked: dict[TopicPartition, Asked], reply: FetchReply | None) -> None:
        if self._is_closed:
            return
        if reply is None or self._services.holds_fetches:
            self._session.restart()
            self._end_without_reply(asked)
        elif self._session.on_reply(reply.error_code, reply.session_id):
            self._services.start(self._pass_on(asked, reply)).then(lambda failure: self._end_pass(asked, failure))
            return
        elif reply.error_code not in _SESSION_ERRORS:
            log.warning(
                "broker %d refuses the fetches of its followers: %s", self.leader, reply.error_code.name.upper()
            )
            self._end_without_reply(asked)
        self._end_reply()

    def _end_without_reply(self, asked: dict[TopicPartition, Asked]) -> None:
        now_ms = self._services.steady_ms()
        for partition, follower, _ in asked.values():
            if partition.follower is follower:
                self._carry_out(partition, follower, follower.on_no_reply(now_ms))

    def _end_pass(self, asked: dict[TopicPartition, Asked], failure: BaseException | None) -> None:
        if failure is not None:
            log.error("a reply of broker %d could not be used", self.leader, exc_info=failure)
            self._session.restart()
            self._end_without_reply(asked)
        self._end_reply()

    def _end_reply(self) -> None:
        self._is_busy = False
        self._send()

    # --- replies ------------------------------------------------------------------------------------------------

    def _pass_on(self, asked: dict[TopicPartition, Asked], reply: FetchReply) -> Steps[None]:
        """Passes a reply on, one partition after another. A session leaves out the partitions without news."""
        names = {(one.partition.topic_id, name.partition): name for name, one in asked.items()}
        for row in reply.partitions:
            name = names.get((row.topic, row.partition)) if isinstance(row.topic, UUID) else None
            if name is None:
                continue
            partition, follower, fetch = asked[name]
            if partition.follower is follower and not self._is_closed:
                part = FetchedPart(
                    row.error_code, row.high_watermark, row.log_start_offset, row.diverging_epoch, bool(row.records)
                )
                for effect in follower.on_reply(fetch, part, self._services.steady_ms()):
                    if isinstance(effect, Append):
                        yield from self._append(partition, follower, row)
                    else:
                        self._carry_out(partition, follower, (effect,))
            yield None

    def _append(
        self, partition: ReplicatedPartition, follower: PartitionFollower, row: FetchReplyPartition
    ) -> Steps[None]:
        """Appends the records of a reply: all of them, or none if they are damaged."""
        try:
            info = yield from partition.append_fetched(row.records)
        except (KafkaError, StorageError) as error:
            self._fail(partition, follower, error)
            return
        if info is None and partition.follower is follower:
            # Not one whole batch that this node may take: a later epoch, whose leader it does not know yet.
            self._carry_out(
                partition, follower, follower.on_failed(ErrorCode.unknown_leader_epoch, self._services.steady_ms())
            )
            return
        self._end_work(partition, follower)

    def _carry_out(
        self, partition: ReplicatedPartition, follower: PartitionFollower, effects: tuple[FollowerEffect, ...]
    ) -> None:
        """Does what a state machine decides, except for an append."""
        for effect in effects:
            if isinstance(effect, MoveWatermark):
                partition.move_high_watermark(effect.offset)
            elif isinstance(effect, DeleteBefore):
                self._delete(partition, effect.offset)
            elif isinstance(effect, Truncate | RestartAt):
                self._services.start(self._cut(partition, follower, effect))
            elif isinstance(effect, FindOffset):
                self._find(partition, follower, effect)
            elif isinstance(effect, Retry):
                self._report(partition, effect.code)
                at_ms = self._services.steady_ms() + effect.delay_ms
                self._retries[TopicPartition(partition.topic, partition.index)] = at_ms
                self._wake_at(at_ms)
            elif isinstance(effect, Stop):
                log.debug(
                    "%s-%d: the replica fetches no more from broker %d: %s",
                    partition.topic, partition.index, self.leader, effect.code.name.upper(),
                )  # fmt: skip
            elif not isinstance(effect, Append):
                assert_never(effect)

    def _delete(self, partition: ReplicatedPartition, offset: int) -> None:
        try:
            partition.log.removals.delete_before(offset)
        except KafkaError as error:  # the log has logged the reason
            log.debug("%s-%d: %s", partition.topic, partition.index, error)

    def _cut(
        self, partition: ReplicatedPartition, follower: PartitionFollower, effect: Truncate | RestartAt
    ) -> Steps[None]:
        before = partition.log_end_offset
        try:
            cut = partition.restart_at if isinstance(effect, RestartAt) else partition.truncate_to
            yield from cut(effect.offset)
        except (KafkaError, StorageError) as error:
            self._fail(partition, follower, error)
            return
        if before != partition.log_end_offset:
            log.info(
                "%s-%d: the log ended at %d and ends at %d now, as its leader, broker %d, has no more of it",
                partition.topic, partition.index, before, partition.log_end_offset, self.leader,
            )  # fmt: skip
        self._end_work(partition, follower)

    def _end_work(self, partition: ReplicatedPartition, follower: PartitionFollower) -> None:
        if partition.follower is follower:
            self._refused.discard(TopicPartition(partition.topic, partition.index))
            self._carry_out(partition, follower, follower.on_done())
            self.wake()

    def _fail(self, partition: ReplicatedPartition, follower: PartitionFollower, error: Exception) -> None:
        if partition.follower is not follower:
            return  # another term has begun
        code = error.code if isinstance(error, KafkaError) else ErrorCode.unknown_server_error
        self._report(partition, code, str(error))
        self._carry_out(partition, follower, follower.on_failed(code, self._services.steady_ms()))

    def _report(self, partition: ReplicatedPartition, code: ErrorCode, text: str = "") -> None:
        """Logs why a reply is refused: one line, until a reply is taken again."""
        name = TopicPartition(partition.topic, partition.index)
        if code in _UNREMARKABLE or name in self._refused:
            return
        self._refused.add(name)
        log.warning(
            "%s: the reply of its leader, broker %d, is refused: %s; it is fetched again",
            name, self.leader, text or code.name.upper(),
        )  # fmt: skip

    # --- the leader's offsets -----------------------------------------------------------------------------------

    def _find(self, partition: ReplicatedPartition, follower: PartitionFollower, effect: FindOffset) -> None:
        """Asks for the leader's log end or log start."""

        def take(answer: int | ErrorCode | None) -> None:
            if partition.follower is not follower or self._is_closed:
                return
            now_ms = self._services.steady_ms()
            if answer is None:
                self._carry_out(partition, follower, follower.on_no_reply(now_ms))
                return
            if effect.which == LATEST:
                log.info(
                    "%s-%d: its leader, broker %d, does not have offset %d: the leader's log ends at %s",
                    partition.topic, partition.index, self.leader, partition.log_end_offset, answer,
                )  # fmt: skip
            self._carry_out(partition, follower, follower.on_offset(effect, answer, now_ms))

        request = _list_offsets(partition.topic, partition.index, effect, self._services.local.broker_id)
        self._services.send(self.leader, request, self._requests).then(take)


def _list_offsets(topic: str, index: int, asked: FindOffset, broker_id: int) -> NodeRequest[int | ErrorCode]:
    part = {"partition_index": index, "current_leader_epoch": asked.leader_epoch, "timestamp": asked.which}
    body: dict[str, object] = {
        "replica_id": broker_id,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [part]}],
        "timeout": 0,
    }
    return schema_request(LIST_OFFSETS, _LIST_OFFSETS_VERSION, body, _offset)


def _offset(reply: ListOffsetsResponse) -> int | ErrorCode:
    for topic in reply.topics:
        for part in topic.partitions:
            return part.error_code or int(part.offset)
    return ErrorCode.unknown_server_error
