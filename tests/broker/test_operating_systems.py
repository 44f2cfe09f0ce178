"""The broker and the client run without the standard library's names that macOS lacks.

The client also runs without the names that Windows lacks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support import platform_names

from odradek import Broker
from odradek.core import operating_system

CHILD = Path(__file__).with_name("platform_child.py")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(CHILD), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="typeshed's names are compared with those of Linux")
def test_the_broker_and_the_client_run_without_the_names_that_macos_lacks() -> None:
    assert {"EUCLEAN", "ESTRPIPE"} <= platform_names.missing("errno", "darwin")
    assert "read 100" in run("darwin")


@pytest.mark.skipif(sys.platform != "linux", reason="typeshed's names are compared with those of Linux")
def test_the_client_runs_without_the_names_that_windows_lacks(odradek_broker: Broker) -> None:
    assert {"fork", "pread", "O_CLOEXEC"} <= platform_names.missing("os", "win32")
    assert "read 100" in run("win32", odradek_broker.bootstrap_servers)


def test_a_broker_on_windows_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(operating_system.UnsupportedSystem, match=r"the broker does not run on Windows: run it .*WSL"):
        Broker()
