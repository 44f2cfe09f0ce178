"""One member of a KIP-848 group (``group_protocol=consumer``) as a state machine. No socket, no clock.

A member sends its subscription and the partitions that it owns in ConsumerGroupHeartbeat. The coordinator makes the
assignment and replies with the member's target assignment.

state          meaning                                                    transitions
OUTSIDE        not a member                                               ``join`` → JOINING
JOINING        the next heartbeat, at once, has epoch 0                   ``on_heartbeat`` → RECONCILING
STABLE         owns its target assignment                                 ``on_heartbeat`` → RECONCILING
RECONCILING    has a target assignment that it does not own yet           ``end_reconciliation`` → ACKNOWLEDGING
ACKNOWLEDGING  the next heartbeat, at once, has the owned partitions      ``on_heartbeat`` → STABLE, RECONCILING
LOST           no longer a member; others may own its partitions          ``on_lost_given_up`` → OUTSIDE
FATAL          ended by the error ``failure``                             final

A new member reconciles an empty target assignment, too, so that its callback runs. If the coordinator takes a target
back before the member has begun to reconcile it, ``on_heartbeat`` leads from RECONCILING to ACKNOWLEDGING.

A heartbeat has the fields that have changed since the last heartbeat with a reply. After an error or a missing reply
the next heartbeat has all fields. The client makes the member id and keeps it over all joins. ``join_number`` rises
with each join and each end of a membership. The reply to a heartbeat of an earlier ``join_number`` is
ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.client.errors import UnsupportedVersion, error_for
from odradek.client.group.errors import FencedInstance, UnreleasedInstance
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from odradek.core.state_machines.tables import checked

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse

Partitions = dict[UUID, frozenset[int]]
"""Topic ids to partition numbers; each topic has at least one partition."""


class Kip848State(Enum):
    OUTSIDE = "outside"
    JOINING = "joining"
    STABLE = "stable"
    RECONCILING = "reconciling"
    ACKNOWLEDGING = "acknowledging"
    LOST = "lost"
    FATAL = "fatal"


_STATE = Kip848State
_ENDS = frozenset({_STATE.OUTSIDE, _STATE.LOST, _STATE.FATAL})
NEXT: dict[Kip848State, frozenset[Kip848State]] = {
    _STATE.OUTSIDE: _ENDS | {_STATE.JOINING},
    _STATE.JOINING: _ENDS | {_STATE.RECONCILING},
    _STATE.STABLE: _ENDS | {_STATE.STABLE, _STATE.RECONCILING},
    _STATE.RECONCILING: _ENDS | {_STATE.RECONCILING, _STATE.ACKNOWLEDGING},
    _STATE.ACKNOWLEDGING: _ENDS | {_STATE.STABLE, _STATE.RECONCILING, _STATE.ACKNOWLEDGING},
    _STATE.LOST: _ENDS,
    _STATE.FATAL: frozenset({_STATE.FATAL}),
}
"""The valid next states of each state."""


class NextHeartbeat(Enum):
    """The time of the next heartbeat after a reply."""

    INTERVAL = "when the interval has passed"
    AT_ONCE = "at once"
    FIND_COORDINATOR = "once the coordinator is looked up again"
    BACK_OFF = "after a while"


_IN_GROUP = frozenset({Kip848State.STABLE, Kip848State.RECONCILING, Kip848State.ACKNOWLEDGING})
_REMOVED = frozenset({
    ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch, ErrorCode.group_id_not_found,
})  # fmt: skip
_MOVED = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
NO_PROTOCOL = (
    "the cluster does not support the consumer group protocol (KIP-848, Kafka 4.0): set group_protocol=classic until "
    "it is upgraded"
)


def as_partitions(rows: Iterable[Any]) -> Partitions:
    """Converts rows of a reply to ``Partitions``."""
    return {row.topic_id: frozenset(row.partitions) for row in rows if row.partitions}


class Kip848Membership:
    """The membership in a KIP-848 group. Times in milliseconds. ``heartbeat_interval_ms`` is 0 until the coordinator's
    first reply."""

    def __init__(
        self,
        group_id: str,
        member_id: str,
        *,
        rebalance_timeout_ms: int,
        instance_id: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.instance_id = instance_id
        self.state = Kip848State.OUTSIDE
        self.epoch = JOIN_EPOCH
        self.join_number = 0
        self.heartbeat_interval_ms = 0
        self.target: Partitions = {}
        self.owned: Partitions = {}
        self.failure: KafkaError | None = None
        self.is_new = True
        """Whether this member has reconciled no assignment since it joined, not even an empty one."""
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._rack = rack
        self._assignor = assignor
        self._topics: tuple[str, ...] = ()
        self._pattern: str | None = None
        self._had_pattern = False
        self._reported: tuple[tuple[str, ...], str | None] | None = None  # the subscription in the last heartbeat
        self._acknowledged = True
        self._is_reconciling = False

    @property
    def in_group(self) -> bool:
        """Whether the coordinator knows this member, by ``member_id`` and ``epoch``."""
        return self.state in _IN_GROUP

    @property
    def sends_heartbeats(self) -> bool:
        """Whether the member sends heartbeats."""
        return self.in_group or self.state is Kip848State.JOINING

    @property
    def is_due_at_once(self) -> bool:
        """Whether the next heartbeat is sent at once, without the interval."""
        return self.state in (Kip848State.JOINING, Kip848State.ACKNOWLEDGING) or (
            self.in_group and self._reported != (self._topics, self._pattern)
        )

    @property
    def leave_epoch(self) -> int:
        return LEAVE_EPOCH if self.instance_id is None else LEAVE_STATIC_EPOCH

    # --- subscription and reconciliation ----------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Sets the subscription: topics, or a pattern in the syntax of RE2 that the coordinator matches."""
        self._topics, self._pattern = tuple(sorted(topics)), pattern
        self._had_pattern = self._had_pattern or pattern is not None

    def join(self) -> None:
        """Makes the next heartbeat join. Raises ValueError unless the state is OUTSIDE."""
        if self.state is not Kip848State.OUTSIDE:
            raise ValueError(f"a member that is {self.state.value} cannot join")
        self.join_number += 1
        self.epoch, self.target, self.owned, self._reported, self.is_new = JOIN_EPOCH, {}, {}, None, True
        self._enter(Kip848State.JOINING)

    def begin_reconciliation(self) -> int:
        """Starts the reconciliation with ``target``. Returns ``join_number``.

        ``set_owned`` and ``end_reconciliation`` need it: if the coordinator has removed the member since, they do
        nothing."""
        self._is_reconciling = True
        return self.join_number

    def set_owned(self, owned: Partitions, join_number: int) -> bool:
        """Sets the owned partitions; returns False if ``join_number`` has changed since ``begin_reconciliation``."""
        if join_number != self.join_number or not self.in_group:
            return False
        self.owned = {topic_id: numbers for topic_id, numbers in owned.items() if numbers}
        return True

    def end_reconciliation(self, join_number: int) -> None:
        """Ends the reconciliation: the next heartbeat has the owned partitions."""
        if join_number == self.join_number and self.in_group:
            self._enter(Kip848State.ACKNOWLEDGING)
            self._is_reconciling = self._acknowledged = self.is_new = False

    def on_lost_given_up(self) -> None:
        """Notes that the lost partitions are given up."""
        if self.state is Kip848State.LOST:
            self._enter(Kip848State.OUTSIDE)

    def on_left(self, *, lost: bool) -> None:
        """Notes that the member has left, with or without a reply. ``lost``: it has not given up its partitions."""
        if self.state is Kip848State.FATAL:
            return
        self._remove(Kip848State.LOST if lost else Kip848State.OUTSIDE)

    def _enter(self, state: Kip848State) -> None:
        self.state = checked(NEXT, f"group {self.group_id}", self.state, state)

    def _remove(self, state: Kip848State = Kip848State.LOST) -> None:
        self.join_number += 1
        self.epoch, self.target, self.owned = JOIN_EPOCH, {}, {}
        self._is_reconciling = False
        self._enter(state)

    # --- heartbeats -------------------------------------------------------------------------------------------

    def heartbeat_request(self) -> dict[str, object]:
        """Returns a heartbeat with all fields if the coordinator may not have them, else with the changed fields."""
        full = self._reported is None
        reported_topics, reported_pattern = self._reported or (None, None)
        topics = list(self._topics) if self._topics != reported_topics else None
        pattern = None
        if full or self._pattern != reported_pattern:
            pattern = "" if self._pattern is None and self._had_pattern else self._pattern  # "" removes the pattern
        has_owned = full or self.state is Kip848State.ACKNOWLEDGING
        self._reported = (self._topics, self._pattern)
        self._acknowledged = self._acknowledged or has_owned
        return {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
            "instance_id": self.instance_id,
            "rack_id": self._rack if full else None,
            "rebalance_timeout": self._rebalance_timeout_ms if full else -1,
            "subscribed_topic_names": topics,
            "subscribed_topic_regex": pattern,
            "server_assignor": self._assignor if full else None,
            "topic_partitions": _rows(self.owned) if has_owned else None,
        }

    def leave_request(self) -> dict[str, object] | None:
        """Returns the heartbeat that leaves the group. None: the member is outside the group and does not join."""
        if not self.sends_heartbeats:
            return None
        unchanged = dict.fromkeys(
            ("rack_id", "subscribed_topic_names", "subscribed_topic_regex", "server_assignor", "topic_partitions")
        )
        return unchanged | {
            "group_id": self.group_id,
            "member_id": self.member_id,
            "member_epoch": self.leave_epoch,
            "instance_id": self.instance_id,
            "rebalance_timeout": -1,
        }

    def on_no_answer(self) -> None:
        """Handles a heartbeat without a reply. The next heartbeat has all fields, since the coordinator may not have
        got this one."""
        self._reported = None

    def on_heartbeat(self, reply: ConsumerGroupHeartbeatResponse, interval_ms: int, join_number: int) -> NextHeartbeat:
        """Handles the reply to a heartbeat that was sent at ``join_number``."""
        if join_number != self.join_number or not self.sends_heartbeats:
            return NextHeartbeat.INTERVAL
        if reply.error_code is not ErrorCode.none:
            return self._on_refusal(reply.error_code, reply.error_message or "")
        self.heartbeat_interval_ms = interval_ms
        self.member_id = reply.member_id or self.member_id
        self.epoch = reply.member_epoch
        changed = False
        if reply.assignment is not None:
            target = as_partitions(reply.assignment.topic_partitions)
            if (least := min(map(min, target.values()), default=0)) < 0:
                self._fail(KafkaError(ErrorCode.unknown_server_error, f"the coordinator assigned partition {least}"))
                return NextHeartbeat.INTERVAL
            before, self.target = self.target, target
            changed = self.target != before
        elif self.state is Kip848State.RECONCILING:
            return NextHeartbeat.INTERVAL
        if self.state is Kip848State.ACKNOWLEDGING and not self._acknowledged:
            return NextHeartbeat.AT_ONCE  # the reply is to a heartbeat from before the end of the reconciliation
        settled = self.target == self.owned and not self._is_reconciling and not self.is_new
        if settled and changed:
            # The target assignment got a partition and lost it again before the member took it: the coordinator waits
            # for an acknowledgement.
            self._enter(Kip848State.ACKNOWLEDGING)
            self._acknowledged = False
        else:
            self._enter(Kip848State.STABLE if settled else Kip848State.RECONCILING)
        return NextHeartbeat.AT_ONCE if self.is_due_at_once else NextHeartbeat.INTERVAL

    def on_commit_refused(self, code: ErrorCode) -> bool:
        """Handles the error code of a commit; returns whether a heartbeat has to check the membership at once."""
        if code is ErrorCode.fenced_instance_id:
            self._fail(FencedInstance(self.instance_id or ""))
        return self.in_group and code in (*_REMOVED, ErrorCode.stale_member_epoch)

    def _on_refusal(self, code: ErrorCode, text: str) -> NextHeartbeat:
        self._reported = None
        if code in _MOVED:
            return NextHeartbeat.FIND_COORDINATOR
        if code in _REMOVED:
            self._remove()
            return NextHeartbeat.AT_ONCE
        if code.retriable:
            return NextHeartbeat.BACK_OFF
        self._fail(self._fatal_error(code, text))
        return NextHeartbeat.INTERVAL

    def _fatal_error(self, code: ErrorCode, text: str) -> KafkaError:
        if code is ErrorCode.unreleased_instance_id:
            return UnreleasedInstance(self.instance_id or "")
        if code is ErrorCode.fenced_instance_id:
            return FencedInstance(self.instance_id or "")
        if code is ErrorCode.unsupported_version:
            return UnsupportedVersion(NO_PROTOCOL)
        return error_for(code, f"group {self.group_id}: {text or 'the heartbeat failed'}")

    def fail(self, error: KafkaError) -> None:
        """Ends the membership: every poll raises ``error``."""
        self._fail(error)

    def _fail(self, error: KafkaError) -> None:
        self._remove(Kip848State.FATAL)
        self.failure = error


def _rows(partitions: Mapping[UUID, frozenset[int]]) -> list[dict[str, object]]:
    return [{"topic_id": topic_id, "partitions": sorted(numbers)} for topic_id, numbers in partitions.items()]
