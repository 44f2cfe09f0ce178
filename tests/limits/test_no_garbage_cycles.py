"""The memory of a request is free after the reply, without a full garbage collection.

An exception and a Python stack frame that still refers to the exception form a cycle. Such a cycle keeps a request of
90 MB in memory until the next full collection, which an idle broker runs rarely.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile import Scale
from workload import WorkloadRun

WIDTH = 200
MOST_OBJECTS = 60
"""The allowed number of objects in cycles. A request of `WIDTH` elements has at least `WIDTH` objects."""


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkloadRun]:
    """One broker for all tests: its warm-up takes longer than the requests of one extreme."""
    scale = Scale(widths=(WIDTH,), records=(1000,), partitions=(3,))
    workload = WorkloadRun(tmp_path_factory.mktemp("garbage"), seed=15, scale=scale)
    workload.start()
    workload.warm_up(newest=1)
    workload.broker.command("collect")
    yield workload
    workload.close()


@pytest.mark.parametrize("extreme", ["widest", "nested", pytest.param("longest", marks=pytest.mark.slow)])
def test_no_request_leaves_garbage_in_cycles(workload: WorkloadRun, extreme: str) -> None:
    left = {}
    for request in workload.generator.of_each_api(extreme):
        workload.single(request)
        count = workload.broker.command("collect")
        if count > MOST_OBJECTS:
            left[str(request)] = count
    assert left == {}
