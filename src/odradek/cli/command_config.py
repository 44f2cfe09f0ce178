"""The file of ``--command-config``. Its values may be secrets, so messages contain only names and line numbers.

People have one file for all programs of a cluster: a consumer's settings, a producer's, those of a schema registry. As
in Kafka's tools, a command takes what it needs, and names the rest in one line. A setting that would protect the
connection, and a name that looks like a typing error, are errors.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import MappingProxyType

from odradek.cli.terminal import CommandError, warning_lines
from odradek.core.errors import ConfigError
from odradek.text.config_providers import read_settings_file
from odradek.text.properties_file import Property

_SHORT = 4
"""Shorter values occur in messages by chance, and are no secrets."""
_FEW = 8
_LIKE, _LIKE_IF_SHORT = 0.9, 0.75
"""How similar a name with a slip is to the right one; the second for names of at most ``_FEW`` letters."""
_LENIENT = " (strictOptions=false lets unknown options pass)"
_PUBLIC = (
    "GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "PLAINTEXT", "SSL", "SASL_PLAINTEXT",
    "SASL_SSL", "PEM", "PKCS12", "JKS",
)  # fmt: skip
"""Words of messages about the choices of a setting. In their place, a message would show a riddle."""


def forget() -> None:
    """Forgets the files that the last command of this process has read: they may change before the next command."""
    _read.cache_clear()
    _warn.cache_clear()


def read_properties(path: Path) -> dict[str, str]:
    """Reads the settings of a Java properties file (``read_settings_file``).

    Raises CommandError with file and line.
    """
    return {name: setting.value for name, setting in _read(path).items()}


def client_settings(
    path: Path | None,
    known: Collection[str],
    *,
    named_elsewhere: Mapping[str, str] = MappingProxyType({}),
    elsewhere: str | None = None,
) -> dict[str, str]:
    """Returns the file's settings of a client, by their names in the file. Warns of the others, in one line.

    ``known``: names with underscores; the settings of security always belong to a client. Settings of other clients of
    Kafka are in the file for other programs: they are left out without a warning. ``named_elsewhere``: settings that
    the command takes from an option. ``elsewhere``: the prefix of settings that another part of the command takes.
    Raises CommandError.
    """
    if path is None:
        return {}
    from odradek.client.settings.settings_file import choose_settings

    chosen, unused = choose_settings(
        read_properties(path), known, others=_settings_of_other_clients(), named_elsewhere=named_elsewhere
    )
    unused = [name for name in unused if elsewhere is None or not name.startswith(elsewhere)]
    if unused:
        names = [*known, *_settings_of_other_clients()]
        shown = [f"{name}{_nearest_setting(name, names)}" for name in unused]
        _warn(f"--command-config {path}: not used here: {', '.join(shown)}")
    return chosen


def _nearest_setting(name: str, known: Collection[str]) -> str:
    """Returns `` (did you mean acks?)`` for a name with a slip; empty for the setting of another program."""
    key = name.replace(".", "_")
    found = difflib.get_close_matches(key, known, 1, _LIKE_IF_SHORT if len(key) <= _FEW else _LIKE)
    return f" (did you mean {found[0].replace('_', '.')}?)" if found else ""


@cache
def _warn(line: str) -> None:
    """Prints a line once in a process: some commands have several clients."""
    warning_lines(line)


@cache
def _settings_of_other_clients() -> frozenset[str]:
    """Returns the settings of consumers and producers here and in Java, with underscores."""
    from odradek.client.group.config import ConsumerConfig
    from odradek.client.producer.config import ProducerConfig
    from odradek.client.settings.java_settings import java_defaults

    return frozenset((*(one.name for kind in (ConsumerConfig, ProducerConfig) for one in fields(kind)),
                      *java_defaults()))  # fmt: skip


@contextmanager
def without_values(path: Path | None) -> Iterator[None]:
    """Turns a ConfigError into a CommandError without values of the file. Changes nothing if ``path`` is None.

    If the error names a setting of the file, the message begins with the line of the setting.
    """
    try:
        yield
    except ConfigError as error:
        if path is None:
            raise
        message = _about(path, str(error))
    else:
        return
    raise CommandError(message)


def _about(path: Path, message: str) -> str:
    where = ""
    message = message.replace(_LENIENT, "")  # an option of Spark's source, not of a file
    for name, (value, line) in _read(path).items():
        is_named = re.search(rf"(?<!\w)(?:{re.escape(name)}|{name.replace('.', '_')})(?!\w|\.\w)", message)
        if is_named and len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            message += ": remove the quotation marks around the value"
        if is_named:
            message = message.replace(
                f"unknown option kafka.{name}; did you mean kafka.", f"unknown setting {name}; did you mean "
            )
            message = message.replace(f"unknown option kafka.{name}", f"unknown setting {name}")
            where = where or f"--command-config {path}, line {line}: "
            message = message.removesuffix(f", not {value!r}").removesuffix(f", not {value}")
        if len(value) >= _SHORT and not any(value.upper() in word for word in _PUBLIC):
            message = message.replace(repr(value), "…")
            message = message.replace(value, "…") if is_named else message
    return where + message


@cache
def _read(path: Path) -> dict[str, Property]:
    """Reads the file once for each command: it may be a pipe, as in ``--command-config <(vault read …)``."""
    try:
        return read_settings_file(path, "--command-config")
    except ConfigError as error:
        raise CommandError(str(error)) from error
