"""A consumer as a member of a KIP-848 group: the coordinator sends the assignment in replies to heartbeats."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from uuid import UUID, uuid4

from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.errors import UnsupportedVersion
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.coordination import Coordination
from odradek.client.group.direct_commit import Identity
from odradek.client.group.kip848_membership import NO_PROTOCOL, Kip848Membership, Kip848State, NextHeartbeat, Partitions
from odradek.client.group.subscription import SubscriptionState
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import CONSUMER_GROUP_HEARTBEAT
from odradek.wire.schemas import milliseconds

logger = logging.getLogger("odradek.consumer")

PATTERNS_FROM = 1


class Kip848Coordination(Coordination):
    """The work of ``group_protocol=consumer``. A task sends the heartbeats; polls give up and take partitions."""

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: SubscriptionState,
        changed: Callable[[], None],
        run: Callable[..., Awaitable[object]],
    ) -> None:
        super().__init__(config, cluster, subscription, changed, run)
        self.membership = Kip848Membership(
            self.group_id,
            str(uuid4()),
            rebalance_timeout_ms=config.max_poll_interval_ms,
            instance_id=config.group_instance_id,
            rack=config.client_rack or None,
            assignor=config.group_remote_assignor or None,
        )
        self._names: dict[UUID, str] = {}
        self._names_task: asyncio.Task[None] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._next_s = 0.0
        self._not_before_s = 0.0
        self._asked = False

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        settled = self.membership.state in (Kip848State.STABLE, Kip848State.ACKNOWLEDGING, Kip848State.JOINING)
        return not self._answered_commits and self.failure is None and (settled or not self._subscription.subscribed)

    @property
    def in_group(self) -> bool:
        return self.membership.in_group

    @property
    def lost(self) -> bool:
        return self.membership.state in (Kip848State.LOST, Kip848State.FATAL)

    @property
    def end_error(self) -> KafkaError | None:
        return self.membership.failure

    def member_of(self) -> Identity:
        member = self.membership
        return Identity(member.epoch, member.member_id, member.instance_id) if member.in_group else Identity()

    def _on_commit_refused(self, sent_as: Identity, code: ErrorCode) -> None:
        if self.membership.on_commit_refused(code):
            self._request_heartbeat()

    def on_subscription_changed(self, reason: str) -> None:
        self.membership.subscribe(self._subscription.topics, self._subscription.server_pattern)
        self._wake.set()

    def enforce_rebalance(self, reason: str) -> None:
        logger.warning("enforce_rebalance(): under group_protocol=consumer the coordinator decides when to rebalance")

    async def look_for_changes(self) -> None:
        """Does nothing: the coordinator looks for changes."""

    def _request_heartbeat(self) -> None:
        self._asked = True
        self._wake.set()

    def _on_lost_given_up(self) -> None:
        self.membership.on_lost_given_up()

    def _tasks(self) -> list[asyncio.Task[object]]:
        return [one for one in (self._heartbeat_task, self._names_task) if one is not None]

    # --- polls ------------------------------------------------------------------------------------------------

    async def step(self) -> None:
        if self.is_leaving():
            return
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        member = self.membership
        if self.lost:
            await self._give_up_lost()
        if (end_error := self.end_error) is not None:
            raise end_error
        if member.state is Kip848State.OUTSIDE:
            self.on_subscription_changed("joining")
            member.join()
        if member.state is Kip848State.RECONCILING:
            await self._reconcile()
        if self.is_leaving():
            return
        if self._heartbeat_task is None:
            self._heartbeat_task = asyncio.ensure_future(self._send_heartbeats())
        elif self._heartbeat_task.done():
            task, self._heartbeat_task = self._heartbeat_task, None
            task.result()
        self._start_names_task()

    async def _reconcile(self) -> None:
        """Gives up partitions that are not in the target assignment, then takes the partitions that are new in it.

        If a callback raises, the next poll calls it again."""
        member = self.membership
        target = {topic_id: numbers for topic_id, numbers in member.target.items() if topic_id in self._names}
        if target == member.owned and target != member.target and not member.is_new:
            return  # the other topics' names are being looked up
        join_number = member.begin_reconciliation()
        if not await self._commit_before_revocation():
            return
        kept = {topic_id: numbers & target.get(topic_id, frozenset()) for topic_id, numbers in member.owned.items()}
        if revoked := sorted(self._partitions(member.owned) - self._partitions(kept)):
            await self._call_back(self.on_revoked, revoked)
        if not member.set_owned(kept, join_number):
            return
        await self._assign(self._partitions(kept))
        before = self._partitions(member.owned)
        await self._assign(sorted(self._partitions(target)))
        self.auto.start()
        await self._call_back(self.on_assigned, sorted(self._partitions(target) - before))
        if member.set_owned(target, join_number):
            member.end_reconciliation(join_number)
            self._wake.set()

    def _partitions(self, partitions: Partitions) -> set[TopicPartition]:
        return {TopicPartition(self._names[topic_id], n) for topic_id, numbers in partitions.items() for n in numbers}

    def _start_names_task(self) -> None:
        """Starts a lookup of topic names, since the coordinator sends topic ids."""
        if (
            self._names_task is None or self._names_task.done()
        ) and not self.membership.target.keys() <= self._names.keys():
            self._names_task = asyncio.ensure_future(self._look_up_names())

    async def _look_up_names(self) -> None:
        while missing := self.membership.target.keys() - self._names.keys():
            try:
                names = await self._cluster.topic_names(missing)
            except OdradekError as error:
                logger.warning("group %s: looking up topic names: %s", self.group_id, error)
                names = {}
            self._names |= names
            if names:
                self._changed()
            if not missing <= self._names.keys():
                await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)

    # --- heartbeats -------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        member = self.membership
        while True:
            self._wake.clear()
            if not member.sends_heartbeats:
                await self._wake.wait()
                continue
            now_s = time.monotonic()
            if self._poll_is_late():
                self._warn_of_idleness()
                await self._send_leave()
                member.on_left(lost=True)
                self._changed()
                continue
            due_s = 0.0 if member.is_due_at_once or self._asked else self._next_s
            due_s = max(due_s, self._not_before_s)
            if due_s <= now_s:
                await self._heartbeat()
                continue
            late_s = self._polled_s + self.config.max_poll_interval_ms / 1000
            try:
                async with asyncio.timeout(max(0.001, min(due_s, late_s + 0.001) - now_s)):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _heartbeat(self) -> None:
        member = self.membership
        after = NextHeartbeat.FIND_COORDINATOR
        try:
            connection = await self._coordinator()
            self._check_version(connection)
            self._asked, join_number, sent_s = False, member.join_number, time.monotonic()
            reply = await connection.call(CONSUMER_GROUP_HEARTBEAT, member.heartbeat_request())
            after = member.on_heartbeat(reply, milliseconds(reply.heartbeat_interval), join_number)
            self._next_s = sent_s + member.heartbeat_interval_ms / 1000
        except OdradekError as error:
            member.on_no_answer()
            if not worth_retrying(error):
                if not isinstance(error, KafkaError):
                    error = KafkaError(ErrorCode.unknown_server_error, str(error))
                member.fail(error)
            logger.info("group %s: heartbeat: %s", self.group_id, error)
        if after is NextHeartbeat.FIND_COORDINATOR:
            self._cluster.forget_coordinator(self.group_id)
        if after in (NextHeartbeat.FIND_COORDINATOR, NextHeartbeat.BACK_OFF):
            self._not_before_s = time.monotonic() + self.config.retry_backoff_ms / 1000
        if member.state in (Kip848State.RECONCILING, Kip848State.LOST, Kip848State.FATAL):
            self._changed()
        self._start_names_task()

    def _check_version(self, connection: BrokerConnection) -> None:
        """Raises UnsupportedVersion if the coordinator lacks the protocol, or the support for a pattern in use."""
        if not connection.supports(CONSUMER_GROUP_HEARTBEAT):
            raise UnsupportedVersion(NO_PROTOCOL)
        if self._subscription.server_pattern is not None and not connection.supports(
            CONSUMER_GROUP_HEARTBEAT, PATTERNS_FROM
        ):
            raise UnsupportedVersion(
                "the coordinator cannot match patterns, which needs Kafka 4.0: pass a compiled pattern, so that the "
                "client matches it"
            )

    # --- leaving ----------------------------------------------------------------------------------------------

    async def _send_leave(self) -> None:
        request = self.membership.leave_request()
        if request is not None:
            await self._send_leave_request(CONSUMER_GROUP_HEARTBEAT, request)

    async def _stop_joining(self) -> None:
        """Does nothing: a join is a heartbeat, which waits for no other member."""

    async def _leave_group(self, reason: str) -> None:
        await self._send_leave()
        self.membership.on_left(lost=False)
