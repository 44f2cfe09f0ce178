"""Characters that a person cannot see, or takes for others: Greek or Cyrillic letters in Latin words."""

from __future__ import annotations

import re
import unicodedata

_WORD = re.compile(r"[^\W_]+")
_LATIN, _OTHERS = "LATIN", ("CYRILLIC", "GREEK", "FULLWIDTH")


_TAB = "\t"
# Fonts show nothing for these letters, which Python counts as printable.
_FILLERS = "\u115f\u1160\u3164\uffa0"
# Text programs and web pages write these in place of ' and ".
_QUOTES = "\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a\u2032\u2033"


def oddity(name: str) -> str | None:
    """Returns why a person takes a name for another one: ``an invisible character U+200B (ZERO WIDTH SPACE)``, spaces
    or quotation marks at its ends, or a letter of another script. None for a name that is as it looks."""
    if name != name.strip() and name.isprintable():
        return "spaces at its ends"
    if odd := odd_character(name) or (f" {named(_TAB)}" if _TAB in name else ""):
        return f"an invisible character{odd}"
    if len(name) > 1 and name[0] in _QUOTES and name[-1] in _QUOTES:
        return f"quotation marks of a text program, {named(name[0])}, which the shell does not remove"
    letter = look_alike(name)
    return None if letter is None else f"the letter {named(letter)} among Latin letters"


def odd_character(text: str) -> str:
    """Returns the first invisible character with a space before it, as `` U+200B (ZERO WIDTH SPACE)``; empty without
    one. A space and a tab are visible enough."""
    odd = next((one for one in text if (not one.isprintable() and one != "\t") or one in _FILLERS), None)
    return "" if odd is None else f" {named(odd)}"


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
