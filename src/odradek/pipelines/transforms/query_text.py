"""The check of a SQL query before Spark starts: its first word, its quotes and its brackets. Pure.

Spark's own parser runs in Java, which takes some seconds to start. This check refuses only what Spark surely refuses,
or what gives no rows. What it cannot decide, it accepts.
"""

from __future__ import annotations

import difflib
import re

from odradek.pipelines.values.arguments import wrong

_FIRST = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "MAP", "REDUCE", "BEGIN", "EXECUTE")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_QUOTED = {"'": "'[^']*'", '"': '"[^"]*"', "`": "`[^`]*`"}
_PIECE = re.compile(rf"--[^\n]*|/\*|{'|'.join(_QUOTED.values())}|['\"`()\[\]{{}}]")
_COMMENT = re.compile(r"/\*|\*/")
_FIRST_WORD = re.compile(r"[\s(]*([A-Za-z_]+)")
_UNDECIDED = ("\\", "$$", "/*+")
"""A backslash escapes a quote or not, by the literal's prefix and Spark's settings. The others are not read here."""


def check_query(query: str) -> None:
    """Raises ConfigError for a text that Spark cannot run as a query."""
    text = _without_quoted(query)
    first = re.match(r"\s*([A-Za-z_]+)(?!\w*\s*:)", text)
    if first is not None and first[1].upper() not in _FIRST:
        near = difflib.get_close_matches(first[1].upper(), _FIRST, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise wrong("sql", f": a query begins with SELECT, WITH, FROM or VALUES, not with {first[1]}{hint}")
    _check_brackets(text)


def _without_quoted(query: str) -> str:
    """Returns the query with spaces in place of comments and of what is in quotes; of a query that is not decided, the
    first word."""
    if any(mark in query for mark in _UNDECIDED):
        first = _FIRST_WORD.match(query)
        return "" if first is None else first[1]
    parts, at = [], 0
    while (found := _PIECE.search(query, at)) is not None:
        parts.append(query[at : found.start()])
        piece, end = found[0], found.end()
        if piece == "/*":
            end = _end_of_comment(query, end)
        elif piece in _QUOTED:
            raise wrong("sql", f": the quote {piece} at {_place(query, found.start())} has no end")
        parts.append(piece if len(piece) == 1 else " " * (end - found.start()))
        at = end
    return "".join([*parts, query[at:]])


def _end_of_comment(query: str, at: int) -> int:
    """Returns the end of a bracketed comment. Others may be inside of it."""
    depth = 1
    while depth:
        found = _COMMENT.search(query, at)
        if found is None:
            raise wrong("sql", ": a comment that begins with /* has no end")
        depth += 1 if found[0] == "/*" else -1
        at = found.end()
    return at


def _check_brackets(text: str) -> None:
    opened: list[tuple[str, int]] = []
    for at, sign in enumerate(text):
        if sign in _CLOSING:
            opened.append((sign, at))
        elif sign in _CLOSING.values():
            if not opened or _CLOSING[opened[-1][0]] != sign:
                raise wrong("sql", f": the {sign} at {_place(text, at)} closes nothing")
            opened.pop()
    if opened:
        sign, at = opened[-1]
        raise wrong("sql", f": the {sign} at {_place(text, at)} is not closed")


def _place(text: str, at: int) -> str:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return f"character {column}" if line == 1 else f"line {line}, character {column}"
