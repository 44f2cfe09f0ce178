"""Incidents: what is wrong with a group, from the view that shows it first to the view that shows its end.

``IncidentBook`` is a state machine without clock, file or socket. It takes the views of a cluster one after another.
``changes`` returns the incidents that a view opens, changes or closes. The book itself changes in ``accept``, when
these incidents are stored: so a change that could not be stored comes again with the next view.

There are two kinds of conditions. A lasting one is there as long as views show it: a bad status, offsets that expire.
An event happened at one time and stays in view: a rewind, a jump, a rebalance storm. The marks say which events the
book knows, so that an event opens one incident, also after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

STATUS = "status"
LASTING = (STATUS, "expiring", "never_commits")
EVENTS = ("rewind", "jump", "rebalance_storm")
KINDS = (*LASTING, *EVENTS)
QUIET_MS = 600_000
"""An incident of events closes when no other event of its kind and group came for this time."""


class Severity(IntEnum):
    """Burrow's numbers."""

    WARN = 2
    ERR = 3


class EventMark(NamedTuple):
    """How far the events of a kind and group are known: the greatest first record of a finding in the offsets topic,
    and the latest time in ms. A finding is new if either is greater: clocks may go back, and the topic may be created
    again."""

    offset: int = -1
    time_ms: int = -1

    def is_after(self, other: EventMark) -> bool:
        return self.offset > other.offset or self.time_ms > other.time_ms

    def joined(self, other: EventMark) -> EventMark:
        return EventMark(max(self.offset, other.offset), max(self.time_ms, other.time_ms))


NO_MARK = EventMark()
Subject = tuple[str, str]
"""A kind and a group: what an incident is about. At most one incident of a subject is open."""


@dataclass(frozen=True, slots=True)
class GroupCondition:
    """What a view shows about a group. ``count``: the number of findings or bad partitions. ``mark``: of events."""

    kind: str
    group: str
    severity: Severity
    text: str
    count: int = 1
    mark: EventMark = NO_MARK

    @property
    def subject(self) -> Subject:
        return self.kind, self.group


@dataclass(frozen=True, slots=True)
class ConditionView:
    """All conditions of a cluster at ``now_ms``. ``unsure``: the groups of which the view does not know enough, so that
    a missing condition proves nothing."""

    now_ms: int
    conditions: Sequence[GroupCondition]
    unsure: Container[str] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """Times are ms since 1970. ``severity``: the highest so far. ``closed_ms``: None while it is open."""

    id: str
    kind: str
    group: str
    severity: Severity
    text: str
    count: int
    opened_ms: int
    changed_ms: int
    closed_ms: int | None = None
    mark: EventMark = NO_MARK

    @property
    def subject(self) -> Subject:
        return self.kind, self.group


class IncidentBook:
    """See the module. ``open_incidents``, ``marks``: as stored. ``is_new``: no view was stored before. Then the events
    of the first view are old: they open nothing. ``new_id``: returns an id that no incident has."""

    def __init__(
        self,
        new_id: Callable[[], str],
        open_incidents: Iterable[Incident] = (),
        marks: Mapping[Subject, EventMark] | None = None,
        *,
        is_new: bool = True,
        quiet_ms: int = QUIET_MS,
    ) -> None:
        self.open = {one.subject: one for one in open_incidents}
        self.marks = dict(marks or {})
        self._new_id = new_id
        self.is_new = is_new
        self._quiet_ms = quiet_ms

    def changes(self, view: ConditionView) -> list[Incident]:
        """Returns the incidents that a view opens, changes or closes. Nothing changes until ``accept``."""
        shown = {one.subject: one for one in view.conditions}
        changed: list[Incident] = []
        for condition in shown.values():
            incident = self.open.get(condition.subject)
            if incident is None:
                made = self._opened(condition, view.now_ms)
            else:
                made = self._changed(incident, condition, view.now_ms)
            if made is not None:
                changed.append(made)
        seen = {one.subject for one in changed}
        changed += [
            replace(incident, closed_ms=view.now_ms, changed_ms=view.now_ms)
            for incident in self.open.values()
            if incident.subject not in seen and self._has_ended(incident, shown.get(incident.subject), view)
        ]
        return changed

    def new_marks(self, view: ConditionView, changed: Iterable[Incident]) -> dict[Subject, EventMark]:
        """Returns the marks that a view and its changes move."""
        marks = {one.subject: one.mark for one in changed if one.kind in EVENTS}
        if self.is_new:
            marks |= {one.subject: one.mark for one in view.conditions if one.kind in EVENTS}
        return {subject: mark for subject, mark in marks.items() if mark != self.marks.get(subject)}

    def accept(self, changed: Iterable[Incident], marks: Mapping[Subject, EventMark]) -> None:
        """The changes of a view, and its marks, are stored."""
        for incident in changed:
            if incident.closed_ms is None:
                self.open[incident.subject] = incident
            else:
                self.open.pop(incident.subject, None)
        self.marks.update(marks)
        self.is_new = False

    def _opened(self, condition: GroupCondition, now_ms: int) -> Incident | None:
        known = self.marks.get(condition.subject, NO_MARK)
        if condition.kind in EVENTS and (self.is_new or not condition.mark.is_after(known)):
            return None
        return Incident(
            self._new_id(), condition.kind, condition.group, condition.severity, condition.text, condition.count,
            now_ms, now_ms, mark=known.joined(condition.mark),
        )  # fmt: skip

    def _changed(self, incident: Incident, condition: GroupCondition, now_ms: int) -> Incident | None:
        """Returns the incident with what the view shows; None if nothing important is new. The lag is not: it differs
        in each view, and each change is a write."""
        is_new = incident.kind in EVENTS and condition.mark.is_after(incident.mark)
        if not is_new and condition.severity <= incident.severity:
            return None
        return replace(
            incident, severity=max(incident.severity, condition.severity), text=condition.text, count=condition.count,
            changed_ms=now_ms, mark=incident.mark.joined(condition.mark),
        )  # fmt: skip

    def _has_ended(self, incident: Incident, condition: GroupCondition | None, view: ConditionView) -> bool:
        if incident.kind in EVENTS:
            return view.now_ms - incident.changed_ms >= self._quiet_ms
        return condition is None and incident.group not in view.unsure
