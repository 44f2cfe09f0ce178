"""The cleaner as a separate process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.cleaning import busy_log, compact, contents, job_of

from odradek.storage.cleaning.jobs import Job


def test_the_process_writes_the_same_bytes_and_ends_with_its_stdin(tmp_path: Path) -> None:
    log = busy_log(tmp_path / "a-0", 4)
    _, job = job_of(log)
    assert Job.from_json(job.to_json()) == job
    command = [sys.executable, "-m", "odradek.storage.cleaning.cleaner"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job.to_json())
        process.stdin.flush()
        lines = process.stdout.read().decode().splitlines()
    assert process.returncode == 0
    assert '"end_offset": ' in lines[-1]
    written = {p.name.removesuffix(".cleaned"): p.read_bytes() for p in sorted(log.path.glob("*.cleaned"))}
    log.removals.discard_cleaned()
    compact(log)
    assert contents(log.path).items() >= written.items()
    # With this throttle the process would run for ever. It ends when its stdin ends.
    slow = Job(**{name: getattr(job, name) for name in job.__dataclass_fields__} | {"bytes_per_second": 1.0})
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(slow.to_json())
        process.stdin.close()
        assert process.wait(30) == 1
    # If its stdout is closed, the process ends without an error message.
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(job.to_json())
        process.stdin.flush()
        assert process.stderr.read() == b""
        assert process.wait(30) == 1
