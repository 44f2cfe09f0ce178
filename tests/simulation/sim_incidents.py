"""The incidents of a monitor in a simulated world: views, a store that fails, kills, and a receiver that is often away.

The world knows what was wrong with each group and when. After each view that is recorded:

* each lasting condition of the view has one open incident, and no subject has two;
* each event that was new to the monitor is in an incident;
* an incident of a lasting condition has closed only if the view was sure that the condition is gone.

At the end the faults are over and nothing is wrong: then all incidents are closed, and the receiver has for each
announced incident one opening, first, and one end, last; an announcement that came twice came with the same number.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from support.owned_stores import OwnedIncidentStore

from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.incidents.announcements import HookRule, IncidentEvent
from odradek.monitor.incidents.bodies import Message, json_body
from odradek.monitor.incidents.delivery import HookAnswer
from odradek.monitor.incidents.incident import (
    EVENTS,
    LASTING,
    QUIET_MS,
    ConditionView,
    EventMark,
    GroupCondition,
    Severity,
)
from odradek.monitor.incidents.observer import IncidentObserver
from odradek.monitor.incidents.sender import HookSender
from odradek.monitor.incidents.store import PendingDelivery
from odradek.monitor.incidents.webhook_file import Webhook

POLL_MS = 10_000
HOOKS = ("all", "grave")


class Killed(BaseException):
    """The monitor is killed."""


class FaultyStore(OwnedIncidentStore):
    """A store in which a record may fail, or be the last thing that the monitor does."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.random, self.chance = random, 0.0
        super().__init__(directory)
        self.file._db.execute("PRAGMA synchronous = OFF")  # no seed ends the power of the machine

    def record(self, *given: Any) -> None:
        dice = self.random.random()
        if dice < self.chance:
            raise StoreFailed("the disk is full")
        if dice < 1.2 * self.chance:
            raise Killed
        super().record(*given)
        if dice > 1 - 0.2 * self.chance:
            raise Killed

    def end_delivery(self, number: int) -> None:
        if self.random.random() < self.chance:
            raise Killed
        super().end_delivery(number)

    def kill(self) -> None:
        """Ends the connection as a killed process does."""
        self.file._db.close()
        with suppress(OSError):
            os.close(self.file._lock)
        self.file._lock = -1


class IncidentScenario:
    """One seed. ``run`` raises AssertionError if something is wrong."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = Random(seed)
        self.directory = directory
        self.now_ms = 1_700_000_000_000
        self.offset = 0
        self.lasting: dict[tuple[str, str], Severity] = {}
        self.events: dict[tuple[str, str], list[EventMark]] = {}
        self.unknown_events: set[tuple[str, str, EventMark]] = set()
        """Events of a time after the first recorded view that no incident has yet."""
        self.chance = self.random.choice([0.0, 0.05, 0.3])
        self.received: list[tuple[str, str, str, int]] = []
        self.ids = 0
        self.kills = 0
        self.groups = [f"g{number}" for number in range(self.random.randint(1, 4))]
        self.has_view = False
        self._start()

    def _start(self) -> None:
        self.store = FaultyStore(self.directory, self.random)
        self.store.chance = self.chance
        rules = [HookRule("all", repeat_ms=60_000), HookRule("grave", Severity.ERR)]
        self.observer = IncidentObserver(self.store, rules, lambda: None, new_id=self._new_id, keep_ms=10**15)
        hooks = [Webhook(rule, "http://x", json_body, "", {}, None, 1.0, 1_000_000, None) for rule in rules]
        self.senders = [HookSender(hook, self.store, _message, lambda: self.now_ms, self._post) for hook in hooks]

    def _new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:032x}"

    def _post(self, hook: Webhook, message: Message, time_s: int) -> HookAnswer:
        dice = self.random.random()
        if dice < self.chance:
            return HookAnswer(self.random.choice([0, 500, 429, 503]), "away")
        self.received.append((hook.name, message.incident.id, message.event.value, message.number))
        return HookAnswer(0, "the answer is lost") if dice > 1 - self.chance / 2 else HookAnswer(204)

    def run(self) -> None:
        for _ in range(120):
            self._step()
        self.chance = self.store.chance = 0.0
        self.lasting.clear()
        for _ in range(3):
            self.now_ms += QUIET_MS
            self._observe(ConditionView(self.now_ms, self._conditions(), ()))
        self._deliver(until_empty=True)
        self._check_end()

    def _step(self) -> None:
        random = self.random
        self.now_ms += random.choice([POLL_MS, POLL_MS, 30 * POLL_MS])
        for group in self.groups:
            for kind in LASTING:
                if random.random() < 0.1:
                    self.lasting[kind, group] = random.choice(list(Severity))
                elif random.random() < 0.15:
                    self.lasting.pop((kind, group), None)
            for kind in EVENTS:
                if random.random() < 0.05:
                    self._event(kind, group)
        unsure = {group for group in self.groups if random.random() < 0.2}
        shown = [one for one in self._conditions() if one.group not in unsure or random.random() < 0.5]
        try:
            self._observe(ConditionView(self.now_ms, shown, unsure))
            if random.random() < 0.7:
                self._deliver()
            if random.random() < self.chance / 3:
                raise Killed
        except Killed:
            self.kills += 1
            self.store.kill()
            self._start()

    def _event(self, kind: str, group: str) -> None:
        self.offset += self.random.randint(1, 3)
        if self.random.random() < 0.02:
            self.offset = 0  # the offsets topic is created again
        clock = self.random.choice([0, 0, -3_600_000])  # the coordinator's clock may be behind the monitor's
        mark = EventMark(self.offset, self.now_ms + clock)
        known = self.events.setdefault((kind, group), [])
        if all(_is_later(mark, one) for one in known):
            known.append(mark)
            self.unknown_events.add((kind, group, mark))

    def _conditions(self) -> list[GroupCondition]:
        found = [GroupCondition(kind, group, severity, "bad") for (kind, group), severity in self.lasting.items()]
        for (kind, group), marks in self.events.items():
            joined = EventMark()
            for mark in marks:
                joined = joined.joined(mark)
            found.append(GroupCondition(kind, group, Severity.WARN, "event", len(marks), joined))
        return found

    def _observe(self, view: ConditionView) -> None:
        before = dict(self.observer.book.open)
        self.observer.record(view)
        if self.observer.trouble:
            return
        if not self.has_view:
            self.unknown_events.clear()  # events of before the first view are old
        self.has_view = True
        book = self.observer.book.open
        self._check_store(book)
        for condition in view.conditions:
            if condition.kind in LASTING:
                assert condition.subject in book, f"{condition.subject} is open nowhere"
                assert book[condition.subject].severity >= condition.severity
            else:
                self._check_events(condition)
        shown = {one.subject for one in view.conditions}
        for subject in before.keys() - book.keys():
            if subject[0] in LASTING:
                assert subject not in shown, f"{subject} has closed, and is there"
                assert subject[1] not in view.unsure, f"{subject} has closed in a view that is not sure"

    def _check_store(self, book: Any) -> None:
        stored = self.store.open_incidents()
        assert sorted(one.id for one in stored) == sorted(one.id for one in book.values())
        subjects = [one.subject for one in stored]
        assert len(subjects) == len(set(subjects))

    def _check_events(self, condition: GroupCondition) -> None:
        marks = self.store.marks().get(condition.subject, EventMark())
        for kind, group, mark in list(self.unknown_events):
            if (kind, group) == condition.subject:
                assert not _is_later(mark, marks), f"an event of {condition.subject} is in no incident"
                incidents = [*self.store.open_incidents(), *self.store.closed_incidents(10**6)]
                own = [one for one in incidents if one.subject == condition.subject]
                assert any(not _is_later(mark, one.mark) for one in own), f"an event of {condition.subject} is nowhere"
                self.unknown_events.discard((kind, group, mark))

    def _deliver(self, *, until_empty: bool = False) -> None:
        for sender in self.senders:
            for _ in range(10_000 if until_empty else 5):
                pause = sender.step()
                if pause and not until_empty:
                    break
                if self.store.next_delivery(sender.hook.name) is None:
                    break
                self.now_ms += int(pause * 1000)

    def _check_end(self) -> None:
        assert not self.observer.book.open, f"still open: {list(self.observer.book.open)}"
        assert not self.store.pending()
        closed = {one.id: one for one in self.store.closed_incidents(10**6)}
        for hook in HOOKS:
            _check_received([one for one in self.received if one[0] == hook], closed, self.chance)
        wanted = {one.id for one in closed.values() if one.severity >= Severity.ERR}
        assert wanted == {incident for hook, incident, _, _ in self.received if hook == "grave"}
        assert closed.keys() == {incident for hook, incident, _, _ in self.received if hook == "all"}


def _is_later(mark: EventMark, other: EventMark) -> bool:
    return mark.offset > other.offset or mark.time_ms > other.time_ms


def _message(delivery: PendingDelivery) -> Message:
    return Message("c", "", delivery.event, delivery.incident, delivery.number, delivery.made_ms)


def _check_received(received: Sequence[tuple[str, str, str, int]], closed: Any, chance: float) -> None:
    by_id: dict[str, list[tuple[int, str]]] = {}
    for _, incident, event, number in received:
        by_id.setdefault(incident, []).append((number, event))
    for incident, messages in by_id.items():
        assert incident in closed
        numbers = [number for number, _ in messages]
        assert numbers == sorted(numbers), f"{incident}: the order is {messages}"
        events = [event for _, event in sorted(set(messages))]
        assert events[0] == IncidentEvent.OPENED, f"{incident}: {events}"
        assert events[-1] == IncidentEvent.CLOSED, f"{incident}: {events}"
        assert set(events[1:-1]) <= {IncidentEvent.REPEATED}, f"{incident}: {events}"
