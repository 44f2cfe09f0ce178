"""Translates ``subscribePattern``, a Java regular expression as in Spark's own source, to Python's syntax.

Parts with another syntax in Python are translated: classes inside classes, intersections (``[a-z&&[^b]]``), ``\\p{…}``,
``\\Q…\\E`` and named groups. A topic name may contain 65 different characters. So a class becomes the set of the
characters that it matches, and a letter under the flag ``i`` becomes the class of its two cases. A part that cannot be
translated is refused; the message names it. Pure: no I/O.
"""

from __future__ import annotations

import functools
import re
import string
from collections.abc import Iterable

from odradek.core.errors import ConfigError
from odradek.text.printable import one_line, shortened

MAX_DEPTH = 100
"""The maximum nesting of groups, and of classes."""
_LETTERS = frozenset(string.ascii_letters)
_UPPER, _LOWER = frozenset(string.ascii_uppercase), frozenset(string.ascii_lowercase)
_DIGITS = frozenset(string.digits)
_PUNCT = frozenset("._-")
_ALL = _LETTERS | _DIGITS | _PUNCT
"""The characters of topic names."""
_NONE: frozenset[str] = frozenset()

_CLASSES = {"d": _DIGITS, "w": _LETTERS | _DIGITS | {"_"}, "s": _NONE, "h": _NONE, "v": _NONE}
_PROPERTIES = {
    "Lower": _LOWER, "Upper": _UPPER, "ASCII": _ALL, "Alpha": _LETTERS, "Digit": _DIGITS, "Alnum": _LETTERS | _DIGITS,
    "Punct": _PUNCT, "Graph": _ALL, "Print": _ALL, "Blank": _NONE, "Cntrl": _NONE, "Space": _NONE,
    "XDigit": _DIGITS | frozenset("abcdefABCDEF"),
    "L": _LETTERS, "Lu": _UPPER, "Ll": _LOWER, "N": _DIGITS, "Nd": _DIGITS,
    "P": _PUNCT, "Pc": frozenset("_"), "Pd": frozenset("-"), "Po": frozenset("."), "Z": _NONE, "S": _NONE,
    "IsAlphabetic": _LETTERS, "IsLetter": _LETTERS, "IsLatin": _LETTERS, "IsDigit": _DIGITS, "IsLowercase": _LOWER,
    "IsUppercase": _UPPER, "IsPunctuation": _PUNCT, "IsWhite_Space": _NONE,
    "javaLowerCase": _LOWER, "javaUpperCase": _UPPER, "javaLetter": _LETTERS, "javaDigit": _DIGITS,
    "javaLetterOrDigit": _LETTERS | _DIGITS,
}  # fmt: skip
_CATEGORIES = ("L", "Lu", "Ll", "N", "Nd", "P", "Pc", "Pd", "Po", "Z", "S")
_PROPERTIES |= {f"Is{name}": _PROPERTIES[name] for name in _CATEGORIES}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_SAME = frozenset("bBAZ")
"""Escapes outside of classes that have the same meaning in Java and Python."""
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|x\{([0-9a-fA-F]{1,6})\})")
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>|\((?:\?(?:[=!>]|<[=!]))?(?!\?)")
"""The start of a group without flags."""
_QUANTIFIER = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")


@functools.lru_cache(16)
def java_pattern(text: str) -> re.Pattern[str]:
    """Returns a pattern for ``fullmatch`` on topic names. Raises ConfigError for patterns that Java or we refuse."""
    try:
        return re.compile(_Translation(text).python())
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"{shortened(text)!r} is no regular expression: {one_line(error)}") from None


class _Translation:
    """The translation of one pattern, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._any_case = False
        self._outer: list[bool] = []
        """The value of ``_any_case`` to restore at the end of each open group."""
        self._classes = 0
        """The number of open classes, one inside the other."""

    def python(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text):
            begin = self._text[self._at]
            if begin == "\\":
                parts.append(self._escape())
            elif begin == "[":
                parts.append(self._class_text(self._class()))
            elif begin == "(":
                parts.append(self._group())
            elif begin == "{":
                parts.append(self._quantifier())
            else:
                parts.append(self._literal(self._next()) if begin in _LETTERS else self._next())
                if begin == ")" and self._outer:
                    self._any_case = self._outer.pop()
        return "".join(parts)

    def _group(self) -> str:
        """Translates the start of a group.

        Flags are applied here, not passed on: in Python a flag cannot start in the middle of a group. ``m`` and ``s``
        are ignored: they concern line ends, and topic names have none.
        """
        flags = _FLAGS.match(self._text, self._at)
        if flags is not None:
            self._check_depth(len(self._outer))
            on, off = flags[1], flags[2] or ""
            if unknown := set(on + off) - set("ims"):
                raise self._refusal(f"the flag {min(unknown)}")
            self._at = flags.end()
            if flags[3] == ":":
                self._outer.append(self._any_case)
            elif self._text[self._at : self._at + 1] in {"*", "+", "?", "{"}:
                raise self._refusal(f"{self._text[self._at]} after {flags[0]}")
            self._any_case = "i" not in off and ("i" in on or self._any_case)
            return "(?:" if flags[3] == ":" else ""
        self._check_depth(len(self._outer))
        begin = _GROUP.match(self._text, self._at)
        if begin is None:
            raise self._refusal(f"{self._text[self._at : self._at + 3]}")
        self._at = begin.end()
        self._outer.append(self._any_case)
        return begin[0] if begin[1] is None else f"(?P<{begin[1]}>"

    def _check_depth(self, others: int) -> None:
        """Raises ConfigError at ``MAX_DEPTH``: Python's parser recurses for each nested group."""
        if others >= MAX_DEPTH:
            raise ConfigError(f"{shortened(self._text)!r} is nested deeper than {MAX_DEPTH} levels")

    def _quantifier(self) -> str:
        found = _QUANTIFIER.match(self._text, self._at)
        if found is None:  # Python would accept it as a literal, or {,2} as {0,2}
            raise self._refusal("{ without a number")
        self._at = found.end()
        return found[0]

    def _literal(self, one: str) -> str:
        return self._class_text(self._add_cases([one])) if self._any_case and one in _LETTERS else re.escape(one)

    def _escape(self) -> str:
        if self._follows("\\Q"):
            begin = self._at + 2
            end = self._text.find("\\E", begin)
            self._at = len(self._text) if end < 0 else end + 2
            return "".join(map(self._literal, self._text[begin : len(self._text) if end < 0 else end]))
        if self._follows("\\b{"):
            raise self._refusal(r"\b{")
        name = self._text[self._at + 1 : self._at + 2]
        if name in _SAME and name:
            self._at += 2
            return "\\" + name
        if name == "z":
            self._at += 2
            return r"\Z"
        found = re.compile(r"\\(?:k<([a-zA-Z][a-zA-Z0-9]*)>|([1-9])(?![0-9]))").match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            same = f"(?P={found[1]})" if found[1] else f"\\{found[2]}"
            return f"(?i:{same})" if self._any_case else f"(?:{same})"
        if name == "k" or (name.isascii() and name.isdigit() and name != "0"):
            # In Java the number of groups decides how many digits belong to the reference.
            raise self._refusal(self._text[self._at : self._at + (2 if name == "k" else 3)])
        taken = self._escaped()
        return self._literal(taken) if isinstance(taken, str) else self._class_text(taken)

    # --- classes

    def _class(self) -> frozenset[str]:
        """Reads a class from its opening to its closing bracket."""
        self._at += 1
        self._check_depth(self._classes)
        self._classes += 1
        is_negated = self._follows("^")
        self._at += is_negated
        both: frozenset[str] | None = None
        operand: frozenset[str] | None = None
        was_nested = False
        while True:
            if self._at >= len(self._text):
                raise ConfigError(f"{self._text!r} is no regular expression: a class has no end")
            if self._follows("&&"):
                self._at += 2
                if operand is None and both is not None:
                    raise self._refusal("&& with nothing before it")
                if operand is not None:
                    both = operand if both is None else both & operand
                operand = None
            elif self._follows("]") and (operand is not None or both is not None):
                self._at += 1
                break
            else:
                is_nested = self._follows("[")
                if both is not None and operand is not None and (is_nested or was_nested):
                    # Java ignores some of the operands, depending on their order.
                    raise self._refusal("a class next to other characters after &&")
                operand, was_nested = (operand or _NONE) | self._item(), is_nested
        if operand is None:
            raise self._refusal("&& with nothing after it")
        self._classes -= 1
        taken = operand if both is None else both & operand
        return _ALL - taken if is_negated else taken

    def _item(self) -> frozenset[str]:
        if self._follows("["):
            return self._class()
        low = self._character()
        if not isinstance(low, str):
            return low
        if self._follows("-") and self._text[self._at + 1 : self._at + 2] not in {"", "]", "["}:
            self._at += 1
            high = self._character()
            if not isinstance(high, str) or high < low:
                raise self._refusal(f"the range from {low!r}")
            return self._add_cases(map(chr, range(ord(low), min(ord(high), 127) + 1)))
        return self._add_cases([low])

    def _character(self) -> str | frozenset[str]:
        if self._follows("\\Q"):
            raise self._refusal(r"\Q in a class")
        return self._escaped() if self._follows("\\") else self._next()

    def _add_cases(self, characters: Iterable[str]) -> frozenset[str]:
        taken = frozenset(characters)
        return taken | {one.swapcase() for one in taken & _LETTERS} if self._any_case else taken

    # --- escapes, in a class or outside

    def _escaped(self) -> str | frozenset[str]:
        name = self._text[self._at + 1 : self._at + 2]
        if name in {"p", "P"}:
            return self._property(name == "P")
        if name.lower() in _CLASSES and name:
            self._at += 2
            taken = _CLASSES[name.lower()]
            return _ALL - taken if name.isupper() else taken
        code = _CODE.match(self._text, self._at)
        if code is not None:
            self._at = code.end()
            return chr(int(code[1] or code[2] or code[3], 16))
        if name in _CONTROLS:
            self._at += 2
            return _CONTROLS[name]
        if not name or (name.isascii() and name.isalnum()):
            raise self._refusal("\\" + name)
        self._at += 2
        return name

    def _property(self, is_negated: bool) -> frozenset[str]:
        found = re.compile(r"\\[pP](?:\{([^}]*)\}|(.))").match(self._text, self._at)
        name = "" if found is None else found[1] or found[2] or ""
        if found is None or name not in _PROPERTIES:
            raise self._refusal(f"\\p{{{name}}}")
        taken = _PROPERTIES[name]
        if self._any_case and taken in {_LOWER, _UPPER}:  # Java versions differ
            raise self._refusal(f"\\p{{{name}}} together with (?i)")
        self._at = found.end()
        return _ALL - taken if is_negated else taken

    # --- primitives

    def _follows(self, what: str) -> bool:
        return self._text.startswith(what, self._at)

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    @staticmethod
    def _class_text(taken: frozenset[str]) -> str:
        return f"[{''.join(map(re.escape, sorted(taken)))}]" if taken else "(?!)"

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(f"{self._text!r}: {what} is not understood here, although Java may support it")
