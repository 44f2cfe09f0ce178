"""Where ``odradek top`` and ``odradek mcp`` get their numbers: a reader in this process, or a running monitor.

Both give the values of ``/api/v1``. Calls block; the callers make them in threads.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

from odradek.core.errors import OdradekError

if TYPE_CHECKING:
    from odradek.monitor.offsets_reader import OffsetsTopicReader

Json = dict[str, Any]
_TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 20
NOT_READY: Json = {
    "ready": False, "trouble": None, "polled_ms": None, "groups": 0, "partitions": 0, "entries": 0, "source": "topic",
    "stale_logs": {}, "stale_sources": {}, "unreadable_entries": 0, "unreadable": [],
}  # fmt: skip
"""The state before the reader has its packages."""


class SourceLost(OdradekError):
    """The source gives no answer now."""


class SourceRefused(OdradekError):
    """The source does not serve this client; a further try needs other options."""


class ViewSource(Protocol):
    """Raises SourceLost and SourceRefused. ``name``: the address, for people."""

    name: str

    def state(self) -> Json:
        """Returns the value of ``/api/v1/status``."""

    def groups(self, query: Mapping[str, str]) -> Json:
        """Returns the value of ``/api/v1/groups``."""

    def group(self, name: str) -> Json | None:
        """Returns the value of ``/api/v1/groups/NAME``; None if there is no such group."""

    def findings(self) -> list[Json]:
        """Returns the findings of ``/api/v1/findings``."""

    def topic(self, name: str) -> Json | None:
        """Returns the value of ``/api/v1/topics/NAME``; None if no group has a committed offset there."""


class ReaderSource:
    """A reader in a thread of this process. ``make`` returns it; the first call of ``make`` loads large packages."""

    def __init__(self, name: str, make: Callable[[], OffsetsTopicReader]) -> None:
        self.name = name
        self._make = make
        self._reader: OffsetsTopicReader | None = None
        self._failure: BaseException | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="odradek-view", daemon=True).start()

    def step(self) -> None:
        """Takes one complete view in this thread. Raises SourceLost without one."""
        self._reader = reader = self._make()
        reader.step()
        if reader.trouble is not None:
            raise SourceLost(reader.trouble.text)

    def stop(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            self._reader = reader = self._make()
            reader.run(self._stop)
        except BaseException as error:
            self._failure = error
            raise

    def state(self) -> Json:
        from odradek.monitor.http.json_api import monitor_state

        if self._failure is not None:
            raise self._failure
        return NOT_READY if self._reader is None else monitor_state(self._reader)

    def groups(self, query: Mapping[str, str]) -> Json:
        from odradek.monitor.http.json_api import groups_page

        return {"total": 0, "groups": []} if self._reader is None else groups_page(self._reader, query)

    def group(self, name: str) -> Json | None:
        from odradek.monitor.http.json_api import group_detail

        if self._reader is None:
            return None
        with self._reader.access:
            return group_detail(self._reader, name)

    def findings(self) -> list[Json]:
        from odradek.monitor.http.json_api import findings

        if self._reader is None:
            return []
        with self._reader.access:
            return findings(self._reader)

    def topic(self, name: str) -> Json | None:
        from odradek.monitor.http.json_api import topic_detail

        if self._reader is None:
            return None
        with self._reader.access:
            return topic_detail(self._reader, name)


class _RedirectRefusal(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token would go with it."""

    def redirect_request(self, *given: Any) -> None:
        return None


class MonitorSource:
    """A running ``odradek monitor``. ``url``: such as ``http://127.0.0.1:8000``; ``token``: "" without one."""

    def __init__(self, url: str, token: str = "") -> None:
        self.name = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._opener = urllib.request.build_opener(_RedirectRefusal)

    def state(self) -> Json:
        state = self._get("/api/v1/status")
        if state is None or "ready" not in state:
            raise SourceRefused(f"{self.name}: there is no odradek monitor: check --url")
        return state

    def groups(self, query: Mapping[str, str]) -> Json:
        page = self._get("/api/v1/groups?" + urlencode(query))
        if page is None:
            raise SourceRefused(f"{self.name}: there is no odradek monitor: check --url")
        return page

    def group(self, name: str) -> Json | None:
        return self._get("/api/v1/groups/" + quote(name, safe=""))

    def findings(self) -> list[Json]:
        reply = self._get("/api/v1/findings")
        return [] if reply is None else list(reply["findings"])

    def topic(self, name: str) -> Json | None:
        return self._get("/api/v1/topics/" + quote(name, safe=""))

    def _get(self, path: str) -> Json | None:
        """Returns a reply; None for 404. Raises SourceLost, SourceRefused."""
        try:
            request = urllib.request.Request(self.name + path, headers=self._headers)
            with self._opener.open(request, timeout=_TIMEOUT_S) as reply:
                body = reply.read(_MOST_BYTES)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise self._refusal(error) from None
        except urllib.error.URLError as error:
            raise SourceLost(f"{self.name}: {getattr(error.reason, 'strerror', None) or error.reason}") from None
        except (OSError, HTTPException) as error:
            raise SourceLost(f"{self.name}: {error or type(error).__name__}") from None
        try:
            content = json.loads(body)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise SourceRefused(f"{self.name}: the reply is no JSON object: check --url")
        return content

    def _refusal(self, error: urllib.error.HTTPError) -> OdradekError:
        if error.code == 401:
            return SourceRefused(f"{self.name} demands another token: give --token-file")
        try:
            text = json.loads(error.read(10_000))["error"]
        except (ValueError, KeyError, TypeError, OSError):
            text = error.reason
        return (SourceLost if error.code >= 500 else SourceRefused)(f"{self.name}: {text}")
