"""Client and tools without pyarrow, numpy and numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CHILD = Path(__file__).with_name("without_arrow_child.py")


def test_records_are_produced_read_and_committed_without_the_packages_for_columns(bootstrap: str) -> None:
    done = subprocess.run(
        [sys.executable, str(CHILD), bootstrap], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stdout + done.stderr
