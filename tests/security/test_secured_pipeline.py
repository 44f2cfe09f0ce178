"""``odradek pipeline ingest`` at a listener with TLS and SCRAM, and by OAUTHBEARER: no file, process list or line shows
the password, the client's secret or a token."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from support.oauth_broker import oauth_broker
from support.secured_listeners import SECRET, secured_listener

import odradek
from odradek.client.model import NewTopic

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


class Login(NamedTuple):
    """``settings`` of a client, and what it must not show, as far as that exists yet."""

    settings: dict[str, str]
    secrets: Callable[[], list[str]]


@contextmanager
def by_scram(folder: Path) -> Iterator[Login]:
    with secured_listener(folder, "in", partitions=2) as (_, _, settings):
        yield Login(settings, lambda: [SECRET])


@contextmanager
def by_token(folder: Path) -> Iterator[Login]:
    with oauth_broker(folder) as world, odradek.Admin(world.settings) as admin:
        admin.create_topics([NewTopic("in", 2)])
        yield Login(world.settings, lambda: world.secrets)


@pytest.mark.parametrize(
    ("login_by", "more"),
    [
        (by_scram, []), (by_scram, ["--writer", "spark"]), (by_scram, ["--table-format", "delta"]),
        (by_scram, ["--fence-commits"]), (by_token, []), (by_token, ["--writer", "spark"]),
    ],
)  # fmt: skip
def test_ingest_shows_no_password(
    login_by: Callable[[Path], AbstractContextManager[Login]], more: list[str], tmp_path: Path
) -> None:
    file, events = tmp_path / "client.properties", tmp_path / "events"
    events.mkdir()
    with login_by(tmp_path / "authority") as (settings, secrets):
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
    hidden = [one.encode() for one in secrets()]
    assert [one for one in hidden if one in seen + printed] == []
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path != file]
    assert any(path.is_relative_to(events) for path in kept), "Spark has written its event log"
    for path in kept:
        data = path.read_bytes()
        assert [one for one in hidden if one in data] == [], path
