"""Reads the key set of an identity provider, from a file or by HTTP, within limits of time and size. Blocks."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import ConfigError
from odradek.security.key_sets import KeySet, KeySetError, read_key_set
from odradek.security.stores import Tls, client_context

LARGEST_SET = 1 << 20
CONNECT_S, FETCH_S = 5.0, 10.0
"""The limits for one connection attempt and for a fetch in all, apart from the lookup of the host's name."""


class KeySetSource(NamedTuple):
    """``url``: ``file:///…``, ``https://…`` or ``http://…``. ``tls``: for https, else None. Hashable."""

    url: str
    tls: Tls | None = None

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")


class FetchTimes(NamedTuple):
    """In ms: how often the keys are fetched, and the first and the longest pause after a failure.

    The longest pause also limits how often an unknown key starts a fetch."""

    refresh_ms: int = 3_600_000
    backoff_ms: int = 100
    longest_backoff_ms: int = 10_000


def read(source: KeySetSource, *, connect_s: float = CONNECT_S, fetch_s: float = FETCH_S) -> KeySet:
    """Reads the keys. Raises KeySetError, which names the source."""
    try:
        return read_key_set(_from_file(source) if source.is_file else _from_provider(source, connect_s, fetch_s))
    except KeySetError as error:
        raise KeySetError(f"the key set {source.url}: {error}") from None


def _from_file(source: KeySetSource) -> bytes:
    path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(source.url).path))
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_SET + 1)
    except OSError as error:
        raise KeySetError(error.strerror or str(error)) from None
    return _checked(data)


def _checked(data: bytes) -> bytes:
    if len(data) > LARGEST_SET:
        raise KeySetError(f"it is larger than {LARGEST_SET >> 20} MiB")
    return data


def _from_provider(source: KeySetSource, connect_s: float, fetch_s: float) -> bytes:
    """Follows no redirect: the keys of another address would be trusted as those of this one."""
    parts = urllib.parse.urlsplit(source.url)
    host, target = parts.hostname or "", urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
    connection = http.client.HTTPConnection(host, parts.port or (80 if source.tls is None else 443))
    try:
        context = None if source.tls is None else client_context(source.tls)
        raw = socket.create_connection((host, connection.port), connect_s)
    except ConfigError as error:
        raise KeySetError(str(error)) from None
    except OSError as error:
        raise KeySetError(f"it cannot be fetched: {error}") from None
    # A server that sends a byte now and then would keep each single read within its limit. The copy of the socket
    # ends reads and writes of the other one, whatever TLS and HTTP have made of it.
    with raw.dup() as copy:
        watchdog = threading.Timer(fetch_s, _interrupt, [copy])
        watchdog.daemon = True
        watchdog.start()
        try:
            connection.sock = raw if context is None else context.wrap_socket(raw, server_hostname=host)
            return _reply(connection, target)
        except (OSError, http.client.HTTPException) as error:
            raise KeySetError(f"it cannot be fetched: {error or type(error).__name__}") from None
        finally:
            watchdog.cancel()
            connection.close()
            raw.close()


def _reply(connection: http.client.HTTPConnection, target: str) -> bytes:
    connection.request("GET", target, headers={"Accept": "application/jwk-set+json, application/json"})
    reply = connection.getresponse()
    with reply:
        if reply.status != http.client.OK:
            raise KeySetError(f"the server answered with status {reply.status}")
        data = reply.read(LARGEST_SET + 1)
        if reply.length and len(data) <= LARGEST_SET:
            raise KeySetError("the connection ended within the reply")
        return _checked(data)


def _interrupt(copy: socket.socket) -> None:
    with suppress(OSError):
        copy.shutdown(socket.SHUT_RDWR)
