"""The HTTP service of the monitor: metrics, Burrow's API, our own API, and health."""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode

from odradek.core.errors import OdradekError
from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request, cookie_parser
    from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
    from starlette.routing import Route

from odradek.monitor.http.burrow_api import BurrowApi, Reply
from odradek.monitor.http.json_api import (
    GROUP_PARAMETERS,
    INCIDENT_PARAMETERS,
    RequestRefused,
    check_parameters,
    findings,
    group_detail,
    groups_page,
    monitor_state,
    number_of,
    topic_detail,
)
from odradek.monitor.http.metrics import MetricsOptions, exposition
from odradek.monitor.incidents.service import MOST_CLOSED
from odradek.monitor.incidents.store import StoreFailed
from odradek.monitor.offsets_reader import OffsetsTopicReader
from odradek.monitor.web.pages import COOKIE, OPEN_PATHS, PAGE_PATHS, STATIC, Pages, session_of
from odradek.text.printable import printable
from odradek.text.prometheus import METRICS_TYPE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from odradek.monitor.incidents.service import Incidents

_SLASH = "\x00"
"""Stands for an encoded slash in a segment of a path, so that names with a slash are one segment."""
_OPEN = ("/healthz", "/readyz", "/burrow/admin", "/burrow/admin/ready")
"""Paths that need no token: they show no data, and the probes of a platform have none."""
_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """``hosts``: the names in the Host header that are served; without a port. ``token``: what a client must send as
    ``Authorization: Bearer …``; "" if none is needed."""

    metrics: MetricsOptions
    hosts: frozenset[str]
    token: str = field(default="", repr=False)
    servers: tuple[str, ...] = ()


class NothingKept(OdradekError):
    """The monitor has no directory for what is asked."""


class Guard:
    """An ASGI application in front of another one: checks Host and token, and adds the headers of every reply.

    ``hosts``, ``token``: as in ``ServiceOptions``."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], token: str) -> None:
        self._app, self._hosts, self._token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in given)]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        segments = [unquote(part.decode("latin-1")).replace("/", _SLASH) for part in path.split(b"/")]
        await self._app(scope | {"path": "/".join(segments)}, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts:
            return JSONResponse({"error": f"Host {host!r} is not served here: see --allowed-host"}, 403)
        if scope["method"] == "POST" and not _is_same_origin(headers):
            return JSONResponse({"error": "the request comes from a page of another site"}, 403)
        path = scope["path"]
        if not self._token or path in (*_OPEN, *OPEN_PATHS) or path.startswith(STATIC):
            return None
        if self._has_token(headers):
            return None
        if path in PAGE_PATHS and b"text/html" in headers.get(b"accept", b""):
            query = scope["query_string"].decode("latin-1")
            return RedirectResponse("/login?" + urlencode({"next": path + (f"?{query}" if query else "")}), 303)
        challenge = {"www-authenticate": "Bearer"}
        return JSONResponse({"error": "send the token as Authorization: Bearer …"}, 401, challenge)

    def _has_token(self, headers: dict[bytes, bytes]) -> bool:
        """Returns whether a request has the token, or the cookie of a login."""
        token = self._token
        if hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + token.encode()):
            return True
        cookies = cookie_parser(headers.get(b"cookie", b"").decode("latin-1"))
        return hmac.compare_digest(cookies.get(COOKIE, "").encode(), session_of(token).encode())


class Service:
    """The endpoints. Those that read more of the tracker than its newest poll hold the reader's lock."""

    def __init__(
        self, reader: OffsetsTopicReader, options: ServiceOptions, incidents: Incidents | None = None
    ) -> None:  # fmt: skip
        self._reader, self._options, self._incidents = reader, options, incidents
        self._burrow = BurrowApi(reader.tracker, options.metrics.cluster, list(options.servers))

    def app(self) -> Guard:
        """Returns the ASGI application."""
        pages = Pages(self._reader, self._options.metrics.cluster, self._options.token, self._incidents)
        return Guard(
            Starlette(
                routes=[*self._routes(), *pages.routes()],
                exception_handlers={404: _not_found},
                middleware=[Middleware(GZipMiddleware, minimum_size=1_000)],
            ),
            self._options.hosts,
            self._options.token,
        )

    def _routes(self) -> Iterable[Route]:
        yield Route("/metrics", self.metrics)
        yield Route("/healthz", lambda request: PlainTextResponse("ok\n"))
        yield Route("/readyz", self.ready)
        yield Route("/api/v1/status", self._ours(lambda request: monitor_state(self._reader), reads_tracker=False))
        yield Route(
            "/api/v1/groups",
            self._ours(
                lambda one: groups_page(self._reader, check_parameters(one.query_params, GROUP_PARAMETERS)),
                reads_tracker=False,
            ),
        )
        # A path, because a group's name may be empty; a slash in a name is encoded.
        yield Route(
            "/api/v1/groups/{group:path}", self._ours(lambda one: group_detail(self._reader, _name(one, "group")))
        )
        yield Route("/api/v1/findings", self._ours(lambda request: {"findings": findings(self._reader)}))
        yield Route("/api/v1/topics/{topic}", self._ours(lambda one: topic_detail(self._reader, _name(one, "topic"))))
        yield Route("/api/v1/incidents", self._ours(self._incident_rows, reads_tracker=False))
        yield Route("/api/v1/incidents/{incident}", self._ours(self._incident, reads_tracker=False))
        yield Route("/burrow/admin", lambda request: PlainTextResponse("GOOD"))
        yield Route("/burrow/admin/ready", self.burrow_ready)
        for path, method, call in self._burrow_calls():
            yield Route(path, self._burrows(call), methods=[method])

    def _burrow_calls(self) -> Iterable[tuple[str, str, Callable[..., Reply]]]:
        """Yields path, method and function; the function gets the names in the path as keyword arguments."""
        api = self._burrow
        of_cluster, of_group = "/v3/kafka/{cluster}", "/v3/kafka/{cluster}/consumer/{group}"
        yield "/v3/kafka", "GET", api.clusters
        yield of_cluster, "GET", api.cluster
        yield f"{of_cluster}/topic", "GET", api.topics
        yield f"{of_cluster}/topic/{{topic}}", "GET", api.topic
        yield f"{of_cluster}/topic/{{topic}}/consumers", "GET", api.topic_consumers
        yield f"{of_cluster}/consumer", "GET", api.consumers
        yield of_group, "GET", api.consumer
        yield f"{of_group}/status", "GET", partial(api.status, everything=False)
        yield f"{of_group}/lag", "GET", partial(api.status, everything=True)
        yield of_group, "DELETE", api.delete
        yield f"{of_group}/topic/{{topic}}", "DELETE", api.delete

    def metrics(self, request: Request) -> Response:
        reader = self._reader
        with reader.access:
            text = exposition(
                reader.tracker, reader.groups, self._options.metrics,
                is_up=reader.is_ready, poll_ms=reader.poll_ms, incidents=self._incidents,
            )  # fmt: skip
        return Response(text, headers={"content-type": METRICS_TYPE})

    def _incident_rows(self, request: Request) -> object:
        """Returns the open incidents and the newest closed ones. The query may have ``closed``: how many of these."""
        incidents = _kept(self._incidents)
        query = check_parameters(request.query_params, INCIDENT_PARAMETERS)
        rows = incidents.rows(closed=number_of(query, "closed", 100, MOST_CLOSED))
        trouble = incidents.observer.trouble or None
        return {"incidents": rows, "trouble": trouble, "pending": incidents.pending()}

    def _incident(self, request: Request) -> object:
        return _kept(self._incidents).row(_name(request, "incident"))

    def ready(self, request: Request) -> Response:
        """Replies 200 when the view is complete and up to date, else 503 with the reason."""
        reader = self._reader
        if reader.is_ready:
            return PlainTextResponse("ready\n")
        trouble = reader.trouble
        reason = "the first view is not complete" if trouble is None else trouble.text
        return JSONResponse({"error": reason, "since_ms": None if trouble is None else trouble.since_ms}, 503)

    def burrow_ready(self, request: Request) -> Response:
        is_ready = self._reader.is_ready
        return PlainTextResponse("READY" if is_ready else "STARTING", 200 if is_ready else 503)

    def _ours(self, call: Callable[[Request], object], *, reads_tracker: bool = True) -> Callable[[Request], Response]:
        """Returns an endpoint. ``reads_tracker``: it must not run while the reader changes the tracker."""

        def endpoint(request: Request) -> Response:
            try:
                with self._reader.access if reads_tracker else nullcontext():
                    body = call(request)
            except RequestRefused as error:
                return JSONResponse({"error": str(error), "field": error.field}, 400)
            except NothingKept as error:
                return JSONResponse({"error": str(error)}, 404)
            except StoreFailed as error:
                return JSONResponse({"error": str(error)}, 503)
            if body is None:
                return JSONResponse({"error": _missing(request)}, 404)
            return JSONResponse(body)

        return endpoint

    def _burrows(self, call: Callable[..., Reply]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            with self._reader.access:
                reply = call(**{field: _name(request, field) for field in request.path_params})
            place = {"url": request.scope["path"].replace(_SLASH, "/"), "host": socket.gethostname()}
            return Response(json.dumps(reply.body | {"request": place}), reply.code, media_type="application/json")

        return endpoint


def _is_same_origin(headers: dict[bytes, bytes]) -> bool:
    """Returns whether a form was sent by a page of this service. A browser names its page; other clients name none."""
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host", b"")


def _kept(incidents: Incidents | None) -> Incidents:
    """Raises NothingKept if the monitor keeps no incidents."""
    if incidents is None:
        raise NothingKept("this monitor keeps no incidents: start it with --data DIR")
    return incidents


def _missing(request: Request) -> str:
    """Returns the text about a group, a topic or an incident of a path that is not there."""
    kind = next(iter(request.path_params))
    if kind == "incident":
        return f"the monitor knows no incident {printable(_name(request, kind))!r}: /api/v1/incidents lists them"
    return f"the monitor knows no {kind} {printable(_name(request, kind))!r}: /api/v1/groups lists the groups"


def _name(request: Request, field: str) -> str:
    name: str = request.path_params[field]
    return name.replace(_SLASH, "/")


def _not_found(request: Request, error: Exception) -> Response:
    body = {"error": True, "message": "invalid request type", "result": {}}
    return JSONResponse(body if request.url.path.startswith("/v3") else {"error": "no such path"}, 404)
