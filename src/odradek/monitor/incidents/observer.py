"""Takes the view of the reader after each poll, and records its incidents and announcements."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from odradek.core.counts import counted
from odradek.history.verdict_rules import RULE_TEXTS, Status, VerdictRule
from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.group_sums import GroupColumns
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.incidents.announcements import Announced, HookRule, event_of
from odradek.monitor.incidents.incident import (
    EVENTS,
    KINDS,
    STATUS,
    ConditionView,
    EventMark,
    GroupCondition,
    Incident,
    IncidentBook,
    Severity,
)
from odradek.monitor.incidents.store import Announcement, IncidentStore
from odradek.text.printable import printable

logger = logging.getLogger("odradek.monitor")

_FORGET_EVERY_MS = 3_600_000
_MOST_TEXT = 500


def condition_view(tracker: GroupTracker, groups: GroupColumns) -> ConditionView:
    """Returns the conditions at a poll. Hold the reader's lock."""
    bad = np.flatnonzero((groups.statuses == Status.WARN) | (groups.statuses == Status.ERR))
    conditions = _statuses(tracker, groups, bad)
    if groups.findings.any():  # all at once: a call for each group takes six times as long
        found: dict[str, list[dict[str, Any]]] = {}
        for one in tracker.findings(groups.now_ms).to_pylist():
            found.setdefault(one["group"], []).append(one)
        for group, findings in found.items():
            conditions += _of_findings(group, findings)
    return ConditionView(groups.now_ms, conditions, _unsure(groups))


def _statuses(tracker: GroupTracker, groups: GroupColumns, rows: Any) -> list[GroupCondition]:
    """Returns the conditions of groups with a bad status, each with its worst partition."""
    if not len(rows):
        return []
    slots = groups.worst[rows]
    verdicts, _ = tracker.judge(slots, groups.now_ms)
    found = []
    for row, tp, status, rule, lag in zip(
        rows.tolist(), tracker.partitions_of(slots), verdicts.statuses.tolist(), verdicts.rules.tolist(),
        groups.lags[rows].tolist(), strict=True,
    ):  # fmt: skip
        reason = RULE_TEXTS[VerdictRule(rule)]
        text = f"{printable(str(tp))} is {Status(status).name}: {reason}; the group's lag is {lag:,}"
        severity = Severity(int(groups.statuses[row]))
        found.append(GroupCondition(STATUS, groups.names[row], severity, text[:_MOST_TEXT]))
    return found


def _unsure(groups: GroupColumns) -> frozenset[str]:
    """Returns the groups whose good status proves nothing: their windows are not full, or logs were not polled. A group
    without any lag is sure."""
    is_full = (groups.complete >= groups.partitions) | ((groups.lags == 0) & (groups.statuses == Status.OK))
    rows = np.flatnonzero(~is_full | (groups.stale > 0) | (groups.statuses == Status.NOTFOUND))
    return frozenset(groups.names[row] for row in rows.tolist() if groups.partitions[row])


def _of_findings(group: str, findings: Sequence[dict[str, Any]]) -> list[GroupCondition]:
    """Returns a condition for each kind of a group's findings, with the text of the newest one."""
    counts = Counter(one["kind"] for one in findings)
    conditions = []
    for kind in (one for one in counts if one in KINDS):
        own = [one for one in findings if one["kind"] == kind]
        newest = max(own, key=_mark)
        mark = EventMark()
        for one in own:
            mark = mark.joined(_mark(one))
        more = f" (and {counted(len(own) - 1, 'more finding')})" if len(own) > 1 else ""
        text = (newest["text"] + more)[:_MOST_TEXT]
        severity = Severity.WARN
        conditions.append(
            GroupCondition(kind, group, severity, text, len(own), mark if kind in EVENTS else EventMark())
        )
    return conditions


def _mark(finding: dict[str, Any]) -> EventMark:
    """By the first record that proves a finding: later commits add others."""
    first = finding["proof"][0] if finding["proof"] else {}
    began = finding["from_timestamp"]
    offset = first.get("record_offset")
    return EventMark(-1 if offset is None else offset, -1 if began is None else int(began.timestamp() * 1000))


class IncidentObserver:
    """Records the incidents of the views and what the webhooks announce. ``wake``: called when there is something to
    deliver. ``keep_ms``: for how long closed incidents are kept."""

    def __init__(
        self,
        store: IncidentStore,
        rules: Sequence[HookRule],
        wake: Callable[[], object],
        *,
        new_id: Callable[[], str],
        keep_ms: int,
    ) -> None:
        self.trouble = ""
        """Why the newest view is not recorded; "" if it is."""
        self._store, self._rules, self._wake, self._keep_ms = store, rules, wake, keep_ms
        self._announced = store.announced()
        self.book = IncidentBook(new_id, store.open_incidents(), store.marks(), is_new=store.is_new)
        self._forget_at_ms = 0
        self.duration_ms = 0

    def on_poll(self, tracker: GroupTracker, groups: GroupColumns) -> None:
        """Call it after each poll that succeeded, with the reader's lock held."""
        begun = time.monotonic()
        self.record(condition_view(tracker, groups))
        self.duration_ms = int((time.monotonic() - begun) * 1000)

    def record(self, view: ConditionView) -> None:
        changed = self.book.changes(view)
        marks = self.book.new_marks(view, changed)
        announcements = self._announcements(view, changed)
        try:
            if changed or marks or announcements or self.book.is_new:
                self._store.record(view.now_ms, changed, marks, announcements)
            self._forget(view.now_ms)
        except StoreFailed as error:
            if not self.trouble:
                logger.warning("incidents are not recorded, the next poll tries again: %s", error)
            self.trouble = str(error)
            return
        if self.trouble:
            logger.warning("incidents are recorded again")
        self.trouble = ""
        self.book.accept(changed, marks)
        self._note_announced(view.now_ms, announcements, changed)
        if announcements:
            self._wake()

    def _announcements(self, view: ConditionView, changed: Sequence[Incident]) -> list[Announcement]:
        current = {one.id: one for one in self.book.open.values()} | {one.id: one for one in changed}
        texts = {one.subject: one.text for one in view.conditions}
        made = []
        for incident in current.values():
            for rule in self._rules:
                before = self._announced.get((incident.id, rule.name))
                event = event_of(rule, incident, before, view.now_ms)
                if event is not None:  # the text of this view has the present lag
                    shown = replace(incident, text=texts.get(incident.subject, incident.text))
                    made.append(Announcement(rule.name, event, shown))
        return made

    def _note_announced(
        self, now_ms: int, announcements: Sequence[Announcement], changed: Sequence[Incident]
    ) -> None:  # fmt: skip
        for hook, _, incident in announcements:
            before = self._announced.get((incident.id, hook))
            self._announced[incident.id, hook] = Announced(1 if before is None else before.count + 1, now_ms)
        closed = {one.id for one in changed if one.closed_ms is not None}
        if closed:
            self._announced = {key: value for key, value in self._announced.items() if key[0] not in closed}

    def _forget(self, now_ms: int) -> None:
        if now_ms >= self._forget_at_ms:
            self._forget_at_ms = now_ms + _FORGET_EVERY_MS
            self._store.forget_closed(now_ms - self._keep_ms)
