"""Changes over HTTP: ``/api/v1/…`` for plans, their application, the audit and the undo of each change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

from odradek.client.errors import GroupIdNotFound
from odradek.core.errors import KafkaError, OdradekError
from odradek.monitor.changes.change import ChangeKind
from odradek.monitor.changes.reset_request import divided, groups_of, request_of, topics_of
from odradek.monitor.changes.service import MOST_CHANGES, ChangeForbidden, PlanStale
from odradek.monitor.changes.store import PlanUsed
from odradek.monitor.choices import RequestRefused
from odradek.monitor.http.access import IDENTITY, ClientIdentity, name_of
from odradek.monitor.http.change_values import change_values, plan_values
from odradek.monitor.http.json_api import Json, check_parameters, number_of
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.offsets_reader import OffsetsTopicReader

MOST_BODY_BYTES = 16 << 20
CSV_TYPE = "text/csv; charset=utf-8"
CHANGE_PARAMETERS = ("group", "limit")
_CODES = {"done": 200, "failed": 502, "partial": 502, "unknown": 504}
"""The code of a reply about a change that was carried out, by its outcome."""
_RESET_FIELDS = ("csv", "mark", "target", "topics", "value")


class BodyTooLong(OdradekError):
    """A request whose body is too long."""


def identity_of(request: Request) -> ClientIdentity:
    found: ClientIdentity = request.scope[IDENTITY]
    return found


def check_identity(identity: ClientIdentity) -> None:
    """Raises ChangeForbidden for a token that may only read."""
    if not identity.may_change:
        raise ChangeForbidden("this token may only read: send one of --change-token-file")


def present(changes: Changes | None) -> Changes:
    """Returns the changes. Raises ChangeForbidden on a monitor that changes nothing."""
    if changes is None:
        raise ChangeForbidden("this monitor changes nothing: start it with --allow reset --data DIR")
    return changes


def check_known(reader: OffsetsTopicReader, *groups: str) -> None:
    """Raises GroupIdNotFound for a group that the monitor does not know. So a slip in a name creates no group, and no
    request to find a coordinator creates the offsets topic."""
    with reader.access:
        known = reader.tracker.group_names()
    for group in groups:
        if group not in known:
            raise GroupIdNotFound(f"the monitor knows no group {group!r}{nearest(group, known)}", group)


async def body_of(request: Request, most: int = MOST_BODY_BYTES) -> bytes:
    """Reads the body of a request. Raises BodyTooLong."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise BodyTooLong(f"the body is longer than {most:,} bytes")
    return bytes(body)


def refusal_of(error: OdradekError) -> tuple[int, Json]:
    """Returns the code and the JSON of a reply about an error."""
    body: Json = {"error": str(error)}
    match error:
        case RequestRefused():
            return 400, body | {"field": error.field}
        case ChangeForbidden():
            return 403, body
        case PlanUsed() | GroupIdNotFound():
            return 404, {"error": getattr(error, "message", str(error))}
        case PlanStale():
            return 409, body | {"plan": None if error.plan is None else plan_values(error.plan)}
        case BodyTooLong():
            return 413, body
        case KafkaError():
            return 502, body
    return 503, body


class ChangeApi:
    """The endpoints. ``changes``: None on a monitor that changes nothing."""

    def __init__(self, reader: OffsetsTopicReader, changes: Changes | None) -> None:
        self._reader, self._changes = reader, changes

    def routes(self) -> Iterable[Route]:
        """Yields the routes. Those of a group stand before the one that shows a group, because a name may be empty."""
        of_group = "/api/v1/groups/{group:path}"
        yield Route(f"{of_group}/reset", self._post(self._plan_reset), methods=["POST"])
        for kind in (ChangeKind.DELETE_OFFSETS, ChangeKind.DELETE_GROUP):
            yield Route(f"{of_group}/{kind.value}", self._post(self._plan_deletion(kind)), methods=["POST"])
        yield Route("/api/v1/resets", self._post(self._plan_bulk_reset), methods=["POST"])
        yield Route("/api/v1/plans/{plan}", self._get(self._plan))
        yield Route("/api/v1/plans/{plan}/csv", self._get(self._plan_csv))
        yield Route("/api/v1/plans/{plan}/apply", self._post(self._apply), methods=["POST"])
        yield Route("/api/v1/changes", self._get(self._newest))
        yield Route("/api/v1/changes/{change}", self._get(self._change))
        yield Route("/api/v1/changes/{change}/csv", self._get(self._change_csv))
        yield Route("/api/v1/changes/{change}/undo", self._post(self._undo), methods=["POST"])

    # --- endpoints ----------------------------------------------------------------------------------------------------

    def _plan_reset(self, changes: Changes, request: Request, body: Json) -> Response:
        check_parameters(body, _RESET_FIELDS)
        group = name_of(request, "group")
        check_known(self._reader, group)
        return JSONResponse(plan_values(changes.plan_reset(group, request_of(body))))

    def _plan_deletion(self, kind: ChangeKind) -> Callable[[Changes, Request, Json], Response]:
        def endpoint(changes: Changes, request: Request, body: Json) -> Response:
            check_parameters(body, ("topics",) if kind is ChangeKind.DELETE_OFFSETS else ())
            group = name_of(request, "group")
            check_known(self._reader, group)
            return JSONResponse(plan_values(changes.plan_deletion(group, kind, topics_of(body.get("topics", [])))))

        return endpoint

    def _plan_bulk_reset(self, changes: Changes, request: Request, body: Json) -> Response:
        check_parameters(body, (*_RESET_FIELDS, "groups"))
        wanted, groups = request_of(body), groups_of(body.get("groups", []))
        check_known(self._reader, *divided(wanted, groups)[0])
        return JSONResponse(plan_values(changes.plan_bulk_reset(groups, wanted)))

    def _plan(self, changes: Changes, request: Request) -> Response:
        return JSONResponse(plan_values(_found(changes.plan(name_of(request, "plan")), "plan", request)))

    def _plan_csv(self, changes: Changes, request: Request) -> Response:
        plan = _found(changes.plan(name_of(request, "plan")), "plan", request)
        return Response(plan.csv(), media_type=CSV_TYPE)

    def _apply(self, changes: Changes, request: Request, body: Json) -> Response:
        check_parameters(body, ("confirm",))
        confirmed = body.get("confirm")
        if not isinstance(confirmed, str):
            raise RequestRefused("confirm", "confirm: expected the text that the plan has as confirm")
        change = changes.apply(name_of(request, "plan"), confirmed, identity_of(request).name)
        return JSONResponse(change_values(change), _CODES[change.outcome.value])

    def _newest(self, changes: Changes, request: Request) -> Response:
        query = check_parameters(request.query_params, CHANGE_PARAMETERS)
        limit = number_of(query, "limit", 100, MOST_CHANGES)
        return JSONResponse({"changes": [change_values(one) for one in changes.newest(limit, query.get("group"))]})

    def _change(self, changes: Changes, request: Request) -> Response:
        change = _found(changes.change(name_of(request, "change")), "change", request)
        return JSONResponse(change_values(change) | {"restored_by": changes.restored_by(change.id)})

    def _change_csv(self, changes: Changes, request: Request) -> Response:
        change = _found(changes.change(name_of(request, "change")), "change", request)
        return Response(change.csv(), media_type=CSV_TYPE)

    def _undo(self, changes: Changes, request: Request, body: Json) -> Response:
        check_parameters(body, ())
        return JSONResponse(plan_values(_found(changes.plan_restore(name_of(request, "change")), "change", request)))

    # --- what all endpoints share -------------------------------------------------------------------------------------

    def _get(self, call: Callable[[Changes, Request], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            return _replied(lambda: call(present(self._changes), request))

        return endpoint

    def _post(self, call: Callable[[Changes, Request, Json], Response]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                body = await body_of(request)
            except BodyTooLong as error:
                code, refused = refusal_of(error)
                return JSONResponse(refused, code)
            return await run_in_threadpool(_replied, lambda: self._changed(call, request, body))

        return endpoint

    def _changed(self, call: Callable[[Changes, Request, Json], Response], request: Request, body: bytes) -> Response:
        changes, identity = present(self._changes), identity_of(request)
        check_identity(identity)
        if identity.by_cookie:
            raise ChangeForbidden("a change by this path needs the token as Authorization: Bearer …")
        return call(changes, request, _json(request, body))


def _replied(call: Callable[[], Response]) -> Response:
    try:
        return call()
    except OdradekError as error:
        code, body = refusal_of(error)
        return JSONResponse(body, code)


def _json(request: Request, body: bytes) -> Json:
    """Returns the object in a body. Raises RequestRefused. A form of another site cannot have this content type."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestRefused("content-type", "content-type: expected application/json")
    try:
        value = json.loads(body or b"{}")
        json.dumps(value, ensure_ascii=False).encode()  # no half of a character, which has no bytes in Kafka
    except (ValueError, RecursionError) as error:
        raise RequestRefused("body", f"body: it is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestRefused("body", "body: expected an object")
    return value


def _found(value: Any, kind: str, request: Request) -> Any:
    """Returns a plan or a change. Raises PlanUsed, which is 404, if there is none."""
    if value is None:
        raise PlanUsed(f"there is no {kind} {name_of(request, kind)!r}: it is carried out already, or unknown")
    return value
