"""The pages of the monitor as endpoints: groups, one group, one topic, static files, and the login."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup, escape
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, RedirectResponse, Response
    from starlette.routing import Route

from odradek.core.counts import counted
from odradek.monitor.choices import RequestRefused
from odradek.monitor.disk.database import StoreFailed
from odradek.monitor.http.access import COOKIE, IDENTITY, LOGIN_PATH, STATIC, AccessTokens, ClientIdentity
from odradek.monitor.http.change_api import BodyTooLong, body_of
from odradek.monitor.http.json_api import Json
from odradek.monitor.offsets_reader import OffsetsTopicReader
from odradek.monitor.web import formats
from odradek.monitor.web.change_views import changes_view
from odradek.monitor.web.views import group_view, groups_view, incidents_view, state_view, topic_view

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.incidents.service import Incidents

_PLACE = Path(__file__).parent
REFRESH_S = 10
_MOST_FORM_BYTES = 10_000
_KINDS = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain"}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of pages: nothing of another host, and no script or style inside a page."""


@cache
def static_link(name: str) -> str:
    """Returns the link to a static file. It changes with the content, so that browsers may keep the file."""
    return f"{STATIC}{name}?v={hashlib.sha256((_PLACE / 'static' / name).read_bytes()).hexdigest()[:12]}"


def _time(ms: int | None) -> Markup:
    """Returns an element with a time, which the page's script can show in the local zone."""
    stamp = formats.iso(ms)
    text = escape(formats.moment(ms))
    return Markup('<time datetime="{}">{}</time>').format(stamp, text) if stamp else text


def here_of(request: Request) -> str:
    """Returns the address of the page that a request asks for."""
    path: str = request.url.path
    return path + (f"?{request.url.query}" if request.url.query else "")


def _templates() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_PLACE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.globals |= {
        "static": static_link, "time": _time, "number": formats.number, "rate": formats.rate, "span": formats.span,
        "counted": counted, "named": formats.named, "shown_name": formats.shown_name, "refresh_s": REFRESH_S,
    }  # fmt: skip
    return made


class Pages:
    """The endpoints of the page. The list of groups shows the newest poll and waits for no refresh; the others hold the
    reader's lock while they read the tracker."""

    def __init__(
        self, reader: OffsetsTopicReader, cluster: str, tokens: AccessTokens, incidents: Incidents | None = None,
        changes: Changes | None = None,
    ) -> None:  # fmt: skip
        self._reader, self._cluster, self._tokens, self._incidents = reader, cluster, tokens, incidents
        self._changes = changes
        self._templates = _templates()

    def routes(self) -> Iterable[Route]:
        yield Route("/", self._page("groups.html", lambda query: groups_view(self._reader, query), reads_tracker=False))
        yield Route("/group", self._page("group.html", self._group))
        yield Route("/topic", self._page("topic.html", lambda query: topic_view(self._reader, query.get("name", ""))))
        yield Route("/incidents", self._page("incidents.html", self._incident_rows, reads_tracker=False))
        yield Route(STATIC + "{name}", self.static)
        yield Route(LOGIN_PATH, self.login, methods=["GET", "POST"])

    def _group(self, query: Mapping[str, str]) -> Json | None:
        return group_view(self._reader, query.get("name", ""), query.get("partition", ""))

    def _incident_rows(self, query: Mapping[str, str]) -> Json | None:
        return None if self._incidents is None else incidents_view(self._incidents, query)

    def _page(
        self, template: str, view: Callable[[Mapping[str, str]], Json | None], *, reads_tracker: bool = True
    ) -> Any:
        """Returns an endpoint. ``reads_tracker``: it must not run while the reader changes the tracker."""

        def endpoint(request: Request) -> Response:
            code, shown = 200, template
            with self._reader.access if reads_tracker else nullcontext():
                head = self.head(request)
                try:
                    content = view(request.query_params)
                except RequestRefused as error:
                    code, content = 400, {"title": "A wrong value in the address", "text": str(error)}
                except StoreFailed as error:
                    code, content = 503, {"title": "The incidents cannot be read", "text": str(error)}
            if content is None:
                code, content = (
                    404,
                    {"title": "Not found", "text": "The monitor knows nothing of this name."},
                )
            if code != 200:
                shown = "message.html"
            return self.page(shown, content, head, here_of(request), code)

        return endpoint

    def head(self, request: Request) -> Json:
        """Returns what the head of a page shows. Hold the reader's lock, if the page reads the tracker."""
        identity: ClientIdentity = request.scope[IDENTITY]
        head = state_view(self._reader, self._cluster, self._incidents)
        return head | {"changes": changes_view(self._changes, identity, self._tokens)}

    def page(self, template: str, content: Json, head: Json, here: str, code: int = 200) -> Response:
        """Returns the reply with a page. ``here``: the address from which it renews itself."""
        text = self._templates.get_template(template).render(content, head=head, here=here)
        return HTMLResponse(text, code, {"content-security-policy": POLICY.decode()})

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        path = _PLACE / "static" / name
        if path.suffix not in _KINDS or path.name != name or not path.is_file():
            return Response("no such file\n", 404, media_type="text/plain")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(path.read_bytes(), headers=headers, media_type=_KINDS[path.suffix])

    async def login(self, request: Request) -> Response:
        """Shows the form, or sets the cookie if the form has the token."""
        if request.method == "GET":
            return self._login_form(request.query_params.get("next", "/"), is_wrong=False)
        try:
            body = await body_of(request, _MOST_FORM_BYTES)
        except BodyTooLong:
            return Response("the form is too long\n", 413, media_type="text/plain")
        form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
        target = form.get("next", ["/"])[0]
        session = self._tokens.login(form.get("token", [""])[0].strip())
        if session is None:
            return self._login_form(target, is_wrong=True)
        is_ours = target.startswith("/") and not target.startswith(("//", "/\\"))
        reply = RedirectResponse(target if is_ours else "/", 303)
        is_secure = request.headers.get("x-forwarded-proto") == "https"
        reply.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=is_secure)
        return reply

    def _login_form(self, target: str, *, is_wrong: bool) -> Response:
        page = self._templates.get_template("login.html").render(next=target, is_wrong=is_wrong)
        return HTMLResponse(page, 403 if is_wrong else 200, {"content-security-policy": POLICY.decode()})
