"""The changes of ``odradek monitor``: the options --allow and --change-token-file, and their checks."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError
from odradek.monitor.choices import ALLOWABLE
from odradek.text.encodings import text_of_file

if TYPE_CHECKING:
    from odradek.cli.monitor.options import MonitorLine

_TOKEN_LINE = re.compile(r"([A-Za-z0-9._@-]{1,64})\s+(\S+)")
_RESERVED = ("reader", "local")
SHORTEST_TOKEN = 16


def allowed_changes(line: MonitorLine) -> tuple[str, ...]:
    """Returns the values of --allow. Raises CommandError."""
    given = [name.strip() for text in line.allow or () for name in text.split(",")]
    for name in given:
        if name not in ALLOWABLE:
            raise CommandError(f"--allow {name!r}: expected {', '.join(ALLOWABLE)}")
    if given and line.data is None:
        raise CommandError(
            f"--allow {','.join(given)} needs --data DIR: the offsets before each change are kept there first"
        )
    return tuple(dict.fromkeys(given))


def check_change_tokens(line: MonitorLine, tokens: dict[str, str], allowed: tuple[str, ...]) -> None:
    """Raises CommandError if the options of the tokens do not fit together."""
    if tokens and not allowed:
        raise CommandError("--change-token-file needs --allow: without it the monitor changes nothing")
    if allowed and line.token_file is not None and not tokens:
        raise CommandError(
            f"--allow {','.join(allowed)} with --token-file needs --change-token-file FILE: the tokens that may change"
        )


def check_token(token: str, where: str) -> None:
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise CommandError(
            f"{where}: the token has fewer than {SHORTEST_TOKEN} characters or others than ASCII: "
            "make one with: openssl rand -hex 32"
        )


def read_change_tokens(path: Path | None, reading: str) -> dict[str, str]:
    """Returns the tokens in a file with a name and a token on each line; none without a file. ``reading``: the token to
    read. Raises CommandError, ConfigError."""
    if path is None:
        return {}
    where = f"--change-token-file {path}"
    lines = text_of_file(path, "--change-token-file").splitlines()
    named: dict[str, str] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.lstrip().startswith("#"):
            continue
        found = _TOKEN_LINE.fullmatch(text.strip())
        if found is None:
            raise CommandError(f"{where}, line {number}: expected NAME TOKEN; openssl rand -hex 32 makes a token")
        name, token = found.groups()
        if name in named or name in _RESERVED:
            why = "occurs twice" if name in named else "is reserved"
            raise CommandError(f"{where}, line {number}: the name {name} {why}: give another one")
        check_token(token, f"{where}, line {number}")
        if any(hmac.compare_digest(token, other) for other in (*named.values(), reading)):
            raise CommandError(f"{where}, line {number}: another name has this token: give each its own")
        named[name] = token
    if not named:
        raise CommandError(f"{where}: it has no tokens: give lines with NAME TOKEN")
    return named
