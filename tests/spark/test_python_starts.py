"""Python processes of the tests' fork server equal those that Java starts, except for their parent."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.python_starts import ADDRESS

SECRET = "secret"
PROBE = """
import json, os, resource, signal, sys

def main(infile, outfile):
    here = {name: os.readlink(f"/proc/self/fd/{name}") for name in (1, 2)}
    umask = os.umask(0)
    os.umask(umask)
    facts = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "umask": umask,
        "files": here,
        "flags": list(sys.flags),
        "signals": {n: str(signal.getsignal(n)) for n in (1, 2, 13, 15, 17)},
        "limits": resource.getrlimit(resource.RLIMIT_NOFILE),
        "session": os.getsid(0),
        "leads_group": os.getpgid(0) == os.getppid(),
        "own": sorted(name for name in sys.modules if name.split(".")[0] in ("odradek", "support", "sitecustomize")),
        "prepared": "pandas" in sys.modules,
        "hash": hash("odradek"),
    }
    outfile.write(json.dumps(facts).encode() + b"\\n")
    outfile.flush()
    infile.read()
"""


@contextlib.contextmanager
def daemon(place: Path, **given: Any) -> Iterator[subprocess.Popen[bytes]]:
    """PySpark's daemon, started as Java starts it."""
    (place / "pyspark_probe.py").write_text(PROBE)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(place)]))
    ours = {
        "PYTHONPATH": path,
        "PYTHON_WORKER_FACTORY_SECRET": SECRET,
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "YES",
    }
    line = [sys.executable, "-m", "pyspark.daemon", "pyspark_probe"]
    with (place / "err").open("wb") as err:
        process = subprocess.Popen(
            line, cwd=place, env=os.environ | ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, **given
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


@contextlib.contextmanager
def without_server() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(ADDRESS)
        patch.setenv("PYTHONPATH", os.environ["PYTHONPATH"].partition(os.pathsep)[2])
        yield


def worker(process: subprocess.Popen[bytes]) -> tuple[socket.socket, dict[str, Any]]:
    """A connection to a new worker, and its facts."""
    assert process.stdout is not None
    port = int.from_bytes(process.stdout.read(4), "big")
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(len(SECRET).to_bytes(4, "big") + SECRET.encode())
    with connection.makefile("rb") as received:
        received.read(4)  # its process id
        assert received.read(4 + 2)[4:] == b"ok"
        facts: dict[str, Any] = json.loads(received.readline())
    return connection, facts


def facts_of(place: Path, **given: Any) -> dict[str, Any]:
    with daemon(place, **given) as process:
        connection, facts = worker(process)
        connection.close()
    del facts["files"]["1"]  # a new pipe each time
    return facts


def test_a_worker_is_as_java_starts_it(tmp_path: Path) -> None:
    with without_server():
        java = facts_of(tmp_path, umask=0o027)
    ours = facts_of(tmp_path, umask=0o027)
    assert java.pop("prepared") is False
    assert ours.pop("prepared") is True
    assert ours == java


def test_the_server_refuses_other_limits(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)))
    assert facts["prepared"] is False
    assert facts["limits"] == [512, 512]


@pytest.mark.parametrize(("end", "code"), [("input", 1), ("SIGTERM", 1), ("SIGKILL", -signal.SIGKILL)])
@pytest.mark.parametrize("prepared", [True, False])
def test_an_end_is_passed_on(tmp_path: Path, end: str, code: int, prepared: bool) -> None:
    """By the pipe or by a signal, as Java ends it; the worker ends, too."""
    with contextlib.nullcontext() if prepared else without_server(), daemon(tmp_path) as process:
        connection, facts = worker(process)
        assert facts["prepared"] is prepared
        assert process.stdin is not None
        process.stdin.close() if end == "input" else process.send_signal(signal.Signals[end])
        assert process.wait(60) == code
        with connection:
            if end == "SIGKILL":  # the worker sees the end of Java's connection
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(60)
            assert connection.recv(1) == b""
