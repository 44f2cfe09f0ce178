"""Settings for a broker's process that must not be on its command line, which every user of the machine can read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SECRETS = ("password", "jaas.config", "secret", "keystore.key")
"""Parts of the names of such settings."""


def secrets_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that are not on the command line."""
    return {name: value for name, value in settings.items() if any(word in name for word in _SECRETS)}


@contextmanager
def secret_file(settings: Mapping[str, str]) -> Iterator[int | None]:
    """A properties file without a name, for a child process. Returns its descriptor; None without settings."""
    if not settings:
        yield None
        return
    with tempfile.TemporaryFile() as file:
        for name, value in settings.items():
            escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
            file.write(f"{name}=\\{escaped}\n".encode() if escaped[:1] == " " else f"{name}={escaped}\n".encode())
        file.flush()
        file.seek(0)
        yield file.fileno()
