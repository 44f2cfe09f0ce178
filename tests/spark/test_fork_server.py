"""Forks that behave like ``python -m``: the tests' brokers and commands, and the processes of the shared session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually
from support.fork_server import EMPTY, ForkServer
from support.forks import plain_brokers

from odradek.testing.process import BrokerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are plain Pythons on other systems")

_MODULE = """\
import os, sys, time
print(sys.argv[1:], os.environ["GIVEN"], os.getcwd(), sys.stdin.read())
print("to the log", file=sys.stderr)
if sys.argv[1] == "shows":
    print("shown", end="")
    time.sleep(0.2)
    os._exit(0)
if sys.argv[1] == "waits":
    print(os.getpid(), flush=True)
    time.sleep(100)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = ForkServer(EMPTY)
    path = tmp_path_factory.mktemp("forks") / "python"
    server.write_program(path)
    yield str(path)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_end_the_fork(python: str, tmp_path: Path, number: int) -> None:
    environment = os.environ | {"GIVEN": "", "PYTHONPATH": str(tmp_path)}
    line = [python, "-m", "a_module", "waits"]
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, env=environment, text=True, **given) as caller:
        assert caller.stdout is not None
        caller.stdout.readline()
        child = int(caller.stdout.readline())
        caller.send_signal(number)
        expected = {signal.SIGINT: 1, signal.SIGTERM: 256 - signal.SIGTERM, signal.SIGKILL: -signal.SIGKILL}
        assert caller.wait(60) == expected[signal.Signals(number)]
    eventually(lambda: not Path(f"/proc/{child}").exists(), what="the end of the fork")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_the_streams_are_those_of_a_new_python(python: str, tmp_path: Path, unbuffered: str) -> None:
    """The streams have the same buffering. The exit code is the same if the last bytes cannot be written."""
    environment = os.environ | {"GIVEN": "", "PYTHONPATH": str(tmp_path), "PYTHONUNBUFFERED": unbuffered}
    given: dict[str, Any] = {"env": environment, "stdin": subprocess.DEVNULL, "text": True}
    shown, full = [], []
    for program in (sys.executable, python):
        line = [program, "-m", "a_module"]
        done = subprocess.run([*line, "shows"], capture_output=True, check=False, **given)
        shown.append(done.stdout.endswith("shown"))
        with Path("/dev/full").open("wb") as stdout:
            done = subprocess.run([*line, "0"], stdout=stdout, stderr=subprocess.PIPE, check=False, **given)
        full.append((done.returncode, "No space left on device" in done.stderr))
    assert shown == [bool(unbuffered)] * 2
    assert full == [(1 if unbuffered else 120, True)] * 2


def test_a_broker_of_the_tests_is_a_fork_and_starts_again_after_a_kill(tmp_path: Path) -> None:
    for number, is_plain in enumerate((False, True)):
        with plain_brokers() if is_plain else contextlib.nullcontext():
            running = BrokerProcess(tmp_path / str(number)).start()
        assert ("support.fork_server" in Path(f"/proc/{running.pid}/cmdline").read_text()) is not is_plain
        assert os.getpgid(running.pid or 0) == running.pid, "Ctrl-C is not for the broker"
        process, port = running.process, running.port
        running.kill()
        assert process is not None
        assert process.returncode == -signal.SIGKILL
        assert (running.start().port, running.running, running.stop()) == (port, True, 0)


def test_the_session_s_workers_are_forks(spark: Any) -> None:
    def commands(rows: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in rows:
            yield pa.RecordBatch.from_pydict({"command": [Path("/proc/self/cmdline").read_text()]})

    (row,) = spark.range(1).mapInArrow(commands, "command string").collect()
    assert "support.fork_server" in row.command


def test_callers_killed_before_their_answer_end_nothing_else(tmp_path: Path) -> None:
    server = ForkServer(EMPTY)
    program = tmp_path / "python"
    server.write_program(program)
    environment = os.environ | {"GIVEN": "", "PYTHONPATH": str(tmp_path)}
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": environment}
    os.kill(server.pid, signal.SIGSTOP)
    callers = [subprocess.Popen([program, "-m", "a_module", "waits"], **given) for _ in range(3)]
    for caller in callers:
        # A caller closes its streams after it has sent its call.
        eventually(lambda caller=caller: not Path(f"/proc/{caller.pid}/fd/1").exists(), what="the caller's call")
        caller.kill()
        caller.wait(60)
    os.kill(server.pid, signal.SIGCONT)
    done = subprocess.run([program, "-m", "a_module", "3", "x"], check=False, timeout=60, **given)
    assert done.returncode == 3
    for caller in callers:
        assert caller.stdout is not None
        with caller.stdout as output:
            output.read()  # ends when the child that has the pipe ends
    server.close()
