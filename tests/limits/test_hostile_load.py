"""Requests that are valid and go for the extremes: the broker lives, answers or closes, and is afterwards as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import LONG_SCALE, SHORT_SCALE, Scale
from load import Load
from target import GROWTH_BYTES

FILES = 2000
"""So many files the broker may have open: requests for thousands of partitions come to this bound."""


def unharmed(directory: Path, count: int, warm_up: int, scale: Scale) -> Load:
    """Runs so many loads against a broker, and holds it against what it was after the warm-up."""
    load = Load(directory, seed=15, scale=scale, files=FILES)
    try:
        load.start()
        load.warm_up()
        load.run(warm_up)
        assert load.faults == []
        load.tidy()
        before = load.settled()
        load.run(count - warm_up)
        print(load.summary())
        assert load.faults == []
        load.tidy()
        more = load.growth(before)
        assert more.resident <= GROWTH_BYTES
        assert more.descriptors <= 0
        load.restart()
        assert load.tracebacks() == []
    finally:
        load.close()
    return load


def test_500_requests_at_the_extremes_of_their_schemas(tmp_path: Path) -> None:
    unharmed(tmp_path, 500, 150, SHORT_SCALE)


@pytest.mark.slow
def test_20_000_requests_at_the_extremes_of_their_schemas(tmp_path: Path) -> None:
    load = unharmed(tmp_path, 20_000, 2000, LONG_SCALE)
    assert load.answered["answered"] > 5000
