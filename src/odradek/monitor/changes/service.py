"""The changes that a monitor makes for a person: plans, their confirmation, and the undo of each change.

Each change goes the same way: its snapshot is on the disk (``ChangeStore.begin``), then the request goes to Kafka, then
its outcome is on the disk. A kill between two steps leaves a snapshot whose outcome is unknown, and never a changed
offset without a snapshot. The changes of several groups have one plan, and all their snapshots are on the disk before
the first request.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import uuid4

from odradek.client.admin import Admin
from odradek.client.errors import KafkaError
from odradek.core.errors import OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.monitor.changes.bulk_change import BulkChange, BulkPlan, any_plan_of_json, bulk_as_json
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, MonitorChange, outcome_of
from odradek.monitor.changes.change_plan import ChangePlan, obstacles, plan_as_json
from odradek.monitor.changes.planner import ChangePlanner
from odradek.monitor.changes.reset_request import ResetRequest, divided
from odradek.monitor.changes.store import ChangeStore, PlanUsed
from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import MonitorDatabase, StoreFailed

logger = logging.getLogger("odradek.monitor")

AnyPlan = ChangePlan | BulkPlan
AnyChange = MonitorChange | BulkChange
P = TypeVar("P", ChangePlan, BulkPlan)
MOST_CHANGES = 1_000
"""The most changes in one reply."""
_PLANS_LIVE_MS = 86_400_000


class ChangeForbidden(OdradekError):
    """The service was not started with ``--allow`` for a change."""


class PlanStale(OdradekError):
    """The cluster is not as a plan has seen it. ``plan``: the same once more, if it can still be made."""

    def __init__(self, reasons: list[str], plan: AnyPlan | None) -> None:
        more = f", and {len(reasons) - 3:,} more" if len(reasons) > 3 else ""
        super().__init__("; ".join(reasons[:3]) + more)
        self.plan = plan


class Changes:
    """``open_admin``: opens a client of the cluster. ``allowed``: values of ``--allow``. Threads may share it.

    Raises StoreFailed. Methods raise StoreFailed, RequestRefused, ChangeForbidden and the errors of ``Admin``."""

    def __init__(
        self,
        database: MonitorDatabase,
        open_admin: Callable[[], Admin],
        allowed: Collection[str],
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self.allowed = frozenset(allowed)
        self._store = ChangeStore(database, now_ms())
        self._open_admin, self._now_ms, self._new_id = open_admin, now_ms, new_id
        self._planner = ChangePlanner(new_id, now_ms)
        self._access = threading.Lock()
        self._not_stored: list[MonitorChange] = []
        """Changes whose outcome could not be stored, for example on a full disk."""

    def allows(self, kind: ChangeKind) -> bool:
        """Returns whether ``--allow`` has a kind of change. A restore commits offsets, as a reset does."""
        return ("reset" if kind is ChangeKind.RESTORE else kind.value) in self.allowed

    # --- plans --------------------------------------------------------------------------------------------------------

    def plan_reset(self, group: str, request: ResetRequest) -> ChangePlan:
        self._check_allowed(ChangeKind.RESET)
        with self._open_admin() as admin:
            return self._saved(self._planner.reset(admin, group, request))

    def plan_bulk_reset(self, groups: Sequence[str], request: ResetRequest) -> BulkPlan:
        """Plans the reset of several groups. Without groups, those of the request's CSV."""
        self._check_allowed(ChangeKind.RESET)
        requests, notes = divided(request, groups)
        with self._open_admin() as admin:
            plans = [self._reset_of(admin, group, one) for group, one in requests.items()]
        return self._bulk(plans, BulkPlan("", ChangeKind.RESET, request.text, 0, (), request, None, notes))

    def _reset_of(self, admin: Admin, group: str, request: ResetRequest) -> ChangePlan:
        try:
            return self._planner.reset(admin, group, request)
        except RequestRefused as error:
            raise RequestRefused(error.field, f"{error} (group {group!r})") from None

    def plan_deletion(self, group: str, kind: ChangeKind, topics: tuple[str, ...] = ()) -> ChangePlan:
        self._check_allowed(kind)
        if kind is ChangeKind.DELETE_OFFSETS and not topics:
            raise RequestRefused("topics", "topics: name the topics whose offsets are deleted, such as orders:0,1")
        with self._open_admin() as admin:
            return self._saved(self._planner.deletion(admin, group, kind, topics))

    def plan_restore(self, change_id: str) -> AnyPlan | None:
        """Returns a plan that undoes a change, of one group or of several ones; None if there is no such change."""
        self._check_allowed(ChangeKind.RESTORE)
        with self._access:
            self._store_outcomes()
        return self._restore(change_id)

    def _restore(self, change_id: str) -> AnyPlan | None:
        change = self.change(change_id)
        if change is None:
            return None
        with self._open_admin() as admin:
            if isinstance(change, BulkChange):
                return self._bulk_restore(admin, change)
            return self._saved(self._planner.restore(admin, change))

    def _bulk_restore(self, admin: Admin, bulk: BulkChange) -> BulkPlan:
        changed = [one for one in bulk.changes if one.outcome is not ChangeOutcome.FAILED]
        if not changed:
            raise RequestRefused("change", f"change: {bulk.id} cannot be undone: it has changed nothing")
        notes = tuple(f"Group {group!r} is left out: nothing of it was changed." for group in bulk.not_changed)
        plans = [self._planner.restore(admin, one) for one in changed]
        target = f"the offsets before the change {bulk.id[:8]}"
        return self._bulk(plans, BulkPlan("", ChangeKind.RESTORE, target, 0, (), None, bulk.id, notes))

    def _bulk(self, plans: Sequence[ChangePlan], plan: BulkPlan) -> BulkPlan:
        """Saves a plan of several groups."""
        bulk_id = self._new_id()
        parts = tuple(replace(one, id=bulk_id) for one in plans)
        return self._saved(replace(plan, id=bulk_id, made_ms=self._now_ms(), plans=parts))

    def plan(self, plan_id: str) -> AnyPlan | None:
        """Returns a plan that is not carried out yet."""
        content = self._store.plan(plan_id)
        return None if content is None else any_plan_of_json(content)

    def _saved(self, plan: P) -> P:
        self._store.forget_plans(self._now_ms() - _PLANS_LIVE_MS)
        content = bulk_as_json(plan) if isinstance(plan, BulkPlan) else plan_as_json(plan)
        self._store.save_plan(plan.id, plan.made_ms, content)
        return plan

    def _again(self, plan: AnyPlan) -> AnyPlan | None:
        """Makes the same plan once more, for the cluster as it is now. None if that is not possible."""
        try:
            if plan.kind is ChangeKind.RESTORE:
                return self._restore(str(plan.restores))
            if isinstance(plan, BulkPlan):
                return None if plan.request is None else self.plan_bulk_reset(plan.groups, plan.request)
            if plan.request is not None:
                return self.plan_reset(plan.group, plan.request)
            return self.plan_deletion(plan.group, plan.kind, plan.topics)
        except (RequestRefused, KafkaError) as error:
            logger.info("the plan %s cannot be made once more: %s", plan.id, error)
            return None

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, plan_id: str, confirmed: str, who: str) -> AnyChange:
        """Carries out a plan. ``confirmed``: what a person has typed, ``plan.confirmation``. ``who``: the token's name.

        Returns the change with its outcome, also if Kafka has refused it. Raises PlanUsed, PlanStale."""
        with self._access:
            self._store_outcomes()
            plan = self.plan(plan_id)
            if plan is None:
                raise PlanUsed(f"plan {plan_id} is carried out already, or too old: make a new one")
            self._check_allowed(plan.kind)
            if confirmed != plan.confirmation:
                wanted = "the name of the group" if isinstance(plan, ChangePlan) else repr(plan.confirmation)
                raise RequestRefused("confirm", f"confirm: type {wanted} exactly as it is shown")
            with self._open_admin() as admin:
                if isinstance(plan, ChangePlan):
                    (change,) = self._begun(admin, plan, (plan,), who, None)
                    return self._carried_out(admin, change)
                bulk_id = self._new_id()
                changes = self._begun(admin, plan, plan.plans, who, bulk_id)
                return BulkChange(bulk_id, tuple(self._one_by_one(admin, plan.plans, changes)))

    def _begun(
        self, admin: Admin, plan: AnyPlan, parts: Sequence[ChangePlan], who: str, bulk_id: str | None
    ) -> list[MonitorChange]:
        """Looks at the cluster once more, and stores the snapshot of each group. Raises PlanStale."""
        reasons: list[str] = []
        changes = []
        for part in parts:
            facts = self._planner.facts(admin, part)
            found = obstacles(part, facts)
            reasons += found if bulk_id is None else [f"{part.group}: {one}" for one in found]
            rows = tuple(row._replace(before=facts.commits.get(row.place)) for row in part.rows)
            changes.append(
                MonitorChange(
                    self._new_id(), part.kind, part.group, who, part.target, self._now_ms(), rows, part.topic_ids,
                    part.restores, bulk=bulk_id,
                )
            )  # fmt: skip
        if reasons:
            raise PlanStale(reasons, self._again(plan))
        self._store.begin(changes, plan.id)
        return changes

    def _one_by_one(
        self, admin: Admin, plans: Sequence[ChangePlan], changes: Sequence[MonitorChange]
    ) -> list[MonitorChange]:
        """Carries out the changes of a bulk change. A group that cannot be changed does not stop the others. If it is
        not known whether one was changed, the cluster may not answer: then no further one is tried."""
        ended: list[MonitorChange] = []
        lost = ""
        try:
            for plan, change in zip(plans, changes, strict=True):
                reason = lost or (self._moved_since(admin, plan, change) if ended else "")
                if reason:
                    ended.append(self._not_tried(change, reason))
                    continue
                ended.append(self._carried_out(admin, change))
                if ended[-1].outcome is ChangeOutcome.UNKNOWN:
                    lost = f"it is not known whether group {change.group!r} was changed"
        except Exception as error:
            for change in changes[len(ended) + 1 :]:
                self._not_tried(change, repr(error))
            raise
        return ended

    def _not_tried(self, change: MonitorChange, reason: str) -> MonitorChange:
        return self._end(change.ended(ChangeOutcome.FAILED, f"not tried: {reason}", self._now_ms()))

    def _moved_since(self, admin: Admin, plan: ChangePlan, change: MonitorChange) -> str:
        """Returns why a group is not as its snapshot has it; "" if it is. The groups before it took their time."""
        try:
            facts = self._planner.facts(admin, plan)
        except OdradekError as error:
            return str(error)
        if found := obstacles(plan, facts):
            return "; ".join(found[:3])
        same = all(facts.commits.get(row.place) == row.before for row in change.rows)
        return "" if same else "a commit came meanwhile"

    def _carried_out(self, admin: Admin, change: MonitorChange) -> MonitorChange:
        outcome, text = ChangeOutcome.DONE, ""
        try:
            _request(admin, change)
        except OdradekError as error:
            present = _present(admin, change.group)
            outcome, text = outcome_of(change.rows, present, str(error), is_refused=isinstance(error, KafkaError))
        except Exception as error:
            self._end(change.ended(ChangeOutcome.UNKNOWN, repr(error), self._now_ms()))
            raise
        return self._end(change.ended(outcome, text, self._now_ms()))

    def _end(self, change: MonitorChange) -> MonitorChange:
        logger.warning(
            "%s of group %s by %s: %s%s", change.kind, change.group, change.who, change.outcome,
            f": {change.text}" if change.text else "",
        )  # fmt: skip
        try:
            self._store.end(change)
        except StoreFailed as error:
            logger.warning("the outcome of change %s is not stored yet: %s", change.id, error)
            self._not_stored.append(change)
            return replace(change, text=f"{change.text}; the outcome is not on the disk yet: {error}".lstrip("; "))
        return change

    def _store_outcomes(self) -> None:
        """Stores the outcomes that could not be stored before. Raises StoreFailed."""
        while self._not_stored:
            self._store.end(self._not_stored[0])
            self._not_stored.pop(0)

    def change(self, change_id: str) -> AnyChange | None:
        """Returns the change of a group or of several ones."""
        if changes := self._store.of_bulk(change_id):
            return BulkChange(change_id, tuple(changes))
        return self._store.change(change_id)

    def newest(self, limit: int, group: str | None = None) -> list[MonitorChange]:
        """Returns the newest changes, of all groups or of one, the newest first."""
        return self._store.newest(limit, group)

    def restored_by(self, change_id: str) -> list[str]:
        """Returns the ids of the changes that have restored the snapshot of a change, the newest first."""
        return self._store.restored_by(change_id) or self._store.bulks_that_restore(change_id)

    def _check_allowed(self, kind: ChangeKind) -> None:
        if not self.allows(kind):
            name = "reset" if kind is ChangeKind.RESTORE else kind.value
            raise ChangeForbidden(f"this monitor does not change that: start it with --allow {name}")


def _request(admin: Admin, change: MonitorChange) -> None:
    """Sends the requests of a change to Kafka. Raises the errors of ``Admin``."""
    if change.kind is ChangeKind.DELETE_GROUP:
        admin.delete_groups([change.group])
        return
    commits = {row.place: row.after for row in change.rows if row.after is not None}
    gone = [row.place for row in change.rows if row.after is None and row.before is not None]
    if commits:
        admin.alter_group_offsets(change.group, commits)
    if gone:
        admin.delete_group_offsets(change.group, gone)


def _present(admin: Admin, group: str) -> dict[TopicPartition, OffsetAndMetadata | None] | None:
    """Returns the group's commits after an error; None if they cannot be read."""
    try:
        return admin.group_commits(group)
    except OdradekError as error:
        logger.info("the offsets of group %s cannot be read after an error: %s", group, error)
        return None
