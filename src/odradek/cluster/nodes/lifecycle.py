"""A broker's side of its registration: Kafka's BrokerLifecycleManager, for one incarnation.

The broker registers, and sends heartbeats with the offset of the newest metadata record that it has applied. It is
STARTING until the controller says that it has caught up, RECOVERY until its fence is lifted, then RUNNING. A controlled
shutdown ends when the controller allows it. One request is in flight at a time: ``next_request`` returns it when it is
due, ``next_ms`` says when that is. Time is passed in, in milliseconds of a clock that only goes forward.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.nodes.sessions import NEVER, BrokerHeartbeat
from odradek.cluster.request_in_flight import RequestInFlight
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import checked

FIRST_RETRY_MS = 100
CATCH_UP_MS, SHUTDOWN_MS = 10, 50
"""Heartbeats follow one another more quickly while the broker starts, and once in a controlled shutdown."""


class LifecycleState(Enum):
    """A broker as it sees itself."""

    STARTING = "starting"
    RECOVERY = "recovery"
    RUNNING = "running"
    PENDING_SHUTDOWN = "pending controlled shutdown"
    ENDED = "ended"


_STATE = LifecycleState
NEXT: dict[LifecycleState, frozenset[LifecycleState]] = {
    _STATE.STARTING: frozenset({_STATE.RECOVERY, _STATE.ENDED}),
    _STATE.RECOVERY: frozenset({_STATE.RUNNING, _STATE.ENDED}),
    _STATE.RUNNING: frozenset({_STATE.PENDING_SHUTDOWN, _STATE.ENDED}),
    _STATE.PENDING_SHUTDOWN: frozenset({_STATE.ENDED}),
    _STATE.ENDED: frozenset(),
}
"""The valid next states of each state."""


class LifecycleTimes(NamedTuple):
    """In ms: broker.session.timeout.ms, broker.heartbeat.interval.ms, initial.broker.registration.timeout.ms."""

    session_ms: int = 9_000
    heartbeat_ms: int = 2_000
    registration_ms: int = 60_000


class HeartbeatReply(NamedTuple):
    """The reply to a heartbeat."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


Request = NewBroker | BrokerHeartbeat


def reply_timeout_ms(times: LifecycleTimes) -> int:
    """Returns the time after which a request without a reply is given up: half of a session."""
    return times.session_ms // 2


REMEDIES = {
    ErrorCode.duplicate_broker_registration: (
        ". Another process has this node.id: stop it, or give one of the two another id and an empty directory"
    ),
    ErrorCode.inconsistent_cluster_id: (
        ". The directory belongs to another cluster: choose the right one, or format an empty one with the cluster's id"
    ),
    ErrorCode.invalid_registration: (
        ". Perhaps another broker has a directory with the same directory.id in meta.properties: each needs its own"
    ),
}
"""What to do about a refused registration."""


class BrokerLifecycle:
    """One incarnation of a broker. ``registration``: the request, with the epoch of the last clean stop.

    ``epoch``: the broker epoch; −1 before the registration. ``failure``: why the broker has to end.
    """

    def __init__(self, registration: NewBroker, times: LifecycleTimes, now_ms: int) -> None:
        self.state = LifecycleState.STARTING
        self.epoch = -1
        self.failure = ""
        self.is_fenced = True
        self._registration = registration
        self._times = times
        self._registered_by_ms = now_ms + times.registration_ms
        self._request = RequestInFlight(now_ms, reply_timeout_ms(times), FIRST_RETRY_MS, times.session_ms)
        self._is_registered = self._is_ready = self._hurries = False
        self._has_shutdown_answer = False
        self._refusal = ErrorCode.none
        """The newest error code of the controller."""

    # --- requests -----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the request in flight: a reply belongs to a request only if it names this number."""
        return self._request.number

    @property
    def next_ms(self) -> int:
        """When ``next_request`` has to be called again, unless a reply comes before."""
        if self.state is LifecycleState.ENDED:
            return NEVER
        due_ms = self._request.next_ms
        return due_ms if self._is_registered or self.epoch >= 0 else min(due_ms, self._registered_by_ms)

    def next_request(self, metadata_offset: int, now_ms: int) -> Request | None:
        """Returns the request that is to be sent now. ``metadata_offset``: the newest record that is applied."""
        if self.epoch < 0 and now_ms >= self._registered_by_ms and self.state is not LifecycleState.ENDED:
            answer = f": it answers {self._refusal.name}" if self._refusal else ""
            answer += REMEDIES.get(self._refusal, "")
            self._end_with(
                "the broker could not register with the controller within "
                f"initial.broker.registration.timeout.ms={self._times.registration_ms}{answer}"
            )
        if self.state is LifecycleState.ENDED:
            return None
        if self._request.is_over(now_ms):
            self._fail(now_ms)
        if not self._request.begin(now_ms):
            return None
        if not self._is_registered:
            return self._registration
        wants_stop = self.state is LifecycleState.PENDING_SHUTDOWN
        return BrokerHeartbeat(
            self._registration.broker_id, self.epoch, metadata_offset, not self._is_ready, wants_stop
        )

    # --- replies ------------------------------------------------------------------------------------------------

    def on_registered(self, number: int, epoch: int, now_ms: int) -> None:
        """Notes the reply to a registration. The first heartbeat follows at once."""
        if self._take(number):
            self._request.failures = 0
            self.epoch, self._is_registered = epoch, True
            self._wait(0, now_ms)

    def on_failed(self, number: int, now_ms: int, code: ErrorCode = ErrorCode.none) -> None:
        """Notes an error, or that no reply will come (NONE). The request is sent again, after a time that grows.

        An epoch that is stale stays so, and so does the id of another cluster: the broker ends. Kafka's broker goes on
        without effect."""
        if not self._take(number):
            return
        self._refusal = code or self._refusal
        if code is ErrorCode.inconsistent_cluster_id and not self._is_registered:
            self._end_with(
                f"the controller does not register broker {self._registration.broker_id}: it answers {code.name}"
                f"{REMEDIES[code]}"
            )
            return
        if code is ErrorCode.stale_broker_epoch and self._is_registered:
            broker_id = self._registration.broker_id
            self._end_with(
                f"broker {broker_id} with the broker epoch {self.epoch} is not registered any more: another process "
                f"has node.id={broker_id}, or the broker was unregistered. Start it again, with a node.id of its own"
            )
            return
        self._fail(now_ms)

    def on_heartbeat(self, number: int, answer: HeartbeatReply, now_ms: int) -> None:
        """Notes the reply to a heartbeat."""
        if not self._take(number):
            return
        self._request.failures = 0
        self.is_fenced = answer.is_fenced
        pause_ms = self._times.heartbeat_ms
        if self.state is LifecycleState.STARTING:
            if answer.is_caught_up:
                self._enter(LifecycleState.RECOVERY)
            pause_ms = min(CATCH_UP_MS, pause_ms)
        elif self.state is LifecycleState.RECOVERY and not answer.is_fenced:
            self._enter(LifecycleState.RUNNING)
        elif self.state is LifecycleState.PENDING_SHUTDOWN:
            if answer.should_shut_down:
                self._enter(LifecycleState.ENDED)
                return
            pause_ms = pause_ms if self._has_shutdown_answer else min(SHUTDOWN_MS, pause_ms)
            self._has_shutdown_answer = True
        self._wait(pause_ms, now_ms)

    def _enter(self, state: LifecycleState) -> None:
        self.state = checked(NEXT, f"broker {self._registration.broker_id}", self.state, state)

    def _end_with(self, failure: str) -> None:
        self._enter(LifecycleState.ENDED)
        self.failure = failure

    def _take(self, number: int) -> bool:
        """Ends the request in flight if the reply belongs to it."""
        return self.state is not LifecycleState.ENDED and self._request.take(number)

    def _fail(self, now_ms: int) -> None:
        self._hurries = False
        self._wait(self._request.fail(), now_ms)

    def _wait(self, pause_ms: int, now_ms: int) -> None:
        self._request.due_ms = now_ms + (0 if self._hurries else pause_ms)
        self._hurries = False

    def _hurry(self, now_ms: int) -> None:
        """Sends the next heartbeat at once, or right after the request in flight."""
        if self._request.sent_ms is None:
            self._request.due_ms = min(self._request.due_ms, now_ms)
        else:
            self._hurries = True

    # --- what the broker does -----------------------------------------------------------------------------------

    def set_ready(self, now_ms: int) -> None:
        """The broker has opened its logs, and may leave the fence."""
        if not self._is_ready:
            self._is_ready = True
            self._hurry(now_ms)

    def begin_shutdown(self, now_ms: int) -> None:
        """Asks the controller for a controlled shutdown. A broker that does not run yet ends at once."""
        if self.state is LifecycleState.RUNNING:
            self._enter(LifecycleState.PENDING_SHUTDOWN)
            self._hurry(now_ms)
        elif self.state is not LifecycleState.PENDING_SHUTDOWN:
            self.end()

    def end(self) -> None:
        """Ends the requests: the time for a controlled shutdown is over, or the broker stops for another reason."""
        if self.state is not LifecycleState.ENDED:
            self._enter(LifecycleState.ENDED)
