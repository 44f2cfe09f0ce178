"""The command line as a process: exit codes, one-line errors, a pipe without a reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_odradek_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "odradek.cli.main", "demo", "--qqq"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        2,
        "",
        "odradek: no such option --qqq (see odradek demo --help)\n",
    )


def test_errors_of_serve_are_reported_in_one_line_as_with_every_command(tmp_path: Path) -> None:
    for options, message in (
        (["--listen", "nowhere"], "--listen takes HOST:PORT, for example 127.0.0.1:9092, not 'nowhere'"),
        (["--listen", "127.0.0.1:99999"], "--listen takes HOST:PORT with a port up to 65535, not '127.0.0.1:99999'"),
        (["--config", "num.partitions=0", "--listen", "127.0.0.1:0"], "at least 1"),
    ):
        code = "import sys; from odradek.cli.main import run; sys.exit(run(sys.argv[1:]) + ('rich' in sys.modules))"
        line = ["serve", "--data-dir", str(tmp_path), *options]
        done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("odradek: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_output_without_a_reader_gives_no_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m odradek.cli.main --help | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
