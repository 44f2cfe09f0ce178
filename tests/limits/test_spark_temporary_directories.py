"""Spark's temporary directories are removed after their processes have ended.

A process in another container is not visible and may still use its directory, so this directory is kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.spark import session as spark_session

MAKE = """
import os, sys
from odradek.spark import session
make = getattr(session, "make_scratch", None) or session._make_scratch
print(make(), flush=True)
sys.stdin.read()
"""


def make_scratch() -> Path:
    make: Callable[[], Path] = getattr(spark_session, "make_scratch", None) or spark_session._make_scratch
    return make()


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process with a temporary directory, and that directory."""
    with subprocess.Popen(
        [sys.executable, "-c", MAKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_the_directory_of_a_process_in_another_container_is_kept(
    other: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, theirs = other

    def hide(pid: int, number: int) -> Any:
        raise ProcessLookupError(pid)  # as for a process in another namespace

    monkeypatch.setattr(os, "kill", hide)
    ours = make_scratch()
    assert theirs.is_dir()
    assert ours.is_dir()
    assert ours != theirs


def test_the_directory_of_a_killed_process_is_removed(other: tuple[subprocess.Popen[str], Path]) -> None:
    process, theirs = other
    (theirs / "deep").mkdir()
    (theirs / "deep" / "file").write_text("x")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert theirs.is_dir()
    make_scratch()
    assert not theirs.exists()


def test_a_reused_pid_does_not_keep_the_directory(
    other: tuple[subprocess.Popen[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pid of a killed process may belong to a new process. With a check by pid, the directory would stay for
    ever."""
    process, theirs = other
    process.kill()
    process.wait()
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    make_scratch()
    assert not theirs.exists()


def test_one_process_keeps_all_of_its_directories() -> None:
    made = [make_scratch() for _ in range(3)]
    assert [one.is_dir() for one in made] == [True] * 3
    assert {one.stat().st_mode & 0o777 for one in made} == {0o700}


def test_a_directory_without_a_lock_is_not_removed(tmp_path: Path) -> None:
    """The directory may be from an older version, with the process id in its name, or it is new and not locked yet. A
    link to another directory is not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    (elsewhere / "kept").touch()
    left = tmp_path / "odradek-spark-999999999-x"
    left.mkdir()
    link = tmp_path / "odradek-spark-link"
    link.symlink_to(elsewhere)
    pipe = tmp_path / "odradek-spark-pipe"
    pipe.mkdir()
    os.mkfifo(pipe / "lock")
    make_scratch()
    assert left.is_dir()
    assert sorted(one.name for one in elsewhere.iterdir()) == ["kept", "lock"]


def test_a_forked_child_leaves_the_directory_to_its_parent(tmp_path: Path) -> None:
    code = f"""
import os, sys
{MAKE.replace("sys.stdin.read()", "")}
if os.fork() == 0:
    sys.exit(0)
os.wait()
print(len(os.listdir({str(tmp_path)!r})), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1"
    assert list(tmp_path.iterdir()) == []
