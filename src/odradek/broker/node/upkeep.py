"""The upkeep of a node: periodic work on its data directory, and the modules that it loads after the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from odradek.storage.disk.descriptors import SHARED
from odradek.storage.disk.write_failures import RETRY_S

if TYPE_CHECKING:
    from odradek.broker.loop.scheduler import Scheduler
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.settings.config import BrokerConfig

log = logging.getLogger("odradek.broker")

UNUSED_FILES_MS = 60_000
"""A log file that was not used for this time is closed."""
SNAPSHOT_CHECK_MS = 60_000
FLUSH_CHECK_MS = 1_000
LOAD_REST_S, LOAD_REST_PAUSE_S = 2.0, 0.02
_CHECKPOINT_MS = 60_000
"""Kafka's default, in place of an interval of 0."""


class NodeWithUpkeep(Protocol):
    """The parts of a node that its upkeep needs."""

    config: BrokerConfig
    directory: LogDirectory
    scheduler: Scheduler
    metadata_log: MetadataLog

    def now_ms(self) -> int: ...


class Upkeep:
    """The periodic work. ``call_at(at_ms, work)`` is that of the node's alarms. ``is_over``: the node stops."""

    def __init__(
        self, node: NodeWithUpkeep, call_at: Callable[[int, Callable[[], None]], object], is_over: Callable[[], bool]
    ) -> None:
        self._node = node
        self._call_at = call_at
        self._is_over = is_over

    def begin(self) -> None:
        node, config, directory = self._node, self._node.config, self._node.directory
        self.every(config.log_retention_check_interval_ms, directory.upkeep.retain)
        recovery_ms = config.log_flush_offset_checkpoint_interval_ms or _CHECKPOINT_MS
        self.every(recovery_ms, directory.upkeep.checkpoint_recovery_points)
        starts_ms = config.log_flush_start_offset_checkpoint_interval_ms or _CHECKPOINT_MS
        self.every(starts_ms, directory.upkeep.checkpoint_log_starts)
        self.every(
            config.producer_id_expiration_check_interval_ms,
            lambda: node.scheduler.start(directory.upkeep.expire_producers()),
        )
        self.every(FLUSH_CHECK_MS, directory.upkeep.flush_due)
        self.every(UNUSED_FILES_MS, SHARED.close_unused)
        self.every(SNAPSHOT_CHECK_MS, node.metadata_log.check_snapshot)

    def every(self, interval_ms: int, work: Callable[[], object]) -> None:
        """Calls ``work`` again and again, also after an error of its own, until ``is_over``."""

        def run() -> None:
            if self._is_over():
                return
            try:
                work()
            except Exception:
                log.exception("a periodic task failed; the next attempt is in %d ms", interval_ms)
            self._call_at(self._node.now_ms() + interval_ms, run)

        self._call_at(self._node.now_ms() + interval_ms, run)


def load_in_turn(
    loop: asyncio.AbstractEventLoop, loads: Iterator[Callable[[], object]], is_over: Callable[[], bool]
) -> None:
    """Imports modules one at a time, between other work of the loop, until ``is_over``.

    So requests do not wait for imports, and these modules cannot come from another version that is installed while the
    broker runs.
    """
    load = None if is_over() else next(loads, None)
    if load is None:
        return
    pause_s = LOAD_REST_PAUSE_S
    try:
        load()
    except OSError as error:  # e.g. no descriptor is left
        log.info("a module cannot be loaded now; the next attempt is in a second: %s", error)
        loads, pause_s = chain([load], loads), RETRY_S
    loop.call_later(pause_s, load_in_turn, loop, loads, is_over)
