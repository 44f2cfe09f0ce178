"""Regular expressions of KIP-848 subscriptions, in RE2's syntax as in Apache Kafka.

RE2 matches in time proportional to the text, so no pattern of a client can block the broker. Python's ``re`` can take
exponential time. RE2 is imported at the first pattern.

Apache Kafka uses RE2/J, which refuses some patterns that RE2 accepts (``\\C``, a duplicate group name). This module
refuses them too. It estimates the size of RE2's program before RE2 compiles the pattern, because a few characters can
need a program of gigabytes. It refuses a pattern if the program is too large or the groups nest too deeply.

Differences from Apache Kafka: RE2/J accepts programs of any size, and overflows its stack between 1,000 and 5,000
nested groups. RE2/J also accepts nested repetitions with a product above 1,000, which RE2 refuses.

Groups do not capture: no caller reads their texts, and for captures RE2 needs memory for each group and each
instruction of its program.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Generator, Iterable
from typing import Any

from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError

MAX_SIZE = 10_000
"""The largest estimated number of instructions in RE2's program for a pattern.

A character counts as one instruction, a dot as ten. A part with a repetition such as ``{3}`` counts three times.
"""
MAX_NESTING = 1000
MAX_MEMORY = 1 << 20
"""The largest memory of RE2 for one pattern in bytes: the compiled program and the states of a match."""
SMALL_SIZE, SMALL_MEMORY = 300, 128 << 10
"""The estimated size of a usual pattern at most, and its largest memory. RE2 matches more slowly if it needs more."""
MAX_CACHED_MEMORY = 16 << 20
"""The largest memory of all compiled patterns that are kept: 128 usual patterns, or 16 of any size."""
STEP_MATCHES = 50

_FOLDED = 4  # instructions of a letter that matches both cases
_WIDE = 10  # instructions of a dot, an escape or a negated class
_UNICODE = 1000  # instructions of a Unicode class: about 600 ranges, each of several bytes

# RE2's errors with RE2/J's text for each. RE2/J has none for a pattern that is too large; that text is ours.
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

# Matches quoted text, escapes and classes before named groups: a "(?<" inside of those is not a group.
_PARTS = re.compile(
    r"\\Q.*?(?:\\E|$)|(?P<escape>\\.)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>", re.DOTALL
)

_FOLDS = re.compile(r"\(\?[a-zA-Z]*i")

# The kinds of tokens that differ in size. Each match takes time proportional to its length.
_TOKENS = re.compile(
    r"(?P<text>[^\\\[(){.*+?|]+)|(?P<quoted>\\Q)|(?P<unicode>\\[pP](?:\{\^?\w+\}|.)?)|(?P<escape>\\(?:x\{\w*\}|.))|(?P<class>\[)|(?P<open>\()|(?P<close>\))"
    r"|\{(?P<least>\d{1,9})(?P<comma>,)?(?P<most>\d{1,9})?\}|(?P<dot>\.)|(?P<repeat>[*+?])|(?P<other>.)",
    re.DOTALL,
)


def check_pattern(pattern: str) -> None:
    """Raises KafkaError (INVALID_REGULAR_EXPRESSION) with the fault of an invalid pattern."""
    fault = compile_pattern(pattern)[1]
    if fault:
        shown = pattern if len(pattern) <= MAX_SIZE else f"{pattern[:100]}…"
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {fault}.",
        )


def resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """Returns for each pattern the topics whose whole name matches. An invalid pattern matches no topic."""
    return result_of(resolve_in_steps(patterns, names))


def resolve_in_steps(patterns: Iterable[str], names: Iterable[str]) -> Generator[None, None, dict[str, frozenset[str]]]:
    """Does the same as ``resolve`` in steps of a few matches."""
    all_names = list(names)
    resolved: dict[str, frozenset[str]] = {}
    for pattern in list(patterns):
        compiled = compile_pattern(pattern)[0]
        matched: list[str] = []
        if compiled is not None:
            at_once = max(STEP_MATCHES // (1 + compiled.programsize // 50), 1)
            for first in range(0, len(all_names), at_once):
                matched += filter(compiled.fullmatch, all_names[first : first + at_once])
                yield
        resolved[pattern] = frozenset(matched)
    return resolved


# --- the size of a pattern ----------------------------------------------------------------------------------------


class _Group:
    """The size of an open group so far, and the size of its last part, which the next token may repeat."""

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


def _estimate(pattern: str) -> tuple[int, str]:
    """Returns the estimated size of a pattern, and an error if its size or nesting is too large, or ''.

    RE2 finds other errors."""
    too_large = len(pattern), "expression too large"
    if len(pattern) > MAX_SIZE:
        return too_large
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
                return len(pattern), "expression nests too deeply"
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
            return too_large
    size = sum(group.size for group in groups)
    return too_large if size > MAX_SIZE else (size, "")


def _class_end(pattern: str, at: int) -> tuple[int, int]:
    """Returns the end and the size of the class whose '[' is before ``at``. Without a ']' the pattern's end ends it."""
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


class _Cache(OrderedDict[str, Any]):
    """The most recently used patterns of all groups."""

    memory = 0

    def keep(self, pattern: str, compiled: Any) -> None:
        self[pattern] = compiled
        self.memory += compiled.options.max_mem
        while self.memory > MAX_CACHED_MEMORY:
            self.memory -= self.popitem(last=False)[1].options.max_mem


compiled_patterns = _Cache()


def compile_pattern(pattern: str) -> tuple[Any, str]:
    """Returns the compiled pattern and '', or None and the error."""
    known = compiled_patterns.get(pattern)
    if known is not None:
        compiled_patterns.move_to_end(pattern)
        return known, ""
    size, fault = _estimate(pattern)
    if fault:
        return None, fault
    memory = SMALL_MEMORY if size <= SMALL_SIZE else MAX_MEMORY
    compiled, fault = _compile_with_re2(pattern, memory)
    fault = fault or _fault_for_java(pattern)
    if fault:
        return None, fault
    if compiled.groups:  # RE2 captures named groups even with never_capture
        compiled, fault = _compile_with_re2(_PARTS.sub(_without_name, pattern), memory)
        if fault or compiled.groups:
            return None, "invalid named capture"
    compiled_patterns.keep(pattern, compiled)
    return compiled, ""


def _compile_with_re2(pattern: str, memory: int) -> tuple[Any, str]:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    try:
        return re2.compile(pattern, options), ""
    except re2.error as error:
        raw = error.args[0] if error.args else ""
        text = raw.decode(errors="replace") if isinstance(raw, bytes) else str(raw)
        if text.startswith("trailing \\"):
            return None, "trailing backslash at end of expression"
        head, _, where = text.partition(": ")
        if where in ("(?<=", "(?<!") or (where == "(?P" and pattern.endswith("(?P<")):
            return None, "invalid named capture"
        return None, _WORDS.get(head, head)
    finally:
        re2.purge()  # empties re2's own cache of 128 patterns


def _without_name(part: re.Match[str]) -> str:
    return part[0] if part["name"] is None else "(?:"


def _fault_for_java(pattern: str) -> str:
    """Returns RE2/J's error for a pattern that only RE2 accepts, or ''."""
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
