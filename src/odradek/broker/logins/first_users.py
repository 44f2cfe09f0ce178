"""``odradek serve --add-scram FILE``: users of SCRAM that exist before the first client logs in.

A line of the file has the form of Kafka's ``kafka-storage format --add-scram``::

    SCRAM-SHA-512=[name=admin,password=admin-secret]
    SCRAM-SHA-256=[name=bob,iterations=8192,salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5Y2U=",saltedpassword="…"]

A value with a comma, a bracket or a quotation mark is in quotation marks, with a backslash before ``"`` and ``\\``.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.catalog.credentials import MAX_ITERATIONS, MECHANISMS, MIN_ITERATIONS, AlterCredential, check_size
from odradek.core.errors import ConfigError, KafkaError
from odradek.security.scram import SALT_BYTES, keys_of, salted_password
from odradek.security.secret import Secret
from odradek.text.encodings import encoding_problem

log = logging.getLogger("odradek.broker")

_LINE = re.compile(r"(SCRAM-SHA-256|SCRAM-SHA-512)=\[(.*)\]")
_FIELD = re.compile(r'\s*(\w+)=("(?:[^"\\]|\\.)*"|[^",]*)\s*(?:,|$)')
_FIELDS = {"name", "password", "iterations", "salt", "saltedpassword"}
_FILE_BYTES = 1 << 20
_NUMBER_OF = {name: number for number, name in MECHANISMS.items()}


class FirstUser(NamedTuple):
    """A user of a line of the file. ``secret``: the password, or the salted password."""

    line: int
    name: str
    mechanism: int
    salt: bytes
    iterations: int
    secret: Secret | bytes

    def request(self) -> AlterCredential:
        """Derives the user's keys, which takes some milliseconds."""
        kind = MECHANISMS[self.mechanism]
        salted = self.secret
        if isinstance(salted, Secret):
            salted = salted_password(kind, salted, self.salt, self.iterations)
        return AlterCredential(self.name, self.mechanism, keys_of(kind, salted, self.salt, self.iterations))

    def __repr__(self) -> str:
        return f"FirstUser({self.name!r})"


class FirstUsers(NamedTuple):
    """The users of a file, which is read once: it may be a pipe."""

    path: Path
    users: tuple[FirstUser, ...]

    def add(self, stored: StoredCatalog) -> None:
        """Adds the users that do not exist. A user that exists keeps its password. Raises ConfigError."""
        for user in self.users:
            with _line_named(self.path, user.line):
                if user.mechanism in stored.catalog.users().get(user.name, {}):
                    log.warning(
                        "--add-scram %s, line %d: the user %r has a credential for %s already, which stays as it is",
                        self.path, user.line, user.name, MECHANISMS[user.mechanism],
                    )  # fmt: skip
                else:
                    stored.apply(user.request())


def read(path: Path) -> FirstUsers:
    """Reads a file of first users. Raises ConfigError with the number of the line, and no part of the line."""
    users = []
    for number, line in _lines(path):
        with _line_named(path, number):
            users.append(_user(number, line))
    if not users:  # a variable or a mount that is empty: the broker would start without a user
        raise ConfigError(f"--add-scram {path}: it has no user: expected lines of SCRAM-SHA-512=[name=…,password=…]")
    return FirstUsers(path, tuple(users))


@contextmanager
def _line_named(path: Path, number: int) -> Iterator[None]:
    """Puts file and line in front of an error. Raises ConfigError."""
    try:
        yield
    except (ConfigError, KafkaError) as error:
        raise ConfigError(f"--add-scram {path}, line {number}: {error}") from None


def _lines(path: Path) -> list[tuple[int, str]]:
    """Returns the lines that name a user, with their numbers. Raises ConfigError."""
    numbered = [(number, line.strip()) for number, line in enumerate(_text(path).splitlines(), 1)]
    return [(number, line) for number, line in numbered if line and not line.startswith("#")]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES + 1)
        if len(data) > _FILE_BYTES:
            raise ConfigError(f"--add-scram {path}: it is larger than {_FILE_BYTES >> 20} MiB")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--add-scram {path}: {encoding_problem(error.object)}") from None
    except OSError as error:
        raise ConfigError(f"--add-scram {path}: {error.strerror or error}") from error


def _user(number: int, line: str) -> FirstUser:
    """Reads a line. Raises ConfigError, KafkaError."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ConfigError("expected SCRAM-SHA-256=[name=…,password=…] or SCRAM-SHA-512=[name=…,password=…]")
    mechanism, fields = match[1], _fields(match[2])
    if not fields.get("name"):
        raise ConfigError("name is missing")
    if ("password" in fields) == ("saltedpassword" in fields):
        raise ConfigError("expected either password, or saltedpassword with salt")
    if "saltedpassword" in fields and "salt" not in fields:
        raise ConfigError("saltedpassword needs salt")
    iterations = _iterations(fields.get("iterations", str(MIN_ITERATIONS)))
    salt = _decoded(fields["salt"], "salt") if "salt" in fields else os.urandom(SALT_BYTES)
    if "password" in fields and not fields["password"]:
        raise ConfigError("password is empty")
    salted = b"-" if "password" in fields else _decoded(fields["saltedpassword"], "saltedpassword")
    check_size(salt, salted)
    secret = Secret(fields["password"]) if "password" in fields else salted
    return FirstUser(number, fields["name"], _NUMBER_OF[mechanism], salt, iterations, secret)


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _FIELD.match(text, at)
        if match is None or match[1] in fields or match[1] not in _FIELDS:
            raise ConfigError(f"expected {', '.join(sorted(_FIELDS))}, each at most once, as NAME=VALUE")
        value = match[2]
        fields[match[1]] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        at = match.end()
    return fields


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not MIN_ITERATIONS <= int(text[:9]) <= MAX_ITERATIONS:
        raise ConfigError(f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}")
    return int(text)


def _decoded(text: str, name: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{name} is not valid base64") from None
