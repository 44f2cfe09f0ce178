"""The README is the page of a package: its programs run and print what it says, and its links work everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from support.pages import DOCS

import odradek
from odradek import Producer

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


def test_the_columns_of_the_example_of_the_client_are_those_of_a_poll(bootstrap: str) -> None:
    comment = re.search(r"polled.table\(\)  # (.*)", (DOCS / "client.md").read_text())
    assert comment is not None
    with Producer(bootstrap) as producer:
        producer.send_batch("amounts", pa.record_batch({"key": [b"a"], "value": [b"1"]}))
    assert odradek.read_table("amounts", bootstrap).schema.names == comment[1].split(", ")


def test_the_first_screen_has_what_people_look_for() -> None:
    """What it is, how to install it, the program with its output, the table, and the four parts."""
    screen = "\n".join(README.splitlines()[:54])
    parts = ("**Offsets**", "**Arrow**", "**Spark**", "**The demo**", "about a minute")
    program = ("not on PyPI yet", ".kill()", "clock.advance(days=8)", ".faults.", "It prints `", "| kfake |")
    assert [wanted for wanted in (*program, *parts) if wanted not in screen] == []
    assert len(README.splitlines()) <= 110


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
    assert f"pip install git+{URLS['Source']}" in lines[:12]
    assert {"make demo", "make test"} <= {line.partition("  ")[0] for line in lines}
    assert "any Kafka" not in README


def test_the_table_beside_other_brokers_has_the_measured_figures() -> None:
    """Those of docs/brokers-for-tests.md, which ``python -m bench.brokers_for_tests`` wrote. The first line of the
    README says a third of a second for the start."""
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
    assert "up in a third of a second" in README.replace("\n", " ")
    assert measured["start until it accepts requests, s"][0] <= 0.34
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
