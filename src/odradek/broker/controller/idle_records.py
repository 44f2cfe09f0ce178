"""NoOp records of an idle controller: its observers see that it lives, and how far behind they are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.catalog.state import RecordSteps
from odradek.cluster.cluster_catalog import SteppedRecords
from odradek.cluster.records import NoOpRecord

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from odradek.broker.controller.write_events import Controller
    from odradek.broker.metadata.change import Change
    from odradek.broker.metadata_log.log import MetadataLog

    class IdleNode(Protocol):
        """The parts of a controller's node that this module uses."""

        controller: Controller
        loop: asyncio.AbstractEventLoop

        @property
        def metadata_log(self) -> MetadataLog: ...


log = logging.getLogger("odradek.broker")


class IdleRecords:
    """Writes a NoOp record when no other record was written for ``interval_ms``: metadata.max.idle.interval.ms. Kafka
    writes one in each interval, idle or not. 0 means never."""

    def __init__(self, node: IdleNode, interval_ms: int) -> None:
        self._node = node
        self._interval_s = interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._end_offset = -1
        self._is_over = self._has_failed = False

    def begin(self) -> None:
        if self._interval_s > 0:
            self._wait()

    def end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if not self._is_over:
            self._end_offset = self._node.metadata_log.end_offset
            self._timer = self._node.loop.call_later(self._interval_s, self._check)

    def _check(self) -> None:
        if self._node.controller.waiting or self._node.metadata_log.end_offset != self._end_offset:
            self._wait()
            return
        self._node.controller.write(_write).then(self._after)

    def _after(self, failure: object) -> None:
        if isinstance(failure, Exception) and not self._has_failed:
            log.error("the controller is idle and cannot write to the metadata log: %s", failure)
        self._has_failed = isinstance(failure, Exception)
        self._wait()


def _write(change: Change) -> Steps[None]:
    def steps() -> RecordSteps:
        yield from ()
        return [NoOpRecord()]

    yield from change.add(SteppedRecords(steps))
