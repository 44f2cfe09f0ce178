"""``subscribePattern`` has the meaning of Java: each expected set was matched by java.util.regex (17)."""

from __future__ import annotations

import re

import pytest

from odradek.core.errors import ConfigError
from odradek.spark.offsets.patterns import java_pattern
from odradek.spark.options import parse_options

NAMES = ["events", "Events", "a", "b", "c", "B7", "7", "x-1", "x_1", "x.1", "aa", "ab", "a&b", "-", ".", "ev-ents"]
TAKEN = {
    "e[a-z&&[^b]]*": "events",
    "[a-c&&[^b]]": "a c",
    "[a-c&&[b-z]&&[^c]]": "b",
    "[^a-b&&b-z]": "a c 7 - .",
    "[ab[c7]]": "a b c 7",
    "[a-z&&b-c]": "b c",
    "[a&&b]": "",
    r"\p{Alpha}+": "events Events a b c aa ab",
    r"\p{Alnum}+": "events Events a b c B7 7 aa ab",
    r"\p{Digit}": "7",
    r"\p{Upper}\p{Lower}*\d?": "Events B7",
    r"\p{Lower}\p{Punct}\p{Digit}": "x-1 x_1 x.1",
    r"\P{Punct}+": "events Events a b c B7 7 aa ab",
    r"[\p{Lower}&&[^ab]]": "c",
    r"[\w.-]+": "events Events a b c B7 7 x-1 x_1 x.1 aa ab - . ev-ents",
    r"[\w&&[^\d_]]+": "events Events a b c aa ab",
    r"\pL\p{IsDigit}": "B7",
    r"a++": "a aa",
    r"a*+a": "",
    r"(?>a|ab)b?": "a ab",
    r"(?i)EVENTS": "events Events",
    r"(?i)[E-F]v[^X]nts": "events Events",
    r"(?i)[a-c&&[^B]]": "a c",
    r"\Qx.1\E": "x.1",
    r"(?<first>a)\k<first>": "aa",
    r"x[\x2d\u005f]1\z": "x-1 x_1",
    r"[]a]": "a",
    r"[a\]]": "a",
    r"[a-]": "a -",
    r"\S+": " ".join(NAMES).replace(" a&b", ""),
    r"x\W1": "x-1 x.1",
    "(events|b)": "events b",
}


@pytest.mark.parametrize(("pattern", "taken"), TAKEN.items())
def test_a_pattern_matches_the_same_topics_as_in_java(pattern: str, taken: str) -> None:
    legal = [name for name in NAMES if "&" not in name]
    assert [name for name in legal if java_pattern(pattern).fullmatch(name)] == taken.split()


@pytest.mark.parametrize(
    ("pattern", "taken"),
    {
        "(?i:prod)-[a-z]+": "prod-abc PROD-abc",
        "(?i)a(?-i:[b])": "ab Ab",
        "x(?i:y)[^a]": "xyA xYA",
        "^(?i)prod-abc": "prod-abc PROD-abc PROD-ABC",
        "a(?i)b|x(?-i)ya": "ab aB xya Xya",
        "(a(?i))B": "aB",
        r"(?i:\QPR\Eod)-\x61bc": "prod-abc PROD-abc",
        r"([Xa])\1(?i)\1": "aaa aaA",
        r"(?i:(?<n>a))\k<n>(?i)\k<n>": "aaa aaA",
        r"\Q(?i)\Ea|ab": "ab",
        "a{2,}": "aaa",
    }.items(),
)
def test_patterns_are_case_sensitive_unless_a_flag_is_set(pattern: str, taken: str) -> None:
    names = ["prod-abc", "PROD-abc", "PROD-ABC", "ab", "aB", "Ab", "AB", "xya", "xyA", "xYA", "Xya", "aaa", "aaA"]
    assert [name for name in names if java_pattern(pattern).fullmatch(name)] == taken.split()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\p{IsGreek}+", r"\p{IsGreek} is not understood here"),
        (r"\X", r"\X is not understood here"),
        (r"[a&&]", "&& with nothing after it"),
        ("[a-c&&[bc]d]", "a class next to other characters after &&"),
        (r"(?i)\p{Upper}", "together with (?i)"),
        (r"(?x)a b", "the flag x"),
        ("(?i)*a", "* after (?i)"),
        (r"(a)\11", r"\11 is not understood here"),
        ("a{,2}", "{ without a number"),
        (r"\b{g}a", r"\b{ is not understood here"),
        (r"(?P<a>b)", "(?P is not understood"),
        ("[a", "a class has no end"),
        ("a(", "is no regular expression"),
        ("[z-a]", "the range from 'z'"),
    ],
)
def test_errors_name_unsupported_syntax(pattern: str, message: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribePattern": pattern}
    with pytest.raises(ConfigError, match=f"^subscribePattern: .*{re.escape(message)}"):
        parse_options(given, streaming=True)
