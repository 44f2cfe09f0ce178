"""A consumer's dealings with its group's coordinator: joining, heartbeats, commits, leaving."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.commits import AutoCommit, Offsets, OnCommit, commit_failure, commit_request
from odradek.client.connection import Connection
from odradek.client.consumer_config import ConsumerConfig
from odradek.client.consumer_errors import (
    CommitFailed,
    FencedInstance,
    InvalidGroupId,
    RebalanceInProgress,
    RetriableCommitFailed,
)
from odradek.client.consumer_fetcher import NodeConnections
from odradek.client.membership import Membership, Next, State
from odradek.client.subscription import SubscriptionState
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition

logger = logging.getLogger("odradek.consumer")

OFFSET_COMMIT, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 11, 12, 13, 14
NAMES_CEILING = 9
OnPartitions = Callable[[list[TopicPartition]], Any]


class Coordination:
    """``run`` calls the user's callbacks where the user wants them; ``changed`` tells a waiting poll."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: SubscriptionState,
        changed: Callable[[], None],
        run: Callable[..., Awaitable[Any]],
    ) -> None:
        self.config = config
        self.auto = AutoCommit(config.auto_commit, config.auto_commit_interval_ms)
        self.membership = Membership(
            config.group_id or "",
            config.assignors,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
        )
        self.on_assigned: OnPartitions | None = None
        self.on_revoked: OnPartitions | None = None
        self.on_lost: OnPartitions | None = None
        self.dropped: Callable[[TopicPartition], None] = lambda tp: None
        self.failure: Exception | None = None
        self._cluster = cluster
        self._subscription = subscription
        self._changed = changed
        self._run = run
        self._connections = NodeConnections(cluster)
        self._joining: asyncio.Task[tuple[TopicPartition, ...]] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._prepared = False
        self._counts: dict[str, int] = {}
        self._polled_s = time.monotonic()
        self._sent: set[asyncio.Task[None]] = set()
        self._told: deque[tuple[OnCommit, Offsets, Exception | None]] = deque()

    # --- one poll's part --------------------------------------------------------------------------------------

    def polled(self) -> None:
        self._polled_s = time.monotonic()

    @property
    def quiet(self) -> bool:
        """Whether a poll has nothing to do here."""
        busy = self._joining is not None or self._told or self.failure is not None
        return not busy and (self.membership.joined or not self._subscription.subscribed)

    async def step(self) -> None:
        """Goes as far as it can without waiting for others. Raises what ends the membership."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        member = self.membership
        if member.state is State.FENCED:
            raise FencedInstance(self.config.group_instance_id or "")
        if member.lost:
            await self._give_up_lost()
        if self._joining is not None and self._joining.done():
            task, self._joining = self._joining, None
            await self._complete(task.result())
        if member.state is State.UNJOINED and self._joining is None and self._subscription.topics:
            await self._prepare()
            self._joining = asyncio.ensure_future(self._join())
            self._joining.add_done_callback(lambda _: self._changed())
        if self._beating is None or self._beating.done():
            self._beating = asyncio.ensure_future(self._beat())

    async def _give_up_lost(self) -> None:
        self.membership.lost = False
        lost = sorted(self._subscription.partitions)
        self._assign(())
        if lost:
            await self._tell(self.on_lost or self.on_revoked, lost)

    async def _prepare(self) -> None:
        """Before a join: commit, and give up what is not kept through the rebalance."""
        if self._prepared:
            return
        self._prepared = True
        await self._auto_commit_now(self.config.default_api_timeout_ms)
        owned = sorted(self._subscription.partitions)
        topics = self._subscription.topics
        revoked = [tp for tp in owned if tp.topic not in topics] if self.membership.cooperative else owned
        if revoked:
            await self._tell(self.on_revoked, revoked)
            self._assign([tp for tp in self._subscription.partitions if tp not in set(revoked)])

    async def _complete(self, assigned: tuple[TopicPartition, ...]) -> None:
        self._prepared = False
        self.auto.start(_now_ms())
        before = set(self._subscription.partitions)
        revoked = sorted(before - set(assigned))
        if revoked:  # cooperative: what others shall have is free for them in the next round
            await self._auto_commit_now(self.config.default_api_timeout_ms)
            await self._tell(self.on_revoked, revoked)
            self.membership.request_rejoin("gave partitions up")
        self._assign(assigned)
        await self._tell(self.on_assigned, sorted(set(assigned) - before))

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        kept = list(partitions)
        for tp in set(self._subscription.partitions) - set(kept):
            self.dropped(tp)
        self._subscription.set_assigned(kept)

    async def _tell(self, callback: OnPartitions | None, partitions: list[TopicPartition]) -> None:
        if callback is not None:
            await self._run(callback, partitions)

    # --- joining ----------------------------------------------------------------------------------------------

    async def _coordinator(self) -> Connection:
        node = await self._cluster.coordinator(self.membership.group_id)
        return await self._connections.get(node.node_id)

    async def _join(self) -> tuple[TopicPartition, ...]:
        """Joins until it has an assignment. Raises what joining again does not help against."""
        member, config = self.membership, self.config
        while True:
            following = Next.BACK_OFF
            try:
                connection = await self._coordinator()
                owned = sorted(self._subscription.partitions) if member.cooperative else []
                request = member.join_request(sorted(self._subscription.topics), owned)
                patience = max(config.request_timeout_ms, config.max_poll_interval_ms + 5_000)
                following = member.on_join(await connection.call(JOIN_GROUP, request, timeout_ms=patience))
                if following is Next.GO_ON:
                    if member.is_leader:
                        await self._count_partitions()
                    plan = member.sync_request(self._counts)
                    following, assigned = member.on_sync(await connection.call(SYNC_GROUP, plan, timeout_ms=patience))
                    if following is Next.GO_ON:
                        return assigned
            except OdradekError as error:
                if not worth_retrying(error):
                    raise
                logger.info("group %s: joining: %s", member.group_id, error)
                member.request_rejoin("the connection was lost")
                following = Next.FIND_COORDINATOR
            if following is Next.FIND_COORDINATOR:
                self._cluster.forget_coordinator(member.group_id)
            if following is not Next.JOIN_AGAIN:
                await asyncio.sleep(config.retry_backoff_ms / 1000)

    async def _count_partitions(self) -> None:
        found = await self._cluster.topics(
            sorted(self.membership.leader_topics), self._cluster.deadline(), missing_ok=True
        )
        self._counts = {name: len(topic.partitions) for name, topic in found.items()}

    async def look_for_changes(self) -> None:
        """The leader has the group planned anew when a topic has other partitions than the plan knew."""
        if not self.membership.is_leader or not self.membership.joined:
            return
        before = self._counts
        await self._count_partitions()
        if self._counts != before and self.membership.joined:
            self.membership.request_rejoin("the topics' partitions have changed")
            self._changed()

    # --- while it lasts ---------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        member, config = self.membership, self.config
        while True:
            await asyncio.sleep(config.heartbeat_interval_ms / 1000)
            if not member.known or member.state in (State.JOINING, State.FENCED):
                continue
            if (time.monotonic() - self._polled_s) * 1000 > config.max_poll_interval_ms:
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
        if member.on_heartbeat(reply.error_code, generation) is Next.FIND_COORDINATOR:
            self._cluster.forget_coordinator(member.group_id)
        if joined and not member.joined:
            self._changed()

    async def _leave_for_idleness(self) -> None:
        logger.warning(
            "group %s: no poll for more than max_poll_interval_ms (%d): leaving the group. Raise it, or lower "
            "max_poll_records so that each poll brings less work",
            self.membership.group_id,
            self.config.max_poll_interval_ms,
        )
        await self._send_leave("no poll for max_poll_interval_ms")
        self.membership.on_left(lost=True)

    async def _send_leave(self, reason: str) -> None:
        request = self.membership.leave_request(reason)
        if request is None:
            return
        try:
            await (await self._coordinator()).call(LEAVE_GROUP, request, timeout_ms=5_000)
        except OdradekError as error:
            logger.info("group %s: leaving: %s", self.membership.group_id, error)

    async def leave(self, reason: str, timeout_ms: int) -> None:
        """Last commit, callbacks, LeaveGroup."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
            self._joining = None
        if self.membership.lost:
            await self._give_up_lost()
        else:
            await self._auto_commit_now(timeout_ms)
            owned = sorted(self._subscription.partitions)
            if owned and self._subscription.subscribed:
                await self._tell(self.on_revoked, owned)
        self._assign(())
        await self._send_leave(reason)
        self.membership.on_left(lost=False)
        self._prepared = False

    async def close(self) -> None:
        tasks: list[asyncio.Task[Any]] = [one for one in (self._joining, self._beating, *self._sent) if one is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.close()

    # --- commits ----------------------------------------------------------------------------------------------

    async def _send_commit(self, offsets: Offsets) -> None:
        """One try. Raises why it was not taken."""
        member = self.membership
        instance_id = None
        if self._subscription.subscribed:
            if not member.known or member.lost:
                raise CommitFailed("this consumer is no member of the group (any more)")
            instance_id = member.instance_id
        generation = member.generation if self._subscription.subscribed else -1
        member_id = member.member_id if self._subscription.subscribed else ""
        request = commit_request(
            member.group_id, offsets, generation=generation, member_id=member_id, instance_id=instance_id
        )
        connection = await self._coordinator()
        reply = await connection.call(OFFSET_COMMIT, request, ceiling=NAMES_CEILING)
        failure = commit_failure(
            reply, instance_id=instance_id, still_member=member.known and generation == member.generation
        )
        if failure is not None:
            if self._subscription.subscribed and generation == member.generation:
                try:
                    member.on_commit_refused(failure.code)
                except FencedInstance as fenced:
                    self.failure = fenced
            raise failure

    async def commit(self, offsets: Offsets, timeout_ms: int | None = None) -> None:
        """Blocks until taken; what passes is tried again. Earlier asynchronous commits are answered first."""
        if self.config.group_id is None:
            raise InvalidGroupId("committing")
        if self._sent:
            await asyncio.gather(*self._sent, return_exceptions=True)
        await self.callbacks()
        if not offsets:
            return

        async def attempt() -> OdradekError | None:
            try:
                await self._send_commit(offsets)
            except (CommitFailed, RebalanceInProgress) as error:
                return error
            except OdradekError:
                self._cluster.forget_coordinator(self.membership.group_id)
                raise
            return None

        what = f"committing offsets of group {self.membership.group_id}"
        failure = await self._cluster.retrying(what, attempt, self._cluster.deadline(timeout_ms))
        if failure is not None:
            raise failure

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> None:
        """One try, in the order of the calls; ``callback`` is called by a later poll, commit or close."""
        if self.config.group_id is None:
            raise InvalidGroupId("committing")
        before = tuple(self._sent)

        async def send() -> None:
            failure: Exception | None = None
            try:
                if not self._connected():
                    await asyncio.gather(*before, return_exceptions=True)  # so that none overtakes another
                if offsets:
                    await self._send_commit(offsets)
            except OdradekError as error:
                self._cluster.forget_coordinator(self.membership.group_id)
                passing = worth_retrying(error) and not isinstance(error, RebalanceInProgress)
                failure = RetriableCommitFailed(error) if passing else error
                failure.__cause__ = error if passing else None
            if callback is not None:
                self._told.append((callback, offsets, failure))
                self._changed()
            elif failure is not None:
                logger.warning("group %s: asynchronous commit: %s", self.membership.group_id, failure)

        task = asyncio.ensure_future(send())
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    def _connected(self) -> bool:
        return self._cluster.knows_coordinator(self.membership.group_id)

    async def callbacks(self) -> None:
        while self._told:
            callback, offsets, failure = self._told.popleft()
            await self._run(callback, offsets, failure)

    def auto_commit_if_due(self) -> None:
        if not self.auto.take(_now_ms()):
            return
        if self._subscription.subscribed and not self.membership.known:
            return

        def answered(offsets: Offsets, failure: Exception | None) -> None:
            if failure is not None:
                logger.warning("group %s: automatic commit: %s", self.membership.group_id, failure)
                if isinstance(failure, RetriableCommitFailed):
                    self.auto.sooner(_now_ms(), self.config.retry_backoff_ms)

        self.commit_async(self._subscription.positions(), answered)

    async def _auto_commit_now(self, timeout_ms: int) -> None:
        """At revocation and close; a failure is told, and does not stop either."""
        offsets = self._subscription.positions()
        if not self.auto.enabled or not offsets or (self._subscription.subscribed and not self.membership.known):
            return
        try:
            await self.commit(offsets, timeout_ms)
        except OdradekError as error:
            logger.warning("group %s: last automatic commit: %s", self.membership.group_id, error)

    async def flush(self, deadline: Deadline) -> None:
        """Waits for asynchronous commits, and calls their callbacks."""
        if self._sent:
            await asyncio.wait(tuple(self._sent), timeout=deadline.left_ms / 1000)
        await self.callbacks()


def _now_ms() -> float:
    return time.monotonic() * 1000
