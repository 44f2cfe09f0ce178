"""Characters that a person cannot see, or takes for others: Greek or Cyrillic letters in Latin words."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[^\W\d_]+")
_LATIN, _OTHERS = "LATIN", ("CYRILLIC", "GREEK", "FULLWIDTH")


def odd_character(text: str) -> str:
    """Returns the first invisible character with a space before it, as `` U+200B (ZERO WIDTH SPACE)``; empty without
    one. A space and a tab are visible enough."""
    found = next((char for char in text if not char.isprintable() and char != "\t"), None)
    return "" if found is None else f" {named(found)}"


def look_alike(text: str) -> str | None:
    """Returns the first letter of another script in a word that has Latin letters, too."""
    if text.isascii():
        return None
    word: str
    for word in _WORD.findall(text):
        scripts = [unicodedata.name(char, "").partition(" ")[0] for char in word]
        if _LATIN in scripts:
            for char, script in zip(word, scripts, strict=True):
                if script in _OTHERS:
                    return char
    return None


def named(char: str) -> str:
    """Returns the code point and the name of a character."""
    name = unicodedata.name(char, "")
    return f"U+{ord(char):04X}" + (f" ({name})" if name else "")
