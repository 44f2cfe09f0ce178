"""Where numba keeps compiled kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import run_python


@pytest.mark.slow
def test_kernels_work_where_numba_finds_no_place_for_its_cache(tmp_path: Path) -> None:
    """A read-only package and no home directory, as in a container: compiled into a private temporary directory."""
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
