"""The plugin of ``make test-times`` counts the CPU time of each file, with all processes below this one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cpu_times import FileTimes, cpu_seconds, print_table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_living_and_ended_processes_count() -> None:
    before = cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-IS", "-c", BURN], check=True)
    ended = cpu_seconds(os.getpid())
    assert ended - before >= 0.25
    waits = BURN + "\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-IS", "-c", waits], stdin=-1, stdout=-1) as living:
        assert living.stdin is not None
        assert living.stdout is not None
        living.stdout.readline()
        assert cpu_seconds(os.getpid()) - ended >= 0.25
        living.stdin.write(b"\n")


def test_each_file_has_a_line_with_its_seconds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times: Any = FileTimes(tmp_path / "times")
    for nodeid in ("a.py::test_1", "a.py::test_2[b::c]", "b.py::test_1"):
        protocol = times.pytest_runtest_protocol(SimpleNamespace(nodeid=nodeid))
        next(protocol)
        if nodeid.endswith("c]"):
            subprocess.run([sys.executable, "-IS", "-c", BURN], check=True)
        with contextlib.suppress(StopIteration):
            protocol.send(True)
    times.pytest_sessionfinish()
    lines = (tmp_path / "times").read_text().splitlines()
    assert [line.partition("\t")[2] for line in lines] == ["collection", "a.py", "b.py"]
    assert float(lines[1].split()[0]) >= 0.25
    print_table(["1.50\ta.py", "2.00\tb.py", "1.00\ta.py"])
    assert capsys.readouterr().out.split() == ["4.5", "CPU", "seconds", "in", "all", "2.5", "a.py", "2.0", "b.py"]
