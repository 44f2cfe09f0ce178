"""Fills the "proved by" column of docs/claims.md and docs/offset-behaviours.md from the tests themselves.

A test names what it proves in a comment or docstring: ``# claim 43``, ``# claims 43, 49-51``, ``# behaviour 7``.
``python scripts/proofs.py`` rewrites both tables; ``--check`` only says whether they are up to date (a test runs it).
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"claim": ROOT / "docs" / "claims.md", "behaviour": ROOT / "docs" / "offset-behaviours.md"}
NAMED = re.compile(
    r"\b(claim|behaviour)s?\s+((?:\d+(?:\s*[-–]\s*\d+)?)(?:(?:\s*,\s*|\s+and\s+)\d+(?:\s*[-–]\s*\d+)?)*)"
)
ROW = re.compile(r"^\| (\d+) \|(.*)\|([^|]*)\|([^|]*)\|$")


def numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in re.split(r",|\band\b", text):
        ends = [int(end) for end in re.findall(r"\d+", part)]
        found.update(range(ends[0], ends[-1] + 1))
    return found


def names_of(path: Path) -> dict[tuple[str, int], set[str]]:
    """(kind, number) -> the tests of one file that name it; a mention outside any test counts for the file."""
    source = path.read_text()
    spans = [
        (min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or node.lineno, node.name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
    ]
    where = path.relative_to(ROOT / "tests").as_posix().removesuffix(".py")
    proofs: dict[tuple[str, int], set[str]] = defaultdict(set)
    for line_number, line in enumerate(source.splitlines(), 1):
        for match in NAMED.finditer(line):
            inside = [name for start, end, name in spans if start <= line_number <= end]
            following = [name for start, _, name in spans if start == line_number + 1]
            test = (inside or following or [""])[0]
            for number in numbers(match[2]):
                proofs[match[1].lower(), number].add(f"{where}::{test}" if test else where)
    return proofs


def proofs_of_all_tests() -> dict[tuple[str, int], set[str]]:
    merged: dict[tuple[str, int], set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for key, tests in names_of(path).items():
            merged[key] |= tests
    return merged


def filled(kind: str, text: str, proofs: dict[tuple[str, int], set[str]]) -> str:
    lines = []
    proved = total = 0
    for line in text.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        total += 1
        tests = sorted(proofs.get((kind, int(row[1])), ()))
        shown = "<br>".join(f"`{test}`" for test in tests[:4]) + (f"<br>and {len(tests) - 4} more" if tests[4:] else "")
        proved += bool(tests)
        state = "tested" if tests else "open"
        lines.append(f"| {row[1]} |{row[2]}| {shown or '–'} | {state} |")
    page = "\n".join(lines) + "\n"
    return re.sub(r"\*\*\d+ of \d+\*\*", f"**{proved} of {total}**", page, count=1)


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
