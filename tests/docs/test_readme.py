"""The README is the page of a package: its programs run and print what it says, and its links work everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS

from odradek import Admin, TopicPartition
from odradek.client import NewTopic

ROOT = DOCS.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
LINKS = re.findall(r"\]\(([^)\s]+)\)", README)


def test_the_first_program_prints_what_the_readme_says(tmp_path: Path) -> None:
    assert len(PROGRAMS[0].splitlines()) <= 22
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[0]], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"It prints `{done.stdout.strip()}`." in README


def test_the_program_with_columns_reads_and_commits_what_it_sends(bootstrap: str) -> None:
    (program,) = [text for text in PROGRAMS if "send_batch" in text]
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        namespace: dict[str, Any] = {}
        exec(program.replace("127.0.0.1:9092", bootstrap), namespace)
        table = namespace["table"]
        assert table.column("value").to_pylist() == [b"1", b"2"]
        comment = re.search(r"polled.table\(\)  # (.*)", program)
        assert comment is not None
        assert table.schema.names == comment[1].split(", ")
        assert admin.list_group_offsets("billing")[TopicPartition("orders", 0)].offset == 2


def test_links_are_absolute_and_lead_to_files_of_the_repository() -> None:
    repository = URLS["Source"]
    pages = f"{repository}/blob/main/"
    pictures = f"{repository.replace('github.com', 'raw.githubusercontent.com')}/main/"
    assert len(LINKS) > 15
    relative = [link for link in LINKS if not link.startswith(("https://", "#"))]
    assert relative == []
    paths = [link.removeprefix(pages).removeprefix(pictures) for link in LINKS if link.startswith(repository[:18])]
    paths += [link.removeprefix(pictures) for link in LINKS if link.startswith(pictures)]
    assert [path for path in paths if not (ROOT / path.partition("#")[0]).exists()] == []


def test_the_addresses_of_the_package_are_those_of_one_repository() -> None:
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= URLS.keys()
    assert [url for url in URLS.values() if not url.startswith(URLS["Source"])] == []


def test_the_readme_is_short_and_says_how_to_install() -> None:
    lines = README.splitlines()
    assert len(lines) <= 150
    assert f"pip install git+{URLS['Source']}" in lines[:12], "the first release is not on PyPI yet"
    assert {"make demo", "make test"} <= {line.partition("  ")[0] for line in lines}
    assert "any Kafka" not in README


def test_the_table_beside_other_brokers_has_the_measured_figures() -> None:
    """Those of docs/brokers-for-tests.md, which ``python -m bench.brokers_for_tests`` wrote on a quiet machine."""
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if line.startswith("| ")]
    shown = {row[0]: row[1:] for row in rows}
    assert [name for name in rows[0] if name] == [
        "odradek", "kfake", "testcontainers, Apache Kafka", "testcontainers, Redpanda"
    ]  # fmt: skip
    page = (DOCS / "brokers-for-tests.md").read_text()
    measured = {}
    for line in page.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == 4 and re.match(r"[\d.,]+ \(", cells[1]):
            measured[cells[0]] = [float(cell.partition(" ")[0]) for cell in cells[1:]]
    for name, figure, unit in (
        ("start until a group has read and committed 1,000 records", "{}, s", "s"),
        ("memory of the broker then", "{}, MB", "MB"),
    ):
        ours, kfake, kafka = measured[figure.format(name)]
        cells = shown[name]
        assert [float(cell.partition(" ")[0]) for cell in cells[:2]] == pytest.approx([ours, kfake], rel=0.02)
        assert cells[0].endswith(f" {unit}")
        assert cells[2] == f"more than {kafka:g} {unit} ¹", "the process alone, without its container"
        assert cells[3] == "not measured ¹"
