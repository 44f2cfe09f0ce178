"""Which webhook announces which change of an incident. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from odradek.monitor.incidents.incident import KINDS, Incident, Severity


class IncidentEvent(StrEnum):
    """What an announcement says about an incident."""

    OPENED = "opened"
    REPEATED = "repeated"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class HookRule:
    """Which incidents a webhook announces. ``groups``, ``ignored``: patterns that are searched in a group's name.

    ``threshold``: the least severity. ``repeat_ms``: the time between two announcements of an open incident; 0: it is
    announced once. ``says_closed``: whether the end is announced, too.
    """

    name: str
    threshold: Severity = Severity.WARN
    groups: re.Pattern[str] | None = None
    ignored: re.Pattern[str] | None = None
    kinds: frozenset[str] = field(default_factory=lambda: frozenset(KINDS))
    repeat_ms: int = 0
    says_closed: bool = True

    def wants(self, incident: Incident) -> bool:
        return (
            incident.kind in self.kinds
            and incident.severity >= self.threshold
            and (self.groups is None or self.groups.search(incident.group) is not None)
            and (self.ignored is None or self.ignored.search(incident.group) is None)
        )


@dataclass(frozen=True, slots=True)
class Announced:
    """What a webhook has announced of an open incident: how often, and when last."""

    count: int
    last_ms: int


def event_of(rule: HookRule, incident: Incident, before: Announced | None, now_ms: int) -> IncidentEvent | None:
    """Returns what a webhook announces of an incident now; None: nothing.

    An incident that closes before it was announced is not announced. ``before``: None without an announcement.
    """
    if before is None:
        return IncidentEvent.OPENED if incident.closed_ms is None and rule.wants(incident) else None
    if incident.closed_ms is not None:
        return IncidentEvent.CLOSED if rule.says_closed else None
    if rule.repeat_ms and now_ms - before.last_ms >= rule.repeat_ms:
        return IncidentEvent.REPEATED
    return None
