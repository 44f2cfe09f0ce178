"""Rows of DescribeConfigs: each setting with its value and all sources that have a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from odradek.broker.settings.config import BrokerConfig, topic_default
from odradek.broker.settings.ignored import DYNAMIC, HIDDEN
from odradek.broker.settings.keys import (
    ConfigKey,
    ConfigSource,
    broker_keys,
    dynamic_broker_key,
    inert_broker_keys,
    topic_keys,
)
from odradek.broker.settings.prefixes import base_of


class ConfigRow(NamedTuple):
    """One row of DescribeConfigs. ``synonyms``: (name, value, source); an earlier one overrides the later ones."""

    key: ConfigKey
    value: str | None
    source: ConfigSource
    read_only: bool
    synonyms: tuple[tuple[str, str, ConfigSource], ...]

    def __repr__(self) -> str:
        shown = "[hidden]" if self.key.sensitive else repr(self.value)
        return f"ConfigRow({self.key.name!r}, {shown}, {self.source.name})"


def describe_broker(
    broker: BrokerConfig, names: Iterable[str] | None = None, options: Mapping[str, str] | None = None
) -> list[ConfigRow]:
    """Returns all broker settings, or those of ``names`` that exist. Leaves out unset settings of ``HIDDEN``.

    ``options``: settings that the broker derives from its start options, for example the log directory.
    """
    keys = broker_keys() | inert_broker_keys()
    set_names = {name for texts, _ in broker.layers() for name in texts} - keys.keys()
    keys |= {name: dynamic_broker_key(name) for name in sorted(set_names)}
    chosen = keys if names is None else [name for name in dict.fromkeys(names) if name in keys]
    given = options or {}
    described = []
    for name in chosen:
        if name in HIDDEN and not broker.is_set(name):
            continue
        synonyms, value = _synonyms(broker, _families().get(name, (name,)), name), broker.text(name)
        if name in given:
            value = given[name]
            synonyms = (
                (name, value, ConfigSource.STATIC_BROKER),
                *(row for row in synonyms if row[2] is ConfigSource.DEFAULT),
            )
        source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT
        described.append(ConfigRow(keys[name], value, source, base_of(name) not in DYNAMIC, synonyms))
    return described


def describe_topic(broker: BrokerConfig, own: Mapping[str, str], names: Iterable[str] | None = None) -> list[ConfigRow]:
    """Returns all settings of a topic, or those of ``names`` that exist.

    Unset settings that begin with "internal." are in the result only if ``names`` has them.
    """
    keys = topic_keys()
    chosen = keys if names is None else [name for name in dict.fromkeys(names) if name in keys]
    described = []
    for name in chosen:
        key = keys[name]
        if name.startswith("internal.") and name not in own and names is None:
            continue
        fallbacks = key.falls_back
        synonyms = _synonyms(broker, fallbacks, fallbacks[0]) if fallbacks else ()
        if name in own:
            synonyms = ((name, own[name], ConfigSource.TOPIC), *synonyms)
        source = synonyms[0][2] if synonyms else ConfigSource.DEFAULT
        value = own[name] if name in own else topic_default(broker, key)
        described.append(ConfigRow(key, value, source, False, synonyms))
    return described


@cache
def _families() -> dict[str, tuple[str, ...]]:
    """Returns, for each name of a broker setting with several names (ms, minutes, hours), all these names."""
    return {name: key.falls_back for key in topic_keys().values() if len(key.falls_back) > 1 for name in key.falls_back}


def _synonyms(broker: BrokerConfig, names: Iterable[str], first: str) -> tuple[tuple[str, str, ConfigSource], ...]:
    """Returns (name, value, source) rows of these names, without the rows before the first row of ``first``."""
    names = tuple(names)
    rows = [(name, texts[name], source) for texts, source in broker.layers() for name in names if name in texts]
    for name in names:
        default = broker.default(name)
        if default is not None:
            rows.append((name, default, ConfigSource.DEFAULT))
    start = next((at for at, row in enumerate(rows) if row[0] == first), len(rows))
    return tuple(rows[start:])
