"""The settings of a client in a properties file that several programs of a cluster share.

Such a file has a consumer's settings, a producer's, those of a schema registry. A client takes what it knows. A setting
that would protect the connection, and a name that looks like a typing error, go to the client, which refuses them.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType

from odradek.client.config import SECURITY, ClientConfig
from odradek.client.settings.java_settings import java_defaults
from odradek.text.config_providers import read_settings_file

logger = logging.getLogger("odradek.client")

_PROTECTING = ("ssl.", "sasl.", "security.", "enable.ssl.")
_OF_BROKERS = frozenset({"ssl.client.auth", "sasl.enabled.mechanisms"})
"""They protect a broker from its clients, and are in files that broker and clients share."""
_LIKE_A_TYPO = 0.85


def connection_settings(path: str | Path) -> dict[str, str]:
    """Returns the settings of a Java properties file that every client has: addresses, TLS, login, timeouts.

    ``Consumer``, ``Producer`` and ``Admin`` take the result, and Spark takes it with ``kafka.`` before each name.
    Other settings are left out, with a line of the logger ``odradek.client`` at INFO. Raises ConfigError, with the line
    but without the value.
    """
    given = {name: one.value for name, one in read_settings_file(Path(path), "properties file").items()}
    chosen, unused = choose_settings(given, shared_settings(), others=java_defaults())
    if unused:
        logger.info("%s: not used here: %s", path, ", ".join(unused))
    return chosen


def shared_settings() -> set[str]:
    """Returns the names, with underscores, of the settings that every client has."""
    return {one.name for one in fields(ClientConfig)} - {SECURITY}


def choose_settings(
    given: Mapping[str, str],
    known: Collection[str],
    *,
    others: Collection[str],
    named_elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> tuple[dict[str, str], list[str]]:
    """Returns the settings of a client, by their names in the file, and the names of settings for no client of Kafka.

    ``known``: names with underscores; the settings of security always belong to a client. ``others``: names of other
    clients' settings, which are left out. ``named_elsewhere``: settings that come from an option, with its name.
    """
    chosen: dict[str, str] = {}
    unused = []
    for name, value in given.items():
        key = name.replace(".", "_")
        if name in named_elsewhere:
            unused.append(f"{name} ({named_elsewhere[name]} gives it)")
        elif name in _OF_BROKERS:
            unused.append(name)
        elif key in known or name.startswith(_PROTECTING):
            chosen[name] = value
        elif key not in others:
            if difflib.get_close_matches(key, [*known, "security_protocol"], 1, _LIKE_A_TYPO):
                chosen[name] = value  # the client refuses it, and names the similar setting
            else:
                unused.append(name)
    return chosen, sorted(unused)
