"""How a node of a cluster connects to the others: TLS and logins, by the settings of the listener at the other end.

As in Kafka, a broker connects to the controller by the settings with the prefix of the controller's listener
(``controller.listener.names``), and to other brokers by those of the listener between brokers. Settings without a
prefix hold for both. Only nodes whose listeners have TLS or SASL load this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from odradek.broker.settings.listener import Listener
from odradek.broker.settings.listener_settings import LayeredSettings, ListenerSettings, login_options, protocol_of
from odradek.broker.settings.tls_settings import key_of, trust_of
from odradek.core.errors import ConfigError
from odradek.security.client_security import PLAIN, ClientSecurity, Login
from odradek.security.protocols import HASHES
from odradek.security.secret import Secret
from odradek.security.stores import VERSIONS, Tls, client_context

if TYPE_CHECKING:
    from odradek.broker.settings.roles import NodeRoles

    class NodeSettings(LayeredSettings, Protocol):
        """The settings of a node (``config.BrokerConfig``)."""

        roles: NodeRoles | None


TO_CONTROLLERS, TO_BROKERS = "sasl.mechanism.controller.protocol", "sasl.mechanism.inter.broker.protocol"
_MODULES = {PLAIN: "PlainLoginModule"} | dict.fromkeys(HASHES, "ScramLoginModule")
_CLASSES = {PLAIN: "plain.PlainLoginModule"} | dict.fromkeys(HASHES, "scram.ScramLoginModule")
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


def check(config: NodeSettings) -> None:
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
    options = login_options(settings, mechanism, _MODULES[mechanism]) or {}
    user, password = options.get("username", ""), options.get("password", "")
    if not user or not password:
        raise ConfigError(
            f"{name}: it has no name and password of this node: add username and password, as in org.apache.kafka."
            f'common.security.{_CLASSES[mechanism]} required username="NODE" password="PASSWORD";'
        )
    return Login(user, Secret(password), options.get("tokenauth", "").lower() == "true")
