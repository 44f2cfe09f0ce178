"""The Python of the shared session's processes: forks that behave like ``python -m``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually
from support.fork_server import ForkServer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the session has a plain Python on other systems")

_MODULE = """\
import os, sys, time
print(sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.stdin.read())
print("to the log", file=sys.stderr)
if sys.argv[1] == "waits":
    print(os.getpid(), flush=True)
    time.sleep(100)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ForkServer(tmp_path_factory.mktemp("forks"))
    yield str(server.python)
    server.close()


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    (tmp_path / "a_module.py").write_text(_MODULE)


def test_a_fork_has_arguments_environment_folder_and_streams(python: str, tmp_path: Path) -> None:
    environment = os.environ | {"GIVEN": "ü", "PYTHONPATH": str(tmp_path)}
    for code in (0, 3):
        line = [python, "-m", "a_module", str(code), "x y"]
        given: dict[str, Any] = {"capture_output": True, "text": True, "cwd": tmp_path}
        done = subprocess.run(line, check=False, input="said", env=environment, **given)
        assert (done.returncode, done.stderr) == (code, "to the log\n")
        assert done.stdout == f"['{code}', 'x y'] ü {tmp_path} said\n"
    done = subprocess.run([python, "-c", "import sys; print(sys.executable)"], check=False, **given)
    assert (done.stdout, done.stderr) == (f"{sys.executable}\n", "")


def test_sigterm_ends_the_fork(python: str, tmp_path: Path) -> None:
    environment = os.environ | {"GIVEN": "", "PYTHONPATH": str(tmp_path)}
    line = [python, "-m", "a_module", "waits"]
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, env=environment, text=True, **given) as caller:
        assert caller.stdout is not None
        caller.stdout.readline()
        child = int(caller.stdout.readline())
        caller.send_signal(signal.SIGTERM)
        assert caller.wait(60) == 256 - signal.SIGTERM
    eventually(lambda: not Path(f"/proc/{child}").exists(), what="the end of the fork")


def test_the_session_s_workers_are_forks(spark: Any) -> None:
    def commands(rows: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in rows:
            yield pa.RecordBatch.from_pydict({"command": [Path("/proc/self/cmdline").read_text()]})

    (row,) = spark.range(1).mapInArrow(commands, "command string").collect()
    assert "support.fork_server" in row.command
