"""The pages that change something: the reset wizard, the diff with its confirmation, and the changes with their undo.

A form leads to a plan, the plan to a change, each by a redirect: so a page can be loaded again without another change,
and everything works without JavaScript.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

from odradek.core.errors import OdradekError
from odradek.monitor.changes.change import ChangeKind, MonitorChange
from odradek.monitor.changes.change_plan import ChangePlan
from odradek.monitor.changes.reset_request import request_of, topics_of
from odradek.monitor.changes.service import MOST_CHANGES, ChangeForbidden, PlanStale
from odradek.monitor.changes.store import PlanUsed
from odradek.monitor.choices import TARGETS, RequestRefused
from odradek.monitor.http.access import AccessTokens, name_of
from odradek.monitor.http.change_api import (
    CHANGE_PARAMETERS,
    CSV_TYPE,
    READ_ONLY,
    BodyTooLong,
    body_of,
    check_identity,
    check_known,
    identity_of,
    refusal_of,
    snapshot_csv,
)
from odradek.monitor.http.json_api import Json, check_parameters, number_of
from odradek.monitor.web.change_views import change_line, change_view, plan_view, reset_view
from odradek.monitor.web.form_fields import form_fields
from odradek.monitor.web.formats import link, named
from odradek.monitor.web.pages import here_of

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.offsets_reader import OffsetsTopicReader
    from odradek.monitor.web.pages import Pages

Form = Mapping[str, str]
_TITLES = {400: "A wrong value", 403: "Not allowed", 404: "Not found", 409: "The cluster has changed"}


class ChangePages:
    """The endpoints. ``changes``: None on a monitor that changes nothing."""

    def __init__(
        self, pages: Pages, reader: OffsetsTopicReader, tokens: AccessTokens, changes: Changes | None
    ) -> None:  # fmt: skip
        self._pages, self._reader, self._tokens, self._changes = pages, reader, tokens, changes

    def routes(self) -> Iterable[Route]:
        # The name is in the query, because a browser changes a path with the segment ``..``.
        yield Route("/groups/{group:path}/reset", self._to_wizard)
        yield Route("/group/reset", self._get(self._wizard))
        yield Route("/group/reset", self._post(self._plan_reset), methods=["POST"])
        yield Route("/group/delete", self._post(self._plan_deletion), methods=["POST"])
        yield Route("/plan", self._get(self._plan))
        yield Route("/plan", self._post(self._apply), methods=["POST"])
        yield Route("/plan.csv", self._get(self._plan_csv))
        yield Route("/changes", self._get(self._newest))
        yield Route("/change", self._get(self._change))
        yield Route("/change.csv", self._get(self._change_csv))
        yield Route("/change/undo", self._post(self._undo), methods=["POST"])

    # --- the wizard ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _to_wizard(request: Request) -> Response:
        return RedirectResponse(named("/group/reset", name_of(request, "group")), 303)

    def _wizard(self, changes: Changes, request: Request) -> Response:
        group, query = request.query_params.get("name", ""), request.query_params
        check_known(self._reader, group)
        given = {"target": query["target"]} if query.get("target") in TARGETS else {}
        return self._form(request, group, given)

    def _form(self, request: Request, group: str, given: Form, error: RequestRefused | None = None) -> Response:
        with self._reader.access:
            tracker = self._reader.tracker
            slots = tracker.slots(group)
            topics = sorted({tp.topic for tp in tracker.partitions_of(slots)}) if len(slots) else []
        content = reset_view(group, topics, given, int(time.time() * 1000))
        content |= {"error": None if error is None else {"field": error.field, "text": str(error)}}
        return self._shown(request, "reset.html", content, named("/group/reset", group), 200 if error is None else 400)

    def _plan_reset(self, changes: Changes, request: Request, form: Form) -> Response:
        group = request.query_params.get("name", "")
        check_known(self._reader, group)
        target = form.get("target", "")
        values: Json = {"target": target, "mark": form.get("mark") == "on"}
        if target == "from-file":
            values["csv"] = form.get("file", "") or form.get("csv", "")
        else:
            values |= {"value": form.get(f"value-{target}", "")}
            values["topics"] = form.get("topics", "").split() if form.get("scope") == "some" else []
        try:
            if form.get("scope") == "some" and target != "from-file" and not values["topics"]:
                raise RequestRefused("topics", "topics: name at least one, or choose all partitions")
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
        return self._diff(request, _found(changes.plan(request.query_params.get("id", "")), "plan"))

    def _diff(self, request: Request, plan: ChangePlan, code: int = 200, **more: object) -> Response:
        content = {"error": None, "stale": None, **plan_view(plan), **more}
        return self._shown(request, "plan.html", content, link("/plan", id=plan.id), code)

    def _plan_csv(self, changes: Changes, request: Request) -> Response:
        plan = _found(changes.plan(request.query_params.get("id", "")), "plan")
        return _csv(plan.csv(), f"{plan.kind.value}-{plan.id[:8]}")

    def _apply(self, changes: Changes, request: Request, form: Form) -> Response:
        plan_id = form.get("id", "")
        try:
            change = changes.apply(plan_id, form.get("confirm", ""), identity_of(request).name)
        except RequestRefused as error:
            plan = _found(changes.plan(plan_id), "plan")
            return self._diff(request, plan, 400, error={"field": error.field, "text": str(error)})
        except PlanStale as error:
            if error.plan is None:
                raise
            return self._diff(request, error.plan, 409, stale=str(error))
        return RedirectResponse(link("/change", id=change.id), 303)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _newest(self, changes: Changes, request: Request) -> Response:
        query = check_parameters(request.query_params, CHANGE_PARAMETERS)
        group = query.get("group")
        found = changes.newest(number_of(query, "limit", 100, MOST_CHANGES), group)
        content = {"lines": [change_line(one) for one in found], "group": group}
        return self._shown(request, "changes.html", content, here_of(request))

    def _change(self, changes: Changes, request: Request) -> Response:
        change: MonitorChange = _found(changes.change(request.query_params.get("id", "")), "change")
        content = change_view(change, changes.restored_by(change.id)) | {"error": None}
        return self._shown(request, "change.html", content, here_of(request))

    def _change_csv(self, changes: Changes, request: Request) -> Response:
        change: MonitorChange = _found(changes.change(request.query_params.get("id", "")), "change")
        return _csv(snapshot_csv(change), f"before-{change.id[:8]}")

    def _undo(self, changes: Changes, request: Request, form: Form) -> Response:
        plan = _found(changes.plan_restore(form.get("id", "")), "change")
        return RedirectResponse(link("/plan", id=plan.id), 303)

    # --- what all endpoints share -------------------------------------------------------------------------------------

    def _get(self, call: Callable[[Changes, Request], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            return self._replied(request, lambda: call(self._present(), request))

        return endpoint

    def _post(self, call: Callable[[Changes, Request, Form], Response]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                body = await body_of(request)
            except BodyTooLong as error:
                return self._message(request, error)
            return await run_in_threadpool(self._replied, request, lambda: self._posted(call, request, body))

        return endpoint

    def _posted(self, call: Callable[[Changes, Request, Form], Response], request: Request, body: bytes) -> Response:
        changes, identity = self._present(), identity_of(request)
        check_identity(identity)
        form = form_fields(request.headers.get("content-type", ""), body)
        if not self._tokens.is_form_word(identity, form.get("word", "")):
            raise ChangeForbidden("the form is of another start of the service, or of another user: open it once more")
        return call(changes, request, form)

    def _present(self) -> Changes:
        if self._changes is None:
            raise ChangeForbidden(READ_ONLY)
        return self._changes

    def _replied(self, request: Request, call: Callable[[], Response]) -> Response:
        try:
            return call()
        except OdradekError as error:
            return self._message(request, error)

    def _message(self, request: Request, error: OdradekError) -> Response:
        code, body = refusal_of(error)
        content = {"title": _TITLES.get(code, "The change was not possible"), "text": body["error"]}
        return self._shown(request, "message.html", content, "/", code)

    def _shown(self, request: Request, template: str, content: Json, here: str, code: int = 200) -> Response:
        with self._reader.access:
            head = self._pages.head(request)
        return self._pages.page(template, content, head, here, code)


def _found(value: Any, kind: str) -> Any:
    """Returns a plan or a change. Raises PlanUsed, which is 404, if there is none."""
    if value is None:
        raise PlanUsed(f"There is no such {kind}: it is carried out already, or unknown.")
    return value


def _csv(text: str, name: str) -> Response:
    return Response(text, media_type=CSV_TYPE, headers={"content-disposition": f'attachment; filename="{name}.csv"'})
