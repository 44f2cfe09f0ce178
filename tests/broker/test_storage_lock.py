"""The lock of a data directory that another process holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.storage.files import OsFiles


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = "import os, sys, pathlib; from odradek.storage.files import OsFiles; "
    code += "lock = OsFiles().lock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            OsFiles().lock(tmp_path / ".lock")
        holder.kill()
        holder.wait()
    OsFiles().lock(tmp_path / ".lock").release()


def test_the_lock_of_a_running_apache_kafka_counts(tmp_path: Path) -> None:
    """Java's FileChannel.tryLock takes a lock of this kind, which flock ignores on Linux."""
    code = "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB); "
    code += "print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kafka:
        assert kafka.stdout is not None
        assert kafka.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            OsFiles().lock(tmp_path / ".lock")
        kafka.kill()
        kafka.wait()
    OsFiles().lock(tmp_path / ".lock").release()
