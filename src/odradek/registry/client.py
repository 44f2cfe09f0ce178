"""A client of any schema registry with Confluent's API: schemas by id, registrations. One request for each id."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from odradek.core.errors import ConfigError, OdradekError
from odradek.schemas import languages
from odradek.schemas.errors import InvalidSchema
from odradek.schemas.parsed import ParsedSchema

PREFIX = "schema.registry."
SETTINGS = (
    "basic.auth.user.info", "bearer.auth.token", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "ssl.key.password",
)  # fmt: skip
"""The settings of a registry in a properties file, behind ``schema.registry.``; the names are Confluent's."""
_ANSWER_S = 10.0


class RegistryUnavailable(OdradekError):
    """The registry cannot be reached, or fails. A later call may succeed."""

    @property
    def retriable(self) -> bool:
        return True


class RegistryRefusal(OdradekError):
    """The registry refuses a request. ``code``: Confluent's error code, or the status of HTTP."""

    def __init__(self, message: str, code: int) -> None:
        self.code = code
        super().__init__(message)


class RegistrySchema(NamedTuple):
    """A schema that a registry has."""

    id: int
    parsed: ParsedSchema


class RegistryClient:
    """``url``: the registry's address; a user with a password may be in it. ``settings``: see ``SETTINGS``.

    For any thread. Raises ConfigError."""

    def __init__(self, url: str, settings: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"schema registry {_without_user(url)!r}: expected http://HOST:PORT or https://HOST:PORT")
        given = dict(settings or {})
        if unknown := given.keys() - set(SETTINGS):
            raise ConfigError(f"unknown setting {PREFIX}{min(unknown)}: known are {', '.join(SETTINGS)}")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self._headers = _login(parts.username, parts.password, given)
        self._tls = _tls(given) if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._schemas: dict[int, ParsedSchema] = {}

    def schema(self, schema_id: int) -> ParsedSchema:
        """Returns a schema by its id; asks the registry once for each id. Raises RegistryUnavailable,
        RegistryRefusal with the code 40403 for an unknown id."""
        with self._lock:
            if schema_id not in self._schemas:
                self._schemas[schema_id] = self._parsed(self._call("GET", f"/schemas/ids/{schema_id}"), schema_id)
            return self._schemas[schema_id]

    def latest(self, subject: str) -> RegistrySchema:
        """Returns the newest schema of a subject. Raises RegistryUnavailable, RegistryRefusal."""
        with self._lock:
            found = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/latest")
            self._schemas[found["id"]] = parsed = self._parsed(found, found["id"])
            return RegistrySchema(found["id"], parsed)

    def register(self, subject: str, text: str, language: str) -> RegistrySchema:
        """Registers a schema, or finds it. Raises RegistryUnavailable, RegistryRefusal."""
        with self._lock:
            body = {"schema": text, "schemaType": language}
            found = self._call("POST", f"/subjects/{quote(subject, safe='')}/versions", body)
            return RegistrySchema(found["id"], self._parsed({**body, **found}, found["id"]))

    def _parsed(self, found: Mapping[str, Any], schema_id: int) -> ParsedSchema:
        language = str(found.get("schemaType") or "AVRO")
        try:
            return languages.parse(language, str(found["schema"]), self._references(found, {}))
        except InvalidSchema as error:
            raise RegistryRefusal(f"schema {schema_id} of {self.url}: {error}", 42201) from None

    def _references(self, found: Mapping[str, Any], texts: dict[str, str]) -> dict[str, str]:
        """Returns the texts of a schema's references by name, each after those that it uses."""
        for one in found.get("references") or ():
            if one["name"] not in texts:
                path = f"/subjects/{quote(str(one['subject']), safe='')}/versions/{one['version']}?deleted=true"
                target = self._call("GET", path)
                self._references(target, texts)
                texts.setdefault(str(one["name"]), str(target["schema"]))
        return texts

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=_ANSWER_S)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=_ANSWER_S, context=self._tls)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, data, self._headers)
            reply = connection.getresponse()
            content = reply.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RegistryUnavailable(f"schema registry {self.url} cannot be reached: {reason}") from error
        finally:
            connection.close()
        return self._content(reply.status, content)

    def _content(self, status: int, content: bytes) -> object:
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if status == 200 and found is not None:
            return found
        message = found.get("message") if isinstance(found, dict) else None
        code = found.get("error_code", status) if isinstance(found, dict) else status
        if status in (401, 403):
            text = f"schema registry {self.url} refuses the login: check {PREFIX}basic.auth.user.info"
            raise RegistryRefusal(text, status)
        if status >= 500 or found is None:
            raise RegistryUnavailable(f"schema registry {self.url} fails with {status}: {message or 'no reason given'}")
        raise RegistryRefusal(f"schema registry {self.url}: {message or status}", int(code))


def _without_user(url: str) -> str:
    head, at, rest = url.rpartition("@")
    return f"{head.partition('//')[0]}//…@{rest}" if at else url


def _login(user: str | None, password: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    headers = {"Accept": "application/vnd.schemaregistry.v1+json", "Content-Type": "application/json"}
    pair = settings.get("basic.auth.user.info")
    if pair is None and user is not None:
        pair = f"{unquote(user)}:{unquote(password or '')}"
    token = settings.get("bearer.auth.token")
    if pair is not None and token is not None:
        raise ConfigError(f"{PREFIX}bearer.auth.token and a user with a password are given: give one of them")
    if pair is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    elif token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return headers


def _tls(settings: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl.ca.location"))
        if "ssl.certificate.location" in settings:
            context.load_cert_chain(
                settings["ssl.certificate.location"], settings.get("ssl.key.location"), settings.get("ssl.key.password")
            )
    except OSError as error:
        raise ConfigError(f"the certificates of the schema registry cannot be read: {error}") from error
    return context
