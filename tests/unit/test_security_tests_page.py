"""docs/security-tests.md: every test method of Kafka has a test of ours that exists, or a reason."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "security-tests.md"
COUNTS = {"AuthorizerIntegrationTest": 109, "StandardAuthorizerTest": 20, "AclCommandTest": 20,
          "SaslAuthenticatorTest": 75, "SslTransportLayerTest": 56}  # fmt: skip
"""The test methods of each class in Apache Kafka."""
REASON = "does not apply: "


def tables(text: str) -> dict[str, dict[str, str]]:
    """Class → test method of Kafka → our test or the reason."""
    found = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = re.findall(r"^\| (\w+) \| (.+) \|$", body, re.MULTILINE)
        assert len(dict(rows)) == len(rows), f"{title} has a method twice"
        found[title] = dict(rows)
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def faults(answer: str, recorded: set[str]) -> list[str]:
    """What is wrong with the second column of a row."""
    if answer.startswith(REASON):
        return [] if len(answer) > len(REASON) + 20 else [f"no reason: {answer}"]
    wrong = []
    for part in answer.split("; "):
        names = re.findall(r"`([^`]+)`", part)
        if not names:
            wrong.append(f"no test: {part}")
        for name in names:
            file, colons, test = name.partition("::")
            if part.startswith("recorded: "):
                is_known = name in recorded
            else:
                is_known = bool(colons) and (ROOT / file).exists() and test in functions_of(file)
            if not is_known:
                wrong.append(f"unknown: {name}")
    return wrong


def recorded_requests() -> set[str]:
    trace = json.loads((ROOT / "tests" / "oracle" / "traces" / "acls.json").read_text())
    return set(trace["requests"])


@pytest.mark.parametrize("title", COUNTS)
def test_each_test_of_kafka_has_a_test_or_a_reason(title: str) -> None:
    rows = tables(PAGE.read_text())[title]
    assert len(rows) == COUNTS[title]
    recorded = recorded_requests()
    assert {method: wrong for method, answer in rows.items() if (wrong := faults(answer, recorded))} == {}


def test_wrong_rows_are_found() -> None:
    assert faults("does not apply: no", set())
    assert faults("recorded: `1 v99`", {"1 v12"}) == ["unknown: 1 v99"]
    assert faults("`tests/unit/test_security_tests_page.py::test_gone`", set())
    assert faults("`tests/gone.py::test_gone`; recorded: `1 v12`", {"1 v12"}) == ["unknown: tests/gone.py::test_gone"]
    assert faults("somewhere", set()) == ["no test: somewhere"]
    assert faults("`tests/unit/test_security_tests_page.py::test_wrong_rows_are_found`", set()) == []
