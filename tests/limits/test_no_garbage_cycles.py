"""The memory of a request is free when the request is answered, without a full garbage collection.

An error that is referenced by the frame that caught it forms a cycle. Such a cycle keeps a request of 90 MB in memory
until the next full collection, which an idle broker runs rarely.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile import Scale
from load import Load

WIDTH = 200
MOST_OBJECTS = 60
"""For a request of `WIDTH` elements, each of which is an object."""


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """One broker for all tests: its warm-up takes longer than the requests of one extreme."""
    scale = Scale(widths=(WIDTH,), records=(1000,), partitions=(3,))
    load = Load(tmp_path_factory.mktemp("garbage"), seed=15, scale=scale)
    load.start()
    load.warm_up(newest=1)
    load.broker.command("collect")
    yield load
    load.close()


@pytest.mark.parametrize("extreme", ["widest", "nested", "longest"])
def test_no_request_leaves_garbage_in_cycles(load: Load, extreme: str) -> None:
    left = {}
    for request in load.generator.of_each_api(extreme):
        load.single(request)
        count = load.broker.command("collect")
        if count > MOST_OBJECTS:
            left[str(request)] = count
    assert left == {}
