"""Documentation pages with examples that run: the programs of a page in order, each with the output that follows it."""

from __future__ import annotations

import ast
import contextlib
import io
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
_FENCE = re.compile(r"^```(python[ a-z]*|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_APART = re.compile(r"^(```|#)", re.MULTILINE)
"""Another block or a heading between a program and a text: the text is not its output."""
_VARIABLE = (
    (re.compile(r"\b1\d{12}\b"), "TIME"),
    (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UUID"),
    (re.compile(r'"topicId":"[\w-]{22}"'), '"topicId":"ID"'),
    (re.compile(r"\b127\.0\.0\.1:\d+\b"), "HOST:PORT"),
)


class Example:
    """A program, the line of the page where it begins, its expected output, and its needs in addition to the broker."""

    def __init__(self, page: Path, line: int, program: str, needs: str) -> None:
        self.page, self.line, self.program, self.needs = page, line, program, needs
        self.expected = ""

    def check(self, namespace: dict[str, Any]) -> None:
        """Runs the program and compares its output with the page. Times, ids and ports may differ."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (self.line - 1) + self.program, str(self.page), "exec"), namespace)
        printed = out.getvalue()
        assert constant(printed) == constant(self.expected), f"{self.page.name}, line {self.line}, printed:\n{printed}"


def examples(page: Path) -> list[Example]:
    text = page.read_text()
    found: list[Example] = []
    end = 0  # of the last program or of its output
    for match in _FENCE.finditer(text):
        kind, body = match.groups()
        is_apart = not found or _APART.search(text, end, match.start())
        if kind == "text" and is_apart:
            continue  # a file, or the output of a command
        end = match.end()
        if kind == "text":
            assert not found[-1].expected, f"{page.name}: two outputs for line {found[-1].line}"
            found[-1].expected = body
        else:
            needs = kind.removeprefix("python").strip()
            found.append(Example(page, text[: match.start()].count("\n") + 2, body, needs))
    return found


def imported_packages(programs: list[Example]) -> set[str]:
    """The top-level packages that the programs import."""
    names: set[str] = set()
    for node in (node for one in programs for node in ast.walk(ast.parse(one.program))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def close_all(namespace: dict[str, Any], names: tuple[str, ...]) -> None:
    """Closes objects that a failed example has left open."""
    for name in names:
        if name in namespace:
            with contextlib.suppress(Exception):
                namespace[name].close()


def constant(output: str) -> str:
    for pattern, word in _VARIABLE:
        output = pattern.sub(word, output)
    return output
