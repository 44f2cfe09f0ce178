"""Timeouts of the members of KIP-848 groups: session and revocation, and for classic members also join and sync.

A heartbeat moves the deadline of a session, but moves its timer only to an earlier time. If the timer fires before the
deadline, it is set again.
``PATTERNS`` is a group's timer: ``groups/kip848/pattern_resolution`` sets it to resolve the group's patterns.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from odradek.core.effects import CancelTimer, ResultParts, SetTimer

SESSION, REVOKE, JOIN, SYNC, PATTERNS = (
    "member session",
    "member revocation",
    "member join",
    "member sync",
    "group patterns",
)
KINDS = frozenset({SESSION, REVOKE, JOIN, SYNC, PATTERNS})

MemberKey = tuple[str, str]  # group id, member id


@dataclass(slots=True)
class _Session:
    deadline_ms: int
    timer_ms: int | None = None


class MemberTimers:
    """The timers of one shard. They are not durable: after a restart every member gets its full timeout again."""

    def __init__(self) -> None:
        self.sessions: dict[MemberKey, _Session] = {}
        self.joins: set[MemberKey] = set()
        self.revocation_epochs: dict[MemberKey, int] = {}

    def renew(self, now_ms: int, key: MemberKey, timeout_ms: int, out: ResultParts) -> None:
        session = self.sessions.get(key)
        deadline_ms = now_ms + timeout_ms
        if session is None:
            session = self.sessions[key] = _Session(deadline_ms)
        session.deadline_ms = deadline_ms
        if session.timer_ms is None or deadline_ms < session.timer_ms:
            session.timer_ms = deadline_ms
            out.effects.append(SetTimer((SESSION, *key), deadline_ms))

    def has_session_ended(self, now_ms: int, key: MemberKey, out: ResultParts) -> bool:
        """Returns whether a session is over when its timer fires. Sets the timer again if the session is not over."""
        session = self.sessions.get(key)
        if session is None:
            return False
        session.timer_ms = None
        if now_ms >= session.deadline_ms:
            return True
        session.timer_ms = session.deadline_ms
        out.effects.append(SetTimer((SESSION, *key), session.deadline_ms))
        return False

    def shift(self, by_ms: int) -> None:
        """Moves the session deadlines after a jump of the clock, so that sessions keep the rest of their timeouts."""
        for session in self.sessions.values():
            session.deadline_ms += by_ms
            if session.timer_ms is not None:
                session.timer_ms += by_ms

    def await_revocation(self, now_ms: int, key: MemberKey, epoch: int, timeout_ms: int, out: ResultParts) -> None:
        self.revocation_epochs[key] = epoch
        out.effects.append(SetTimer((REVOKE, *key), now_ms + timeout_ms))

    def cancel_revocation(self, key: MemberKey, out: ResultParts) -> None:
        if self.revocation_epochs.pop(key, None) is not None:
            out.effects.append(CancelTimer((REVOKE, *key)))

    def take_revocation_epoch(self, key: MemberKey) -> int | None:
        """Removes and returns the epoch for which a member's revocation timer was set; None if none was set."""
        return self.revocation_epochs.pop(key, None)

    def await_join(self, now_ms: int, key: MemberKey, timeout_ms: int, out: ResultParts) -> None:
        """Sets the join timer if it is not set already."""
        if key not in self.joins:
            self.joins.add(key)
            out.effects.append(SetTimer((JOIN, *key), now_ms + timeout_ms))

    def cancel_join(self, key: MemberKey, out: ResultParts) -> None:
        if key in self.joins:
            self.joins.discard(key)
            out.effects.append(CancelTimer((JOIN, *key)))

    def await_sync(self, now_ms: int, key: MemberKey, timeout_ms: int, out: ResultParts) -> None:
        out.effects.append(SetTimer((SYNC, *key), now_ms + timeout_ms))

    def cancel_sync(self, key: MemberKey, out: ResultParts) -> None:
        out.effects.append(CancelTimer((SYNC, *key)))

    def forget(self, key: MemberKey, out: ResultParts) -> None:
        """Removes a member's timeouts and cancels its timers."""
        self.sessions.pop(key, None)
        self.revocation_epochs.pop(key, None)
        self.joins.discard(key)
        cancelled: list[Hashable] = [(kind, *key) for kind in (SESSION, REVOKE, JOIN, SYNC)]
        out.effects += [CancelTimer(timer) for timer in cancelled]
