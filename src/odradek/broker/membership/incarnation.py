"""The membership of a broker in its cluster: it drives the broker's state machines over a link to the controller.

``cluster/nodes/lifecycle`` and ``cluster/metadata_log/log_observer`` decide what is sent. This module sends it when it
is due, passes replies on, and gives committed records to the catalogue, one batch after another. Everything outside is
passed in: the link, the clock and its alarms, and the scheduler of long work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from odradek.broker.loop.scheduler import Steps
from odradek.cluster import records
from odradek.cluster.metadata_log.log_observer import LogObserver, PartReply, PartRequest, RecordsReply, RecordsRequest
from odradek.cluster.nodes.lifecycle import REMEDIES, BrokerLifecycle, HeartbeatReply, LifecycleState
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, OdradekError

if TYPE_CHECKING:
    from odradek.broker.membership.observer_log import ObserverLog
    from odradek.catalog.records import MetadataRecord

log = logging.getLogger("odradek.broker")


class SessionLink(Protocol):
    """Requests to the controller about the registration. Each answer is called at most once, after the call; never, if
    no reply comes. An answer of NONE says early that no reply will come."""

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None: ...

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None: ...


class ControllerLink(SessionLink, Protocol):
    """Requests to a controller in another process. An answer of None says early that no reply will come."""

    def read(self, asked: RecordsRequest, answer: Callable[[RecordsReply | None], None]) -> None: ...

    def read_part(self, asked: PartRequest, answer: Callable[[PartReply | None], None]) -> None: ...


class JoiningBroker(Protocol):
    """A broker, as its membership sees it."""

    def now_ms(self) -> int:
        """Returns the time of a clock that only goes forward."""

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Calls a function once, in place of the former one if that was not called yet."""

    def on_caught_up(self) -> None:
        """Called once, when the broker has all records up to its registration: now it opens its logs. Then it calls
        ``BrokerMembership.set_ready``."""

    def on_unfenced(self) -> None:
        """Called once, when the controller has lifted the fence: now the broker serves clients."""

    def on_end(self, failure: str) -> None:
        """Called once: the controller allows the stop, or the broker has to end for a reason."""


class ClusterMember(JoiningBroker, Protocol):
    """A broker that follows the log of a controller in another process."""

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        """Runs long work. The promise holds its exception, or None."""

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        """Applies committed records to the catalogue, and publishes them."""

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        """Replaces the catalogue by that of a snapshot: the values of its records."""


class BrokerMembership:
    """One incarnation of a broker. ``begin`` registers it, ``begin_shutdown`` asks for a controlled shutdown, ``leave``
    ends everything at once. ``applied_end``: returns the end of what the catalogue has of the metadata log."""

    def __init__(
        self, member: JoiningBroker, link: SessionLink, lifecycle: BrokerLifecycle, applied_end: Callable[[], int]
    ) -> None:
        self.lifecycle = lifecycle
        self._member, self._link = member, link
        self._applied_end = applied_end
        self._is_over = self._has_caught_up = self._has_waited = False
        self._refusal = ErrorCode.none

    def begin(self) -> None:
        self._drive()

    def set_ready(self) -> None:
        """The logs are open: the broker may leave the fence."""
        self.lifecycle.set_ready(self._member.now_ms())
        self._drive()

    def begin_shutdown(self) -> None:
        self.lifecycle.begin_shutdown(self._member.now_ms())
        self._drive()

    def leave(self) -> None:
        """Ends without a word: later replies are ignored."""
        self._is_over = True

    # --- requests and replies -----------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Sends what is due, and sets the next alarm."""
        if self._is_over:
            return
        link, now_ms = self._link, self._member.now_ms()
        beat = self.lifecycle.next_request(self._applied_end() - 1, now_ms)
        number = self.lifecycle.number
        if isinstance(beat, NewBroker):
            link.register(beat, lambda answer: self._take(lambda: self._on_registered(number, answer)))
        elif beat is not None:
            link.beat(beat, lambda answer: self._take(lambda: self._on_heartbeat(number, answer)))
        if self.lifecycle.state is LifecycleState.ENDED:
            self._end(self.lifecycle.failure)
            return
        self._follow(now_ms)
        if not self._is_over:
            self._member.call_after(max(self._next_ms() - self._member.now_ms(), 0), self._drive)

    def _follow(self, now_ms: int) -> None:
        """Asks for records of the metadata log, if another process has it."""

    def _next_ms(self) -> int:
        return self.lifecycle.next_ms

    def _take(self, work: Callable[[], None]) -> None:
        """Takes a reply, and sends what is due then."""
        if not self._is_over:
            work()
            self._drive()

    def _end(self, failure: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._member.on_end(failure)

    def _on_registered(self, number: int, answer: int | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            self.lifecycle.on_failed(number, self._member.now_ms(), answer)
            if self.lifecycle.state is LifecycleState.ENDED:
                return  # its failure is the last line
            if answer is ErrorCode.duplicate_broker_registration and not self._has_waited:
                self._has_waited = True
                log.warning(
                    "another process with this node.id has a session at the controller; the broker waits until it ends"
                )
            elif (remedy := REMEDIES.get(answer)) and answer is not self._refusal:
                log.warning("the controller does not register this broker: %s%s", answer.name.upper(), remedy)
            self._refusal = answer
        else:
            self.lifecycle.on_registered(number, answer, self._member.now_ms())

    def _on_heartbeat(self, number: int, answer: HeartbeatReply | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            self.lifecycle.on_failed(number, self._member.now_ms(), answer)
            return
        before = self.lifecycle.state
        self.lifecycle.on_heartbeat(number, answer, self._member.now_ms())
        if before is LifecycleState.RECOVERY and self.lifecycle.state is LifecycleState.RUNNING:
            self._member.on_unfenced()
        if self.lifecycle.state is LifecycleState.RECOVERY and not self._has_caught_up:
            self._has_caught_up = True
            self._member.on_caught_up()


class ClusterMembership(BrokerMembership):
    """The membership of a broker whose controller is another process: it copies the metadata log, too."""

    def __init__(
        self,
        member: ClusterMember,
        link: ControllerLink,
        lifecycle: BrokerLifecycle,
        observer: LogObserver,
        copy: ObserverLog,
    ) -> None:
        super().__init__(member, link, lifecycle, lambda: copy.applied.end_offset)
        self.observer, self.copy = observer, copy
        self._follower, self._reads = member, link
        self._is_applying = False
        self._snapshots = observer.snapshots

    def _follow(self, now_ms: int) -> None:
        asked = self.observer.next_request(now_ms)
        fetch = self.observer.number
        if isinstance(asked, RecordsRequest):
            self._reads.read(asked, lambda answer: self._take(lambda: self._on_records(fetch, answer)))
        elif asked is not None:
            self._reads.read_part(asked, lambda answer: self._take(lambda: self._on_part(fetch, answer)))
        if self.observer.failure:
            self._end(self.observer.failure)

    def _next_ms(self) -> int:
        return min(self.lifecycle.next_ms, self.observer.next_ms)

    def _on_records(self, number: int, answer: RecordsReply | None) -> None:
        if answer is None:
            self.observer.on_failed(number, self._member.now_ms())
        else:
            self.observer.on_records(number, answer, self._member.now_ms())
        self._note_epoch()
        self._apply()

    def _on_part(self, number: int, answer: PartReply | None) -> None:
        if answer is None:
            self.observer.on_failed(number, self._member.now_ms())
        else:
            self.observer.on_part(number, answer, self._member.now_ms())
        self._note_epoch()
        self._apply()

    def _note_epoch(self) -> None:
        try:
            self.copy.save_epoch(self.observer.epoch, self.observer.leader)
        except OSError as error:  # the leader tells the epoch again
            log.warning("the epoch %d of the metadata log cannot be noted: %s", self.observer.epoch, error)

    # --- committed records --------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Begins to apply what is committed, unless it is being applied."""
        if self._is_applying or self._is_over:
            return
        if self._snapshots == self.observer.snapshots and self.copy.applied.end_offset >= self.observer.committed:
            return
        self._is_applying = True
        self._follower.start(self._applying()).then(self._on_applied)

    def _applying(self) -> Steps[None]:
        """Applies all that is committed by then. A snapshot that comes meanwhile is loaded first."""
        while not self._is_over:
            if self._snapshots != self.observer.snapshots:
                self._snapshots = self.observer.snapshots
                yield from self._follower.replace(self.copy.read_newest_snapshot())
                continue
            if self.copy.applied.end_offset >= self.observer.committed:
                return
            for batch in self.copy.committed_batches(self.observer.committed):
                changes = [records.decode(value, _id_of) for value in batch.values]
                yield from self._follower.commit(batch.base_offset, changes)
                if self._snapshots != self.observer.snapshots or self._is_over:
                    break  # the copy begins at the snapshot now
                self.copy.note_applied(batch)

    def _on_applied(self, failure: Exception | None) -> None:
        self._is_applying = False
        if failure is None:
            self._apply()  # what was committed at the end
            return
        is_foreseen = isinstance(failure, OdradekError | ValueError | OSError)
        log.error("the metadata log cannot be followed: %s", failure, exc_info=None if is_foreseen else failure)
        self._end(f"the metadata log cannot be followed: {failure}")


def _id_of(data: bytes) -> UUID:
    return UUID(bytes=data)
