"""An S3 store that ignores ``If-None-Match``: a proxy in front of MinIO.

The header is signed, so the proxy cannot drop it. It removes the object first instead, as MinIO's own client, and then
the condition holds.
"""

from __future__ import annotations

import contextlib
import http.client
import multiprocessing
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import unquote, urlsplit

from support.object_store import ObjectStore

_OF_CONNECTION = ("connection", "transfer-encoding", "content-length")


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def log_message(self, *parts: Any) -> None: ...

    def _pass_on(self) -> None:
        body = self._body()
        if self.command == "PUT" and "If-None-Match" in self.headers:
            with contextlib.suppress(OSError):
                self.store.filesystem.delete_file(unquote(urlsplit(self.path).path).lstrip("/"))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
        headers["Content-Length"] = str(len(body))
        upstream = http.client.HTTPConnection(urlsplit(self.store.endpoint).netloc, timeout=60)
        with contextlib.closing(upstream):
            upstream.request(self.command, self.path, body, headers)
            reply = upstream.getresponse()
            content = reply.read()
        self.send_response_only(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", (is_head and reply.getheader("Content-Length")) or str(len(content)))
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Proxy, f"do_{_method}", _Proxy._pass_on)


def _serve(store: ObjectStore, port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (_Proxy,), {"store": store}))
    server.daemon_threads = True
    port.send(server.server_address[1])
    server.serve_forever()


@contextlib.contextmanager
def ignorant_store(store: ObjectStore) -> Iterator[ObjectStore]:
    """Yields the same store behind the proxy; ``filesystem`` stays the direct one. The proxy is a process of its own:
    deltalake keeps the interpreter's lock while it waits for a reply."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    proxy = context.Process(target=_serve, args=(store, there), daemon=True)
    proxy.start()
    try:
        yield store._replace(endpoint=f"http://127.0.0.1:{here.recv()}")
    finally:
        proxy.kill()
        proxy.join()
