"""docs/schema-registry.md is correct: its examples run, and its lists are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import DOCS

from odradek.registry.client import SETTINGS
from odradek.registry.faults import RegistryFaults
from odradek.testing.schema_registry import SchemaRegistry

PAGE = (DOCS / "schema-registry.md").read_text()
EXAMPLE, TEST = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka.schema_registry", reason="needs confluent-kafka[schemaregistry]")
    (tmp_path / "test_page.py").write_text(
        TEST + "\n\ndef test_example():\n" + re.sub("^", "    ", EXAMPLE, flags=re.M)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_table_names_members() -> None:
    rows = re.findall(r"^\| `(.+?)` \|", PAGE.split("## On the command line")[0], re.MULTILINE)
    assert len(rows) >= 5
    for row in rows:
        for name in re.findall(r"faults\.(\w+)", row):
            assert hasattr(RegistryFaults, name)
        if "faults" not in row and row[0].islower():
            assert all(hasattr(SchemaRegistry, name) for name in re.findall(r"(\w+)\b(?:\(\))?", row))


def test_the_commands_are_ours() -> None:
    commands = re.findall(r"^odradek (\w+) (.*)$", PAGE, re.MULTILINE)
    assert [name for name, _ in commands] == ["serve", "produce", "consume"]
    for name, options in commands:
        done = subprocess.run(
            [sys.executable, "-m", "odradek", name, "--help"], capture_output=True, text=True, check=False
        )
        for option in re.findall(r"--[\w-]+", options):
            assert option in done.stdout


def test_the_settings_are_those_of_the_client() -> None:
    (text,) = re.findall(r"prefix `schema\.registry\.`:\n(.*?)\. A user", PAGE, re.DOTALL)
    assert tuple(re.findall(r"`([\w.]+)`", text)) == SETTINGS
