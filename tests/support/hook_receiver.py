"""A receiver of webhooks on a free port: it keeps what it gets, and answers as a test wants."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class ReceivedHook(NamedTuple):
    """``headers``: with names in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HookReceiver:
    """``codes``: the codes of the next answers; 204 follows. ``close`` ends it."""

    def __init__(self) -> None:
        self.received: list[ReceivedHook] = []
        self.codes: list[int] = []
        self.more_headers: dict[str, str] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = self.rfile.read(int(headers["content-length"]))
                receiver.received.append(ReceivedHook(self.path, headers, body))
                self.send_response(receiver.codes.pop(0) if receiver.codes else 204)
                for name, value in receiver.more_headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *given: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
