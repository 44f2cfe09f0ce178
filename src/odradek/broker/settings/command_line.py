"""Settings on a command line, which every user of the machine can read in the list of processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from odradek.broker.settings.keys import ConfigType, UnknownConfig, find_broker_key
from odradek.core.errors import ConfigError

_PUBLIC = ("ssl.keystore.certificate.chain", "ssl.truststore.certificates")
"""Settings that Kafka hides like passwords, and that everyone may know."""
_PUBLIC_OPTIONS = ("username", "tokenauth", "clientId", "scope", "ssl.truststore.type", "ssl.truststore.location")
_REFERENCES = re.compile(r"(\$\{[^{}]*\})+")


def pairs(settings: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields name and value of texts ``name=value``. Raises ConfigError for another text and for a secret.

    No message has a value, nor a text without ``=``: it may be a secret."""
    for number, setting in enumerate(settings, 1):
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals or not name:
            raise ConfigError(f"--config number {number}: expected NAME=VALUE, as in num.partitions=3")
        if _is_secret(name, value):
            raise ConfigError(
                f"--config {name}: every user of the machine can read this secret in the list of processes; write it "
                "into a file for --config-file, or give its place: ${file:PATH:KEY} or ${env:NAME}, with "
                "config.providers"
            )
        yield name, value


def _is_secret(name: str, value: str) -> bool:
    """Returns whether a value is a secret itself, and not only a reference to one."""
    try:
        kind = find_broker_key(name).type
    except UnknownConfig:  # the start refuses it, and shows no value
        return False
    if "PRIVATE KEY-----" in value:
        return True
    if kind is not ConfigType.PASSWORD or name.endswith(_PUBLIC):
        return False
    if not value or _REFERENCES.fullmatch(value):
        return False
    return not name.endswith("sasl.jaas.config") or _has_secret_option(value)


def _has_secret_option(jaas: str) -> bool:
    from odradek.security.jaas import read_jaas

    try:
        options = read_jaas(jaas).options
    except ConfigError:
        return True
    return any(
        value and name not in _PUBLIC_OPTIONS and not _REFERENCES.fullmatch(value) for name, value in options.items()
    )
