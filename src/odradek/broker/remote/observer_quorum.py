"""The quorum of the metadata log, as a broker sees it that follows the log: it knows what is committed, and appends
nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from odradek.broker.membership.observer_log import ObserverLog
    from odradek.cluster.metadata_log.log_observer import LogObserver


class ObserverQuorum:
    """The quorum of a node that has a copy of the log. ``observer``: what it knows about the leader."""

    is_syncing = False
    """No batch of this node waits for its commit."""

    def __init__(self, copy: ObserverLog, observer: LogObserver) -> None:
        self._copy = copy
        self._observer = observer

    @property
    def epoch(self) -> int:
        return self._observer.epoch

    @property
    def leader(self) -> int:
        return self._observer.leader

    @property
    def committed_offset(self) -> int:
        return self._observer.committed

    def is_newest(self, offset: int) -> bool:
        """A record about the quorum changes no image. So an image is also the newest if only such records follow it."""
        return self._observer.leader != NO_NODE and max(offset, self._copy.applied.end_offset) >= self.committed_offset

    def at_once(self) -> AbstractContextManager[None]:
        return nullcontext()

    def append(self, packed: list[bytes], count: int) -> Deferred[int | KafkaError]:
        return Deferred.of(KafkaError(ErrorCode.not_controller, "Only the controller changes the catalogue."))
