"""The directory in which numba stores compiled kernels, and the changes that make it compile a kernel again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.caches import KERNELS
from support.forks import odradek_command
from support.programs import run_python

import odradek


@pytest.mark.slow
def test_kernels_work_without_a_writable_cache_directory(tmp_path: Path) -> None:
    """A read-only package and no home directory, as in a container: the cache is in a private temporary directory."""
    program = """
import numba
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = [kind for kind in CacheImpl._locator_classes if "UserProvided" in kind.__name__]
from odradek.batches.arrow import RecordSet
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
(found,) = RecordSet(encode_batch([SimpleRecord(b"k", b"v")], now_ms=1)).record_batches("t", 0)
print(found.num_rows, numba.config.CACHE_DIR)
"""
    rows, cache = run_python(program, TMPDIR=str(tmp_path), NUMBA_CACHE_DIR="").split()
    assert rows == "1"
    assert Path(cache).parent == tmp_path
    assert any(Path(cache).rglob("*.nbi"))


LOWEST = """
from numba import types
from odradek.batches.kernels.kernel_cache import kernel

@kernel(types.int64(types.int64))
def grown(number):
    return number + 1
"""
MIDDLE = """
import numpy as np
from numba import types
from odradek.batches.kernels.kernel_cache import kernel
from lowest import grown

FACTOR = 2
TABLE = np.array([0, 10])

@kernel(types.int64(types.int64))
def scaled(number):
    return grown(number) * 100
"""
HIGHEST = """
from numba import types
from odradek.batches.kernels.kernel_cache import kernel
from middle import FACTOR, TABLE, scaled

@kernel(types.int64(types.int64))
def total(number):
    return scaled(number) * FACTOR + TABLE[1]
"""
PROGRAM = """
import logging, sys
logging.basicConfig(format="%(message)s", level=logging.INFO, stream=sys.stdout)
from highest import total
print(total(1), sum(total.stats.cache_misses.values()))
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three files of kernels, each of which uses the one before."""
    found = {name: tmp_path / f"{name}.py" for name in ("lowest", "middle", "highest")}
    for path, text in zip(found.values(), (LOWEST, MIDDLE, HIGHEST), strict=True):
        path.write_text(text)
    return found


def run_kernels(files: dict[str, Path]) -> list[str]:
    """The lines of a process: the log, then the result and how many kernels of the highest file were compiled.

    The process is a fork that has loaded numba, and none of the files."""
    folder = files["highest"].parent
    (folder / "program.py").write_text(f"import sys; sys.dont_write_bytecode = True\n{PROGRAM}")
    line = [odradek_command()[0], "-m", "program"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_is_compiled_again_when_another_file_changes(files: dict[str, Path]) -> None:
    """numba checks only the kernel's own file, and would run the earlier code of the other files."""
    said, result = run_kernels(files)
    assert (said.startswith("numba compiles kernels, which takes seconds (once; "), result) == (True, "410 1")
    assert run_kernels(files) == ["410 0"]
    for name, old, new, expected in [
        ("lowest", "number + 1", "number + 2", "610 1"),  # a function that a function calls
        ("middle", "FACTOR = 2", "FACTOR = 3", "910 1"),  # a constant
        ("middle", "0, 10", "0, 20", "920 1"),  # an element of a table
    ]:
        files[name].write_text(files[name].read_text().replace(old, new))
        assert run_kernels(files)[-1] == expected


def test_every_kernel_is_found_by_the_next_process() -> None:
    """The texts that describe what a kernel uses are the same in each process."""
    program = "import logging; logging.basicConfig(level=logging.INFO)\n" + "\n".join(
        f"import {name}" for name in KERNELS
    )
    program = f"import sys; sys.stderr = sys.stdout\n{program}"
    if run_python(program) != "":  # nothing has compiled them before
        assert run_python(program) == ""


def test_numbas_own_cache_is_used_for_no_kernel() -> None:
    source = Path(odradek.__file__).parent
    assert [path.name for path in source.rglob("*.py") if "cache=True" in path.read_text()] == []


def test_every_module_with_kernels_is_compiled_before_the_tests() -> None:
    source = Path(odradek.__file__).parent
    found = {
        ".".join(path.relative_to(source.parent).with_suffix("").parts)
        for path in source.rglob("*.py")
        if "@kernel(" in path.read_text()
    }
    used = {"odradek.batches.columns.decode", "odradek.batches.kernels.varint_kernels"}
    assert found == {*KERNELS, *used, "odradek.pipelines.decoders.json_scan"}
