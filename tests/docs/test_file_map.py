"""The file map in docs/files.md has the first lines of the modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_file_map_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "file_map.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
