"""Topics by pattern: the regular expressions a KIP-848 member may subscribe with, in RE2's syntax as in Apache Kafka.

RE2 takes time in proportion to the text, so that no client's pattern stalls the broker; Python's ``re`` can take for
ever. It is loaded when the first pattern comes.

Apache Kafka has RE2/J, which refuses a little more (``\\C``, a name given twice), and so does this; it also takes
repetitions of repetitions beyond a thousand in all, which are refused here for the memory they cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from odradek.core.errors import ErrorCode, KafkaError

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
}

# In the way a pattern is read: quoted text, escapes, classes; what is left can be a group with a name.
_PARTS = re.compile(
    r"\\Q.*?(?:\\E|$)|(?P<escape>\\.)|\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\]|\(\?P?<(?P<name>\w+)>", re.DOTALL
)


def check_pattern(pattern: str) -> None:
    """Raises KafkaError (INVALID_REGULAR_EXPRESSION) with the fault."""
    fault = _compile(pattern)[1]
    if fault:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {fault}.",
        )


def resolve(patterns: Iterable[str], names: Iterable[str]) -> dict[str, frozenset[str]]:
    """The topics whose whole name matches, by pattern; a faulty one matches none."""
    all_names = list(names)
    found = {}
    for pattern in patterns:
        compiled = _compile(pattern)[0]
        found[pattern] = frozenset() if compiled is None else frozenset(filter(compiled.fullmatch, all_names))
    return found


def _compile(pattern: str) -> tuple[Any, str]:
    """The compiled pattern, or None and what is wrong with it."""
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0] if error.args else ""
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        if text.startswith("trailing \\"):
            return None, "trailing backslash at end of expression"
        head, _, where = text.partition(": ")
        if where in ("(?<=", "(?<!") or (where == "(?P" and pattern.endswith("(?P<")):
            return None, "invalid named capture"
        return None, _WORDS.get(head, head)
    fault = _fault_for_java(pattern)
    return (None, fault) if fault else (compiled, "")


def _fault_for_java(pattern: str) -> str:
    """What RE2/J has against a pattern that RE2 takes, in its words."""
    names: set[str] = set()
    for part in _PARTS.finditer(pattern):
        if part["escape"] == r"\C":
            return "invalid escape sequence"
        name = part["name"]
        if name is not None and name in names:
            return "duplicate capture group name"
        if name is not None:
            names.add(name)
    return ""
