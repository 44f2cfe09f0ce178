"""The pages that change something: the reset wizard, the diff with its confirmation, and the changes with their undo.

A form leads to a plan, the plan to a change, each by a redirect: so a page can be loaded again without another change,
and everything works without JavaScript.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.bulk_change import BulkChange
from odradek.monitor.changes.change import ChangeKind
from odradek.monitor.changes.reset_request import request_of, topics_of
from odradek.monitor.changes.service import MOST_CHANGES, AnyChange, AnyPlan, PlanStale
from odradek.monitor.choices import RequestRefused
from odradek.monitor.http.access import name_of
from odradek.monitor.http.change_api import CHANGE_PARAMETERS, check_known, identity_of
from odradek.monitor.http.json_api import Json, check_parameters, number_of
from odradek.monitor.web.change_endpoints import ChangeEndpoints, csv_reply, found
from odradek.monitor.web.change_views import bulk_view, change_line, change_view, plan_view, reset_view
from odradek.monitor.web.form_fields import Form
from odradek.monitor.web.formats import link, named
from odradek.monitor.web.pages import here_of

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes


class ChangePages:
    """The endpoints."""

    def __init__(self, shared: ChangeEndpoints) -> None:
        self._shared, self._reader = shared, shared.reader

    def routes(self) -> Iterable[Route]:
        get, post = self._shared.get, self._shared.post
        # The name is in the query, because a browser changes a path with the segment ``..``.
        yield Route("/groups/{group:path}/reset", self._to_wizard)
        yield Route("/group/reset", get(self._wizard))
        yield Route("/group/reset", post(self._plan_reset), methods=["POST"])
        yield Route("/group/delete", post(self._plan_deletion), methods=["POST"])
        yield Route("/plan", get(self._plan))
        yield Route("/plan", post(self._apply), methods=["POST"])
        yield Route("/plan.csv", get(self._plan_csv))
        yield Route("/changes", get(self._newest))
        yield Route("/change", get(self._change))
        yield Route("/change.csv", get(self._change_csv))
        yield Route("/change/undo", post(self._undo), methods=["POST"])

    # --- the wizard ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _to_wizard(request: Request) -> Response:
        return RedirectResponse(named("/group/reset", name_of(request, "group")), 303)

    def _wizard(self, changes: Changes, request: Request) -> Response:
        group, query = request.query_params.get("name", ""), request.query_params
        check_known(self._reader, group)
        given = {"target": query["target"]} if query.get("target") in list(ResetTarget) else {}
        return self._form(request, group, given)

    def _form(
        self, request: Request, group: str, given: Mapping[str, str], error: RequestRefused | None = None
    ) -> Response:
        with self._reader.access:
            tracker = self._reader.tracker
            slots = tracker.slots(group)
            topics = sorted({tp.topic for tp in tracker.partitions_of(slots)}) if len(slots) else []
        content = {"group": group} | reset_view(topics, given, int(time.time() * 1000)) | error_view(error)
        code = 200 if error is None else 400
        return self._shared.shown(request, "reset.html", content, named("/group/reset", group), code)

    def _plan_reset(self, changes: Changes, request: Request, form: Form) -> Response:
        group = request.query_params.get("name", "")
        check_known(self._reader, group)
        values = reset_values(form)
        try:
            check_scope(form, values)
            plan = changes.plan_reset(group, request_of(values))
        except RequestRefused as error:
            return self._form(request, group, {**form, "csv": values.get("csv", "")}, error)
        return RedirectResponse(link("/plan", id=plan.id), 303)

    def _plan_deletion(self, changes: Changes, request: Request, form: Form) -> Response:
        group, kind = request.query_params.get("name", ""), form.get("kind", "")
        check_known(self._reader, group)
        if kind not in (ChangeKind.DELETE_OFFSETS, ChangeKind.DELETE_GROUP):
            raise RequestRefused("kind", "kind: expected delete-offsets or delete-group")
        try:
            topics = topics_of([form.get("delete_topics", "")]) if kind == ChangeKind.DELETE_OFFSETS else ()
            plan = changes.plan_deletion(group, ChangeKind(kind), topics)
        except RequestRefused as error:
            refused = RequestRefused("delete_topics", str(error)) if error.field == "topics" else error
            return self._form(request, group, form, refused)
        return RedirectResponse(link("/plan", id=plan.id), 303)

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, changes: Changes, request: Request) -> Response:
        return self._diff(request, found(changes.plan(request.query_params.get("id", "")), "plan"))

    def _diff(self, request: Request, plan: AnyPlan, code: int = 200, **more: object) -> Response:
        content = {"error": None, "stale": None, **plan_view(plan), **more}
        return self._shared.shown(request, "plan.html", content, link("/plan", id=plan.id), code)

    def _plan_csv(self, changes: Changes, request: Request) -> Response:
        plan: AnyPlan = found(changes.plan(request.query_params.get("id", "")), "plan")
        return csv_reply(plan.csv(), f"{plan.kind.value}-{plan.id[:8]}")

    def _apply(self, changes: Changes, request: Request, form: Form) -> Response:
        plan_id = form.get("id", "")
        try:
            change = changes.apply(plan_id, form.get("confirm", ""), identity_of(request).name)
        except RequestRefused as error:
            return self._diff(request, found(changes.plan(plan_id), "plan"), 400, **error_view(error))
        except PlanStale as error:
            if error.plan is None:
                raise
            return self._diff(request, error.plan, 409, stale=str(error))
        return RedirectResponse(link("/change", id=change.id), 303)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _newest(self, changes: Changes, request: Request) -> Response:
        query = check_parameters(request.query_params, CHANGE_PARAMETERS)
        group = query.get("group")
        newest = changes.newest(number_of(query, "limit", 100, MOST_CHANGES), group)
        content = {"lines": [change_line(one) for one in newest], "group": group}
        return self._shared.shown(request, "changes.html", content, here_of(request))

    def _change(self, changes: Changes, request: Request) -> Response:
        change: AnyChange = found(changes.change(request.query_params.get("id", "")), "change")
        restored_by = changes.restored_by(change.id)
        if isinstance(change, BulkChange):
            return self._shared.shown(request, "bulk.html", bulk_view(change, restored_by), here_of(request))
        return self._shared.shown(request, "change.html", change_view(change, restored_by), here_of(request))

    def _change_csv(self, changes: Changes, request: Request) -> Response:
        change: AnyChange = found(changes.change(request.query_params.get("id", "")), "change")
        return csv_reply(change.csv(), f"before-{change.id[:8]}")

    def _undo(self, changes: Changes, request: Request, form: Form) -> Response:
        plan: AnyPlan = found(changes.plan_restore(form.get("id", "")), "change")
        return RedirectResponse(link("/plan", id=plan.id), 303)


def error_view(error: RequestRefused | None) -> Json:
    return {"error": None if error is None else {"field": error.field, "text": str(error)}}


def reset_values(form: Form) -> Json:
    """Returns what a form of a reset asks for, as a JSON body has it."""
    target = form.get("target", "")
    values: Json = {"target": target, "mark": form.get("mark") == "on"}
    if target == ResetTarget.FROM_FILE:
        return values | {"csv": form.get("file", "") or form.get("csv", "")}
    topics = form.get("topics", "").split() if form.get("scope") == "some" else []
    return values | {"value": form.get(f"value-{target}", ""), "topics": topics}


def check_scope(form: Form, values: Json) -> None:
    """Raises RequestRefused if chosen topics are asked for and none is named: that does not mean all of them."""
    if form.get("scope") == "some" and values["target"] != ResetTarget.FROM_FILE and not values["topics"]:
        raise RequestRefused("topics", "topics: name at least one, or choose all partitions")
