"""``promtool check metrics``, the check of Prometheus' own tool. A test skips where it is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def problems(text: str) -> list[str]:
    """What promtool says about a page of metrics: its lines, sorted.

    The tool is on the PATH, or PROMTOOL names it. Debian's package ``prometheus`` has it."""
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: put it on the PATH, or name it with PROMTOOL")
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    found = (done.stdout + done.stderr).splitlines()
    assert done.returncode == 0 or found, "promtool failed without a word"
    return sorted(line for line in found if line.strip())
