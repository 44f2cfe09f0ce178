"""Who may read and who may change: tokens, sessions of browsers, the Host and the Origin of a request.

A token is sent as ``Authorization: Bearer …``. A browser gets a cookie at the login, which proves a token. A change by
a cookie needs a word in the form, too, which only a page of this service knows. A change without a cookie comes from a
program: it sends JSON, which no form of another site can send without being asked first.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlencode

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.requests import cookie_parser
    from starlette.responses import JSONResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "odradek_monitor"
LOGIN_PATH, STATIC = "/login", "/static/"
SLASH = "\x00"
"""Stands for an encoded slash in a segment of a path, so that names with a slash are one segment."""
IDENTITY = "odradek.identity"
"""The key of a scope under which the guard puts the ``ClientIdentity``."""
_OPEN = ("/healthz", "/readyz", "/burrow/admin", "/burrow/admin/ready", LOGIN_PATH)
"""Paths that need no token: they show no data, and the probes of a platform have none."""
_NO_PAGES = ("/api/", "/v3/", "/metrics", "/mcp", STATIC)
_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    # With no-referrer, a browser sends the forms of our own pages with ``Origin: null``.
    (b"referrer-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
READER, LOCAL = "reader", "local"
"""The names of those who have the token to read, and of those on a service without tokens."""


def name_of(request: Request, field: str) -> str:
    """Returns the name in a segment of a request's path."""
    name: str = request.path_params[field]
    return name.replace(SLASH, "/")


class ClientIdentity(NamedTuple):
    """Who sends a request: the name of the token. ``by_cookie``: a browser that has logged in."""

    name: str
    may_change: bool
    by_cookie: bool = False


@dataclass(frozen=True, slots=True)
class AccessTokens:
    """``reading``: the token to read; "" if none is needed. ``changing``: the tokens to read and change, by name.
    Without any, each client of the service may change: it listens to this machine only."""

    reading: str = field(default="", repr=False)
    changing: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    """Signs the words of forms. Another start of the service has another one: an old form is then refused."""

    def identity(self, headers: Mapping[bytes, bytes]) -> ClientIdentity | None:
        """Returns who sends a request; None for a wrong or missing token."""
        sent = headers.get(b"authorization", b"")
        cookie = cookie_parser(headers.get(b"cookie", b"").decode("latin-1")).get(COOKIE, "").encode()
        for name, token in self._all():
            may_change = name != READER
            if hmac.compare_digest(sent, b"Bearer " + token.encode()):
                return ClientIdentity(name, may_change)
            if hmac.compare_digest(cookie, session_of(token).encode()):
                return ClientIdentity(name, may_change, by_cookie=True)
        return None if self.reading else ClientIdentity(LOCAL, may_change=not self.changing)

    def login(self, given: str) -> str | None:
        """Returns the value of the cookie for a token; None if it is not one of this service."""
        found = [token for _, token in self._all() if hmac.compare_digest(given.encode(), token.encode())]
        return session_of(found[0]) if found else None

    def form_word(self, identity: ClientIdentity) -> str:
        """Returns the word that a form of this service has: no page of another site can read it."""
        return hmac.new(self.secret, identity.name.encode(), hashlib.sha256).hexdigest()

    def is_form_word(self, identity: ClientIdentity, word: str) -> bool:
        return hmac.compare_digest(self.form_word(identity).encode(), word.encode())

    def _all(self) -> list[tuple[str, str]]:
        return [*([(READER, self.reading)] if self.reading else []), *self.changing.items()]


def session_of(token: str) -> str:
    """Returns the value of the cookie that a login sets: it proves the token without containing it."""
    return hmac.new(token.encode(), b"odradek monitor session", hashlib.sha256).hexdigest()


class Guard:
    """An ASGI application in front of another one: checks Host, Origin and token, and adds the headers of every reply.

    ``hosts``: the names in the Host header that are served; without a port."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], tokens: AccessTokens) -> None:
        self._app, self._hosts, self._tokens = app, hosts, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _HEADERS if pair[0] not in given)]
            await send(message)

        headers = dict(scope["headers"])
        identity = self._tokens.identity(headers)
        refusal = self._refusal(scope, headers, identity)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        segments = [unquote(part.decode("latin-1")).replace("/", SLASH) for part in path.split(b"/")]
        await self._app(scope | {"path": "/".join(segments), IDENTITY: identity}, receive, send_with_headers)

    def _refusal(
        self, scope: Scope, headers: Mapping[bytes, bytes], identity: ClientIdentity | None
    ) -> Response | None:
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name not in self._hosts:
            return JSONResponse({"error": f"Host {host!r} is not served here: see --allowed-host"}, 403)
        if scope["method"] not in ("GET", "HEAD") and not _is_same_origin(headers):
            return JSONResponse({"error": "the request comes from a page of another site"}, 403)
        path = scope["path"]
        if identity is not None or path in _OPEN or path.startswith(STATIC):
            return None
        is_page = scope["method"] == "GET" and not path.startswith(_NO_PAGES)
        if is_page and b"text/html" in headers.get(b"accept", b""):
            query = scope["query_string"].decode("latin-1")
            target = scope.get("raw_path", path.encode()).decode("latin-1").partition("?")[0]
            return RedirectResponse(
                f"{LOGIN_PATH}?" + urlencode({"next": target + (f"?{query}" if query else "")}), 303
            )
        challenge = {"www-authenticate": "Bearer"}
        return JSONResponse({"error": "send the token as Authorization: Bearer …"}, 401, challenge)


def _is_same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """Returns whether a request was sent by a page of this service. A browser names its page; programs name none."""
    origin = headers.get(b"origin")
    return origin is None or origin.partition(b"://")[2] == headers.get(b"host", b"")
