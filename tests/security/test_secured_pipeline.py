"""``odradek pipeline ingest`` at a listener with TLS and SCRAM: no file, process list or line shows the password."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.certificates import Authority
from support.secured_listeners import SECRET, USER, Listeners, secure_settings, server
from support.secured_proxy import Users

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
    authority = Authority(tmp_path / "authority")
    authority.issue("broker")
    listeners = Listeners()
    listeners.broker.create_topic("in", partitions=2)
    settings = secure_settings(authority)
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    events = tmp_path / "events"
    events.mkdir()
    with listeners.secured(context=server(authority), users=Users(USER, SECRET)) as proxy:
        with odradek.Producer({"bootstrap.servers": proxy.address, **settings}) as producer:
            for number in range(COUNT):
                producer.send("in", value=b"%d" % number)
        output = tmp_path / "table"
        command = [
            sys.executable, "-m", "odradek", "pipeline", "ingest", "-b", proxy.address, "--group", "lake",
            "--topics", "in", "--output", str(output), "--command-config", str(file),
            "--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events}", *more,
        ]  # fmt: skip
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path)
        seen = b""
        deadline = time.monotonic() + 240
        while running.poll() is None:
            assert time.monotonic() < deadline
            seen += command_lines(running.pid)
            time.sleep(0.2)
        assert running.stdout is not None
        assert running.stderr is not None
        printed = running.stdout.read() + running.stderr.read()
        assert running.returncode == 0, printed.decode()
        with odradek.Admin({"bootstrap.servers": proxy.address, **settings}) as admin:
            assert sum(row.offset for row in admin.list_group_offsets("lake").values()) == COUNT
    assert SECRET.encode() not in seen + printed
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert any(path.is_relative_to(events) for path in kept), "Spark has written its event log"
    for path in kept:
        assert SECRET.encode() not in path.read_bytes(), path
    listeners.broker.close()
