"""The part of a group membership that both group protocols share: commits, callbacks, leaving."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.errors import OffsetStoreUnreachable
from odradek.client.group.commits import AutoCommit, Offsets, OnCommit, commit_failure, commit_request, stored_by
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.direct_commit import BegunCommit, DirectCommits, Identity
from odradek.client.group.errors import (
    CommitFailed,
    InvalidGroupId,
    RebalanceInProgress,
    RetriableCommitFailed,
    Wakeup,
)
from odradek.client.group.offset_storage import OffsetStorage
from odradek.client.group.subscription import SubscriptionState
from odradek.client.offset_requests import NAMES_CEILING
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.net.node_connections import NodeConnections
from odradek.wire.api_keys import OFFSET_COMMIT

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse

    from odradek.wire.api_keys import ApiKey

logger = logging.getLogger("odradek.consumer")
LEAVE_TIMEOUT_MS = 5_000
_MOST_POSTED = 1_000
"""So many asynchronous commits may wait for the loop."""

OnPartitions = Callable[[list[TopicPartition]], object]


class Coordination(ABC):
    """Base class of both group protocols.

    ``run`` calls the user's callbacks, on the caller's thread or on the loop. ``changed`` wakes a waiting poll.
    """

    # Subclasses use _answered_commits, _assign, _call_back, _changed, _cluster, _commit_before_revocation,
    # _connections, _coordinator, _give_up_lost, _leave_group, _on_commit_refused, _on_lost_given_up, _poll_is_late,
    # _polled_s, _send_leave_request, _stop_joining, _subscription, _tasks and _warn_of_idleness.

    def __init__(
        self,
        config: ConsumerConfig,
        cluster: Cluster,
        subscription: SubscriptionState,
        changed: Callable[[], None],
        run: Callable[..., Awaitable[object]],
    ) -> None:
        self.config = config
        self.group_id = config.group_id or ""
        self.auto = AutoCommit(config.auto_commit, config.auto_commit_interval_ms, time.monotonic)
        self.on_assigned: OnPartitions | None = None
        self.on_revoked: OnPartitions | None = None
        self.on_lost: OnPartitions | None = None
        self.dropped: Callable[[TopicPartition], None] = lambda tp: None
        self.wakeable: Callable[[], AbstractContextManager[None]] = nullcontext
        """Wraps the waits of a user's call, so that they raise Wakeup."""
        self.failure: Exception | None = None
        self.leaving = False
        """Whether the member is leaving or the consumer is closing: a poll of another task then does nothing."""
        self.storage = OffsetStorage(config, changed)
        self._to_reassign: frozenset[TopicPartition] = frozenset()
        """Partitions that this consumer no longer owns in ZooKeeper, until the poll assigns them again."""
        self._cluster = cluster
        self._subscription = subscription
        self._changed = changed
        self._run = run
        self._connections = NodeConnections(cluster)
        self._polled_s = time.monotonic()
        self._async_commits: set[asyncio.Task[None]] = set()
        self._commit_tasks: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()
        self.direct = DirectCommits(self.group_id, config.client_id)
        self._committed_on: BrokerConnection | None = None
        self._loop = asyncio.get_running_loop()
        self._posted = 0  # counted on the thread of the caller
        self._started = 0  # counted on the loop
        self._answered_commits: deque[tuple[OnCommit, Offsets, Exception | None]] = deque()

    # --- defined by each protocol -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def quiet(self) -> bool:
        """Whether a poll has nothing to do for the group."""

    @property
    @abstractmethod
    def in_group(self) -> bool:
        """Whether the coordinator may know this member."""

    @property
    @abstractmethod
    def lost(self) -> bool:
        """Whether this member is no longer in the group and has not given up its partitions yet."""

    @property
    @abstractmethod
    def end_error(self) -> KafkaError | None:
        """The error that has ended this membership; None otherwise."""

    def is_leaving(self) -> bool:
        """Returns ``leaving``. It is a method, because a type checker assumes that an attribute does not change
        during an ``await``."""
        return self.leaving

    @abstractmethod
    async def step(self) -> None:
        """Does the group work of one poll; waits for no other member. Raises the error that ends the membership."""

    @abstractmethod
    def on_subscription_changed(self, reason: str) -> None:
        """Makes a later request report the new subscription to the coordinator."""

    @abstractmethod
    def enforce_rebalance(self, reason: str) -> None:
        """Requests a rebalance, if the protocol allows members to do that."""

    @abstractmethod
    async def look_for_changes(self) -> None:
        """Called after each lookup of the topics."""

    @abstractmethod
    def member_of(self) -> Identity:
        """Returns this member's identity at the coordinator; Identity() outside the group."""

    @abstractmethod
    def _on_commit_refused(self, sent_as: Identity, code: ErrorCode) -> None:
        """Handles an error code of a commit, which may end or change the membership."""

    @abstractmethod
    async def _stop_joining(self) -> None:
        """Cancels a running join before the member leaves."""

    @abstractmethod
    async def _leave_group(self, reason: str) -> None:
        """Sends the request to leave, if one is needed."""

    @abstractmethod
    def _on_lost_given_up(self) -> None:
        """Called when the lost partitions are given up."""

    @abstractmethod
    def _tasks(self) -> list[asyncio.Task[object]]:
        """Returns the background tasks."""

    # --- polls ------------------------------------------------------------------------------------------------

    def note_poll(self) -> None:
        self._polled_s = time.monotonic()

    def _poll_is_late(self) -> bool:
        return (time.monotonic() - self._polled_s) * 1000 > self.config.max_poll_interval_ms

    async def _give_up_lost(self) -> None:
        self._on_lost_given_up()
        lost = sorted(self._subscription.partitions)
        await self._assign(())
        if lost:
            await self._call_back(self.on_lost or self.on_revoked, lost)

    async def _commit_before_revocation(self) -> bool:
        """Makes the automatic commit. Returns False if the group has removed this member by then.

        The reply to the commit, or to a heartbeat during the commit, can say that. Then other members may own all
        partitions, and this method gives them up as lost."""
        await self.auto_commit_now(self.config.default_api_timeout_ms)
        if self.lost:
            await self._give_up_lost()
            return False
        return True

    async def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Replaces the assignment, and gives up the ownership of the partitions that are no longer assigned."""
        kept = list(partitions)
        gone = set(self._subscription.partitions) - set(kept)
        for tp in gone:
            self.dropped(tp)
        self._to_reassign -= gone
        self._subscription.set_assigned(kept)
        await self.storage.release(gone)

    @property
    def has_lost_ownership(self) -> bool:
        """Whether the next poll has to give up or reassign partitions that this consumer has lost in ZooKeeper."""
        return bool(self.storage.lost or self._to_reassign)

    def _check_ownership(self, offsets: Offsets) -> None:
        """Raises CommitFailed for partitions that this consumer no longer owns in ZooKeeper."""
        lost = (self.storage.lost | self._to_reassign) & offsets.keys()
        if lost:
            names = ", ".join(map(str, sorted(lost)))
            raise CommitFailed(
                f"this consumer no longer owns {names} in ZooKeeper, because its session has expired or another writer "
                "changed offsets",
                "The next poll gives these partitions up and tries to own them again",
            )

    async def reassign_lost_partitions(self) -> None:
        """Gives up the partitions that this consumer no longer owns, and assigns them again, without a position.

        If a callback raises, the next poll does the rest."""
        lost = self.storage.take_lost() & self._subscription.partitions.keys()
        if lost:
            for tp in lost:
                self.dropped(tp)
            self._subscription.set_assigned([tp for tp in self._subscription.partitions if tp not in lost])
            self._to_reassign |= lost
            if self._subscription.subscribed:
                await self._call_back(self.on_lost or self.on_revoked, sorted(lost))
        if again := self._to_reassign:
            self._to_reassign = frozenset()
            self._subscription.set_assigned([*self._subscription.partitions, *sorted(again)])
            if self._subscription.subscribed:
                await self._call_back(self.on_assigned, sorted(again))

    async def _call_back(self, callback: OnPartitions | None, partitions: list[TopicPartition]) -> None:
        if callback is not None:
            await self._run(callback, partitions)

    async def _coordinator(self) -> BrokerConnection:
        node = await self._cluster.coordinator(self.group_id)
        return await self._connections.get(node.node_id)

    # --- leaving ----------------------------------------------------------------------------------------------

    async def _send_leave_request(self, api_key: ApiKey[object], request: Mapping[str, object]) -> None:
        """Sends a request to leave; waits for its reply, at most ``LEAVE_TIMEOUT_MS``."""
        try:
            connection = await self._coordinator()
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):  # limits the wait for the end of a throttle time, too
                await connection.call(api_key, request, timeout_ms=LEAVE_TIMEOUT_MS)
        except (OdradekError, TimeoutError) as error:
            logger.info("group %s: leaving: %s", self.group_id, error or "no answer")

    def _warn_of_idleness(self) -> None:
        logger.warning(
            "group %s: no poll for more than max_poll_interval_ms (%d): leaving the group. Increase "
            "max_poll_interval_ms, or decrease max_poll_records",
            self.group_id,
            self.config.max_poll_interval_ms,
        )

    async def leave(self, reason: str, timeout_ms: int, *, commit: bool) -> None:
        """Leaves the group: makes the automatic commit if ``commit``, calls ``on_revoked``, sends the request.

        A lost member makes no commit, and calls ``on_lost`` instead."""
        before, self.leaving = self.leaving, True
        try:
            await self._stop_joining()
            if self.lost:
                await self._give_up_lost()
            else:
                if commit:
                    await self.auto_commit_now(timeout_ms)
                owned = sorted(self._subscription.partitions)
                if owned and self._subscription.subscribed:
                    await self._call_back(self.on_revoked, owned)
            await self._assign(())
            await self._leave_group(reason)
        finally:
            self.leaving = before

    async def close(self) -> None:
        tasks = [*self._tasks(), *self._async_commits, *self._commit_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._connections.close()
        await self.storage.close()

    # --- commits ----------------------------------------------------------------------------------------------

    def commit_directly(self, offsets: Offsets, limit_ms: int | None) -> BegunCommit | bool:
        """Makes a commit on the thread of the caller, if that is possible. Returns True if it is done, False if the
        loop has to make it, and a commit that is sent if the loop has to read its reply."""
        sent_as = self.member_of() if self._subscription.subscribed else Identity()
        if self._subscription.subscribed and (self.end_error is not None or not sent_as.member_id):
            return False
        if self._subscription.subscribed and self.member_of() != sent_as:
            return False  # the loop changes it at this moment
        begun = self.direct.begin(offsets, sent_as, NAMES_CEILING)
        if begun is None:
            return False

        def unanswered(reply: asyncio.Future[memoryview]) -> None:
            begun.reply = reply
            begun.task = self._start_commit(offsets, self._cluster.deadline(limit_ms), begun)

        done = self.direct.send(begun, unanswered)
        return bool(done) if done is None or done else begun

    def post_commit(self, offsets: Offsets, callback: OnCommit | None) -> bool:
        """Makes ``commit_async`` run on the loop, and returns at once. Returns False if the caller has to wait until it
        has run: otherwise a program that only commits could fill the memory. Runs on the thread of the caller."""
        if self.config.group_id is None:
            raise InvalidGroupId("committing")
        if self._posted - self._started >= _MOST_POSTED:
            return False
        self._loop.call_soon_threadsafe(self._start_posted, offsets, callback)
        self._posted += 1
        return True

    def _start_posted(self, offsets: Offsets, callback: OnCommit | None) -> None:
        self._started += 1
        self.commit_async(offsets, callback)

    @property
    def may_commit_directly(self) -> bool:
        """Whether the next commit has nothing to wait for, and the coordinator's connection is lent. Thread-safe."""
        is_first = not (self._async_commits or self._commit_tasks or self._answered_commits)
        is_first = is_first and self._posted == self._started
        return is_first and self.storage.store is None and not self.leaving and self.direct.is_possible

    async def _send_commit(self, offsets: Offsets, timeout_ms: int, begun: BegunCommit | None = None) -> None:
        """Sends one commit; with ``offsets_storage=zookeeper``, stores it there instead, within ``timeout_ms``.

        ``begun``: a commit that is sent already. Raises the error of the commit."""
        sent_as = Identity()
        if begun is not None:
            sent_as = begun.sent_as
        elif self._subscription.subscribed:
            if (end_error := self.end_error) is not None:
                raise end_error
            sent_as = self.member_of()
            if not sent_as.member_id:
                raise CommitFailed("this consumer is not a member of the group")
        if self.storage.is_only_in_store:
            assert self.storage.store is not None
            self._check_ownership(offsets)
            await self.storage.store.commit({tp: one.offset for tp, one in offsets.items()}, timeout_ms)
            return
        if begun is not None:
            assert begun.reply is not None
            connection = begun.connection
            reply: OffsetCommitResponse | None = connection.decoded(OFFSET_COMMIT, begun.version, await begun.reply)
        else:
            async with self._order:  # keeps the order of the calls while one call looks up the coordinator
                connection = await self._coordinator()
            reply = await self._reply_to_commit(connection, offsets, sent_as)
        self._committed_on = connection
        if reply is None:
            return
        failure = commit_failure(
            reply, instance_id=sent_as.instance_id, still_member=self.in_group,
            alone=not self._subscription.subscribed,
        )  # fmt: skip
        if self.storage.is_dual and (stored := stored_by(reply, offsets)):
            await self.storage.copy_commit(stored)
        if failure is not None:
            if self._subscription.subscribed:
                self._on_commit_refused(sent_as, failure.code)
            raise failure

    async def _reply_to_commit(
        self, connection: BrokerConnection, offsets: Offsets, sent_as: Identity
    ) -> OffsetCommitResponse | None:
        """Sends a commit at once. Returns its reply, or None if all offsets are stored and no store needs them."""
        version = connection.version(OFFSET_COMMIT, NAMES_CEILING)
        if self.storage.store is None and (packed := self.direct.packed(offsets, sent_as, version)) is not None:
            data = await connection.exchange(OFFSET_COMMIT, version, packed[0])
            return None if data[4:] == packed[1] else connection.decoded(OFFSET_COMMIT, version, data)
        generation, member_id, instance_id = sent_as
        request = commit_request(
            self.group_id, offsets, generation=generation, member_id=member_id, instance_id=instance_id
        )
        return await connection.call(OFFSET_COMMIT, request, ceiling=NAMES_CEILING)

    async def commit(self, offsets: Offsets, timeout_ms: int | None = None, begun: BegunCommit | None = None) -> None:
        """Waits for earlier asynchronous commits, then commits; retries retriable errors.

        ``begun``: the first attempt, which ``commit_directly`` has sent.

        A wakeup ends the retries and raises Wakeup. The coordinator may have stored the commit by then."""
        if self.config.group_id is None:
            raise InvalidGroupId("committing")
        if self._async_commits:
            with self.wakeable():
                await asyncio.wait(tuple(self._async_commits))
        await self.callbacks()
        if not offsets:
            return

        deadline = self._cluster.deadline(timeout_ms)
        # The first attempt is sent even if a wakeup is pending, as in Java.
        first = [(None if begun is None else begun.task) or self._start_commit(offsets, deadline)]

        async def attempt() -> OdradekError | None:
            try:
                await asyncio.shield(first.pop() if first else self._start_commit(offsets, deadline))
            except (CommitFailed, RebalanceInProgress) as error:
                return error
            except OdradekError as error:
                self._on_coordinator_failure(error)
                raise
            return None

        what = f"committing offsets of group {self.group_id}"
        with self.wakeable():
            failure = await self._cluster.retry(what, attempt, deadline)
        if failure is not None:
            raise failure
        if self._committed_on is not None:
            self.direct.lend(self._committed_on)

    def _start_commit(
        self, offsets: Offsets, deadline: Deadline, begun: BegunCommit | None = None
    ) -> asyncio.Task[None]:
        """Starts a commit in a task that continues after its caller is cancelled.

        So the reply is handled in any case. If the task ended with its caller, no timeout would close a connection
        without a reply, and the group's later requests would wait on this connection."""

        def done(task: asyncio.Task[None]) -> None:
            self._commit_tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.debug("group %s: commit: %s", self.group_id, error)

        task = asyncio.ensure_future(self._send_commit(offsets, deadline.left_ms, begun))
        self._commit_tasks.add(task)
        task.add_done_callback(done)
        return task

    def commit_async(self, offsets: Offsets, callback: OnCommit | None) -> None:
        """Sends one commit, in the order of the calls; a later poll, commit or close calls ``callback``."""
        if self.config.group_id is None:
            raise InvalidGroupId("committing")

        async def send() -> None:
            failure: Exception | None = None
            try:
                if offsets:
                    await self._send_commit(offsets, self.config.request_timeout_ms)
            except OdradekError as error:
                self._on_coordinator_failure(error)
                passing = worth_retrying(error) and not isinstance(error, RebalanceInProgress)
                failure = RetriableCommitFailed(error) if passing else error
                failure.__cause__ = error if passing else None
            if callback is not None:
                self._answered_commits.append((callback, offsets, failure))
                self._changed()
            elif failure is not None:
                logger.warning("group %s: asynchronous commit: %s", self.group_id, failure)

        task = asyncio.ensure_future(send())
        self._async_commits.add(task)
        task.add_done_callback(self._async_commits.discard)

    def _on_coordinator_failure(self, error: OdradekError) -> None:
        if isinstance(error, OffsetStoreUnreachable):
            return
        if not isinstance(error, KafkaError) or error.code is not ErrorCode.stale_member_epoch:
            self._cluster.forget_coordinator(self.group_id)

    async def callbacks(self) -> None:
        while self._answered_commits:
            callback, offsets, failure = self._answered_commits.popleft()
            await self._run(callback, offsets, failure)

    def auto_commit_if_due(self) -> None:
        if not self.auto.take():
            return
        if self._subscription.subscribed and not self.in_group:
            return

        def answered(offsets: Offsets, failure: Exception | None) -> None:
            if failure is not None:
                logger.warning("group %s: automatic commit: %s", self.group_id, failure)
                if isinstance(failure, RetriableCommitFailed):
                    self.auto.sooner(self.config.retry_backoff_ms)

        self.commit_async(self._subscription.positions(), answered)

    async def auto_commit_now(self, timeout_ms: int) -> None:
        """Makes the automatic commit before a rebalance or close.

        Raises only Wakeup. After a Wakeup the next poll commits again. Other errors are logged and do not stop the
        rebalance or close."""
        offsets = self._subscription.positions()
        if not self.auto.enabled or not offsets or (self._subscription.subscribed and not self.in_group):
            return
        try:
            await self.commit(offsets, timeout_ms)
        except Wakeup:
            raise
        except OdradekError as error:
            logger.warning("group %s: last automatic commit: %s", self.group_id, error)

    async def flush(self, deadline: Deadline) -> None:
        """Waits for asynchronous commits and calls their callbacks."""
        if self._async_commits:
            await asyncio.wait(tuple(self._async_commits), timeout=deadline.left_ms / 1000)
        await self.callbacks()
