"""The loads of one shard: the first one, one after each failure, and those that are tried again after a delay.

While a shard that has failed waits for its load, the former shard answers reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Generic, Protocol

from odradek.coordinator_runtime.append_errors import is_storage_error
from odradek.coordinator_runtime.loader import Loader, S, ShardLoad
from odradek.coordinator_runtime.services import Services
from odradek.coordinator_runtime.shard_log import ShardLog
from odradek.coordinator_runtime.states import CoordinatorState, next_load
from odradek.coordinator_runtime.timers import Owner
from odradek.core.effects import Request
from odradek.core.errors import KafkaError, StorageError

log = logging.getLogger("odradek.broker")

RELOAD: Hashable = object()
"""The key of the timer of a delayed load among those of the shard."""
RELOAD_MS = 1_000
"""The shortest time between two loads after writes that the disk had no room for: a load may write at its end, and
clients try their requests again soon."""
RELOAD_AFTER_READ_MS = 10_000
"""The time from a load that could not read the log to the next one."""


class _Driver(Owner, Protocol[S]):
    """The driver of the shard, as its loads see it."""

    shard: S
    state: CoordinatorState

    def enter(self, state: CoordinatorState) -> None: ...


class ShardLoads(Generic[S]):
    """Loads the log of a driver's shard. ``on_end`` gets the end of the log that a load has read.

    Durable state changes only in a replay. So a former shard has the durable state of the log, although its other
    state may be ahead of the log.
    """

    __slots__ = ("_driver", "_earliest_ms", "_load", "_log", "_on_end", "_runtime", "former")

    def __init__(
        self, driver: _Driver[S], runtime: Services[S], partition: ShardLog, on_end: Callable[[int], None]
    ) -> None:
        self._driver = driver
        self._runtime = runtime
        self._log = partition
        self._on_end = on_end
        self._load: ShardLoad[S] | None = None
        self._earliest_ms = 0
        self.former: S | None = None

    def begin(self) -> None:
        """Begins a load. Raises IllegalTransition if no load can begin in the driver's state."""
        driver, runtime = self._driver, self._runtime
        driver.enter(next_load(str(driver), driver.state))
        driver.timers.pop(RELOAD, None)
        self.former = None
        try:
            start = self._log.log_start_offset
        except (KafkaError, StorageError) as error:
            self._give_up(error, CoordinatorState.FAILED)
            return
        loader = Loader(driver.shard, str(driver), runtime.new_runs, runtime.long_work)
        steps = loader.take_log(self._log, start, runtime.load_steps.size)
        self._load = ShardLoad(self._log, start, steps, self._finish, self.fail)
        runtime.drive(self._load)

    def begin_after_full_disk(self, former: S) -> None:
        """Begins a load after a failed write, at once or after a delay. Until then the former shard answers reads."""
        now_ms = self._runtime.steady()
        begins_ms = max(now_ms, self._earliest_ms)
        self._earliest_ms = begins_ms + RELOAD_MS
        if begins_ms == now_ms:
            self.begin()
            return
        self.former = former
        self._runtime.timers.set(self._driver, RELOAD, begins_ms)

    def reader_of(self, request: Request[object]) -> S | None:
        """Returns the former shard if it can handle the request, which changes nothing."""
        former = self.former
        return former if former is not None and isinstance(request, former.reads) else None

    def end(self) -> None:
        """Ends the present load and drops the former shard."""
        self.former = None
        if self._load is not None:
            self._load.cancel()

    def _finish(self, end_offset: int) -> None:
        skipped = self._driver.shard.skipped
        self._runtime.skipped_records += skipped.total()
        for reason, count in skipped.items():
            log.warning("%s: records skipped in the load: %d (%s)", self._driver, count, reason)
        self._on_end(end_offset)

    def fail(self, error: Exception) -> None:
        """Ends a load that has failed. After an error of the disk the next load begins later."""
        if is_storage_error(error):
            self._give_up(error, CoordinatorState.UNREADABLE)
            self._runtime.timers.set(self._driver, RELOAD, self._runtime.steady() + RELOAD_AFTER_READ_MS)
        else:
            self._give_up(error, CoordinatorState.FAILED)

    def _give_up(self, error: Exception, state: CoordinatorState) -> None:
        if self._driver.state is not CoordinatorState.RETRYING:
            log.error("%s: the log cannot be read, all requests get NOT_COORDINATOR: %s", self._driver, error)
        self._driver.enter(state)
