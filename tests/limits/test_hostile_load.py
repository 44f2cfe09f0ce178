"""Requests that are valid and go for the extremes: the broker lives, answers or closes, and is afterwards as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import LONG_SCALE, SHORT_SCALE, Scale
from load import Load
from target import GROWTH_BYTES

KEPT_BLOCKS, KEPT_BYTES = 500_000, 16 << 20
"""Small objects, and bytes of the heap, that may be kept. How many they are goes up and down with the caches: fetch
sessions of 20 MiB at most, and plans of commits of 20 MiB."""
FRAGMENTS_BYTES = 64 << 20
"""So much more of the process may be resident after 20,000 loads: Python returns memory in pieces of 1 MiB, each of
which stays as long as one object in it lives. docs/limits.md has the figures."""
FILES = 2000
"""So many files the broker may have open: requests for thousands of partitions come to this bound."""


def unharmed(directory: Path, count: int, warm_up: int, scale: Scale, growth_bytes: int) -> Load:
    """Runs so many loads against a broker, and holds it against what it was after the warm-up."""
    load = Load(directory, seed=15, scale=scale, files=FILES)
    try:
        load.start()
        load.warm_up()
        load.run(warm_up)
        assert load.faults == []
        load.tidy()
        before, held_before = load.settled(), load.broker.command("memory")
        load.run(count - warm_up)
        print(load.summary())
        assert load.faults == []
        load.tidy()
        more = load.growth(before)
        held = load.broker.command("memory")
        kept = {name: held[name] - held_before[name] for name in held}
        print(f"{more.resident:,} bytes more are resident; kept: {kept}")
        assert kept["blocks"] <= KEPT_BLOCKS
        assert kept["bytes"] <= KEPT_BYTES
        assert more.resident <= growth_bytes
        assert more.descriptors <= 0
        load.restart()
        assert load.tracebacks() == []
    finally:
        load.close()
    return load


def test_500_requests_at_the_extremes_of_their_schemas(tmp_path: Path) -> None:
    unharmed(tmp_path, 500, 150, SHORT_SCALE, GROWTH_BYTES)


@pytest.mark.slow
def test_20_000_requests_at_the_extremes_of_their_schemas(tmp_path: Path) -> None:
    load = unharmed(tmp_path, 20_000, 2000, LONG_SCALE, FRAGMENTS_BYTES)
    assert load.answered["answered"] > 5000
