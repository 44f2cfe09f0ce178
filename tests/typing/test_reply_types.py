"""The reply of a handler is that of its request: mypy refuses each other handler when it is added to the table."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REFUSED = HERE / "replies_refused.py"
ACCEPTED = HERE / "replies_accepted.py"


def test_mypy_refuses_each_handler_with_another_reply_and_nothing_else() -> None:
    lines = REFUSED.read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-warn-unused-configs", str(REFUSED), str(ACCEPTED)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    errors = re.findall(r"(\w+)\.py:(\d+): error", done.stdout)
    assert {int(line) for name, line in errors if name == "replies_refused"} == expected, done.stdout + done.stderr
    assert {name for name, _ in errors} == {"replies_refused"}, done.stdout
