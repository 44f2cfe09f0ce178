"""An HTTP/1.1 server for a JSON API, with Python's own library: one thread for each connection."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from odradek.schemas.json_text import compact

log = logging.getLogger("odradek.registry")

MOST_BODY_BYTES = 64 << 20
_IDLE_S = 60.0
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class HttpRequest(NamedTuple):
    """A request. ``path``: its decoded parts; ``body``: the parsed JSON, None without one."""

    method: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any = None


class HttpReply(NamedTuple):
    """A reply. ``text``: sent as it is in place of the JSON of ``body``. ``drops``: the connection ends instead."""

    status: int = 200
    body: Any = None
    text: str | None = None
    headers: Mapping[str, str] = {}
    drops: bool = False


Answer = Callable[[HttpRequest], HttpReply]


class JsonServer:
    """Serves ``answer`` at an address until ``close``. Port 0 chooses a free one. ``tls``: for HTTPS.

    Raises OSError if the address cannot be used."""

    def __init__(self, host: str, port: int, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self._server = _ThreadedServer((host.strip("[]"), port), answer, tls)
        self.host = host
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._serve, name="odradek-registry", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Ends the connections and gives the port back."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        self._server.end_connections()


class _ThreadedServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], answer: Answer, tls: ssl.SSLContext | None) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.answer = answer
        self.tls = tls
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        with self._guard:
            left = list(self._open)
        for one in left:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client has gone
                log.debug("a connection has ended by itself")

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a connection from %s ended", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S
    server: _ThreadedServer
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        if self.server.tls is not None:
            # The handshake is in the thread of the connection: a silent client holds no other one.
            self.request.settimeout(_IDLE_S)
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def _serve(self) -> None:
        try:
            body = self._body()
        except ValueError as error:
            self._send(HttpReply(400, {"error_code": 400, "message": str(error)}))
            self.close_connection = True
            return
        url = urlsplit(self.path)
        path = tuple(unquote(part) for part in url.path.split("/") if part)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        request = HttpRequest(self.command, path, query, dict(self.headers.items()), body)
        try:
            reply = self.server.answer(request)
        except Exception as error:
            log.exception("%s %s", self.command, self.path)
            reply = HttpReply(500, {"error_code": 500, "message": f"Internal Server Error: {error}"})
        if reply.drops:
            self.close_connection = True
            return
        self._send(reply)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815  the names that the library looks for

    def _body(self) -> object:
        """Reads the body. Raises ValueError unless it is JSON."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            content = self._chunks()
        else:
            size = int(self.headers.get("Content-Length") or 0)
            if not 0 <= size <= MOST_BODY_BYTES:
                raise ValueError(f"the body has more than {MOST_BODY_BYTES} bytes")
            content = self.rfile.read(size)
        if not content:
            return None
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("the body is no JSON") from None

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        total = 0
        while size := int(self.rfile.readline(100).partition(b";")[0], 16):
            total += size
            if total > MOST_BODY_BYTES:
                raise ValueError(f"the body has more than {MOST_BODY_BYTES} bytes")
            parts.append(self.rfile.read(size))
            self.rfile.readline(10)
        while self.rfile.readline(1000).strip():
            pass  # trailers
        return b"".join(parts)

    def _send(self, reply: HttpReply) -> None:
        text = compact(reply.body) if reply.text is None else reply.text
        content = text.encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)
