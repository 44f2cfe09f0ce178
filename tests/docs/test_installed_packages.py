"""Each page with Python examples first names the packages to install, and its examples import no others."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.pages import DOCS, examples, imported_packages

ROOT = DOCS.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [page for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))) if examples(page)]
INSTALLED = re.compile(r"pip\s+install\s+('[^']+'|[^`'\n]+)")
"""The install command of a page; a line may end within the command."""
IMPORTED = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)
NEEDS = {"odradek.spark": "pyspark", "odradek.pipelines": "pyspark", "odradek.history.report": "plotly"}
"""Our modules that need a package of an extra."""


def packages(requirement: str) -> set[str]:
    """The importable names of a requirement, with those of its extras: ``odradek[lake]``."""
    name, extras = re.fullmatch(r"([\w-]+)(?:\[([\w,-]+)\])?.*", requirement, re.DOTALL).groups()
    found = {name.replace("-", "_")}
    if name == "odradek":
        for dependency in PROJECT["dependencies"]:
            found |= packages(dependency)
        for extra in (extras or "").split(","):
            for dependency in PROJECT["optional-dependencies"][extra] if extra else ():
                found |= packages(dependency)
    return found


def installed_by(page: Path) -> set[str]:
    """Returns what the page says to install. A repository counts as the package of its name."""
    commands = [command.strip("'").split() for command in INSTALLED.findall(page.read_text())]
    names = [word.rpartition("/")[2] if word.startswith("git+") else word for words in commands for word in words]
    return {package for name in names for package in packages(name)}


def needed_by(page: Path) -> set[str]:
    programs = examples(page)
    modules = {
        name for one in programs for name in re.findall(r"^\s*(?:from|import) ([\w.]+)", one.program, re.MULTILINE)
    }
    ours = {
        package for name, package in NEEDS.items() if any(f"{module}.".startswith(f"{name}.") for module in modules)
    }
    return (imported_packages(programs) | ours) - sys.stdlib_module_names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_need_what_the_page_says_to_install(page: Path) -> None:
    assert needed_by(page) <= installed_by(page)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=lambda page: page.name)
def test_a_page_names_the_packages_before_its_first_example(page: Path) -> None:
    first = page.read_text().partition("```python")[0]
    assert INSTALLED.search(first), "what to install"


def test_the_pages_with_examples_are_known() -> None:
    assert {page.name for page in PAGES} == {
        "README.md", "brokers-for-tests.md", "checker.md", "client.md", "cluster.md", "consumer-offsets.md",
        "embedding.md", "kafka-in-pytest.md", "monitor.md", "offset-history.md", "pipelines.md", "replication.md",
        "schema-registry.md", "security.md", "spark.md", "transactions.md", "zookeeper.md",
    }  # fmt: skip


def test_a_requirement_includes_the_packages_of_its_extras() -> None:
    assert packages("confluent-kafka>=2.6") == {"confluent_kafka"}
    assert {"pyspark", "deltalake", "numpy"} <= packages("odradek[lake]")
    assert "pyspark" not in packages("odradek")
