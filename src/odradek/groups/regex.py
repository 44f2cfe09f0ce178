"""Topics by pattern: the regular expressions a KIP-848 member may subscribe with, in RE2's syntax as in Apache Kafka.

RE2 takes time in proportion to the text, so that no client's pattern stalls the broker; Python's ``re`` can take for
ever. It is loaded when the first pattern comes.

Apache Kafka has RE2/J, which refuses a little more (``\\C``, a name given twice), and so does this. What RE2 would make
of a pattern is estimated before it makes it: a few characters stand for a program of gigabytes. A pattern whose program
is too large, or whose groups nest too deep, is refused. RE2/J takes programs of any size, and overflows its stack
between 1,000 and 5,000 groups. RE2 refuses repetitions of repetitions beyond a thousand in all, RE2/J takes them.

Groups capture nothing here, since their texts are not asked for: to keep them, RE2 takes memory for each group and each
place in its program.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator, Iterable
from typing import Any

from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError

MAX_SIZE = 10_000
"""Of a pattern, about in instructions of RE2's program: a character takes one, a dot ten, a repetition its copies."""
MAX_NESTING = 1000
MAX_MEMORY = 1 << 20
"""Bytes that RE2 may take for one pattern: for its program, and for the states that it finds while it matches."""
MAX_CACHED = 16
STEP_MATCHES = 50

_FOLDED = 4  # instructions of a letter that stands for both cases
_WIDE = 10  # instructions of a dot, or of a class that excludes
_UNICODE = 1000  # of a Unicode class: about 600 ranges, each of several bytes

# What RE2 says about a faulty pattern, in the words that RE2/J has for it.
_WORDS = {
    "missing ]": "missing closing ]",
    "unexpected )": "regexp/syntax: internal error",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
    "pattern too large - compile failed": "expression too large",
}

# In the way a pattern is read: quoted text, escapes, classes; what is left can be a group with a name.
_PARTS = re.compile(
    r"\\Q.*?(?:\\E|$)|(?P<escape>\\.)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>", re.DOTALL
)

_FOLDS = re.compile(r"\(\?[a-zA-Z]*i")

# The parts whose sizes differ, each found in time proportional to its length.
_TOKENS = re.compile(
    r"(?P<text>[^\\\[(){.*+?|]+)|(?P<quoted>\\Q)|(?P<unicode>\\[pP](?:\{\^?\w+\}|.)?)|(?P<escape>\\(?:x\{\w*\}|.))|(?P<class>\[)|(?P<open>\()|(?P<close>\))"
    r"|\{(?P<least>\d{1,9})(?P<comma>,)?(?P<most>\d{1,9})?\}|(?P<dot>\.)|(?P<repeat>[*+?])|(?P<other>.)",
    re.DOTALL,
)


def check_pattern(pattern: str) -> None:
    """Raises KafkaError (INVALID_REGULAR_EXPRESSION) with the fault."""
    fault = _compile(pattern)[1]
    if fault:
        shown = pattern if len(pattern) <= MAX_SIZE else f"{pattern[:100]}…"
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {fault}.",
        )


def resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The topics whose whole name matches, by pattern; a faulty one matches none."""
    return result_of(resolve_in_steps(patterns, names))


def resolve_in_steps(patterns: Iterable[str], names: Iterable[str]) -> Generator[None, None, dict[str, frozenset[str]]]:
    """The same, a few matches at a time."""
    all_names = list(names)
    found: dict[str, frozenset[str]] = {}
    for pattern in list(patterns):
        compiled = _compile(pattern)[0]
        matched: list[str] = []
        if compiled is not None:
            at_once = max(STEP_MATCHES // (1 + compiled.programsize // 50), 1)
            for first in range(0, len(all_names), at_once):
                matched += filter(compiled.fullmatch, all_names[first : first + at_once])
                yield
        found[pattern] = frozenset(matched)
    return found


# --- the size of a pattern ----------------------------------------------------------------------------------------


class _Group:
    """A group that is being read: the size of what it holds so far, and of its last part, which may be repeated."""

    __slots__ = ("last", "size")

    def __init__(self) -> None:
        self.size = 0
        self.last = 0

    def add(self, size: int) -> None:
        self.size += size
        self.last = size

    def repeat(self, times: int) -> None:
        self.size += self.last * (times - 1)
        self.last *= times


def _excess(pattern: str) -> str:
    """What is too much about a pattern, estimated; '': nothing. Faulty ones may pass: RE2 says what is wrong."""
    if len(pattern) > MAX_SIZE:
        return "expression too large"
    groups = [_Group()]
    at, end = 0, len(pattern)
    of_text = _FOLDED if _FOLDS.search(pattern) else 1
    while at < end:
        token = _TOKENS.match(pattern, at)
        assert token is not None
        at = token.end()
        kind, group = token.lastgroup, groups[-1]
        if kind == "text":
            group.add(of_text * (token.end() - token.start()))
            group.last = of_text
        elif kind == "quoted":
            until = pattern.find("\\E", at)
            until = end if until < 0 else until
            group.add(of_text * (until - at))
            at = min(until + 2, end)
        elif kind == "unicode":
            group.add(_UNICODE)
        elif kind == "class":
            at, size = _class_end(pattern, at)
            group.add(size)
        elif kind == "open":
            groups.append(_Group())
            if len(groups) > MAX_NESTING:
                return "expression nests too deeply"
        elif kind == "close" and len(groups) > 1:
            closed = groups.pop()
            groups[-1].add(closed.size + 1)
        elif kind in ("least", "comma", "most"):
            group.repeat(max(int(token["least"]), int(token["most"] or 0), 1) + (token["comma"] is not None))
        elif kind == "repeat":
            group.size += 1
        else:
            group.add(_WIDE if kind in ("dot", "escape") else 1)
        if group.size > MAX_SIZE:
            return "expression too large"
    return "expression too large" if sum(group.size for group in groups) > MAX_SIZE else ""


def _class_end(pattern: str, at: int) -> tuple[int, int]:
    """Where a class ends that begins before ``at``, and its size; the end of the pattern where it does not end."""
    end = len(pattern)
    begin = at
    size = 0
    if pattern.startswith("^", at):
        at += 1
        size = _WIDE
    at += pattern.startswith("]", at)
    while at < end and pattern[at] != "]":
        if pattern.startswith("[:", at) and (closed := pattern.find(":]", at + 2, at + 20)) > 0:
            at = closed + 2
            size += _WIDE
        elif pattern[at] == "\\":
            size += _UNICODE if pattern[at + 1 : at + 2] in ("p", "P") else _WIDE
            at += 2
        else:
            at += 1
    return min(at + 1, end), size + 2 * (at - begin) + 1


# --- RE2 ----------------------------------------------------------------------------------------------------------

_compiled: OrderedDict[str, Any] = OrderedDict()
"""The patterns used last, of all groups."""


def _compile(pattern: str) -> tuple[Any, str]:
    """The compiled pattern, or None and what is wrong with it."""
    known = _compiled.get(pattern)
    if known is not None:
        _compiled.move_to_end(pattern)
        return known, ""
    fault = _excess(pattern)
    if fault:
        return None, fault
    compiled, fault = _compile_with_re2(pattern)
    fault = fault or _fault_for_java(pattern)
    if fault:
        return None, fault
    if compiled.groups:  # RE2 keeps the texts of groups with names, whatever its options
        compiled, fault = _compile_with_re2(_PARTS.sub(_without_name, pattern))
        if fault or compiled.groups:
            return None, "invalid named capture"
    _compiled[pattern] = compiled
    if len(_compiled) > MAX_CACHED:
        _compiled.popitem(last=False)
    return compiled, ""


def _compile_with_re2(pattern: str) -> tuple[Any, str]:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_MEMORY
    try:
        return re2.compile(pattern, options), ""
    except re2.error as error:
        said = error.args[0] if error.args else ""
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        if text.startswith("trailing \\"):
            return None, "trailing backslash at end of expression"
        head, _, where = text.partition(": ")
        if where in ("(?<=", "(?<!") or (where == "(?P" and pattern.endswith("(?P<")):
            return None, "invalid named capture"
        return None, _WORDS.get(head, head)
    finally:
        re2.purge()  # it would keep the last 128 itself


def _without_name(part: re.Match[str]) -> str:
    return part[0] if part["name"] is None else "(?:"


def _fault_for_java(pattern: str) -> str:
    """What RE2/J has against a pattern that RE2 takes, in its words."""
    names: set[str] = set()
    for part in _PARTS.finditer(pattern):
        if part["escape"] == r"\C":
            return "invalid escape sequence"
        name = part["name"]
        if name is None:
            continue
        if not name.isascii():
            return "invalid named capture"
        if name in names:
            return "duplicate capture group name"
        names.add(name)
    return ""
