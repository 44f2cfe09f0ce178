"""Fixtures: the Python processes that Java starts for Spark come from a fork server (``support.fork_server``).

A query starts up to five of them, and each imports pyspark, pyarrow, pandas and numba for up to three seconds of a
processor.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
HOOK = TESTS / "support" / "python_start"
ADDRESS = "ODRADEK_TEST_FORK_SERVER"
# Java sets these for its Python processes.
_AS_JAVA = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def fork_server() -> Iterator[str]:
    """The address of the server, which ends with this process. Tests need not wait for its imports."""
    with tempfile.TemporaryDirectory(prefix="odradek-") as place:
        address = str(Path(place) / "forks")
        server = subprocess.Popen(
            [sys.executable, "-m", "support.fork_server", address],
            cwd=TESTS, env=os.environ | _AS_JAVA, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=0,
        )  # fmt: skip
        yield address
        server.communicate()


@contextlib.contextmanager
def from_server(address: str) -> Iterator[None]:
    """Java processes that start in this block use the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ADDRESS, address)
        patch.setenv("PYTHONPATH", str(HOOK), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module", autouse=True)
def python_starts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Java processes that a test of this module starts use the server.

    The parent of their Python processes is the server. Modules that look at parents set ``OWN_PYTHON_STARTS``.
    """
    if getattr(request.module, "OWN_PYTHON_STARTS", False):
        yield
        return
    with from_server(request.getfixturevalue("fork_server")):
        yield
