"""A consumer as a member of a classic group: joins, syncs and heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.group.classic_membership import ClassicMembership, ClassicState, NextStep
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.coordination import Coordination
from odradek.client.group.direct_commit import Identity
from odradek.client.group.errors import FencedInstance
from odradek.client.group.sticky_assignor import NO_RACKS, PartitionRacks
from odradek.client.group.subscription import SubscriptionState
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.wire.api_keys import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP

logger = logging.getLogger("odradek.consumer")


class _JoinResult(NamedTuple):
    """The generation and the assignment of a join."""

    generation: int
    assigned: tuple[TopicPartition, ...]


class ClassicCoordination(Coordination):
    """The work of ``group_protocol=classic``, under which the leader, a member of the group, makes the assignment."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: SubscriptionState,
        changed: Callable[[], None],
        run: Callable[..., Awaitable[object]],
    ) -> None:
        super().__init__(config, cluster, subscription, changed, run)
        self.membership = ClassicMembership(
            self.group_id,
            config.assignors,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
        )
        self._join_task: asyncio.Task[_JoinResult] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._prepared = False
        self._counts: dict[str, int] = {}
        self.racks: PartitionRacks = NO_RACKS

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def in_group(self) -> bool:
        return self.membership.known

    @property
    def lost(self) -> bool:
        return self.membership.lost

    @property
    def end_error(self) -> KafkaError | None:
        return (
            FencedInstance(self.config.group_instance_id or "")
            if self.membership.state is ClassicState.FENCED
            else None
        )

    def member_of(self) -> Identity:
        member = self.membership
        if not member.known or member.lost:
            return Identity()
        return Identity(member.generation, member.member_id, member.instance_id)

    def on_subscription_changed(self, reason: str) -> None:
        self.membership.request_rejoin(reason)

    def enforce_rebalance(self, reason: str) -> None:
        self.membership.request_rejoin(reason)

    def _on_commit_refused(self, sent_as: Identity, code: ErrorCode) -> None:
        if sent_as.generation != self.membership.generation:
            return
        try:
            self.membership.on_commit_refused(code)
        except FencedInstance as fenced:
            self.failure = fenced

    def _on_lost_given_up(self) -> None:
        self.membership.lost = False

    def _tasks(self) -> list[asyncio.Task[object]]:
        return [one for one in (self._join_task, self._heartbeat_task) if one is not None]

    # --- polls ------------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether a poll has no group work."""
        busy = self._join_task is not None or self._answered_commits or self.failure is not None
        return not busy and (self.membership.joined or not self._subscription.subscribed)

    async def step(self) -> None:
        """Does the group work of one poll; waits for no other member. Raises the error that ends the membership."""
        if self.is_leaving():
            return
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        member = self.membership
        if (end_error := self.end_error) is not None:
            raise end_error
        if member.lost:
            await self._give_up_lost()
        if self._join_task is not None and self._join_task.done():
            await self._complete(self._join_task)
        if member.state is ClassicState.UNJOINED and self._join_task is None and self._subscription.topics:
            await self._prepare()
            if self.is_leaving():
                return
            self._join_task = asyncio.ensure_future(self._join())
            self._join_task.add_done_callback(lambda _: self._changed())
        if not self.is_leaving() and (self._heartbeat_task is None or self._heartbeat_task.done()):
            self._heartbeat_task = asyncio.ensure_future(self._send_heartbeats())

    async def _prepare(self) -> None:
        """Prepares a join: makes the automatic commit, then gives up the partitions that the member does not keep."""
        if self._prepared:
            return
        is_member = await self._commit_before_revocation()
        self._prepared = True
        if not is_member:
            return
        owned = sorted(self._subscription.partitions)
        topics = self._subscription.topics
        revoked = [tp for tp in owned if tp.topic not in topics] if self.membership.cooperative else owned
        if revoked:
            try:
                await self._call_back(self.on_revoked, revoked)
            except BaseException:
                self._prepared = False  # no join before the callback succeeds: other members would get the partitions
                raise
            await self._assign([tp for tp in self._subscription.partitions if tp not in set(revoked)])

    async def _complete(self, joining: asyncio.Task[_JoinResult]) -> None:
        """Takes the assignment of a join. The next poll tries again after a Wakeup or an error of ``on_revoked``."""
        self._join_task = None
        generation, assigned = joining.result()
        self._prepared = False
        if generation != self.membership.generation:
            return  # the group has removed this member since: other members own the partitions
        self.auto.start()
        before = set(self._subscription.partitions)
        revoked = sorted(before - set(assigned))
        if revoked:  # cooperative: the next rebalance assigns these partitions to other members
            try:
                if not await self._commit_before_revocation():
                    return
                await self._call_back(self.on_revoked, revoked)
            except BaseException:
                if self.membership.known and self._join_task is None:
                    self._join_task = joining
                raise
            self.membership.request_rejoin("gave up partitions")
        await self._assign(assigned)
        await self._call_back(self.on_assigned, sorted(set(assigned) - before))

    # --- joining ----------------------------------------------------------------------------------------------

    async def _join(self) -> _JoinResult:
        """Joins until this member has an assignment. Raises errors that another join cannot solve."""
        member, config = self.membership, self.config
        while True:
            following = NextStep.BACK_OFF
            try:
                connection = await self._coordinator()
                owned = sorted(self._subscription.partitions) if member.cooperative else []
                request = member.join_request(sorted(self._subscription.topics), owned)
                patience = max(config.request_timeout_ms, config.max_poll_interval_ms + 5_000)
                following = member.on_join(await connection.call(JOIN_GROUP, request, timeout_ms=patience))
                if following is NextStep.CONTINUE:
                    if member.is_leader:
                        await self._count_partitions()
                    request = member.sync_request(self._counts, self.racks)
                    following, assigned = member.on_sync(
                        await connection.call(SYNC_GROUP, request, timeout_ms=patience)
                    )
                    if following is NextStep.CONTINUE:
                        return _JoinResult(member.generation, assigned)
            except OdradekError as error:
                if not worth_retrying(error):
                    raise
                logger.info("group %s: joining: %s", member.group_id, error)
                member.request_rejoin("the connection was lost")
                following = NextStep.FIND_COORDINATOR
            if following is NextStep.FIND_COORDINATOR:
                self._cluster.forget_coordinator(member.group_id)
            if following is not NextStep.JOIN_AGAIN:
                await asyncio.sleep(config.retry_backoff_ms / 1000)

    async def _count_partitions(self) -> None:
        topics_metadata = await self._cluster.topics(
            sorted(self.membership.leader_topics), self._cluster.deadline(), missing_ok=True
        )
        self._counts = {name: len(topic.partitions) for name, topic in topics_metadata.items()}
        racks = {node.node_id: node.rack for node in self._cluster.nodes()}
        self.racks = {
            TopicPartition(name, row.partition): frozenset(
                rack for node_id in row.replicas if (rack := racks.get(node_id)) is not None
            )
            for name, topic in topics_metadata.items()
            for row in topic.partitions
        }

    async def look_for_changes(self) -> None:
        """Requests a rebalance if this member is the leader and the number of partitions of a topic has changed.

        If this consumer has a rack, changed racks of partitions count, too."""
        if not self.membership.is_leader or not self.membership.joined:
            return
        before, racks_before = self._counts, self.racks
        await self._count_partitions()
        moved = bool(self.config.client_rack) and self.racks != racks_before
        if (self._counts != before or moved) and self.membership.joined:
            self.membership.request_rejoin("the topics' partitions have changed")
            self._changed()

    # --- heartbeats -------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        member, config = self.membership, self.config
        while True:
            await asyncio.sleep(config.heartbeat_interval_ms / 1000)
            if not member.known or member.state in (ClassicState.JOINING, ClassicState.FENCED):
                continue
            if self._poll_is_late():
                await self._leave_for_idleness()
                continue
            try:
                await self._heartbeat()
            except OdradekError as error:
                if not worth_retrying(error):
                    self.failure = error
                    self._changed()
                    return
                self._cluster.forget_coordinator(member.group_id)

    async def _heartbeat(self) -> None:
        member = self.membership
        generation = member.generation
        connection = await self._coordinator()
        reply = await connection.call(HEARTBEAT, member.heartbeat_request())
        joined = member.joined
        if member.on_heartbeat(reply.error_code, generation) is NextStep.FIND_COORDINATOR:
            self._cluster.forget_coordinator(member.group_id)
        if joined and not member.joined:
            self._changed()

    async def _leave_for_idleness(self) -> None:
        self._warn_of_idleness()
        await self._send_leave("no poll for max_poll_interval_ms")
        self.membership.on_left(lost=True)

    async def _send_leave(self, reason: str) -> None:
        request = self.membership.leave_request(reason)
        if request is not None:
            await self._send_leave_request(LEAVE_GROUP, request)

    async def _stop_joining(self) -> None:
        if self._join_task is not None:
            waits = not self._join_task.done()
            self._join_task.cancel()
            await asyncio.gather(self._join_task, return_exceptions=True)
            self._join_task = None
            if waits:
                self._connections.close()  # Kafka reads no LeaveGroup behind a JoinGroup that waits for other members
            self.membership.request_rejoin("a join was cancelled")  # the next poll joins again if the leave fails

    async def _leave_group(self, reason: str) -> None:
        await self._send_leave(reason)
        self.membership.on_left(lost=False)
        self._prepared = False
