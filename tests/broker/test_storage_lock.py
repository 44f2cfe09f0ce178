"""The lock of a data directory while another process holds the lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from odradek.storage.disk.files import OsFiles

OURS = (
    "import pathlib; from odradek.storage.disk.files import OsFiles; lock = OsFiles().lock(pathlib.Path(sys.argv[1]))"
)
JAVAS = "import fcntl; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
"""The kind of lock that Java's FileChannel.tryLock takes, and that flock ignores on Linux."""


@pytest.mark.parametrize("lock", [OURS, JAVAS], ids=["a broker of ours", "a running Apache Kafka"])
def test_the_lock_of_another_process_is_respected_until_it_ends(tmp_path: Path, lock: str) -> None:
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
