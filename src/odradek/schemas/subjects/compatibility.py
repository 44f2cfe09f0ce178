"""The levels of compatibility: which older versions a new schema is compared with, and in which direction."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.schemas.parsed import ParsedSchema

LEVELS = (
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
_MOST_TEXT = 10 * 1024
_OTHER_LANGUAGE = "Incompatible because of different schema type"


def objections(level: str, new: ParsedSchema, older: Sequence[ParsedSchema], *, lenient: bool = False) -> list[str]:
    """Returns why a level refuses a new schema; empty if it allows it.

    ``older``: the versions in order. BACKWARD, FORWARD and FULL compare only with the last one; the transitive levels
    compare with all, from the last one on, and stop at the first one with an objection."""
    if level == "NONE":
        return []
    compared = older if level.endswith("_TRANSITIVE") else older[-1:]
    direction = level.removesuffix("_TRANSITIVE")
    for old in reversed(compared):
        if new.language != old.language:
            return [_OTHER_LANGUAGE]
        found: list[str] = []
        if direction in ("FORWARD", "FULL"):
            found += _texts(old.unreadable(new, lenient=lenient), old, ("old", "new"), with_old=direction == "FORWARD")
        if direction in ("BACKWARD", "FULL"):
            found += _texts(new.unreadable(old, lenient=lenient), old, ("new", "old"), with_old=True)
        if found:
            return found
    return []


def _texts(templates: list[str], old: ParsedSchema, words: tuple[str, str], *, with_old: bool) -> list[str]:
    """Returns the messages with the words for reader and writer, and with the text of the older schema."""
    if not templates:
        return []
    texts = [_filled(template, words) for template in templates]
    if with_old:
        text = old.canonical
        shown = f"'{text}'" if len(text) <= _MOST_TEXT else f"<truncated> '{text[:_MOST_TEXT]}...'"
        texts.append(f"{{oldSchema: {shown}}}")
    return texts


def _filled(template: str, words: tuple[str, str]) -> str:
    reader, writer = words
    return template.replace("%s", reader, 1).replace("%s", writer, 1).replace("%%", "%")
