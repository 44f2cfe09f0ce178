"""The changes that a monitor makes for a person: plans, their confirmation, and the undo of each change.

Each change goes the same way: its snapshot is on the disk (``ChangeStore.begin``), then the request goes to Kafka, then
its outcome is on the disk. A kill between two steps leaves a snapshot whose outcome is unknown, and never a changed
offset without a snapshot.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from uuid import uuid4

from odradek.client.admin import Admin
from odradek.client.errors import KafkaError
from odradek.core.errors import OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.monitor.changes.change import ChangeKind, ChangeOutcome, MonitorChange, outcome_of
from odradek.monitor.changes.change_plan import ChangePlan, obstacles, plan_as_json, plan_of_json
from odradek.monitor.changes.planner import ChangePlanner
from odradek.monitor.changes.reset_request import ResetRequest
from odradek.monitor.changes.store import ChangeStore, PlanUsed
from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import MonitorDatabase, StoreFailed

logger = logging.getLogger("odradek.monitor")

MOST_CHANGES = 1_000
"""The most changes in one reply."""
_PLANS_LIVE_MS = 86_400_000


class ChangeForbidden(OdradekError):
    """The service was not started with ``--allow`` for a change."""


class PlanStale(OdradekError):
    """The cluster is not as a plan has seen it. ``plan``: the same once more, if it can still be made."""

    def __init__(self, reasons: list[str], plan: ChangePlan | None) -> None:
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

    def plan_deletion(self, group: str, kind: ChangeKind, topics: tuple[str, ...] = ()) -> ChangePlan:
        self._check_allowed(kind)
        if kind is ChangeKind.DELETE_OFFSETS and not topics:
            raise RequestRefused("topics", "topics: name the topics whose offsets are deleted, such as orders:0,1")
        with self._open_admin() as admin:
            return self._saved(self._planner.deletion(admin, group, kind, topics))

    def plan_restore(self, change_id: str) -> ChangePlan | None:
        """Returns a plan that undoes a change; None if there is no such change."""
        self._check_allowed(ChangeKind.RESTORE)
        with self._access:
            self._store_outcomes()
        return self._restore(change_id)

    def _restore(self, change_id: str) -> ChangePlan | None:
        change = self.change(change_id)
        if change is None:
            return None
        with self._open_admin() as admin:
            return self._saved(self._planner.restore(admin, change))

    def plan(self, plan_id: str) -> ChangePlan | None:
        """Returns a plan that is not carried out yet."""
        content = self._store.plan(plan_id)
        return None if content is None else plan_of_json(content)

    def _saved(self, plan: ChangePlan) -> ChangePlan:
        self._store.forget_plans(self._now_ms() - _PLANS_LIVE_MS)
        self._store.save_plan(plan.id, plan.made_ms, plan_as_json(plan))
        return plan

    def _again(self, plan: ChangePlan) -> ChangePlan | None:
        """Makes the same plan once more, for the cluster as it is now. None if that is not possible."""
        try:
            if plan.kind is ChangeKind.RESTORE:
                return self._restore(str(plan.restores))
            if plan.kind is ChangeKind.RESET and plan.request is not None:
                return self.plan_reset(plan.group, plan.request)
            return self.plan_deletion(plan.group, plan.kind, plan.topics)
        except (RequestRefused, KafkaError) as error:
            logger.info("the plan %s cannot be made once more: %s", plan.id, error)
            return None

    # --- changes ------------------------------------------------------------------------------------------------------

    def apply(self, plan_id: str, confirmed: str, who: str) -> MonitorChange:
        """Carries out a plan. ``confirmed``: the group's name as a person has typed it. ``who``: the token's name.

        Returns the change with its outcome, also if Kafka has refused it. Raises PlanUsed, PlanStale."""
        with self._access:
            self._store_outcomes()
            plan = self.plan(plan_id)
            if plan is None:
                raise PlanUsed(f"plan {plan_id} is carried out already, or too old: make a new one")
            self._check_allowed(plan.kind)
            if confirmed != plan.group:
                raise RequestRefused("confirm", "confirm: type the name of the group exactly as it is shown")
            with self._open_admin() as admin:
                facts = self._planner.facts(admin, plan)
                if reasons := obstacles(plan, facts):
                    raise PlanStale(reasons, self._again(plan))
                rows = tuple(row._replace(before=facts.commits.get(row.place)) for row in plan.rows)
                change = MonitorChange(
                    self._new_id(), plan.kind, plan.group, who, plan.target, self._now_ms(), rows, plan.topic_ids,
                    plan.restores,
                )  # fmt: skip
                self._store.begin(change, plan.id)
                return self._carried_out(admin, change)

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

    def change(self, change_id: str) -> MonitorChange | None:
        return self._store.change(change_id)

    def newest(self, limit: int, group: str | None = None) -> list[MonitorChange]:
        """Returns the newest changes, of all groups or of one, the newest first."""
        return self._store.newest(limit, group)

    def restored_by(self, change_id: str) -> list[str]:
        """Returns the ids of the changes that have restored the snapshot of a change, the newest first."""
        return self._store.restored_by(change_id)

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
