"""Escapes for text from a cluster on a terminal, in a log and on a page.

A group id, a topic's name or a broker's message can contain escape sequences for the terminal, line feeds that forge a
line, characters that change the text direction, or characters that a person cannot see. Each of these becomes an
escape: ``\\n``, ``\\x1b``, ``\\u202e``.
"""

from __future__ import annotations

import re
from functools import cache

# The characters that are escaped: C0 and C1 controls with DEL, line and paragraph separators, Unicode's Bidi_Control,
# invisible characters (but not the joiners, which emoji and some scripts need), and single surrogates, which cannot be
# encoded.
_ESCAPED = (
    "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
    "\xad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
)
# Escape sequences for a terminal: with parameters (colours, cursor), operating system commands, and the short ones.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_ARROWS = " \t↳└╰→"
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, *, line_feeds: bool = False) -> str:
    """Returns ``text`` with an escape for each character of ``_ESCAPED``. With ``line_feeds``, line feeds stay."""
    if text.isprintable():
        return text
    return _pattern(line_feeds).sub(_escape, text)


def printable_json(text: str) -> str:
    """Returns the JSON text with JSON's own escapes inside its strings. Line feeds between values stay."""
    if text.isprintable():
        return text
    return _pattern(True).sub(_json_escape, text)


def shortened(text: str, most: int = 200) -> str:
    """Returns the start of a long text, for a message of one line."""
    return text if len(text) <= most else text[:most] + "…"


def one_line(error: BaseException | str) -> str:
    """Returns the text of an error of another package in one plain line: its lines, each once, with ``: `` between
    them; without colours and arrows. deltalake writes a line for each cause; Arrow, Hadoop and Spark add lines with
    details. An error without a text has the name of its class."""
    text = _SEQUENCES.sub("", str(error))
    lines = [" ".join(line.strip(_ARROWS).split()) for line in text.splitlines()]
    causes = dict.fromkeys(line.rstrip(":") for line in lines if line)
    found = printable(": ".join(filter(None, causes)))
    return found or ("" if isinstance(error, str) else type(error).__name__)


@cache
def _pattern(line_feeds: bool) -> re.Pattern[str]:
    """Returns the pattern of the characters to escape. It is compiled at its first use, because this is slow."""
    return re.compile(f"(?!\n)[{_ESCAPED}]" if line_feeds else f"[{_ESCAPED}]")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if (short := _SHORT.get(character)) is not None:
        return short
    code = ord(character)
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
