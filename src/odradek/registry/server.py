"""A registry at an address: its topic, its API, and who may use it."""

from __future__ import annotations

import base64
import hmac
import ssl
from dataclasses import dataclass, field

from odradek.client.config import ClientConfig
from odradek.registry.api import RegistryApi
from odradek.registry.http_server import Answer, HttpReply, HttpRequest, JsonServer
from odradek.registry.store import SchemaStore
from odradek.registry.topic_log import SchemasTopic

TOPIC = "_schemas"
"""The topic of Confluent's registry."""


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Who may use a registry: everybody, or who knows ``user``, a text ``NAME:PASSWORD``, or the bearer ``token``."""

    user: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def allows(self, request: HttpRequest) -> bool:
        """Returns whether a request has one of the credentials, if there are any."""
        given = next((value for name, value in request.headers.items() if name.lower() == "authorization"), "")
        allowed = []
        if self.user is not None:
            allowed.append("Basic " + base64.b64encode(self.user.encode()).decode())
        if self.token is not None:
            allowed.append(f"Bearer {self.token}")
        return not allowed or any(hmac.compare_digest(given.encode(), one.encode()) for one in allowed)


ALL_MAY = RegistryAccess()


class RegistryServer:
    """A registry. Its port is taken at once; it serves from ``start`` to ``close``.

    Further registries may use the same topic. It is created, and read, at the first request. Raises OSError if the
    address cannot be used."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        topic: str = TOPIC,
        access: RegistryAccess = ALL_MAY,
        tls: ssl.SSLContext | None = None,
        first: Answer | None = None,
    ) -> None:
        """``first``: answers before the API does, for tests; a reply with status 0 lets the API answer."""
        self._api: RegistryApi | None = None
        self._topic = topic
        self._access = access
        self._first = first
        self._http = JsonServer(host, port, self._answer, tls)
        self.port = self._http.port

    def start(self, config: ClientConfig) -> None:
        """Begins to serve. ``config``: of the clients that read and write the topic."""
        self._api = RegistryApi(SchemaStore(SchemasTopic(config, self._topic)))
        self._http.start()

    def close(self) -> None:
        self._http.close()

    def _answer(self, request: HttpRequest) -> HttpReply:
        if self._first is not None and (reply := self._first(request)).status:
            return reply
        if not self._access.allows(request):
            body = {"error_code": 401, "message": "Unauthorized"}
            return HttpReply(401, body, headers={"WWW-Authenticate": 'Basic realm="schema-registry"'})
        assert self._api is not None
        return self._api.answer(request)
