"""Kafka's settings by name: type, default and limits of each, and the parser of their values.

The tables are ``table``, ``groups/config``, ``transactions/config`` and ``ignored``. The settings
in ``ignored`` and ``table.TOPIC_INERT`` have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from odradek.broker.settings import table as config_table
from odradek.core.errors import ConfigError
from odradek.groups import config as groups_config
from odradek.transactions.config import TransactionConfig


class ConfigType(IntEnum):
    """Type of a setting, with the number in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Source of a value, with the number in DescribeConfigs."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


# Patterns as text. ``re`` compiles them at their first use, because the start of the broker needs none of them.
_THROTTLED_REPLICA = r"\d+:\d+"
_JAVA_DOUBLE = r"(?a:([+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?)"
_BITS = {ConfigType.SHORT: 15, ConfigType.INT: 31, ConfigType.LONG: 63}


class ConfigKey(NamedTuple):
    """One setting. ``limits``: see ``table``. ``inert``: why it has no effect; "" if it has an effect.

    ``falls_back``: the broker settings that give the value if a topic or group does not set it.
    """

    name: str
    type: ConfigType
    default: str | None
    limits: str = ""
    doc: str = ""
    falls_back: tuple[str, ...] = ()
    inert: str = ""
    is_foreign: bool = False

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD or self.is_foreign

    def parse(self, text: str) -> Any:
        """Returns the typed value. Raises ConfigError with Kafka's text."""
        value = self._typed(text.strip())
        if fault := self._fault(value):
            shown = "[hidden]" if self.sensitive else text
            raise ConfigError(f"Invalid value {shown} for configuration {self.name}: {fault}")
        return value

    def _typed(self, text: str) -> Any:
        kind = self.type
        if kind is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._type_fault("Expected value to be either true or false", text)
            return text.lower() == "true"
        if kind in _BITS:
            try:
                number = 1 << 64 if "_" in text else int(text)
            except ValueError:
                number = 1 << 64
            if not -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]:
                raise self._type_fault(f"Not a number of type {kind.name}", text)
            return number
        if kind is ConfigType.DOUBLE:
            number_text = re.fullmatch(_JAVA_DOUBLE, text)
            if number_text is None:
                raise self._type_fault("Not a number of type DOUBLE", text)
            return float(number_text[1])
        if kind is ConfigType.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def _type_fault(self, fault: str, text: str) -> ConfigError:
        return ConfigError(f"Invalid value {text} for configuration {self.name}: {fault}")

    def _fault(self, value: Any) -> str:
        limits = self.limits
        if not limits:
            return ""
        if limits.startswith("in "):
            allowed = limits[3:].split(",")
            return "" if value in allowed else f"String must be one of: {', '.join(allowed)}"
        if limits == "replicas":
            well_formed = all(re.fullmatch(_THROTTLED_REPLICA, part) for part in value)
            return "" if value == ("*",) or well_formed else "Must be the wildcard or partitionId:brokerId pairs"
        if limits.startswith("list "):
            allowed = limits[5:].split(",")
            wrong = [part for part in value if part not in allowed]
            return f"String must be one of: {', '.join(allowed)}" if wrong else ""
        return self._out_of_range(limits, value)

    @staticmethod
    def _out_of_range(limits: str, value: float) -> str:
        limits, _, extra = limits.partition(" or ")
        low, _, high = limits.partition("..")
        if extra:
            within = (not low or value >= float(low)) and (not high or value <= float(high))
            wanted = f"between {low} and {high}" if high else f"at least {low}"
            return "" if within or value == float(extra) else f"Value must be {wanted} or equal to {extra}"
        if low and value < float(low):
            return f"Value must be at least {low}"
        if high and value > float(high):
            return f"Value must be no more than {high}"
        return ""


def _cells(row: str, count: int) -> list[str]:
    cells = [cell.strip() for cell in row.split("|", count - 1)]
    return cells + [""] * (count - len(cells))


def _rows(table: str) -> Iterable[str]:
    return (line for line in table.strip().splitlines() if line)


def _default(cell: str) -> str | None:
    return None if cell == "-" else cell


@cache
def broker_keys() -> dict[str, ConfigKey]:
    """Returns the broker settings that have an effect."""
    keys = {}
    for attribute, one in vars(config_table.BrokerConfigTable).items():
        if isinstance(one, config_table.BrokerSetting):
            name = attribute.replace("_", ".")
            keys[name] = ConfigKey(name, ConfigType[one.kind.upper()], one.default, one.limits, one.doc)
    for row in (*groups_config.GroupConfig.rows(), *TransactionConfig.rows()):
        name, kind, default, limits, doc = _cells(row, 5)
        keys[name] = ConfigKey(name, ConfigType[kind.upper()], _default(default), limits, doc)
    return keys


@cache
def topic_keys() -> dict[str, ConfigKey]:
    """Returns all settings of topics."""
    broker = broker_keys()
    keys = {}
    for row in _rows(config_table.TOPIC):
        name, kind, default, limits, falls_back, doc = _cells(row, 6)
        fallbacks = tuple(falls_back.split())
        keys[name] = ConfigKey(
            name,
            ConfigType[kind.upper()],
            _default(default),
            limits,
            doc or (broker[fallbacks[0]].doc if fallbacks and fallbacks[0] in broker else ""),
            fallbacks,
            config_table.TOPIC_INERT.get(name, ""),
        )
    return keys


@cache
def inert_broker_keys() -> dict[str, ConfigKey]:
    """Returns Kafka's other broker settings. They have no effect; the broker checks only their values.

    ``protection`` refuses some of them.
    """
    from odradek.broker.settings.ignored import INERT

    keys = {}
    for reason, table in INERT.items():
        for row in _rows(table):
            name, kind, default, limits = _cells(row, 4)
            keys[name] = ConfigKey(name, ConfigType[kind.upper()], _default(default), limits, reason, inert=reason)
    return keys


@cache
def authorizer_keys() -> dict[str, ConfigKey]:
    """Returns the settings of Kafka's authorizer. They are no broker settings: DescribeConfigs does not list them."""
    unlisted = "Whether all clients may use a resource that no ACL names."
    users = "Principals that may do everything, separated by semicolons: User:admin;User:CN=broker,O=example."
    keys = (
        ConfigKey("allow.everyone.if.no.acl.found", ConfigType.BOOLEAN, "false", doc=unlisted),
        ConfigKey("super.users", ConfigType.STRING, "", doc=users),
    )
    return {key.name: key for key in keys}


class UnknownConfig(ConfigError):
    """No setting has this name. The text is for clients; ``with_hint`` adds the nearest name for command lines."""

    def __init__(self, text: str, name: str, known: Iterable[str]) -> None:
        super().__init__(text)
        self._name = name
        self._known = known

    def with_hint(self) -> str:
        """Returns the text with the nearest name. Requests do not use it, because the comparison of one name with 300
        takes a millisecond."""
        import difflib

        near = difflib.get_close_matches(self._name, self._known, n=1, cutoff=0.6)
        return (
            f"{self}; did you mean {near[0]!r}?"
            if near
            else f"{self}: docs/reference/broker-settings.md lists them all"
        )


def find_broker_key(name: str) -> ConfigKey:
    """Returns the key of a setting of a broker or its authorizer. Raises UnknownConfig."""
    key = broker_keys().get(name) or inert_broker_keys().get(name) or authorizer_keys().get(name)
    if key is None and name.startswith("listener.name."):
        key = _key_of_listener(name)
    if key is None:
        known = [*broker_keys(), *inert_broker_keys(), *authorizer_keys()]
        raise UnknownConfig(f"unknown config {name!r}", name, known)
    return key


def dynamic_broker_key(name: str) -> ConfigKey:
    """Returns the key of a setting that clients may set on a running broker.

    As in Kafka, a name that no key has may belong to a plugin: any value is stored, and its type is unknown. It is
    shown like a password, because it may be one.
    """
    try:
        return find_broker_key(name)
    except UnknownConfig:
        return ConfigKey(name, ConfigType.UNKNOWN, None, is_foreign=True)


def _key_of_listener(name: str) -> ConfigKey | None:
    """Returns the key of a setting with the prefix of a listener."""
    from odradek.broker.settings.prefixes import scope_of

    scope = scope_of(name)
    key = None if scope is None else broker_keys().get(scope.base) or inert_broker_keys().get(scope.base)
    return None if key is None else key._replace(name=name)


def find_topic_key(name: str) -> ConfigKey:
    """Returns the key of a topic setting. Raises UnknownConfig with Kafka's text."""
    key = topic_keys().get(name)
    if key is None:
        raise UnknownConfig(f"Unknown topic config name: {name}", name, topic_keys())
    return key
