"""With too few file descriptors, a Delta table is refused in one line. Before, deltalake panicked: lines of Rust, and a
traceback."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from odradek.core.errors import StorageError
from odradek.text.table_paths import check_descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as on Linux")


def test_one_line_instead_of_a_panic(tmp_path: Path) -> None:
    columns = {"topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": pa.array([0], pa.int64())}
    deltalake.write_deltalake(tmp_path / "t", pa.table(columns))
    program = (
        "import resource, sys; from odradek.cli.main import run; import odradek.audit.verification, deltalake;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)); sys.exit(run(sys.argv[1:]))"
    )
    words = ["pipeline", "verify", str(tmp_path / "t")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "odradek: the limit of open files is too low for the package deltalake: raise it (ulimit -n), and run the "
        "command again\n"
    )


def test_the_check_leaves_nothing_open() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    check_descriptors.__wrapped__()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # The limit is of the number of a descriptor, and other tests may have left numbers free below the others.
        used = {int(one.name) for one in Path("/proc/self/fd").iterdir()}
        fourth_free = [number for number in range(len(used) + 4) if number not in used][3]
        resource.setrlimit(resource.RLIMIT_NOFILE, (fourth_free, hard))
        with pytest.raises(StorageError, match="raise it"):
            check_descriptors.__wrapped__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before)
