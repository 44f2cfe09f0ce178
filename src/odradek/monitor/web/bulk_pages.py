"""The pages of a reset of several groups: their choice, and the form that leads to one plan."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.requests import Request
    from starlette.responses import RedirectResponse, Response
    from starlette.routing import Route

from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.reset_request import divided, groups_of, request_of
from odradek.monitor.choices import MOST_BULK_GROUPS, RequestRefused
from odradek.monitor.http.change_api import check_known
from odradek.monitor.http.json_api import Json, groups_page
from odradek.monitor.web.change_endpoints import ChangeEndpoints
from odradek.monitor.web.change_pages import check_scope, error_view, reset_values
from odradek.monitor.web.change_views import reset_view
from odradek.monitor.web.form_fields import Form
from odradek.monitor.web.formats import link
from odradek.monitor.web.pages import here_of

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes

_CHOICE, _FORM = "/reset/groups", "/reset"


class BulkPages:
    """The endpoints."""

    def __init__(self, shared: ChangeEndpoints) -> None:
        self._shared, self._reader = shared, shared.reader

    def routes(self) -> Iterable[Route]:
        get, post = self._shared.get, self._shared.post
        yield Route(_CHOICE, get(self._choice))
        yield Route(_FORM, get(self._wizard))
        yield Route(_FORM, post(self._plan_reset), methods=["POST"])

    def _choice(self, changes: Changes, request: Request) -> Response:
        """Shows the groups whose names contain the search, and the chosen ones before them."""
        chosen, search = self._chosen(request), request.query_params.get("search", "")
        query = {"search": search, "sort": "name", "limit": str(MOST_BULK_GROUPS)}
        page = groups_page(self._reader, query)
        rows = [{"name": name, "state": self._state(name), "is_chosen": True} for name in chosen]
        others = [row for row in page["groups"] if row["group"] not in chosen]
        rows += [{"name": row["group"], "state": row["state"] or "", "is_chosen": False} for row in others]
        more = max(0, page["total"] - len(page["groups"]))
        content = {"rows": rows, "search": search, "more": more, "most": MOST_BULK_GROUPS}
        return self._shared.shown(request, "bulk_choice.html", content, here_of(request))

    def _wizard(self, changes: Changes, request: Request) -> Response:
        query, chosen = request.query_params, self._chosen(request)
        if not chosen:
            return RedirectResponse(link(_CHOICE, search=query.get("search")), 303)
        target = query.get("target", "")
        given = {"target": target, f"value-{target}": query["value"]} if "value" in query else {"target": target}
        return self._form(request, chosen, given if target in list(ResetTarget) else {})

    def _form(
        self, request: Request, groups: Sequence[str], given: Mapping[str, str], error: RequestRefused | None = None
    ) -> Response:
        with self._reader.access:
            tracker = self._reader.tracker
            places = [tp for name in groups for tp in tracker.partitions_of(tracker.slots(name))]
        topics = sorted({tp.topic for tp in places})
        content: Json = {"groups": groups, "choice_link": f"{_CHOICE}?{urlencode([('name', one) for one in groups])}"}
        content |= reset_view(topics, given, int(time.time() * 1000)) | error_view(error)
        here = f"{_FORM}?{urlencode([('name', one) for one in groups])}"
        return self._shared.shown(request, "bulk_reset.html", content, here, 200 if error is None else 400)

    def _plan_reset(self, changes: Changes, request: Request, form: Form) -> Response:
        groups, values = groups_of(form.several("group")), reset_values(form)
        try:
            check_scope(form, values)
            wanted = request_of(values)
            check_known(self._reader, *divided(wanted, groups)[0])
            plan = changes.plan_bulk_reset(groups, wanted)
        except RequestRefused as error:
            return self._form(request, groups, {**form, "csv": values.get("csv", "")}, error)
        return RedirectResponse(link("/plan", id=plan.id), 303)

    def _chosen(self, request: Request) -> tuple[str, ...]:
        chosen = groups_of(request.query_params.getlist("name"))
        check_known(self._reader, *chosen)
        return chosen

    def _state(self, group: str) -> str:
        listed = self._reader.tracker.group_states.get(group)
        return "" if listed is None else listed.state
