"""The completion scripts: their syntax in bash, zsh and fish, and a completion by bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_its_script(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = subprocess.run(
        ["odradek", "--show-completion", shell], env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_bash_completes_a_command() -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    line = (
        'eval "$(odradek --show-completion bash)"; COMP_WORDS=(odradek topics cr); COMP_CWORD=2; '
        '_odradek_completion odradek; echo "${COMPREPLY[@]}"'
    )
    found = subprocess.run(
        ["bash", "-c", line], env=ENVIRONMENT, check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout.split() == ["create"], found.stderr
