"""The settings of OAUTHBEARER at a listener. Only brokers with this mechanism load this module."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.settings.listener_settings import ListenerSettings, login_options
from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.security.client_security import OAUTHBEARER
from odradek.security.secret import Secret
from odradek.security.stores import Store, Tls

if TYPE_CHECKING:
    from odradek.security.key_fetch import FetchTimes, KeySetSource
    from odradek.security.web_tokens import TokenRules

KEY_SET = "sasl.oauthbearer.jwks.endpoint.url"
_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's class that checks signatures, by its present and its former name. Kafka's default accepts unsigned tokens."""


class OauthSettings(NamedTuple):
    """Where the keys are, how often they are fetched, and what tokens have to say."""

    source: KeySetSource
    times: FetchTimes
    rules: TokenRules


def read(settings: ListenerSettings) -> OauthSettings:
    """Returns the settings of a listener. Raises ConfigError, which names the setting."""
    try:
        from odradek.security.key_fetch import FetchTimes, KeySetSource
        from odradek.security.web_tokens import TokenRules
    except ImportError as error:
        name = settings.full_name("sasl.enabled.mechanisms")
        raise ConfigError(f"{name}: OAUTHBEARER needs the package cryptography: `{command_of('security')}`") from error
    handler = "sasl.server.callback.handler.class"
    if (given := (settings.text(handler, OAUTHBEARER) or "").strip()) and given not in _HANDLERS:
        raise ConfigError(
            f"{settings.full_name(handler, OAUTHBEARER)}: this broker has no class {given!r}; set {_HANDLERS[0]} or "
            "leave it out"
        )
    options = _options(settings)
    prefix = "sasl.oauthbearer."
    source = KeySetSource(*_source(settings, KEY_SET, options))
    times = FetchTimes(
        *(
            _positive(settings, f"{prefix}jwks.endpoint.{name}")
            for name in ("refresh.ms", "retry.backoff.ms", "retry.backoff.max.ms")
        )
    )
    rules = TokenRules(
        (settings.text(f"{prefix}expected.issuer", OAUTHBEARER) or "").strip(),
        tuple(one for one in settings.value(f"{prefix}expected.audience", OAUTHBEARER) if one),
        max(0, settings.value(f"{prefix}clock.skew.seconds", OAUTHBEARER)),
        _name(settings, f"{prefix}scope.claim.name"),
        _name(settings, f"{prefix}sub.claim.name"),
    )
    return OauthSettings(source, times, rules)


def check(settings: ListenerSettings) -> None:
    """Reads the settings, and the key set if it is a file. Raises ConfigError."""
    oauth_settings = read(settings)
    if oauth_settings.source.is_file:
        from odradek.security import key_fetch

        try:
            key_fetch.read(oauth_settings.source)
        except ConfigError as error:
            name = settings.full_name(KEY_SET, OAUTHBEARER)
            raise ConfigError(f"{name}: {error}") from None


def _source(settings: ListenerSettings, name: str, options: Mapping[str, str]) -> tuple[str, Tls | None]:
    full, url = settings.full_name(name, OAUTHBEARER), (settings.text(name, OAUTHBEARER) or "").strip()
    if not url:
        raise ConfigError(
            f"{full}: OAUTHBEARER needs the public keys of the identity provider: set it to file:///PATH or https://…"
        )
    parts = urllib.parse.urlsplit(url)
    is_file = parts.scheme == "file" and parts.path.startswith("/") and parts.netloc in ("", "localhost")
    try:
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        is_http = False
    if (not is_file and not is_http) or parts.username is not None:
        raise ConfigError(f"{full}: expected file:///PATH, or an https or http address without a user")
    return url, _provider_tls(options, full) if parts.scheme == "https" else None


def _options(settings: ListenerSettings) -> Mapping[str, str]:
    """Returns the options of the login module. Raises ConfigError, which shows none of them."""
    options = login_options(settings, OAUTHBEARER, "OAuthBearerLoginModule") or {}
    if unsigned := [option for option in options if option.startswith("unsecured")]:
        name = settings.full_name("sasl.jaas.config", OAUTHBEARER)
        raise ConfigError(f"{name}: this broker accepts signed tokens only: leave {unsigned[0]} out")
    return options


def _provider_tls(options: Mapping[str, str], full: str) -> Tls:
    """TLS to the identity provider: the ``ssl.`` options of the login module, as in Java. Without a trust store, the
    authorities of the operating system are trusted."""
    known = ("ssl.truststore.location", "ssl.truststore.type", "ssl.truststore.password", "ssl.truststore.certificates")
    if unknown := [name for name in options if name.startswith("ssl.") and name not in known]:
        raise ConfigError(
            f"{full}: the option {unknown[0]} of sasl.jaas.config is not supported: {', '.join(known)} are"
        )
    kind, text = options.get("ssl.truststore.type", "JKS"), options.get("ssl.truststore.certificates", "")
    path, password = options.get("ssl.truststore.location", ""), Secret(options.get("ssl.truststore.password", ""))
    return Tls(Store("ssl.truststore", kind, path, password, text=Secret(text)) if path or text else None)


def _positive(settings: ListenerSettings, name: str) -> int:
    number: int = settings.value(name, OAUTHBEARER)
    if number < 1:
        raise ConfigError(f"{settings.full_name(name, OAUTHBEARER)}: expected a time of at least 1 ms, not {number}")
    return number


def _name(settings: ListenerSettings, name: str) -> str:
    text = (settings.text(name, OAUTHBEARER) or "").strip()
    if not text:
        raise ConfigError(f"{settings.full_name(name, OAUTHBEARER)}: expected the name of a claim")
    return text
