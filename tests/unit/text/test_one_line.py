"""The texts of errors of other packages become one plain line where they are quoted."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import odradek
from odradek.text.printable import one_line

SOURCES = Path(odradek.__file__).parent
ROOMS = ("pipelines", "spark", "audit", "cli/pipeline")


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to open file /t/_delta_log/2.json#1\n"
            "  \x1b[31m↳\x1b[0m Operation not permitted (os error 1)\n",
            "Generic LocalFileSystem error: Unable to open file /t/_delta_log/2.json#1: Operation not permitted "
            "(os error 1)",
        ),
        ("Kernel error:\n  ↳ Arrow error:\n  ↳ Kernel error\n", "Kernel error: Arrow error"),
        ("\x1b]0;title\x07no\x1bM such\r\nfile\u2028there", "no such: file: there"),
        ("two  spaces\tand \u202eturned\x00", "two spaces and \\u202eturned\\x00"),
        ("plain: as it is", "plain: as it is"),
    ],
)
def test_a_text_becomes_one_plain_line(said: str, line: str) -> None:
    assert one_line(OSError(said)) == line
    assert one_line(said) == line


def test_an_error_without_a_text_has_its_class() -> None:
    assert one_line(AssertionError()) == "AssertionError"
    assert one_line(ValueError("\n \x1b[0m")) == "ValueError"


def own_errors() -> set[str]:
    """The names of all classes of odradek."""
    classes = re.compile(r"^class (\w+)", re.MULTILINE)
    return {name for path in SOURCES.rglob("*.py") for name in classes.findall(path.read_text())}


def caught(handler: ast.ExceptHandler) -> set[str]:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind).rpartition(".")[2] for kind in kinds if kind is not None}


def quoted_as_they_are(handler: ast.ExceptHandler) -> list[int]:
    """The lines of a handler that put the text of the error into another one."""
    found = []
    for node in ast.walk(handler):
        value = node.value if isinstance(node, ast.FormattedValue) else None
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
            value = node.args[0]
        if isinstance(value, ast.Name) and value.id == handler.name:
            found.append(node.lineno)
    return found


def test_no_error_of_another_package_is_quoted_as_it_is() -> None:
    ours, wrong = own_errors(), []
    for room in ROOMS:
        for path in sorted((SOURCES / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ExceptHandler) and node.name and caught(node) - ours:
                    wrong += [f"{path.relative_to(SOURCES)}:{line}" for line in quoted_as_they_are(node)]
    assert wrong == []
