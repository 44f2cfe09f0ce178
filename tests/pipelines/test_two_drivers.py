"""Two drivers of one table whose locks are open: pauses, kills, old checkpoints. Every row is in the table once."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import unique
from support.publish import create_topic
from two_drivers import Driver, TwoDriverRounds

from odradek.client.admin import Admin

ROUNDS = int(os.environ.get("ODRADEK_DRIVER_ROUNDS", "8"))


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Driver]]:
    place = tmp_path_factory.mktemp("drivers")
    both = Driver(place / "first"), Driver(place / "second")
    yield both
    for one in both:
        one.kill()


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["workers", "spark"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_rounds_of_two_drivers(
    table_format: str, writer: str, drivers: tuple[Driver, Driver], bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    """A table whose checkpoint was put back may refuse its runs from then on. The next round begins another table."""
    rounds = None
    for seed in range(ROUNDS):
        if rounds is None:
            topic, output = unique("two"), tmp_path / f"t{seed}"
            create_topic(bootstrap, topic, 2)
            given = {
                "bootstrap_servers": bootstrap, "topics": topic, "group": unique("g"), "output": str(output),
                "table_format": table_format, "writer": writer, "value_format": "json", "schema": "id bigint",
                "options": {"maxOffsetsPerTrigger": "60"},
            }  # fmt: skip
            rounds = TwoDriverRounds(tmp_path, admin, *drivers, given)
        refused = rounds.a_round(random.Random(f"{table_format} {writer} {seed}"))
        print(seed, rounds.history[-6:], flush=True)
        if refused:
            assert "\n" not in refused
            rounds = None
