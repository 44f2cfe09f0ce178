"""docs/embedding.md is correct: its programs run, and its test passes with the plugin and the shown settings."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "embedding.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^##? ", PAGE, flags=re.MULTILINE)[1:]}


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "section",
    ["A broker in your tests", "Crashes", "Time", "Faults", "The log cleaner", "A compacted topic", "ZooKeeper"],
)
def test_the_programs_run(section: str, tmp_path: Path) -> None:
    (program,) = blocks(section, "python")
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("%")]) == (0, [])
    assert "assert " in program
    assert list(tmp_path.iterdir()) == []


def test_the_test_passes(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(blocks("pytest", "python")[0])
    (tmp_path / "pytest.ini").write_text(blocks("pytest", "ini")[0])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_orders.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
