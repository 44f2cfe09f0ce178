"""``odradek pipeline ingest`` at a listener with TLS and SCRAM: no file, process list or line shows the password."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.secured_listeners import SECRET, secured_listener

import odradek

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]
COUNT = 500


def command_lines(pid: int) -> bytes:
    """The command lines and the variables of a process and its children, as another process sees them."""
    found = b""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if pid in (int(process.name), parent):
                found += (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.parametrize("more", [[], ["--writer", "spark"], ["--table-format", "delta"], ["--fence-commits"]])
def test_ingest_shows_no_password(more: list[str], tmp_path: Path) -> None:
    file, events = tmp_path / "client.properties", tmp_path / "events"
    events.mkdir()
    with secured_listener(tmp_path / "authority", "in", partitions=2) as (_, _, settings):
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        with odradek.Producer(settings) as producer:
            for number in range(COUNT):
                producer.send("in", value=b"%d" % number)
        output = tmp_path / "table"
        command = [
            sys.executable, "-m", "odradek", "pipeline", "ingest", "-b", settings["bootstrap.servers"],
            "--group", "lake", "--topics", "in", "--output", str(output), "--command-config", str(file),
            "--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events}", *more,
        ]  # fmt: skip
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
        seen = b""
        deadline = time.monotonic() + 240
        while running.poll() is None:
            assert time.monotonic() < deadline
            seen += command_lines(running.pid)
            time.sleep(0.2)  # short commands of the run are seen, and a processor stays free for it
        assert running.stdout is not None
        assert running.stderr is not None
        printed = running.stdout.read() + running.stderr.read()
        assert running.returncode == 0, printed.decode()
        with odradek.Admin(settings) as admin:
            assert sum(row.offset for row in admin.list_group_offsets("lake").values()) == COUNT
    assert SECRET.encode() not in seen + printed
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert any(path.is_relative_to(events) for path in kept), "Spark has written its event log"
    for path in kept:
        assert SECRET.encode() not in path.read_bytes(), path
