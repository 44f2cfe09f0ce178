"""The listeners that the settings describe, and the checks of their settings.

A broker whose settings name no listener and no protection does not load this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from odradek.broker.settings.keys import ConfigSource, find_broker_key, inert_broker_keys
from odradek.broker.settings.listener import AT_CONTROLLER, CLIENT, Listener
from odradek.broker.settings.pairs import pairs
from odradek.broker.settings.prefixes import OF_LISTENERS, OF_MECHANISMS, OF_OAUTH, PREFIX, scope_of
from odradek.core.errors import ConfigError
from odradek.security.protocols import PLAINTEXT, PROTOCOLS

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOL_MAP, CONTROLLER_LISTENERS = "listener.security.protocol.map", "controller.listener.names"
_ENTRY = re.compile(r"([A-Za-z0-9_-]+)://(\[[0-9A-Fa-f:.%]*\]|[^\s:/\[\]]*):(\d{1,5})")


class LayeredSettings(Protocol):
    """The broker's settings (``config.BrokerConfig``)."""

    texts: dict[str, str]

    @property
    def has_controller(self) -> bool:
        """Whether the node is the controller of a cluster: then it opens the listeners of controllers."""

    def text(self, name: str) -> str | None:
        """Returns the value in effect, as text."""

    def layers(self) -> tuple[tuple[Mapping[str, str], ConfigSource], ...]:
        """Returns the settings of each source; an earlier one overrides the later ones."""


class ListenerSettings:
    """The settings of one listener: those with its prefix, else those without."""

    def __init__(self, config: LayeredSettings, listener: Listener) -> None:
        self.config = config
        self.listener = listener
        self.has_sasl = listener.has_sasl
        self.name = listener.name.lower()
        self._prefix = f"{PREFIX}{listener.name.lower()}."

    def full_name(self, name: str, mechanism: str = "") -> str:
        """Returns the name with the prefix of the listener and, if one is given, of the mechanism."""
        return self._prefix + (f"{mechanism.lower()}." if mechanism else "") + name

    def text(self, name: str, mechanism: str = "") -> str | None:
        """Returns the value in effect, as text; None if there is none."""
        names = [self.full_name(name), name]
        if mechanism:
            names.insert(0, self.full_name(name, mechanism))
        for one in names:
            for texts, _ in self.config.layers():
                if one in texts:
                    return texts[one]
        return find_broker_key(name).default

    def own_text(self, name: str) -> str | None:
        """Returns the value with the prefix of the listener; None if there is none."""
        full = self.full_name(name)
        return next((texts[full] for texts, _ in self.config.layers() if full in texts), None)

    def is_set(self, name: str) -> bool:
        """Returns whether the setting has a value, with the prefix or without it."""
        return any(one in texts for texts, _ in self.config.layers() for one in (self.full_name(name), name))

    def value(self, name: str, mechanism: str = "") -> Any:
        """Returns the parsed value in effect; None if there is none."""
        text = self.text(name, mechanism)
        return None if text is None else find_broker_key(name).parse(text)

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The enabled SASL mechanisms, in upper case, each once."""
        return tuple(dict.fromkeys(one.upper() for one in self.value("sasl.enabled.mechanisms") if one))


def login_options(settings: ListenerSettings, mechanism: str, module: str) -> Mapping[str, str] | None:
    """Returns the options of the login module of a mechanism, which has to be ``module``; None without a module. Raises
    ConfigError, which shows no option."""
    text = settings.text("sasl.jaas.config", mechanism)
    if not text:
        return None
    from odradek.security.jaas import read_jaas

    name = settings.full_name("sasl.jaas.config", mechanism)
    try:
        jaas = read_jaas(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {str(error).removeprefix('sasl.jaas.config: ')}") from None
    if jaas.name != module:
        raise ConfigError(f"{name}: {mechanism} needs {module}, not {jaas.name}")
    return jaas.options


def plain_users(settings: ListenerSettings) -> dict[str, str]:
    """Returns the passwords of PLAIN's users of a listener. Raises ConfigError, which shows no password."""
    name = settings.full_name("sasl.jaas.config", "PLAIN")
    options = login_options(settings, "PLAIN", "PlainLoginModule")
    if options is None:
        raise ConfigError(
            f"{name}: the mechanism PLAIN has no users: set it to org.apache.kafka.common.security.plain."
            'PlainLoginModule required user_NAME="PASSWORD";'
        )
    users = {key.removeprefix("user_"): value for key, value in options.items() if key.startswith("user_")}
    if not users:
        raise ConfigError(f'{name}: it has no user: add user_NAME="PASSWORD" for each user')
    return users


# --- addresses ------------------------------------------------------------------------------------------------------


def read(config: LayeredSettings, listen: tuple[str, int] | None) -> tuple[Listener, ...]:
    """Returns the listeners. ``listen``: host and port of the only one, if the setting ``listeners`` is not there.

    Listeners of controllers are left out, unless the node is a controller: another node has them. Raises
    ConfigError."""
    texts = config.texts
    protocols = _protocols(config)
    of_controllers = set() if config.has_controller else _of_controllers(config)
    advertised = {
        name: address
        for name, address in _addresses("advertised.listeners", texts.get("advertised.listeners", ""))
        if name not in of_controllers
    }
    if texts.get("listeners"):
        if listen is not None:
            raise ConfigError("listeners: --listen has an address, too: leave one of the two out")
        addresses = [entry for entry in _addresses("listeners", texts["listeners"]) if entry[0] not in of_controllers]
        if not addresses:
            raise ConfigError("listeners: it names no listener for clients")
    else:
        only = texts.get("inter.broker.listener.name") or texts.get("security.inter.broker.protocol") or PLAINTEXT
        addresses = [(next(iter(advertised), only.upper()), listen or ("", 9092))]
    _check_distinct(addresses)
    names = [name for name, _ in addresses]
    for name in advertised.keys() - set(names):
        raise ConfigError(f"advertised.listeners: {name} is no listener: the listeners are {', '.join(names)}")
    return tuple(
        Listener(name, _protocol(name, protocols), host, port, advertised.get(name), _kind(config, name))
        for name, (host, port) in addresses
    )


def _kind(config: LayeredSettings, name: str) -> str:
    return AT_CONTROLLER if config.has_controller and name in _of_controllers(config) else CLIENT


def controller_listeners(texts: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the controllers' listeners, in upper case and in the order of the setting."""
    return tuple(one.strip().upper() for one in texts.get(CONTROLLER_LISTENERS, "").split(",") if one.strip())


def _of_controllers(config: LayeredSettings) -> set[str]:
    return set(controller_listeners(config.texts))


def _is_controller(config: LayeredSettings) -> bool:
    """Whether the node is a controller and no broker."""
    return config.texts.get("process.roles", "").strip() == "controller"


def _check_distinct(addresses: list[tuple[str, tuple[str, int]]]) -> None:
    names = [name for name, _ in addresses]
    if len(set(names)) < len(names):
        raise ConfigError("listeners: two listeners have the same name")
    bound = [address for _, address in addresses if address[1]]
    if len(set(bound)) < len(bound):
        raise ConfigError("listeners: two listeners have the same address")


def _addresses(setting: str, text: str) -> Iterator[tuple[str, tuple[str, int]]]:
    for part in text.split(","):
        if not (part := part.strip()):
            continue
        entry = _ENTRY.fullmatch(part)
        if entry is None or int(entry[3]) > 65_535:
            raise ConfigError(f"{setting} must be PLAINTEXT://host:port, or another listener's NAME, not {part!r}")
        host = entry[2].strip("[]")
        if setting == "advertised.listeners" and host in ("", "0.0.0.0", "::"):
            raise ConfigError(f"{setting} must be NAME://host:port with a host that clients can reach, not {part!r}")
        yield entry[1].upper(), (host, int(entry[3]))


def _protocols(config: LayeredSettings) -> Mapping[str, str]:
    default = find_broker_key(PROTOCOL_MAP).default or ""
    given = config.text(PROTOCOL_MAP) or ""
    # Kafka adds no default to a map that is set; here the four names of protocols stay what they say.
    of_controllers = dict.fromkeys(_of_controllers(config), PLAINTEXT)
    both = of_controllers | pairs(PROTOCOL_MAP, default) | pairs(PROTOCOL_MAP, given)
    return {name.upper(): protocol.upper() for name, protocol in both.items()}


def protocol_of(config: LayeredSettings, name: str) -> str:
    """Returns the security protocol of a listener of this node or of another one. Raises ConfigError."""
    return _protocol(name, _protocols(config))


def _protocol(name: str, protocols: Mapping[str, str]) -> str:
    protocol = protocols.get(name)
    if protocol is None:
        raise ConfigError(f"{PROTOCOL_MAP}: it has no protocol for the listener {name}: add {name}:SASL_SSL or another")
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL_MAP}: expected {', '.join(PROTOCOLS)} for the listener {name}, not {protocol!r}")
    return protocol


# --- checks ---------------------------------------------------------------------------------------------------------


def secured(config: LayeredSettings) -> list[ListenerSettings]:
    """Returns the settings of the listeners with TLS. Raises ConfigError."""
    listeners = read(config, None if config.texts.get("listeners") else ("", 9092))
    return [ListenerSettings(config, listener) for listener in listeners if listener.has_tls]


def with_tokens(config: LayeredSettings) -> list[ListenerSettings]:
    """Returns the settings of the listeners with logins by tokens of OAUTHBEARER. Raises ConfigError."""
    listeners = read(config, None if config.texts.get("listeners") else ("", 9092))
    of_listeners = [ListenerSettings(config, listener) for listener in listeners if listener.has_sasl]
    return [one for one in of_listeners if "OAUTHBEARER" in one.mechanisms]


def check(config: LayeredSettings) -> None:
    """Raises ConfigError, one line, for listeners that cannot work and for settings that would protect nothing."""
    listen = None if config.texts.get("listeners") else ("", 9092)
    listeners = {listener.name.lower(): listener for listener in read(config, listen)}
    settings = {name: ListenerSettings(config, listener) for name, listener in listeners.items()}
    for name, listener in listeners.items():
        if listener.has_sasl:
            check_mechanisms(settings[name])
    closed = set() if config.has_controller else _of_controllers(config)
    of_controllers = tuple(f"{PREFIX}{name.lower()}." for name in closed)
    for name in dict.fromkeys(name for texts, _ in config.layers() for name in texts):
        if name.startswith(of_controllers):
            continue  # another node has this listener
        if name.startswith(PREFIX):
            _check_scope(name, config.text(name) or "", settings)
        else:
            _check_use(name, config.text(name) or "", listeners)
    for name, listener in listeners.items():
        if listener.has_sasl and "PLAIN" in settings[name].mechanisms:
            plain_users(settings[name])
    _check_inner(config, listeners)


def _check_scope(name: str, text: str, settings: Mapping[str, ListenerSettings]) -> None:
    """Checks a setting with the prefix of a listener. ``settings``: those of each listener, by its lower-case name."""
    scope = scope_of(name)
    if scope is None or (scope.base not in OF_LISTENERS and scope.base not in inert_broker_keys()):
        raise ConfigError(f"{name}: this setting cannot be set for one listener alone")
    if scope.base not in OF_LISTENERS:
        return  # ``protection`` has checked it
    if scope.mechanism and scope.base not in OF_MECHANISMS:
        raise ConfigError(f"{name}: this setting cannot be set for one mechanism alone")
    if scope.mechanism not in ("", "oauthbearer") and scope.base in OF_OAUTH:
        raise ConfigError(f"{name}: this setting belongs to the mechanism OAUTHBEARER")
    is_of_tls = scope.base.startswith("ssl.")
    if scope.listener not in settings:
        if _protects(scope.base, text) or any(_has(one.listener, is_of_tls) for one in settings.values()):
            raise ConfigError(f"{name}: no listener has this name; the listeners are {', '.join(settings)}")
        return
    listener = settings[scope.listener].listener
    if not _has(listener, is_of_tls):
        if _protects(scope.base, text):
            raise ConfigError(
                f"{name}: the listener {listener.name} is {listener.protocol}, so it would protect nothing; leave it "
                f"out, or add {listener.name}:SASL_SSL to {PROTOCOL_MAP}"
            )
        return
    if scope.mechanism and scope.mechanism.upper() not in settings[scope.listener].mechanisms:
        enabled = settings[scope.listener].full_name("sasl.enabled.mechanisms")
        raise ConfigError(
            f"{name}: the mechanism {scope.mechanism.upper()} is not enabled, so it would protect nothing; leave "
            f"it out, or add the mechanism to {enabled}"
        )
    if scope.base == "sasl.jaas.config" and not scope.mechanism:
        raise ConfigError(f"{name}: name the mechanism, too: {settings[scope.listener].full_name(scope.base, 'PLAIN')}")


def has_no_use(config: LayeredSettings, name: str) -> bool:
    """Returns whether a setting with the prefix of a listener belongs to TLS or SASL, which the listener lacks."""
    scope = scope_of(name)
    if scope is None or scope.base not in OF_LISTENERS:
        return False
    listeners = read(config, None if config.texts.get("listeners") else ("", 9092))
    users = [one for one in listeners if one.name.lower() == scope.listener]
    return not any(_has(one, scope.base.startswith("ssl.")) for one in users)


def _has(listener: Listener, tls: bool) -> bool:
    return listener.has_tls if tls else listener.has_sasl


def _protects(name: str, text: str) -> bool:
    """Returns whether a setting asks for certificates or logins of clients.

    The other settings say how TLS or a login works, not that a listener has it. A broker without such a listener is as
    open as it was asked to be, and Kafka accepts them.
    """
    if name == "ssl.client.auth":
        return text.strip().lower() not in ("", "none")
    return name in ("sasl.enabled.mechanisms", "sasl.jaas.config") and bool(text.strip())


def _check_use(name: str, text: str, listeners: Mapping[str, Listener]) -> None:
    """Checks that a setting without a prefix that asks for certificates or logins has a listener that uses it."""
    if name == "sasl.jaas.config" and text:
        raise ConfigError(f"{name}: name the listener and the mechanism: {PREFIX}NAME.plain.{name}")
    if not _protects(name, text):
        return
    if name == "ssl.client.auth":
        if any(one.has_tls and not one.has_sasl for one in listeners.values()):
            return
        if any(one.has_tls for one in listeners.values()):
            raise ConfigError(
                f"{name}: it would protect nothing, because the listeners with TLS have SASL, too: leave it out, or "
                f"set {PREFIX}NAME.{name}"
            )
    elif any(one.has_sasl for one in listeners.values()) or _is_default(name, text):
        return
    kind, protocols = ("TLS", "SSL") if name.startswith("ssl.") else ("SASL", "SASL_PLAINTEXT")
    raise ConfigError(
        f"{name}: no listener has {kind}, so it would protect nothing; leave it out, or name a listener of the "
        f"protocol {protocols} or SASL_SSL in listeners"
    )


def _is_default(name: str, text: str) -> bool:
    key = find_broker_key(name)
    return key.default is not None and bool(key.parse(text) == key.parse(key.default))


def check_mechanisms(settings: ListenerSettings) -> None:
    """Checks the SASL mechanisms of a listener. Raises ConfigError."""
    name = settings.full_name("sasl.enabled.mechanisms")
    mechanisms = settings.mechanisms
    if not mechanisms or mechanisms == ("GSSAPI",):
        raise ConfigError(
            f"{name}: GSSAPI (Kerberos), Kafka's default, is not supported: set it to {', '.join(_MECHANISMS)} or some "
            "of them"
        )
    for mechanism in mechanisms:
        if mechanism not in _MECHANISMS:
            what = "GSSAPI (Kerberos)" if mechanism == "GSSAPI" else repr(mechanism)
            raise ConfigError(f"{name}: {what} is not supported: choose {', '.join(_MECHANISMS)}")


def _check_inner(config: LayeredSettings, listeners: Mapping[str, Listener]) -> None:
    """Checks that the listener and the protocol between brokers exist, as in Kafka. One broker opens no connection."""
    if _is_controller(config):
        return
    name = config.texts.get("inter.broker.listener.name", "")
    if name and name.lower() not in listeners:
        known = ", ".join(listener.name for listener in listeners.values())
        raise ConfigError(f"inter.broker.listener.name: {name} is no listener, so it would protect nothing; the "
                          f"listeners are {known}: leave it out, or name a listener of these")  # fmt: skip
    protocol = config.texts.get("security.inter.broker.protocol", "").upper()
    if name and protocol:
        raise ConfigError(
            "security.inter.broker.protocol: inter.broker.listener.name is set, too: leave one of the two out"
        )
    if protocol not in ("", PLAINTEXT) and all(one.protocol != protocol for one in listeners.values()):
        raise ConfigError(
            f"security.inter.broker.protocol: no listener is {protocol}, so it would protect nothing; leave it out, or "
            "name such a listener in listeners"
        )
