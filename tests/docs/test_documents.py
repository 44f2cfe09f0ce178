"""The documents are correct: links have targets, commands exist, tables agree with the tests."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest
from support.collection import COLLECTED

from odradek import __version__
from odradek.cli.main import run
from scripts.proofs import proofs_of, stale_pages

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands(page: Path) -> list[str]:
    """Command lines of a page, in fenced blocks and in sentences, without prompts and comments."""
    text = page.read_text()
    # long commands continue in the next line
    blocks = (re.sub(r"\\\n\s*", "", block) for block in FENCE.findall(text))
    lines = [line for block in blocks for line in block.splitlines()]
    lines += [" ".join(line.split()) for line in re.findall(r"`(odradek [^`]+)`", FENCE.sub("", text))]
    return [line.removeprefix("$ ").split("  #")[0].strip() for line in lines]


@cache
def help_of(*words: str) -> str | None:
    """The help of one of our commands, or None if there is no such command."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        code = run([*words, "--help"])
    return printed.getvalue() if code == 0 else None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_targets(page: Path) -> None:
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text())]
    local = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in commands(page):
        words = shlex.split(line, comments=True) if line.startswith(("odradek ", "make ")) else []
        if words[:1] == ["make"]:
            targets = [word for word in words[1:] if "=" not in word]
            assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == [], line
        elif words:
            path: list[str] = []
            for word in words[1:]:
                if word.startswith("-") or help_of(*path, word) is None:
                    break
                path.append(word)
            help_text = help_of(*path)
            assert help_text is not None, line
            options = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
            assert [option for option in options if option not in help_text] == [], line


def test_the_tables_of_claims_agree_with_the_tests(pytestconfig: pytest.Config) -> None:
    """Needs the names and marks of all tests, and skips if only some of them were collected."""
    items = pytestconfig.stash[COLLECTED]
    missing = set((ROOT / "tests").rglob("test_*.py")) - {item.path for item in items}
    if missing:
        pytest.skip(f"{len(missing)} files of tests were not collected")
    pages = [name_of(page) for page in stale_pages(proofs_of(items))]
    assert pages == [], "python scripts/proofs.py writes them"


def test_the_tests_in_the_note_on_broken_behaviour_exist() -> None:
    page = (ROOT / "docs" / "notes" / "broken-on-purpose.md").read_text()
    names = re.findall(r"`([\w/]+\.py)::(\w+)", page)
    assert len(names) > 30
    missing = [(file, name) for file, name in names if f"def {name}(" not in (ROOT / "tests" / file).read_text()]
    assert missing == []


def test_the_changelog_begins_with_the_next_or_this_version() -> None:
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first == "## Unreleased" or __version__ in first


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_page_contains_paths_of_one_machine(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"(?:^|[\s`(\"'])(?:/root|/home/\w+|/work|/Users)/", text) == []


def test_the_files_of_the_glossary_exist() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    terms = [line for line in lines if line.startswith("| ") and not line.startswith("| term |")]
    code = {term: re.findall(r"`([^`]+)`", term.rstrip(" |").rpartition(" | ")[2]) for term in terms}
    assert len(terms) > 80
    assert [term for term, names in code.items() if not names] == []
    missing = {name for names in code.values() for name in names if not (ROOT / "src" / "odradek" / name).exists()}
    assert missing == set()


def test_the_architecture_page_has_at_most_150_lines() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 150


def test_the_places_of_new_things_exist() -> None:
    """The page names a room of ``broker/``, ``pipelines/`` or ``cli/`` without that name."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("## Where new things go", 1)[1].split("\n## ", 1)[0]
    names = {name for name in re.findall(r"`([a-z_]+/[\w./]*)`", section) if not name.startswith("tests/")}
    package = ROOT / "src" / "odradek"
    homes = (package.parent, package, package / "broker", package / "pipelines", package / "cli")
    assert len(names) > 12
    missing = [
        name
        for name in sorted(names - {"handlers/kNN_name.py"})
        if not any((home / name).is_dir() or (home / f"{name.split('.')[0]}.py").exists() for home in homes)
    ]
    assert missing == []
