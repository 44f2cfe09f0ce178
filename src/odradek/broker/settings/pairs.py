"""Parser for settings that are lists of pairs, ``name:value,name:value``, with Kafka's rules."""

from __future__ import annotations

import re

from odradek.core.errors import ConfigError

OVERRIDES = "max.connections.per.ip.overrides"


def pairs(setting: str, text: str) -> dict[str, str]:
    """Returns name -> value. The last colon of a pair separates the two, so a name may be an IPv6 address.

    Raises ConfigError.
    """
    parts = re.split(r"\s*,\s*", text.strip())
    while parts and not parts[-1]:
        parts.pop()
    values = {}
    for part in parts:
        name, colon, value = part.rpartition(":")
        if not colon:
            fault = f"begin 0, end -1, length {len(part)}"
            raise ConfigError(f"Error parsing configuration property '{setting}': {fault}")
        values[name.strip()] = value.strip()
    return values


def host_counts(text: str) -> dict[str, int]:
    """Parses ``max.connections.per.ip.overrides``: host -> connections. Raises ConfigError with Kafka's text."""
    return {host: _count(count) for host, count in pairs(OVERRIDES, text).items()}


def _count(text: str) -> int:
    is_short = len(text.lstrip("+-0")) <= 10
    number = int(text) if is_short and re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII) else 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        raise ConfigError(f'For input string: "{text}"')
    return number
