"""The registered brokers at the active controller: requests of brokers as write events, and the end of sessions.

``cluster/control`` decides. This module gives it the time, and its records to the controller's queue
(``broker/controller/write_events``). The time is that of the event loop, which no test moves and which never jumps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from odradek.broker.loop.scheduler import Steps
from odradek.catalog.state import RecordSteps
from odradek.cluster.cluster_catalog import ClusterCatalog, ControlResult, ControlSteps, Moment, SteppedRecords
from odradek.cluster.control import ClusterControl
from odradek.cluster.partitions.partition_changes import unclean_elections
from odradek.core.deferred import Deferred

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from odradek.broker.controller.observer_reads import ObserverReads
    from odradek.broker.controller.write_events import Controller, ControllerRequestContext
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.change import Change
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.catalog.delta import Delta

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class ControllingNode(Protocol):
        """The parts of a controller's node that this module uses."""

        controller: Controller
        loop: asyncio.AbstractEventLoop

        @property
        def metadata_log(self) -> MetadataLog: ...

        @property
        def cluster_id(self) -> str: ...


R = TypeVar("R")
log = logging.getLogger("odradek.broker")

CHECKS_A_SESSION = 8
"""How often in the time of a session the controller looks for one that is over, as in Kafka."""


class RegisteredBrokers:
    """The brokers of a cluster at its controller. ``session_ms``: broker.session.timeout.ms. It is a publisher, too.

    ``observer_reads``: what brokers read of the metadata log."""

    def __init__(
        self, node: ControllingNode, catalog: ClusterCatalog, session_ms: int, observer_reads: ObserverReads
    ) -> None:
        self.observer_reads = observer_reads
        self._node = node
        self._control = ClusterControl(catalog, node.cluster_id, session_ms)
        self._check_s = max(session_ms // CHECKS_A_SESSION, 1) / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def begin(self) -> None:
        """Begins the sessions of the registered brokers, and the checks for their ends."""
        self._control.activate(self._now_ms())
        self._check_later()

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _now_ms(self) -> int:
        return int(self._node.loop.time() * 1000)

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Follows the committed records about brokers."""
        for record in delta.nodes:
            self._control.on_applied(record)

    # --- requests -----------------------------------------------------------------------------------------------

    def hear(self, broker_id: int, broker_epoch: int) -> None:
        """Notes that a heartbeat has arrived. The session goes on while the heartbeat waits in the queue."""
        self._control.hear(broker_id, broker_epoch, self._now_ms())

    def submit(
        self,
        make: Callable[[ClusterControl, Moment], ControlSteps[R]],
        context: ControllerRequestContext | None = None,
        *,
        max_records: int | None = None,
    ) -> Deferred[R]:
        """Queues an operation of ``cluster/control`` as a write event. ``make`` is called when it is the first of the
        queue, and returns its steps. The promise has its response when its records are committed, or a KafkaError.

        As in Kafka, an operation about brokers may have any number of records: ``max_records`` is None.
        """

        def write(change: Change) -> Steps[R]:
            made: list[ControlResult[R]] = []

            def records() -> RecordSteps:
                moment = Moment(self._now_ms(), self._node.metadata_log.end_offset)
                made.append((yield from make(self._control, moment)))
                return made[0].records

            yield from change.add(SteppedRecords(records))
            change.on_end = self._after_commit(made[0])
            return made[0].response

        return self._node.controller.write(write, context, max_records=max_records)

    def _after_commit(self, result: ControlResult[object]) -> Callable[[int], None] | None:
        """Returns what follows the commit of an operation. Each unclean election gets a line, a warning if it may lose
        records. (Apache Kafka logs all of them at INFO.)"""
        unclean = unclean_elections(self._control.catalog, result.records)
        if not unclean:
            return result.on_committed

        def end(offset: int) -> None:
            for election in unclean:
                log.log(logging.WARNING if election.may_lose else logging.INFO, "%s", election)
            if result.on_committed is not None:
                result.on_committed(offset)

        return end

    # --- the ends of sessions -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Fences the brokers whose session is over, one after another."""
        if self._is_over:
            return
        if self._control.sessions.next_end_ms() > self._now_ms():
            self._check_later()
            return
        self.submit(lambda control, moment: control.fence_one(moment.now_ms)).then(self._after_fence)

    def _after_fence(self, failure: object) -> None:
        if isinstance(failure, Exception):
            # The record is not written, so the broker is not fenced. It gets another session, which ends, too.
            log.error("a broker whose session is over could not be fenced: %s", failure)
            self._control.renew_lost_sessions(self._now_ms())
            self._check_later()
            return
        self._check()

    def _check_later(self) -> None:
        """Checks again when the next session is over, or earlier: a heartbeat may have moved that time."""
        left_s = max(self._control.sessions.next_end_ms() - self._now_ms(), 0) / 1000
        self._timer = self._node.loop.call_later(min(left_s, self._check_s), self._check)
