"""Pages over HTTP at a listener of the broker, such as metrics: a GET of a known path, one reply, then the end.

This is no web server: a request has at most ``MOST_HEAD_BYTES`` and ``REQUEST_S`` seconds, and no body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from odradek.core.deferred import Deferred
from odradek.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.loop.scheduler import Scheduler, Steps

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class PageGate(Protocol):
        """The part of a broker that counts connections, and that does long work in shares."""

        @property
        def scheduler(self) -> Scheduler: ...

        def enter(self, host: str) -> bool:
            """Counts a new connection from an address. Returns False if a limit is reached or the broker stops."""

        def leave(self, host: str) -> None:
            """Removes a connection that ``enter`` has counted."""


log = logging.getLogger("odradek.broker")

MOST_HEAD_BYTES = 8_192
REQUEST_S = 10.0
"""The time for a request and its reply."""
_END = b"\r\n\r\n"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}


class Page(NamedTuple):
    """A page: the media type, and the function that makes its present text, in steps: a page may be long."""

    content_type: str
    text: Callable[[], Steps[str]]


class HttpPageProtocol(asyncio.Protocol):
    """The protocol of an accepted socket, or of a connection behind TLS. ``pages``: by path, such as ``/metrics``."""

    def __init__(self, gate: PageGate, pages: Mapping[str, Page]) -> None:
        self.principal: Principal = ANONYMOUS
        self._gate = gate
        self._pages = pages
        self._host = ""
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_counted = self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        self._is_counted = bool(transport.get_extra_info("is_admitted")) or self._gate.enter(self._host)
        if not self._is_counted:
            self._transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(REQUEST_S, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_counted:
            self._is_counted = False
            self._gate.leave(self._host)

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return
        self._head += data
        end = self._head.find(_END)
        if end < 0 and len(self._head) <= MOST_HEAD_BYTES:
            return
        self._is_answered = True
        if not 0 <= end <= MOST_HEAD_BYTES:
            self._reply(400, f"a request has at most {MOST_HEAD_BYTES} bytes of headers\n")
            return
        self._serve(bytes(self._head[:end]).partition(b"\r\n")[0])

    def _serve(self, line: bytes) -> None:
        """Answers a request by its first line."""
        parts = line.decode("latin-1").split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            self._reply(400, "the request is not HTTP/1.1\n")
            return
        method, path = parts[0], parts[1].partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            self._reply(404, f"there is no page {path[:100]!r}: choose from {', '.join(sorted(self._pages))}\n")
        elif method not in ("GET", "HEAD"):
            self._reply(405, "only GET is allowed\n", extra="Allow: GET, HEAD\r\n")
        else:
            made: Deferred[str | Exception] = self._gate.scheduler.start(page.text())
            made.then(lambda text: self._show(path, page, text, is_head=method == "HEAD"))

    def _show(self, path: str, page: Page, text: str | Exception, *, is_head: bool) -> None:
        """Sends the text of a page, or that there is none."""
        if isinstance(text, Exception):
            log.error("the page %s could not be made", path, exc_info=text)
            self._reply(500, "the page could not be made: the log of the broker has the reason\n")
        else:
            self._reply(200, text, page.content_type, is_head=is_head)

    def _reply(
        self, code: int, text: str, content_type: str = "text/plain; charset=utf-8", *, extra: str = "",
        is_head: bool = False,
    ) -> None:  # fmt: skip
        if self._transport is None:
            return
        body = text.encode()
        head = (
            f"HTTP/1.1 {code} {_REASONS[code]}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            f"X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n{extra}Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode("latin-1", "replace") + (b"" if is_head else body))
        self._transport.close()

    def pause_writing(self) -> None:
        """A reply is written once, and ``REQUEST_S`` bounds its time."""

    def resume_writing(self) -> None:
        """Nothing waits for it."""
