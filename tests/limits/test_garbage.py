"""What a request has held is free when it is answered. It does not wait for a full collection of garbage.

An error that is kept by the frame that caught it makes a cycle. A request of 90 MB stays in memory with it until the
next full collection, which an idle broker does not make for a long time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import Scale
from load import Load

WIDTH = 200
MOST_OBJECTS = 60
"""Of a request of `WIDTH` elements, each of which is an object."""


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    load = Load(tmp_path, seed=15, scale=Scale(widths=(WIDTH,), records=(1000,), partitions=(3,)))
    load.start()
    load.warm_up()
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
