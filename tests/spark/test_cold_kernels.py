"""A query whose workers compile kernels says so to the user of ``odradek.spark.session``."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.programs import run_python

from odradek.batches.kernels.kernel_loader import COMPILING

SPARK = """
import os, odradek
from odradek.spark.session import session
with odradek.Broker() as broker:
    with odradek.Producer(broker.bootstrap_servers) as producer:
        for _ in range(1_000):
            producer.send("t", os.urandom(4_000))
    spark = session("cold", master="local[1]")
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    print(spark.read.format("odradek").options(**options).load().count())
    spark.stop()
"""


@pytest.mark.slow
def test_a_query_with_cold_kernels_says_that_they_are_compiled(tmp_path: Path) -> None:
    program = f"import sys\nsys.stderr = sys.stdout\n{SPARK}"
    said = run_python(program, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()
    assert [line for line in said if line.startswith(COMPILING)] == said[:1]
    assert said[-1] == "1000"
