"""Settings of groups, client metrics subscriptions and loggers.

The catalogue stores the settings of groups and subscriptions. The settings of KIP-848 groups have an effect. The
settings of share groups, streams groups and client metrics have no effect, because the broker does not have these
features yet. The level of a logger is kept until the broker stops, as in Kafka.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.description import ConfigRow
from odradek.broker.settings.keys import ConfigKey, ConfigSource, ConfigType, find_broker_key
from odradek.broker.settings.table import NO_SUCH_GROUPS
from odradek.catalog.state import CLIENT_METRICS, GROUP
from odradek.core.errors import ConfigError, ErrorCode, KafkaError
from odradek.text.log_lines import AUDIT_LOG

LOGGER = 8

# name | type | default, or the broker setting with the default | limits
_GROUP = """
consumer.assignment.interval.ms | int | group.consumer.assignment.interval.ms | 0..
consumer.heartbeat.interval.ms | int | group.consumer.heartbeat.interval.ms | 1..
consumer.session.timeout.ms | int | group.consumer.session.timeout.ms | 1..
share.assignment.interval.ms | int | group.share.assignment.interval.ms | 0..
share.auto.offset.reset | string | latest |
share.delivery.count.limit | int | group.share.delivery.count.limit | 2..
share.heartbeat.interval.ms | int | group.share.heartbeat.interval.ms | 1..
share.isolation.level | string | read_uncommitted | in read_committed,read_uncommitted
share.partition.max.record.locks | int | group.share.partition.max.record.locks | 100..
share.record.lock.duration.ms | int | group.share.record.lock.duration.ms | 1000..
share.renew.acknowledge.enable | boolean | true |
share.session.timeout.ms | int | group.share.session.timeout.ms | 1..
streams.assignment.interval.ms | int | group.streams.assignment.interval.ms | 0..
streams.heartbeat.interval.ms | int | group.streams.heartbeat.interval.ms | 1..
streams.initial.rebalance.delay.ms | int | group.streams.initial.rebalance.delay.ms | 0..
streams.num.standby.replicas | int | group.streams.num.standby.replicas | 0..
streams.session.timeout.ms | int | group.streams.session.timeout.ms | 1..
"""

_CLIENT_METRICS = """
interval.ms | int | 300000 | 100..3600000
match | list | |
metrics | list | |
"""
_NO_METRICS = "The broker collects no client metrics."
_MATCHED = ("client_instance_id", "client_id", "client_software_name", "client_software_version",
            "client_source_address", "client_source_port")  # fmt: skip


@cache
def _keys(kind: int) -> dict[str, ConfigKey]:
    table, reason = (_GROUP, NO_SUCH_GROUPS) if kind == GROUP else (_CLIENT_METRICS, _NO_METRICS)
    keys = {}
    for row in table.strip().splitlines():
        name, type_name, default, limits = (cell.strip() for cell in row.split("|"))
        falls_back = (default,) if default.startswith("group.") else ()
        doc = ""
        if falls_back:
            broker_key = find_broker_key(default)
            default, doc = broker_key.default or "", broker_key.doc
        keys[name] = ConfigKey(
            name,
            ConfigType[type_name.upper()],
            default,
            limits,
            doc,
            falls_back=falls_back,
            inert="" if name.startswith("consumer.") else reason,
        )
    return keys


def group_keys() -> dict[str, ConfigKey]:
    """Returns all settings of groups."""
    return _keys(GROUP)


def describe(
    broker: BrokerConfig, kind: int, own: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigRow]:
    """Returns all settings of a group or subscription, or those of ``names`` that exist."""
    keys = _keys(kind)
    own_source = ConfigSource.GROUP if kind == GROUP else ConfigSource.CLIENT_METRICS
    described = []
    for name in keys if names is None else [name for name in dict.fromkeys(names) if name in keys]:
        key = keys[name]
        synonyms = tuple(
            (twin, texts[twin], source) for twin in key.falls_back for texts, source in broker.layers() if twin in texts
        )
        if kind == GROUP:
            synonyms += (((key.falls_back or (name,))[0], key.default or "", ConfigSource.DEFAULT),)
        if name in own:
            synonyms = ((name, own[name], own_source), *synonyms)
        value = synonyms[0][1] if synonyms else key.default
        described.append(ConfigRow(key, value, synonyms[0][2] if synonyms else ConfigSource.DEFAULT, False, synonyms))
    return described


def find_key(kind: int, name: str) -> ConfigKey:
    """Returns the key of a setting. If it does not exist, raises ConfigError or KafkaError, as Kafka does for this
    resource type."""
    key = _keys(kind).get(name)
    if key is not None:
        return key
    if kind == GROUP:
        raise ConfigError(f"Unknown group config name: {name}")
    raise KafkaError(ErrorCode.invalid_request, f"Unknown client metrics configuration: {name}")


def check(broker: BrokerConfig, kind: int, own: Mapping[str, str]) -> None:
    """Checks all settings of a group or subscription, one by one and together. Raises ConfigError or KafkaError."""
    if kind == CLIENT_METRICS:
        _check_subscription(own)
        return
    for name, text in own.items():
        value = find_key(kind, name).parse(text)
        prefix, _, rest = name.partition(".")
        for end, is_beyond in (("min", int.__lt__), ("max", int.__gt__)):
            limit_name = f"group.{prefix}.{end}.{rest}"
            try:
                limit = find_broker_key(limit_name).parse(broker.text(limit_name) or "")
            except ConfigError:
                continue  # the broker sets no such limit
            _check_limit(name, value, limit, limit_name, is_beyond)


def _check_limit(name: str, value: int, limit: int, limit_name: str, is_beyond: Callable[[int, int], bool]) -> None:
    if is_beyond(value, limit):
        raise ConfigError(f"{name} of {value} is beyond the broker's {limit_name} of {limit}")


def _check_subscription(own: Mapping[str, str]) -> None:
    for name, text in own.items():
        key = find_key(CLIENT_METRICS, name)
        try:
            value = key.parse(text)
        except ConfigError as error:
            raise KafkaError(ErrorCode.invalid_request, str(error)) from None
        for pattern in value if name == "match" else ():
            selector, equals, expression = pattern.partition("=")
            if not equals or selector.strip() not in _MATCHED:
                raise ConfigError(f"Illegal client matching pattern: {pattern}")
            try:
                re.compile(expression)
            except re.error:
                raise ConfigError(f"Illegal client matching pattern: {pattern}") from None


# --- loggers ----------------------------------------------------------------------------------------------------

ROOT = "root"
_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}


def _loggers() -> list[str]:
    names = (name for name, kept in logging.root.manager.loggerDict.items() if isinstance(kept, logging.Logger))
    return [ROOT, *sorted(name for name in names if name.partition(".")[0] == "odradek" or name == AUDIT_LOG)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger() if name == ROOT else logging.getLogger(name)


def describe_loggers(names: Iterable[str] | None = None) -> list[ConfigRow]:
    """Returns all loggers of the broker with their levels, or those of ``names`` that exist."""
    known = _loggers()
    described = []
    for name in known if names is None else [name for name in dict.fromkeys(names) if name in known]:
        level = _logger(name).getEffectiveLevel()
        text = max((at_least, text) for text, at_least in _LEVELS.items() if at_least <= max(level, 5))[1]
        described.append(ConfigRow(ConfigKey(name, ConfigType.UNKNOWN, None), text, ConfigSource.LOGGER, False, ()))
    return described


def check_loggers(changes: Mapping[str, str | None]) -> None:
    """Checks names and levels of loggers. Raises KafkaError or ConfigError."""
    for name, level in changes.items():
        if name not in _loggers():
            raise ConfigError(f"Logger {name} does not exist!")
        if level is None and name == ROOT:
            raise KafkaError(ErrorCode.invalid_request, f"Removing the log level of the {ROOT} logger is not allowed")
        if level is not None and level not in _LEVELS:
            raise ConfigError(
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(_LEVELS)}"
            )


def set_loggers(changes: Mapping[str, str | None]) -> None:
    """Sets the levels of loggers until the broker stops; ``None`` means the level of the parent logger."""
    for name, level in changes.items():
        _logger(name).setLevel(logging.NOTSET if level is None else _LEVELS[level])
