"""Fills the file map in docs/files.md from the first lines of the modules' docstrings; ``--check`` only compares."""

from __future__ import annotations

import ast
import re
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "files.md"
SOURCE = ROOT / "src" / "odradek"
_API = re.compile(r"k\d\d_")
_HEAD = re.compile(r"[^\n]*(?:(?<!\.)\n(?:[^\n]|\n(?!\n))*?\.(?=\s|\Z))?")
"""The first line of a docstring, to the end of its last sentence."""
BEGIN, END = "<!-- file map: python scripts/file_map.py -->\n", "<!-- end of file map -->\n"


def summary(path: Path) -> str:
    found = _HEAD.match(ast.get_docstring(ast.parse(path.read_text())) or "")
    return "" if found is None else found[0].replace("\n", " ").replace("``", "`").replace("|", "\\|")


def file_map() -> str:
    found = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]
    files = sorted(found, key=lambda path: (path.parent, path.name))
    files = [path for path in files if not (path.parent.name == "handlers" and _API.match(path.name))]
    lines = ["| file | what it is |", "|---|---|"]
    for package, members in groupby(files, key=lambda path: path.parent.relative_to(SOURCE).as_posix()):
        for path in members:
            name = path.name if package == "." else f"{package}/{path.name}"
            lines.append(f"| `{name}` | {summary(path)} |")
        if package == "broker/handlers":
            lines.append(
                "| `broker/handlers/kNN_….py` | One API each; the file's first lines say what each version changed. |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    page = PAGE.read_text()
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    wanted = head + BEGIN + "\n" + file_map() + "\n" + END + tail
    if wanted == page:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/files.md: the file map is out of date (run: python scripts/file_map.py)")
        return 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
