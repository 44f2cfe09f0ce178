"""The registered brokers at the active controller: requests of brokers as write events, and the end of sessions.

``cluster/control`` decides. This module gives it the time, and its records to the controller's queue
(``broker/controller/write_events``). The time is that of the event loop, which no test moves and which never jumps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.catalog.state import PRODUCER_ID_BLOCK, RecordSteps
from odradek.cluster.catalog import ClusterCatalog, SteppedRecords
from odradek.cluster.control import ClusterControl, Directories, HeartbeatReply, ReplicaDirectory
from odradek.cluster.registrations import NewBroker, NewController
from odradek.cluster.sessions import BrokerHeartbeat, BrokerState
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from odradek.broker.controller.observer_reads import ObserverReads
    from odradek.broker.controller.write_events import Controller, ControllerRequestContext
    from odradek.broker.metadata.change import Change
    from odradek.broker.metadata.image import CatalogImage
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.catalog.delta import Delta
    from odradek.catalog.records import MetadataRecord

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class ControllingNode(Protocol):
        """The parts of a controller's node that this module uses."""

        controller: Controller
        loop: asyncio.AbstractEventLoop

        @property
        def metadata_log(self) -> MetadataLog: ...

        @property
        def cluster_id(self) -> str: ...


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
        self._timer = self._node.loop.call_later(self._check_s, self._check)

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _now_ms(self) -> int:
        return int(self._node.loop.time() * 1000)

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        """Follows the committed records about brokers."""
        for record in delta.nodes:
            self._control.on_applied(record)

    # --- requests -----------------------------------------------------------------------------------------------

    def register(self, request: NewBroker, context: ControllerRequestContext) -> Deferred[int]:
        """Registers a broker. The promise has its broker epoch, or a KafkaError."""

        def write(change: Change) -> Steps[Callable[[], int]]:
            next_offset, now_ms = self._node.metadata_log.end_offset, self._now_ms()
            yield from _add(change, self._control.register_broker(request, next_offset, now_ms))
            return lambda: self._control.catalog.nodes.brokers[request.broker_id].epoch

        promise: Deferred[int] = Deferred()
        self._node.controller.write(write, context, max_records=None).then(
            lambda found: promise.resolve(found() if callable(found) else found)
        )
        return promise

    def heartbeat(
        self, request: BrokerHeartbeat, directories: Directories, context: ControllerRequestContext
    ) -> Deferred[HeartbeatReply]:
        """Answers a heartbeat. The promise has the reply, or a KafkaError."""
        self._control.hear(request.broker_id, request.broker_epoch, self._now_ms())
        reply = HeartbeatReply(is_caught_up=False, before=BrokerState.FENCED, after=BrokerState.FENCED)

        def write(change: Change) -> Steps[HeartbeatReply]:
            change.on_end = partial(self._control.end_heartbeat, request, reply)
            yield from _add(change, self._control.begin_heartbeat(request, directories, reply))
            return reply

        return self._node.controller.write(write, context, max_records=None)

    def unregister(self, broker_id: int, context: ControllerRequestContext) -> Deferred[None]:
        """Removes a broker. The promise may have a KafkaError."""
        return self._node.controller.write(lambda change: _add(change, self._control.unregister(broker_id)), context)

    def register_controller(self, request: NewController, context: ControllerRequestContext) -> Deferred[None]:
        """Registers a controller. The promise may have a KafkaError."""
        return self._node.controller.write(
            lambda change: _add(change, _at_once(partial(self._control.register_controller, request))), context
        )

    def allocate_producer_ids(
        self, broker_id: int, broker_epoch: int, context: ControllerRequestContext
    ) -> Deferred[tuple[int, int]]:
        """Allocates a block of producer ids. The promise has the first id and the number, or a KafkaError."""

        def write(change: Change) -> Steps[tuple[int, int]]:
            first = self._control.catalog.next_producer_id
            allocate = partial(self._control.allocate_producer_ids, broker_id, broker_epoch)
            yield from _add(change, _at_once(allocate))
            return first, PRODUCER_ID_BLOCK

        return self._node.controller.write(write, context)

    def assign_directories(
        self,
        broker_id: int,
        broker_epoch: int,
        assigned: Sequence[ReplicaDirectory],
        context: ControllerRequestContext,
    ) -> Deferred[list[ErrorCode]]:
        """Gives replicas their directories. The promise has the error code of each, or a KafkaError."""

        def write(change: Change) -> Steps[list[ErrorCode]]:
            errors: list[ErrorCode] = []
            yield from _add(change, self._control.assign_directories(broker_id, broker_epoch, assigned, errors))
            return errors

        return self._node.controller.write(write, context, max_records=None)

    # --- the ends of sessions -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Fences the brokers whose session is over, one after another."""
        if self._is_over:
            return
        if self._control.sessions.next_end_ms() > self._now_ms():
            self._timer = self._node.loop.call_later(self._check_s, self._check)
            return
        fence = self._node.controller.write(
            lambda change: _add(change, self._control.fence_one(self._now_ms())), max_records=None
        )
        fence.then(self._after_fence)

    def _after_fence(self, failure: object) -> None:
        if isinstance(failure, Exception):
            # The record is not written, so the broker is not fenced. It gets another session, which ends, too.
            log.error("a broker whose session is over could not be fenced: %s", failure)
            self._control.renew_lost_sessions(self._now_ms())
            self._timer = self._node.loop.call_later(self._check_s, self._check)
            return
        self._check()


def _add(change: Change, steps: RecordSteps) -> Steps[None]:
    return change.add(SteppedRecords(lambda: steps))


def _at_once(make: Callable[[], list[MetadataRecord]]) -> RecordSteps:
    """Makes records in one step."""
    yield from ()
    return make()
