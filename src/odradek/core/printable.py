"""Text that came from a cluster, made safe for a terminal, a log and a page.

A group id, a topic's name or a broker's message may hold escape sequences that act on the terminal, line feeds that
forge a line, or characters that turn the direction of what follows. Each of these is shown as an escape instead:
``\\n``, ``\\x1b``, ``\\u202e``.
"""

from __future__ import annotations

import re
from functools import cache

# C0 and C1 controls with DEL, line and paragraph separators, Unicode's Bidi_Control, and halves of surrogate pairs,
# which no output can encode.
_ACTIVE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, line_feeds: bool = False) -> str:
    """``text`` with an escape for each character that acts on what shows it. With ``line_feeds`` those stay."""
    if text.isprintable():
        return text
    return _pattern(line_feeds).sub(_escape, text)


def printable_json(text: str) -> str:
    """The same JSON, with JSON's own escapes inside its strings. Line feeds between values stay."""
    if text.isprintable():
        return text
    return _pattern(True).sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, most: int = 200) -> str:
    """The beginning of a long text, for a message of one line."""
    return text if len(text) <= most else text[:most] + "…"


@cache
def _pattern(line_feeds: bool) -> re.Pattern[str]:
    """What is to be escaped; all but line feeds where these stay. Compiled when it is needed: it takes long."""
    return re.compile(f"(?!\n)[{_ACTIVE}]" if line_feeds else f"[{_ACTIVE}]")


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if (short := _SHORT.get(character)) is not None:
        return short
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
