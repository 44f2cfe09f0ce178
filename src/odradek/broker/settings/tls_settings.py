"""The settings of a listener's TLS, and how a node of a cluster connects to listeners with TLS or logins.

As in Kafka, a broker connects to the controller by the settings with the prefix of the controller's listener
(``controller.listener.names``), and to other brokers by those of the listener between brokers. Settings without a
prefix hold for both. Only nodes with such a listener, and those that connect to one, load this module."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odradek.broker.settings.listener import Listener
from odradek.broker.settings.listener_settings import (
    LayeredSettings,
    ListenerSettings,
    login_options,
    protocol_of,
    secured,
)
from odradek.broker.settings.prefixes import scope_of
from odradek.core.errors import ConfigError
from odradek.security.client_security import PLAIN, ClientSecurity, Login
from odradek.security.names import MappingRules, UnreadableName, alternative_names, subject_name
from odradek.security.protocols import HASHES
from odradek.security.secret import Secret
from odradek.security.stores import VERSIONS, ServerTls, Store, Tls, client_context, own_certificate, server_context

if TYPE_CHECKING:
    from odradek.broker.settings.roles import NodeRoles

    class NodeSettings(LayeredSettings, Protocol):
        """The settings of a node (``config.BrokerConfig``)."""

        roles: NodeRoles | None


def server_tls(settings: ListenerSettings) -> ServerTls:
    """Returns the TLS of a listener. Raises ConfigError, which names the setting."""
    auth = client_auth(settings)
    trust = trust_of(settings)
    key = key_of(settings)
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


class CertificateNames(NamedTuple):
    """The names of a listener's certificate, as Kafka compares them when the certificate changes."""

    subject: str
    alternatives: frozenset[bytes]

    @classmethod
    def of(cls, tls: ServerTls) -> CertificateNames:
        """Reads them from the key store. Raises ConfigError."""
        certificate = own_certificate(tls.key)
        try:
            return cls(subject_name(certificate), alternative_names(certificate))
        except UnreadableName as error:
            raise ConfigError(f"{tls.key.name}: {error}") from None

    def check_change(self, new: CertificateNames, settings: ListenerSettings) -> None:
        """Raises ConfigError if a listener that has these names may not get the new ones."""
        name = "ssl.allow.dn.changes"
        if new.subject.lower() != self.subject.lower() and not settings.value(name):
            raise ConfigError(
                f"the subject of the certificate changes from {self.subject!r} to {new.subject!r}; set "
                f"{settings.full_name(name)}=true to allow it"
            )
        name = "ssl.allow.san.changes"
        if not new.alternatives >= self.alternatives and not settings.value(name):
            raise ConfigError(
                "the new certificate lacks alternative names of the former one, so clients that use them could not "
                f"connect; set {settings.full_name(name)}=true to allow it"
            )


def check_stores(config: LayeredSettings, changed: Iterable[str], before: LayeredSettings) -> None:
    """Reads the key stores of the listeners whose settings of TLS change. Raises ConfigError if they cannot be used.

    ``before``: the settings without the change."""
    scopes = [scope for name in changed if (scope := scope_of(name)) is not None and scope.base.startswith("ssl.")]
    names = {scope.listener for scope in scopes}
    if not names:
        return
    former = {settings.name: settings for settings in secured(before)}
    for settings in secured(config):
        if settings.name in names:
            tls = server_tls(settings)
            server_context(tls)
            if (old := former.get(settings.name)) is not None:
                old_tls = server_tls(old)
                if old_tls.key != tls.key:
                    CertificateNames.of(old_tls).check_change(CertificateNames.of(tls), settings)


def client_auth(settings: ListenerSettings) -> str:
    """Returns none, requested or required. As in Kafka, a listener with SASL needs its own setting."""
    name = "ssl.client.auth"
    return (settings.own_text(name) or "none") if settings.has_sasl else settings.text(name) or "none"


def trust_of(settings: ListenerSettings) -> Store | None:
    name = "ssl.truststore"
    kind = settings.text(f"{name}.type") or "JKS"
    if text := settings.text(f"{name}.certificates"):
        return Store(_shown(settings, f"{name}.certificates"), kind, text=Secret(text))
    path = settings.text(f"{name}.location")
    return (
        Store(_shown(settings, f"{name}.location"), kind, path, _secret(settings, f"{name}.password")) if path else None
    )


def key_of(settings: ListenerSettings) -> Store | None:
    name = "ssl.keystore"
    kind = settings.text(f"{name}.type") or "JKS"
    key_password = _secret(settings, "ssl.key.password")
    chain, key = settings.text(f"{name}.certificate.chain") or "", _secret(settings, f"{name}.key")
    if chain or key:
        shown = _shown(settings, f"{name}.certificate.chain")
        return Store(shown, kind, key_password=key_password, text=Secret(chain), key_text=key)
    path, shown = settings.text(f"{name}.location"), _shown(settings, f"{name}.location")
    return Store(shown, kind, path, _secret(settings, f"{name}.password"), key_password) if path else None


def _shown(settings: ListenerSettings, name: str) -> str:
    """Returns the name of a store in messages: with the listener's prefix if the setting has it."""
    store = re.sub(r"(store)\..*", r"\1", name)
    return settings.full_name(store) if settings.own_text(name) is not None else store


def _secret(settings: ListenerSettings, name: str) -> Secret:
    return Secret(settings.text(name) or "")


# --- connections to other nodes -------------------------------------------------------------------------------------

TO_CONTROLLERS, TO_BROKERS = "sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol"
_MODULES = {PLAIN: ("plain", "PlainLoginModule")} | dict.fromkeys(HASHES, ("scram", "ScramLoginModule"))
"""Java's package and class for each mechanism."""
_CHECKS_NAMES = "ssl.endpoint.identification.algorithm"


def node_security(config: NodeSettings, *, at_controller: bool) -> ClientSecurity:
    """Returns how this node of a cluster connects to the controller, or to other brokers. Raises ConfigError."""
    roles = config.roles
    assert roles is not None  # the settings are those of a node of a cluster
    name = roles.controller_listeners[0] if at_controller else roles.inner
    listener = Listener(name, protocol_of(config, name), "", 0)
    settings = ListenerSettings(config, listener)
    tls = _tls(settings) if listener.has_tls else None
    if not listener.has_sasl:
        return ClientSecurity(listener.protocol, tls)
    setting = TO_CONTROLLERS if at_controller else TO_BROKERS
    mechanism = (config.text(setting) or "").upper()
    if mechanism not in _MODULES:
        raise ConfigError(
            f"{setting}: {mechanism} is not supported between nodes: set it to {', '.join(_MODULES)}, because the "
            f"listener {name} is {listener.protocol}"
        )
    if not at_controller and mechanism not in settings.mechanisms:
        raise ConfigError(
            f"{setting}: {mechanism} is not enabled at the listener {name}, by which brokers connect: add it to "
            f"{settings.full_name('sasl.enabled.mechanisms')}"
        )
    return ClientSecurity(listener.protocol, tls, mechanism, _login(settings, mechanism))


def check_node(config: NodeSettings) -> None:
    """Raises ConfigError for a broker that cannot connect to the other nodes. Reads its key stores."""
    roles = config.roles
    if roles is None or not roles.is_broker:
        return
    for at_controller in (True, False):
        security = node_security(config, at_controller=at_controller)
        if security.tls is not None:
            client_context(security.tls)


def _tls(settings: ListenerSettings) -> Tls:
    versions = tuple(one for one in settings.value("ssl.enabled.protocols") if one)
    return Tls(
        trust_of(settings),
        key_of(settings),
        versions or tuple(VERSIONS),
        settings.value("ssl.cipher.suites"),
        checks_names=bool((settings.text(_CHECKS_NAMES) or "").strip()),
    )


def _login(settings: ListenerSettings, mechanism: str) -> Login:
    """Returns the name and the password of this node. Raises ConfigError, which shows no password."""
    name = settings.full_name("sasl.jaas.config", mechanism)
    package, module = _MODULES[mechanism]
    options = login_options(settings, mechanism, module) or {}
    user, password = options.get("username", ""), options.get("password", "")
    if not user or not password:
        raise ConfigError(
            f"{name}: it has no name and password of this node: add username and password, as in org.apache.kafka."
            f'common.security.{package}.{module} required username="NODE" password="PASSWORD";'
        )
    return Login(user, Secret(password), options.get("tokenauth", "").lower() == "true")
