"""The settings of a listener's TLS. Only brokers with such a listener load this module."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.broker.settings.listeners import LayeredSettings, ListenerSettings, secured
from odradek.broker.settings.prefixes import scope_of
from odradek.core.errors import ConfigError
from odradek.security.names import MappingRules
from odradek.security.secret import Secret
from odradek.security.stores import VERSIONS, ServerTls, Store, server_context


def server_tls(settings: ListenerSettings) -> ServerTls:
    """Returns the TLS of a listener. Raises ConfigError, which names the setting."""
    auth = client_auth(settings)
    trust = _trust(settings)
    key = _key(settings)
    if key is None:
        raise ConfigError(
            f"{settings.full_name('ssl.keystore.location')}: the listener has TLS and no certificate: name a file with "
            "the private key and the certificate, and set ssl.keystore.type to PEM or PKCS12"
        )
    if auth != "none" and trust is None:
        raise ConfigError(
            f"{settings.full_name('ssl.truststore.location')}: ssl.client.auth={auth} needs the certificates of the "
            "authorities that clients may have: name a file, and set ssl.truststore.type to PEM or PKCS12"
        )
    MappingRules(settings.text("ssl.principal.mapping.rules") or "DEFAULT")
    only = settings.text("ssl.protocol") or ""
    versions = tuple(one for one in settings.value("ssl.enabled.protocols") if one)
    if only == "TLSv1.2" and "TLSv1.2" in versions and settings.is_set("ssl.protocol"):
        versions = ("TLSv1.2",)
    return ServerTls(trust, key, versions or tuple(VERSIONS), settings.value("ssl.cipher.suites"), auth)


def check_stores(config: LayeredSettings, changed: Iterable[str]) -> None:
    """Reads the key stores of the listeners whose settings of TLS change. Raises ConfigError if they cannot be used."""
    scopes = [scope for name in changed if (scope := scope_of(name)) is not None and scope.base.startswith("ssl.")]
    names = {scope.listener for scope in scopes}
    if not names:
        return
    for settings in secured(config):
        if settings.name in names:
            server_context(server_tls(settings))


def client_auth(settings: ListenerSettings) -> str:
    """Returns none, requested or required. As in Kafka, a listener with SASL needs its own setting."""
    name = "ssl.client.auth"
    return (settings.own_text(name) or "none") if settings.has_sasl else settings.text(name) or "none"


def _trust(settings: ListenerSettings) -> Store | None:
    name = "ssl.truststore"
    kind = settings.text(f"{name}.type") or "JKS"
    if text := settings.text(f"{name}.certificates"):
        return Store(name, kind, text=text)
    path = settings.text(f"{name}.location")
    return Store(name, kind, path, _secret(settings, f"{name}.password")) if path else None


def _key(settings: ListenerSettings) -> Store | None:
    name = "ssl.keystore"
    kind = settings.text(f"{name}.type") or "JKS"
    key_password = _secret(settings, "ssl.key.password")
    chain, key = settings.text(f"{name}.certificate.chain") or "", _secret(settings, f"{name}.key")
    if chain or key:
        return Store(name, kind, key_password=key_password, text=chain, key_text=key)
    path = settings.text(f"{name}.location")
    return Store(name, kind, path, _secret(settings, f"{name}.password"), key_password) if path else None


def _secret(settings: ListenerSettings, name: str) -> Secret:
    return Secret(settings.text(name) or "")
