"""The HTTP service of the monitor: metrics, Burrow's API, our own API, and health."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from odradek.core.errors import OdradekError
from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.http.access import SLASH, AccessTokens, Guard, name_of
from odradek.monitor.http.burrow_api import BurrowApi, Reply
from odradek.monitor.http.change_api import ChangeApi
from odradek.monitor.http.json_api import (
    GROUP_PARAMETERS,
    INCIDENT_PARAMETERS,
    check_parameters,
    findings,
    group_detail,
    groups_page,
    monitor_state,
    number_of,
    topic_detail,
)
from odradek.monitor.http.metrics import MetricsOptions, exposition
from odradek.monitor.http.openapi import openapi
from odradek.monitor.incidents.service import MOST_CLOSED
from odradek.monitor.offsets_reader import OffsetsTopicReader
from odradek.monitor.web.bulk_pages import BulkPages
from odradek.monitor.web.change_endpoints import ChangeEndpoints
from odradek.monitor.web.change_pages import ChangePages
from odradek.monitor.web.pages import Pages
from odradek.text.printable import printable
from odradek.text.prometheus import METRICS_TYPE

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.incidents.service import Incidents


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """``hosts``: the names in the Host header that are served; without a port. ``token``: what a client must send as
    ``Authorization: Bearer …``; "" if none is needed. ``change_tokens``: the tokens to read and change, by name."""

    metrics: MetricsOptions
    hosts: frozenset[str]
    token: str = field(default="", repr=False)
    servers: tuple[str, ...] = ()
    change_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)


_GZIP_LEVEL = 6
"""At level 9 metrics of 10 MB hold the event loop for 0.3 s in place of 0.04 s, and become a tenth smaller."""


class NothingKept(OdradekError):
    """The monitor has no directory for what is asked."""


class Service:
    """The endpoints. Those that read more of the tracker than its newest poll hold the reader's lock."""

    def __init__(
        self, reader: OffsetsTopicReader, options: ServiceOptions, incidents: Incidents | None = None,
        changes: Changes | None = None,
    ) -> None:  # fmt: skip
        self._reader, self._options, self._incidents, self._changes = reader, options, incidents, changes
        self._burrow = BurrowApi(reader.tracker, options.metrics.cluster, list(options.servers))

    def app(self) -> Guard:
        """Returns the ASGI application."""
        options = self._options
        tokens = AccessTokens(options.token, options.change_tokens)
        pages = Pages(self._reader, options.metrics.cluster, tokens, self._incidents, self._changes)
        shared = ChangeEndpoints(pages, self._reader, tokens, self._changes)
        of_changes = (ChangePages(shared), BulkPages(shared))
        return Guard(
            Starlette(
                routes=[*self._routes(), *pages.routes(), *(route for one in of_changes for route in one.routes())],
                exception_handlers={404: _not_found},
                middleware=[Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=_GZIP_LEVEL)],
            ),
            options.hosts,
            tokens,
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
        yield from ChangeApi(self._reader, self._changes).routes()
        yield Route("/api/v1/openapi.json", lambda request: JSONResponse(openapi()))
        # A path, because a group's name may be empty; a slash in a name is encoded.
        yield Route(
            "/api/v1/groups/{group:path}", self._ours(lambda one: group_detail(self._reader, name_of(one, "group")))
        )
        yield Route("/api/v1/findings", self._ours(lambda request: {"findings": findings(self._reader)}))
        yield Route("/api/v1/topics/{topic}", self._ours(lambda one: topic_detail(self._reader, name_of(one, "topic"))))
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
        return _kept(self._incidents).row(name_of(request, "incident"))

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
                reply = call(**{field: name_of(request, field) for field in request.path_params})
            place = {"url": request.scope["path"].replace(SLASH, "/"), "host": socket.gethostname()}
            return Response(json.dumps(reply.body | {"request": place}), reply.code, media_type="application/json")

        return endpoint


def _kept(incidents: Incidents | None) -> Incidents:
    """Raises NothingKept if the monitor keeps no incidents."""
    if incidents is None:
        raise NothingKept("this monitor keeps no incidents: start it with --data DIR")
    return incidents


def _missing(request: Request) -> str:
    """Returns the text about a group, a topic or an incident of a path that is not there."""
    kind = next(iter(request.path_params))
    if kind == "incident":
        return f"the monitor knows no incident {printable(name_of(request, kind))!r}: /api/v1/incidents lists them"
    return f"the monitor knows no {kind} {printable(name_of(request, kind))!r}: /api/v1/groups lists the groups"


def _not_found(request: Request, error: Exception) -> Response:
    body = {"error": True, "message": "invalid request type", "result": {}}
    return JSONResponse(body if request.url.path.startswith("/v3") else {"error": "no such path"}, 404)
