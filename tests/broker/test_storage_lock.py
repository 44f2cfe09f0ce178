"""The lock of a data directory that another process holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.storage.files import OsFiles

OURS = "import pathlib; from odradek.storage.files import OsFiles; lock = OsFiles().lock(pathlib.Path(sys.argv[1]))"
JAVAS = "import fcntl; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
"""The kind of lock that Java's FileChannel.tryLock takes, and that flock ignores on Linux."""


@pytest.mark.parametrize("lock", [OURS, JAVAS], ids=["a broker of ours", "a running Apache Kafka"])
def test_a_lock_counts_and_ends_with_its_process(tmp_path: Path, lock: str) -> None:
    code = f"import sys; {lock}; print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(BlockingIOError):
            OsFiles().lock(tmp_path / ".lock")
        holder.kill()
        holder.wait()
    OsFiles().lock(tmp_path / ".lock").release()
