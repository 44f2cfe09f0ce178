"""Fills the "proved by" column of docs/claims.md and docs/offset-behaviours.md from the tests themselves.

A test names what it proves in a comment or docstring: ``# claim 43``, ``# claims 43, 49-51``, ``# behaviour 7``; where
it shows one side only, ``# claim 111 (part)``. Only mentions inside a test function, or on the line above it, count.
``python scripts/proofs.py`` rewrites both tables; ``--check`` only says whether they are up to date (a test runs it).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"claim": ROOT / "docs" / "claims.md", "behaviour": ROOT / "docs" / "offset-behaviours.md"}
NAMED = re.compile(
    r"\b(claim|behaviour)s?\s+((?:\d+(?:\s*[-–]\s*\d+)?)(?:(?:\s*,\s*|\s+and\s+)\d+(?:\s*[-–]\s*\d+)?)*)(\s+\(part\))?"
)
MAY_SKIP = "interop/"
"""Tests in there need Java or Go."""
ROW = re.compile(r"^\| (\d+) \|(.*)\|([^|]*)\|([^|]*)\|$")


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in re.split(r",|\band\b", text):
        ends = [int(end) for end in re.findall(r"\d+", part)]
        found.update(range(ends[0], ends[-1] + 1))
    return found


Proofs = Mapping[tuple[str, int], Mapping[str, bool]]
"""(kind, number) -> the tests that name it, and whether they show all of it."""


def names_of(path: Path, proofs: dict[tuple[str, int], dict[str, bool]]) -> None:
    """Adds what the tests of one file name."""
    source = path.read_text()
    spans = [
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]
    where = path.relative_to(ROOT / "tests").as_posix().removesuffix(".py")
    for line_number, line in enumerate(source.splitlines(), 1):
        for match in NAMED.finditer(line):
            inside = [name for start, end, name in spans if start - 1 <= line_number <= end]
            for number in numbers(match[2]) if inside else ():
                tests = proofs[match[1].lower(), number]
                test = f"{where}::{inside[-1]}"
                tests[test] = tests.get(test, False) or match[3] is None


def proofs_of_all_tests() -> Proofs:
    merged: dict[tuple[str, int], dict[str, bool]] = defaultdict(dict)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names_of(path, merged)
    return merged


def state_of(tests: Mapping[str, bool]) -> str:
    whole = [test for test, shows_all in tests.items() if shows_all]
    if not whole:
        return "in part" if tests else "open"
    return "tested (may skip)" if all(test.startswith(MAY_SKIP) for test in whole) else "tested"


def filled(kind: str, text: str, proofs: Proofs) -> str:
    lines = []
    proved = parts = total = 0
    for line in text.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        total += 1
        found = proofs.get((kind, int(row[1])), {})
        tests = sorted(found, key=lambda test: (not found[test], test))
        shown = "<br>".join(f"`{test}`" for test in tests[:4]) + (f"<br>and {len(tests) - 4} more" if tests[4:] else "")
        state = state_of(found)
        proved += state.startswith("tested")
        parts += state == "in part"
        lines.append(f"| {row[1]} |{row[2]}| {shown or '–'} | {state} |")
    page = "\n".join(lines) + "\n"
    page = re.sub(r"\*\*\d+ of \d+\*\*", f"**{proved} of {total}**", page, count=1)
    return re.sub(r"\*\*\d+ more\*\*", f"**{parts} more**", page, count=1)


def main() -> int:
    proofs = proofs_of_all_tests()
    stale = []
    for kind, page in PAGES.items():
        before = page.read_text()
        after = filled(kind, before, proofs)
        if after != before:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv[1:]:
                page.write_text(after)
    if stale and "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(stale)} (run: python scripts/proofs.py)")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
