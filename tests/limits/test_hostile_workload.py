"""Valid requests with extreme values: the broker survives, and returns the memory and files that the requests used."""

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
"""The allowed growth of resident memory after 20,000 workloads. Python returns memory to the system in arenas of 1 MiB,
and cannot return an arena with a live object. docs/limits.md has the figures."""
FILES = 2000
"""The limit of open files. Requests that create thousands of partitions reach this limit."""


def unharmed(directory: Path, count: int, warm_up: int, scale: Scale, growth_bytes: int) -> WorkloadRun:
    """Runs ``count`` workloads, and compares the broker's memory and files with those after ``warm_up`` workloads."""
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


def test_100_workloads_at_the_extremes_of_their_schemas_do_no_harm(tmp_path: Path) -> None:
    unharmed(tmp_path, 100, 40, SHORT_SCALE, GROWTH_BYTES)


@pytest.mark.slow
def test_20_000_workloads_at_the_extremes_of_their_schemas_do_no_harm(tmp_path: Path) -> None:
    workload = unharmed(tmp_path, 20_000, 2000, LONG_SCALE, FRAGMENTS_BYTES)
    assert workload.answered["answered"] > 5000
