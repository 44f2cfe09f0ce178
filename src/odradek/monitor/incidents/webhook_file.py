"""The file of webhooks: TOML with a table ``[[webhook]]`` for each receiver.

Everything that can be wrong with the file is found when it is read: a template is rendered once, for a sample incident.
"""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.extras import extra_in_errors
from odradek.monitor.incidents.announcements import HookRule, IncidentEvent
from odradek.monitor.incidents.bodies import BODIES, Message, Render
from odradek.monitor.incidents.incident import KINDS, Incident, Severity
from odradek.monitor.incidents.signature import Signer, secret_of
from odradek.text.encodings import text_of_file
from odradek.text.similar_names import nearest
from odradek.text.units import span_ms

MOST_ATTEMPTS = 12
"""With the pauses between them, a delivery is tried for about half an hour."""
SHORTEST_REPEAT_MS = 1_000
IGNORED = "^odradek-"
"""The groups that pipelines keep their state in. No consumer moves them, so a status means nothing there."""
_REPEATS = {"alertmanager": 60_000}
"""Formats whose receiver ends an alert that is not repeated. All others: every four hours."""
_REPEAT_MS = 4 * 3_600_000
_NEVER = "never"
_TOP = ("monitor_url", "webhook")
_KEYS = (
    "name", "url", "format", "template", "content_type", "threshold", "groups", "ignore_groups", "kinds", "repeat",
    "send_closed", "secret_file", "headers", "timeout", "attempts", "ca_file",
)  # fmt: skip
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OWN_HEADERS = ("content-type", "content-length", "host", "webhook-id", "webhook-timestamp", "webhook-signature")
SAMPLE = Incident(
    "0" * 32, "status", "billing", Severity.ERR, "orders-0 is STALL: the committed offset does not move, lag 1,200",
    1, 1_700_000_000_000, 1_700_000_060_000,
)  # fmt: skip
"""The incident of a test message."""


class WebhooksRefused(OdradekError):
    """The file is wrong; the text names it, the webhook, the key and what was expected."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver. ``signer``: signs each request; None without a secret. ``timeout_s``: of one attempt."""

    rule: HookRule
    url: str = field(repr=False)
    render: Render
    content_type: str
    headers: Mapping[str, str] = field(repr=False)
    signer: Signer | None
    timeout_s: float
    attempts: int
    tls: ssl.SSLContext | None

    @property
    def name(self) -> str:
        return self.rule.name


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The content of a file. ``monitor_url``: where people reach the monitor; "" if the file does not say it."""

    hooks: tuple[Webhook, ...] = ()
    monitor_url: str = ""


def read_webhooks(path: Path) -> Webhooks:
    """Returns the webhooks of a file. Raises WebhooksRefused."""
    try:
        content = tomllib.loads(text_of_file(path))
    except ConfigError as error:
        raise WebhooksRefused(str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise WebhooksRefused(f"{path}: no TOML: {error}") from None
    _check_names(f"{path}", content, _TOP)
    tables = content.get("webhook")
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in tables):
        raise WebhooksRefused(f"{path}: expected a table [[webhook]] with name and url for each receiver")
    monitor_url = _Table(f"{path}", content, path.parent).url("monitor_url", required=False)
    hooks = tuple(_webhook(path, number, table) for number, table in enumerate(tables, 1))
    names = [hook.name for hook in hooks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise WebhooksRefused(f"{path}: two webhooks have the name {twice!r}")
    return Webhooks(hooks, monitor_url)


def sample_message(monitor_url: str, cluster: str) -> Message:
    """Returns the message of a test."""
    return Message(cluster, monitor_url, IncidentEvent.OPENED, SAMPLE, 0, SAMPLE.changed_ms)


class _Table:
    """A table of the file. The methods return a value of it, and raise WebhooksRefused with its place."""

    def __init__(self, place: str, content: Mapping[str, Any], directory: Path) -> None:
        self._place, self._content, self._directory = place, content, directory

    def refused(self, key: str, wanted: str) -> WebhooksRefused:
        value = self._content.get(key)
        given = "it is missing" if value is None else f"not {value!r}"
        return WebhooksRefused(f"{self._place}: {key}: expected {wanted}, {given}")

    def text(self, key: str, default: str | None = None, wanted: str = "a text") -> str:
        value = self._content.get(key, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.refused(key, wanted)
        return value

    def choice(self, key: str, default: str, choices: tuple[str, ...]) -> str:
        value = self.text(key, default)
        if value not in choices:
            raise self.refused(key, " or ".join(choices))
        return value

    def url(self, key: str, *, required: bool = True) -> str:
        wanted = "an address such as https://alerts.example.com/hook"
        value = self.text(key, None if required else "", wanted)
        if not value and not required:
            return ""
        try:
            parts = urlsplit(value)
            is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_whole = False
        if not is_whole or not value.isascii() or not value.isprintable() or " " in value:
            # the address may be a secret, as with Slack: it is not shown
            raise WebhooksRefused(f"{self._place}: {key}: expected {wanted}")
        return value

    def span(self, key: str, default_ms: int, least_ms: int, *, may_be_never: bool = False) -> int:
        """Returns a span in ms; 0 for "never"."""
        if key not in self._content:
            return default_ms
        wanted = "a span such as 30s, 5min or 4h" + (', or "never"' if may_be_never else "")
        text = self.text(key, None, wanted)
        if may_be_never and text == _NEVER:
            return 0
        value = span_ms(text)
        if value is None or value < least_ms:
            raise self.refused(key, wanted)
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._content.get(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "true or false")
        return value

    def number(self, key: str, default: int, most: int) -> int:
        value = self._content.get(key, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.refused(key, f"a number from 1 to {most}")
        return value

    def pattern(self, key: str, default: str | None = None) -> re.Pattern[str] | None:
        """Returns a pattern; None for the empty text, which finds every name."""
        if key not in self._content and default is None:
            return None
        text = self.text(key, default or "", "a regular expression")
        if not text:
            return None
        try:
            return re.compile(text)
        except re.error as error:
            raise WebhooksRefused(f"{self._place}: {key} {text!r}: no regular expression: {error}") from None

    def names(self, key: str, known: tuple[str, ...]) -> frozenset[str]:
        value = self._content.get(key, list(known))
        if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
            raise self.refused(key, f"a list of {', '.join(known)}")
        for one in value:
            if one not in known:
                raise WebhooksRefused(
                    f"{self._place}: {key}: {one!r} is unknown{nearest(one, known)}: expected {', '.join(known)}"
                )
        return frozenset(value)

    def headers(self, key: str) -> dict[str, str]:
        value = self._content.get(key, {})
        if not isinstance(value, dict):
            raise self.refused(key, 'a table such as {Authorization = "Bearer …"}')
        for name, text in value.items():
            if not _HEADER.fullmatch(name) or name.lower() in _OWN_HEADERS:
                raise WebhooksRefused(f"{self._place}: {key}: {name!r} is no name of a header that can be set")
            if not isinstance(text, str) or not text.isascii() or not text.isprintable():
                raise WebhooksRefused(f"{self._place}: {key}.{name}: expected a text of ASCII characters")
        return dict(value)

    def content_of(self, key: str) -> str | None:
        """Returns the content of the file that the table names, beside the file of webhooks; None without one."""
        if key not in self._content:
            return None
        path = self._directory / self.text(key, None, "the path of a file")
        try:
            return text_of_file(path, f"{self._place}: {key}")
        except ConfigError as error:
            raise WebhooksRefused(str(error)) from None


def _webhook(path: Path, number: int, content: Mapping[str, Any]) -> Webhook:
    name = content.get("name")
    shown = name if isinstance(name, str) and name.strip() else number
    place = f"{path}: webhook {shown}"
    table = _Table(place, content, path.parent)
    _check_names(place, content, _KEYS)
    chosen = table.choice("format", "json" if "template" not in content else "template", (*BODIES, "template"))
    template = table.content_of("template")
    if (template is None) == (chosen == "template"):
        raise WebhooksRefused(f'{place}: template: the path of a file, with format = "template" only')
    rule = HookRule(
        table.text("name", None, "a name"),
        Severity[table.choice("threshold", "WARN", tuple(one.name for one in Severity))],
        table.pattern("groups"),
        table.pattern("ignore_groups", IGNORED),
        table.names("kinds", KINDS),
        table.span("repeat", _REPEATS.get(chosen, _REPEAT_MS), SHORTEST_REPEAT_MS, may_be_never=True),
        table.flag("send_closed", default=True),
    )
    secret = table.content_of("secret_file")
    if secret is not None and len(secret.strip()) < 16:
        raise WebhooksRefused(f"{place}: secret_file: fewer than 16 characters: make one with openssl rand -hex 32")
    return Webhook(
        rule,
        table.url("url"),
        BODIES[chosen] if template is None else _template(place, template),
        table.text("content_type", "application/json"),
        table.headers("headers"),
        None if secret is None else Signer(secret_of(secret.strip())),
        table.span("timeout", 10_000, 100) / 1000,
        table.number("attempts", MOST_ATTEMPTS, 1_000),
        _tls(table, place),
    )


def _tls(table: _Table, place: str) -> ssl.SSLContext | None:
    certificates = table.content_of("ca_file")
    if certificates is None:
        return None
    try:
        return ssl.create_default_context(cadata=certificates)
    except (ssl.SSLError, ValueError):
        raise WebhooksRefused(f"{place}: ca_file: expected certificates in the PEM form") from None


def _template(place: str, text: str) -> Render:
    with extra_in_errors("a webhook with a template"):
        from jinja2 import StrictUndefined, TemplateError
        from jinja2.sandbox import SandboxedEnvironment
    made = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    made.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    try:
        template = made.from_string(text)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        raise WebhooksRefused(f"{place}: template{'' if line is None else f', line {line}'}: {error}") from None

    def render(message: Message) -> bytes:
        return str(template.render(message.values)).encode("utf-8", "backslashreplace")

    for event in IncidentEvent:
        ended_ms = SAMPLE.changed_ms + 60_000 if event is IncidentEvent.CLOSED else None
        _try(place, render, Message("kafka", "", event, replace(SAMPLE, closed_ms=ended_ms), 0, SAMPLE.changed_ms))
    return render


def _try(place: str, render: Callable[[Message], bytes], sample: Message) -> None:
    try:
        render(sample)
    except Exception as error:
        raise WebhooksRefused(
            f"{place}: template: {error}: a template has the names {', '.join(sample.values)}"
        ) from None


def _check_names(place: str, content: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in content:
        if name not in known:
            raise WebhooksRefused(f"{place}: {name!r} is no key{nearest(name, known)}: the keys are {', '.join(known)}")
