"""The sessions of brokers at the controller: Kafka's BrokerHeartbeatManager and BrokerHeartbeatTracker.

What is here is not in the metadata log: the time of each broker's last heartbeat, the offset that it has reported, and
the offset at which its controlled shutdown is complete. Time is passed in, in milliseconds of a clock that only goes
forward. A new controller begins with ``activate``: the session of each unfenced broker begins then.

A broker is FENCED from its registration on. It becomes UNFENCED when it has all records up to its registration. It asks
for a controlled shutdown, and is in CONTROLLED_SHUTDOWN until it leads nothing and all active brokers have the records
that moved its leaders. Then it gets SHUTDOWN_NOW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from odradek.cluster.nodes.registrations import BrokerRegistration

NEVER = 1 << 62


class BrokerState(Enum):
    """A broker at the controller. A broker in CONTROLLED_SHUTDOWN is not fenced."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"

    @property
    def is_fenced(self) -> bool:
        return self in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


class BrokerHeartbeat(NamedTuple):
    """A request of a broker. ``metadata_offset``: the newest record of the metadata log that it has applied."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    wants_fence: bool
    wants_shutdown: bool


class HeartbeatCondition(Enum):
    """What is true when a heartbeat arrives."""

    WANTS_FENCE = "wants the fence"
    WANTS_NO_FENCE = "wants no fence"
    WANTS_SHUTDOWN = "wants the shutdown"
    IS_CAUGHT_UP = "has all records up to its registration"
    LEADS = "leads a partition"
    LEADS_NOTHING = "leads no partition"
    IS_SEEN = "all active brokers have the records of its controlled shutdown"


_STATE, _IF = BrokerState, HeartbeatCondition

TRANSITIONS: dict[BrokerState, tuple[tuple[tuple[HeartbeatCondition, ...], BrokerState], ...]] = {
    _STATE.FENCED: (
        ((_IF.WANTS_SHUTDOWN,), _STATE.SHUTDOWN_NOW),
        ((_IF.WANTS_NO_FENCE, _IF.IS_CAUGHT_UP), _STATE.UNFENCED),
    ),
    _STATE.UNFENCED: (
        ((_IF.WANTS_FENCE, _IF.WANTS_SHUTDOWN), _STATE.SHUTDOWN_NOW),
        ((_IF.WANTS_FENCE,), _STATE.FENCED),
        ((_IF.WANTS_SHUTDOWN, _IF.LEADS), _STATE.CONTROLLED_SHUTDOWN),
        ((_IF.WANTS_SHUTDOWN,), _STATE.SHUTDOWN_NOW),
    ),
    _STATE.CONTROLLED_SHUTDOWN: (((_IF.LEADS_NOTHING, _IF.IS_SEEN), _STATE.SHUTDOWN_NOW),),
    _STATE.SHUTDOWN_NOW: (),
}
"""The state that a heartbeat leads to: the first one whose conditions all hold, otherwise the present one. LEADS is
asked last: its answer takes a look at every partition."""


@dataclass(slots=True)
class _Contact:
    is_fenced: bool
    metadata_offset: int = -1
    shutdown_offset: int = -1

    @property
    def is_active(self) -> bool:
        return not self.is_fenced and self.shutdown_offset < 0

    @property
    def state(self) -> BrokerState:
        if self.shutdown_offset >= 0:
            return BrokerState.CONTROLLED_SHUTDOWN
        return BrokerState.FENCED if self.is_fenced else BrokerState.UNFENCED


class BrokerSessions:
    """The sessions of all registered brokers. ``session_ms``: broker.session.timeout.ms."""

    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._contacts: dict[int, _Contact] = {}
        self._heard: dict[tuple[int, int], int] = {}
        """(broker, broker epoch) → the time of its last heartbeat, oldest first."""

    def activate(self, brokers: Iterable[BrokerRegistration], now_ms: int) -> None:
        """Begins with the registrations of the log."""
        for broker in brokers:
            self._contacts[broker.broker_id] = _Contact(broker.is_fenced)
            if not broker.is_fenced:
                self.hear(broker.broker_id, broker.epoch, now_ms)

    # --- sessions -----------------------------------------------------------------------------------------------

    def hear(self, broker_id: int, epoch: int, now_ms: int) -> None:
        """Notes a heartbeat, whatever the answer will be."""
        key = broker_id, epoch
        self._heard.pop(key, None)
        self._heard[key] = now_ms

    def is_valid(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        """Returns whether this incarnation of the broker has a session."""
        heard_ms = self._heard.get((broker_id, epoch))
        return heard_ms is not None and not self._is_over(heard_ms, now_ms)

    def end_one(self, now_ms: int) -> tuple[int, int] | None:
        """Removes one session that is over, and returns its broker and broker epoch.

        One at a time: the next broker to be fenced sees the effect of the former."""
        for key, heard_ms in self._heard.items():
            if not self._is_over(heard_ms, now_ms):
                return None
            del self._heard[key]
            return key
        return None

    def next_end_ms(self) -> int:
        """Returns the earliest time at which a session is over; ``NEVER`` without one."""
        for heard_ms in self._heard.values():
            return heard_ms + self._session_ms + 1
        return NEVER

    def _is_over(self, heard_ms: int, now_ms: int) -> bool:
        return heard_ms + self._session_ms < now_ms

    # --- what brokers report ------------------------------------------------------------------------------------

    def register(self, broker_id: int, *, is_fenced: bool, is_new: bool = False) -> None:
        """Notes a registration, or a fence that was set or lifted. ``is_new``: another incarnation."""
        if is_new:
            self._contacts.pop(broker_id, None)
        contact = self._contacts.setdefault(broker_id, _Contact(is_fenced))
        changes = contact.is_fenced != is_fenced
        self.touch(broker_id, is_fenced=is_fenced, metadata_offset=contact.metadata_offset if changes else -1)

    def remove(self, broker_id: int) -> None:
        self._contacts.pop(broker_id, None)

    def fence(self, broker_id: int) -> None:
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.is_fenced = True

    def touch(self, broker_id: int, *, is_fenced: bool, metadata_offset: int) -> None:
        """Notes what a heartbeat says. A broker that is fenced leaves the controlled shutdown: with its next heartbeat
        it stops at once."""
        contact = self._contacts[broker_id]
        contact.is_fenced, contact.metadata_offset = is_fenced, metadata_offset
        if is_fenced:
            contact.shutdown_offset = -1

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Notes the end of the records that the first heartbeat of a controlled shutdown has made."""
        contact = self._contacts[broker_id]
        if contact.shutdown_offset < 0:
            contact.shutdown_offset = offset

    def shutdown_offset(self, broker_id: int) -> int:
        """Returns the offset at which the controlled shutdown is complete; -1 outside of one."""
        contact = self._contacts.get(broker_id)
        return -1 if contact is None else contact.shutdown_offset

    def is_shutting_down(self, broker_id: int) -> bool:
        return self.shutdown_offset(broker_id) >= 0

    def lowest_active_offset(self) -> int:
        """Returns the oldest offset that an active broker has reported; ``NEVER`` without an active broker."""
        offsets = (contact.metadata_offset for contact in self._contacts.values() if contact.is_active)
        return min(offsets, default=NEVER)

    def next_state(
        self, request: BrokerHeartbeat, registered_at: int, leads: Callable[[], bool]
    ) -> tuple[BrokerState, BrokerState]:
        """Returns the present state of a broker and the one that its heartbeat leads to.

        ``registered_at``: the offset of its registration. ``leads``: whether it leads a partition.
        """
        contact = self._contacts[request.broker_id]
        state = contact.state
        holds: dict[HeartbeatCondition, Callable[[], bool]] = {
            HeartbeatCondition.WANTS_FENCE: lambda: request.wants_fence,
            HeartbeatCondition.WANTS_NO_FENCE: lambda: not request.wants_fence,
            HeartbeatCondition.WANTS_SHUTDOWN: lambda: request.wants_shutdown,
            HeartbeatCondition.IS_CAUGHT_UP: lambda: request.metadata_offset >= registered_at,
            HeartbeatCondition.LEADS: leads,
            HeartbeatCondition.LEADS_NOTHING: lambda: not leads(),
            HeartbeatCondition.IS_SEEN: lambda: contact.shutdown_offset <= self.lowest_active_offset(),
        }
        for conditions, after in TRANSITIONS[state]:
            if all(holds[condition]() for condition in conditions):
                return state, after
        return state, state
