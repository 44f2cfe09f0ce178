"""The file of ``--command-config``. Its values may be secrets, so messages contain only names and line numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from odradek.cli.terminal import CommandError
from odradek.core.errors import ConfigError
from odradek.core.properties_file import Property, read_properties_file

_SHORT = 4
"""Shorter values occur in messages by chance, and are no secrets."""


def read_properties(path: Path) -> dict[str, str]:
    """Reads the settings of a Java properties file (``read_properties_file``).

    Raises CommandError with file and line.
    """
    return {name: setting.value for name, setting in _read(path).items()}


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
    for name, (value, line) in _read(path).items():
        is_named = re.search(rf"(?<!\w)(?:{re.escape(name)}|{name.replace('.', '_')})(?!\w|\.\w)", message)
        if is_named:
            where = where or f"--command-config {path}, line {line}: "
            message = message.removesuffix(f", not {value!r}").removesuffix(f", not {value}")
        if len(value) >= _SHORT:
            message = message.replace(repr(value), "…")
            message = message.replace(value, "…") if is_named else message
    return where + message


def _read(path: Path) -> dict[str, Property]:
    try:
        return read_properties_file(path, "--command-config")
    except ConfigError as error:
        raise CommandError(str(error)) from error
