"""An offset store in ZooKeeper (``client/group/offset_store``), which a consumer uses from its event loop.

One thread does the blocking work, one call after another. A task opens the first connection; afterwards kazoo connects
again by itself. If a session expires, kazoo first reports this and then begins the next session. So the store gives up
the partitions of the expired session before the next session owns any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from odradek.client.errors import OffsetStoreUnreachable
from odradek.client.group.errors import CommitFailed
from odradek.client.group.offset_store import OnLost, StoreOpener, StoreSettings
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.zookeeper.config import ZooKeeperConfig, config_of, file_settings
from odradek.zookeeper.connection import ZooKeeperConnection, check_installed
from odradek.zookeeper.consumer_session import ConsumerSession
from odradek.zookeeper.errors import OffsetsChanged, ZooKeeperUnreachable
from odradek.zookeeper.layout import name_problem

logger = logging.getLogger("odradek.consumer")

T = TypeVar("T")
_PAUSE_S = 0.1
_REOPEN_S = 1.0


def offsets_opener(settings: StoreSettings) -> StoreOpener:
    """Checks the settings and returns the function that makes the store. The store connects when it is first used.

    Raises ConfigError for wrong settings, and if kazoo is not installed."""
    check_installed()
    if problem := name_problem(settings.group_id):
        raise ConfigError(f"group_id {settings.group_id!r}: no path of ZooKeeper can hold this name: {problem}")
    timeout = str(settings.session_timeout_ms)
    names = ("zookeeper.session.timeout.ms", "zookeeper.connection.timeout.ms")
    file = None if settings.config is None else Path(settings.config)
    config = config_of(settings.connect, file_settings(file, "zookeeper_config") | dict.fromkeys(names, timeout))
    return lambda on_lost: ZooKeeperOffsets(config, settings.group_id, on_lost)


class ZooKeeperOffsets:
    """Implements ``ConsumerOffsetStore``. Belongs to the event loop that makes it."""

    def __init__(self, config: ZooKeeperConfig, group: str, on_lost: OnLost) -> None:
        self._config = config
        self._group = group
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="odradek-zookeeper")
        self.connection = ZooKeeperConnection(config)
        self.session: ConsumerSession | None = None
        self._opening: asyncio.Task[None] | None = None
        self._failure: OdradekError | None = None
        self._answers = asyncio.Event()
        self._order = asyncio.Lock()
        self._owned: frozenset[TopicPartition] = frozenset()
        self._unreleased: frozenset[TopicPartition] = frozenset()
        self._releasing: asyncio.Task[None] | None = None
        self._requested: list[set[TopicPartition]] = []
        """The partitions of each running ``take_ownership``, without those that were released meanwhile."""
        self.expiries = 0
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the session is connected to a node of ZooKeeper."""
        return self._answers.is_set()

    def owns(self, tp: TopicPartition) -> bool:
        """Whether this consumer owns the partition."""
        return tp in self._owned

    # --- the connection ---------------------------------------------------------------------------------------

    async def _wait_for_session(self, timeout_ms: float) -> ConsumerSession:
        """Waits for the connection. Raises OffsetStoreUnreachable after the timeout.

        Raises ConfigError or NoPermission as soon as an attempt to connect fails with it."""
        if self._opening is None and self.session is None:
            self._failure = None
            self._opening = asyncio.ensure_future(self._open())
        try:
            async with asyncio.timeout(max(timeout_ms, 1) / 1000):
                await self._answers.wait()
        except TimeoutError:
            if self._failure is not None:
                raise self._failure from None
            away = f"ZooKeeper {self._config.hosts} is not connected"
            raise OffsetStoreUnreachable(f"{away}, after a wait of {round(timeout_ms)} ms") from None
        if self.session is None:
            assert self._failure is not None
            raise self._failure
        return self.session

    async def _open(self) -> None:
        """Opens the first connection. Repeats the attempt while no node responds; ends after any other error."""
        while True:
            try:
                await self._loop.run_in_executor(self._thread, self.connection.open)
                break
            except ZooKeeperUnreachable as error:
                self._failure = OffsetStoreUnreachable(str(error))
                await asyncio.sleep(_REOPEN_S)
                self.connection = ZooKeeperConnection(self._config)
            except OdradekError as error:
                self._failure, self._opening = error, None
                self.connection = ZooKeeperConnection(self._config)
                self._answers.set()  # the waiting calls raise the error
                self._loop.call_soon(self._answers.clear)
                return
        self.session = ConsumerSession(self.connection, self._group)
        self._failure, self._opening = None, None
        self.connection.client.add_listener(self._on_state)
        self._on_connected(bool(self.connection.client.connected))

    def _on_state(self, state: str) -> None:
        """Passes an event of the session to the loop. Runs on kazoo's thread, in the order of the events."""
        try:
            if state in ("CONNECTED", "SUSPENDED"):
                self._loop.call_soon_threadsafe(self._on_connected, state == "CONNECTED")
            else:
                self._loop.call_soon_threadsafe(self._on_expired)
        except RuntimeError:
            logger.debug("the loop has ended")

    def _on_connected(self, is_connected: bool) -> None:
        (self._answers.set if is_connected else self._answers.clear)()

    def _on_expired(self) -> None:
        self._answers.clear()
        if self._closed:
            return
        self.expiries += 1
        self._unreleased = frozenset()
        if self._owned:
            logger.warning("group %s: the session at ZooKeeper %s has expired", self._group, self._config.hosts)
        self._lose(self._owned)

    def _lose(self, partitions: frozenset[TopicPartition]) -> None:
        lost = partitions & self._owned
        self._owned -= lost
        if lost:
            self._on_lost(lost)

    async def _run(self, work: Callable[[ConsumerSession], T], timeout_ms: float | None = None) -> T:
        """Does blocking work on the store's thread. Raises OffsetStoreUnreachable and the errors of ``work``."""
        session = await self._wait_for_session(self._config.timeout_ms if timeout_ms is None else timeout_ms)
        try:
            return await self._loop.run_in_executor(self._thread, work, session)
        except ZooKeeperUnreachable as error:
            raise OffsetStoreUnreachable(str(error)) from error

    async def _run_in_one_session(self, work: Callable[[ConsumerSession], T]) -> T:
        """Does the same as ``_run``, but raises OffsetStoreUnreachable if the session expires meanwhile."""
        expiries = self.expiries
        result = await self._run(work)
        if self.expiries != expiries:
            raise OffsetStoreUnreachable(f"the session at ZooKeeper {self._config.hosts} has expired")
        return result

    # --- owners -----------------------------------------------------------------------------------------------

    async def take_ownership(
        self, partitions: Iterable[TopicPartition], topics: Iterable[str]
    ) -> dict[TopicPartition, str]:
        """Makes this consumer the owner of all partitions, or of none.

        Returns the other owners by partition; empty after a success."""
        wanted, names = list(partitions), list(topics)
        still_wanted = set(wanted)
        self._unreleased -= still_wanted
        self._requested.append(still_wanted)
        try:
            owners = await self._run_in_one_session(lambda session: session.take_ownership(wanted, names))
        finally:
            self._requested = [one for one in self._requested if one is not still_wanted]
        if not owners:
            self._owned |= still_wanted
        return owners

    async def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives partitions up. Without a connection, a task deletes the owner znodes when the connection is back."""
        given_up = frozenset(partitions)
        self._owned -= given_up
        self._unreleased |= given_up
        for wanted in self._requested:
            wanted -= given_up
        if self.session is None:
            self._unreleased = frozenset()  # this consumer has never owned a partition
        elif self.is_connected:
            await self._release()
        if self._unreleased and (self._releasing is None or self._releasing.done()):
            self._releasing = asyncio.ensure_future(self._release_later())

    async def _release(self) -> None:
        given_up = self._unreleased
        try:
            await self._run(lambda session: session.release(given_up))
        except OffsetStoreUnreachable as error:
            logger.info("group %s: giving up partitions: %s", self._group, error)
        except OdradekError as error:
            logger.warning("group %s: giving up partitions: %s", self._group, error)
            self._unreleased -= given_up
        else:
            self._unreleased -= given_up

    async def _release_later(self) -> None:
        while self._unreleased:
            await self._answers.wait()
            await self._release()
            await asyncio.sleep(_PAUSE_S)

    # --- offsets ----------------------------------------------------------------------------------------------

    async def read(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the stored offsets. A later commit fails if another writer has changed them since this read."""
        wanted = list(partitions)
        return await self._run_in_one_session(lambda session: session.read(wanted))

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the stored offsets. Later commits do not depend on this read."""
        wanted = list(partitions)
        return await self._run(lambda session: session.committed(wanted))

    async def commit(self, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Stores all offsets in one transaction, or none. Commits take effect in the order of the calls.

        Waits for the connection. If ZooKeeper's reply is lost, the next attempt reads whether the offsets are stored.
        Raises CommitFailed if another writer has changed an offset, another consumer owns a partition, or the session
        has expired. Raises OffsetStoreUnreachable after the timeout: the outcome may be unknown then."""
        chosen = dict(offsets)
        end_s = time.monotonic() + timeout_ms / 1000
        async with self._order:
            while True:
                left_ms = (end_s - time.monotonic()) * 1000
                try:
                    await self._run(lambda session: session.commit(chosen), left_ms)
                    return
                except OffsetsChanged as error:
                    remedy = "Commit again if this consumer alone may change these offsets"
                    if error.partitions & self._owned:
                        remedy = "The next poll reads these partitions again from their offsets in ZooKeeper"
                    self._lose(error.partitions)
                    raise CommitFailed(str(error), remedy) from error
                except OffsetStoreUnreachable:
                    if end_s - time.monotonic() <= _PAUSE_S:
                        raise
                    await asyncio.sleep(_PAUSE_S)

    # --- the end ----------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Ends the session; the znodes of this consumer disappear with it."""
        self._closed = True
        self._owned = frozenset()
        tasks = [task for task in (self._opening, self._releasing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(self._config.timeout_ms / 1000):
                await self._loop.run_in_executor(self._thread, self.connection.close)
        except TimeoutError:
            logger.warning("ZooKeeper %s did not answer at the end of the session", self._config.hosts)
        finally:
            self._thread.shutdown(wait=False)
