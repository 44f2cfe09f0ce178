"""Valid requests with extreme values: the broker survives, answers or closes the connection, and has its earlier state
afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import LONG_SCALE, SHORT_SCALE, Scale
from target import GROWTH_BYTES
from workload import WorkloadRun

KEPT_BLOCKS, KEPT_BYTES = 500_000, 16 << 20
"""The allowed growth of small objects, and of bytes on the heap. The number of objects varies with the caches: fetch
sessions of up to 20 MiB, and commit plans of up to 20 MiB."""
FRAGMENTS_BYTES = 64 << 20
"""The allowed growth of resident memory after 20,000 workloads. Python returns memory in pieces of 1 MiB, and one live
object keeps its piece. docs/limits.md has the figures."""
FILES = 2000
"""The limit of open files: requests for thousands of partitions reach it."""


def unharmed(directory: Path, count: int, warm_up: int, scale: Scale, growth_bytes: int) -> WorkloadRun:
    """Runs this number of workloads against a broker, and compares it with its state after the warm-up."""
    workload = WorkloadRun(directory, seed=15, scale=scale, files=FILES)
    try:
        workload.start()
        workload.warm_up()
        workload.run(warm_up)
        assert workload.faults == []
        workload.tidy()
        before, held_before = workload.settled(), workload.broker.command("memory")
        workload.run(count - warm_up)
        print(workload.summary())
        assert workload.faults == []
        workload.tidy()
        more = workload.growth(before)
        held = workload.broker.command("memory")
        kept = {name: held[name] - held_before[name] for name in held}
        print(f"{more.resident:,} bytes more are resident; kept: {kept}")
        assert kept["blocks"] <= KEPT_BLOCKS
        assert kept["bytes"] <= KEPT_BYTES
        assert more.resident <= growth_bytes
        assert more.descriptors <= 0
        workload.restart()
        assert workload.tracebacks() == []
    finally:
        workload.close()
    return workload


def test_500_requests_at_the_extremes_of_their_schemas_do_no_harm(tmp_path: Path) -> None:
    unharmed(tmp_path, 500, 150, SHORT_SCALE, GROWTH_BYTES)


@pytest.mark.slow
def test_20_000_requests_at_the_extremes_of_their_schemas_do_no_harm(tmp_path: Path) -> None:
    workload = unharmed(tmp_path, 20_000, 2000, LONG_SCALE, FRAGMENTS_BYTES)
    assert workload.answered["answered"] > 5000
