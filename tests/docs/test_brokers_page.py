"""docs/brokers-for-tests.md: its script starts the broker for tests in any language."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.pages import DOCS


def test_the_script_starts_a_broker_and_passes_its_address(tmp_path: Path) -> None:
    page = (DOCS / "brokers-for-tests.md").read_text()
    (script,) = re.findall(r"```sh no-run\n(.*?)```", page, re.DOTALL)
    odradek = f"{sys.executable} -m odradek"
    tests = f"sh -c '{odradek} topics create orders -b $KAFKA_BROKERS'"
    program = script.replace("odradek serve", f"{odradek} serve").replace("npm test", tests)
    done = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Created orders.\n", "")
    failed = subprocess.run(
        ["bash", "-c", program.replace(tests, "false")], capture_output=True, timeout=120, check=False, cwd=tmp_path
    )
    assert failed.returncode == 1, "the exit code is that of the tests"
