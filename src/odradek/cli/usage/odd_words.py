"""Words of a command line that the parser would misread. The test is cheap: each start makes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ODD_NUMBER = re.compile(r"[+-]?\d+[._][\d._]*|[+-]?\d{19,}")
"""A whole number with a point or a line below, or with more digits than 64 bits have."""
_ODD = re.compile(rf"(?:{_ODD_NUMBER.pattern})?")
"""Such a number, or an empty value; few command lines have one."""
_MISTYPED = re.compile(r"=\Z|[\u2010-\u2015\u2212]|-[a-z][a-z-]|(?s:.*[\r\n])")
"""What may be an option with a wrong dash, an ``=`` between spaces, or a path of several lines."""


def odd_words_refused(command: object, given: Sequence[str]) -> int:
    """Prints a line for a whole number, a text or an option that the parser would misread, and returns the exit code; 0
    without one.

    ``command``: the tree of commands.
    """
    if not (any(map(_is_odd, given)) or _has_options(given)):
        return 0
    from odradek.cli import terminal
    from odradek.cli.usage.usage_errors import mistyped_option, odd_number, odd_text, repeated_option

    line = (
        odd_number(command, given, _ODD_NUMBER)
        or odd_text(command, given)
        or mistyped_option(command, given)
        or repeated_option(command, given)
    )
    if line:
        terminal.error_line(line)
    return terminal.EXIT_BAD_INPUT if line else 0


def _is_odd(word: str) -> bool:
    return _ODD.fullmatch(word.rpartition("=")[2]) is not None or _MISTYPED.match(word) is not None


def _has_options(given: Sequence[str]) -> bool:
    """Whether there is an option: two may be the same one, and the path of one may have a space too many."""
    return any(word[:1] == "-" for word in given)
