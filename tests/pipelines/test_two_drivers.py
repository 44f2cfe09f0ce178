"""Two drivers of one pipeline whose locks are open: pauses, kills, old checkpoints. Every row is there once."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_child import ORIGIN
from support.brokers import unique
from support.killed_runs import count_as_killed
from support.publish import create_topic
from two_drivers import (
    Driver,
    DriverRounds,
    ReplayedTableRounds,
    ReplayedTopicRounds,
    SharedDriver,
    TableRounds,
    TopicRounds,
)

from odradek.client.admin import Admin

SCHEMAS = {"json": "id bigint", "avro": '{"type":"record","name":"R","fields":[{"name":"id","type":"long"}]}'}
PATIENT = {"spark.python.authenticate.socketTimeout": "300s"}
"""Java waits this long for its Python workers, also while they are stopped or the machine is busy."""
SHORT_SEEDS = 3, 4
ROUNDS = int(os.environ.get("ODRADEK_DRIVER_ROUNDS", "8"))


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Driver]]:
    place = tmp_path_factory.mktemp("drivers")
    both = Driver(place / "first", PATIENT), Driver(place / "second", PATIENT)
    yield both
    for one in both:
        one.kill()


@pytest.mark.claim(102, 103)
def test_two_rounds_of_two_drivers(
    spark: Any, bootstrap: str, admin: Admin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver is paused in one round and killed in the next one. The second driver is this process."""
    count_as_killed(monkeypatch)
    topic = unique("two")
    create_topic(bootstrap, topic, 2)
    given = {
        "bootstrap_servers": bootstrap, "topics": topic, "group": unique("g"), "output": str(tmp_path / "table"),
        "options": {"maxOffsetsPerTrigger": "60"}, "value_format": "raw",
        "fence_commits": True,
    }  # fmt: skip
    first = Driver(tmp_path / "first", PATIENT)
    rounds = TableRounds(tmp_path, admin, (first, SharedDriver(spark)), given)
    try:
        assert [rounds.a_round(random.Random(seed)) for seed in SHORT_SEEDS] == ["", ""], rounds.history
    finally:
        first.go_on()
        first.kill()
    assert [one.split(",")[0] for one in rounds.history if one.startswith(("first p", "first k"))] == [
        "first paused",
        "first killed",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("values", ["json", "avro"])
@pytest.mark.parametrize("writer", ["workers", "spark"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_rounds_of_two_drivers(
    table_format: str,
    writer: str,
    values: str,
    drivers: tuple[Driver, Driver],
    bootstrap: str,
    admin: Admin,
    tmp_path: Path,
) -> None:
    run_rounds(table_format, writer, range(ROUNDS), drivers, bootstrap, admin, tmp_path, values)


def foreign_commit(output: Path) -> None:
    """Makes a version of a Delta table as another writer does: without a state of ours."""
    from deltalake import DeltaTable

    if DeltaTable.is_deltatable(str(output)):
        log = DeltaTable(output)
        log.create_write_transaction([], "append", log.schema(), [])


def run_rounds(
    table_format: str,
    writer: str,
    seeds: range,
    drivers: tuple[Driver, Driver],
    bootstrap: str,
    admin: Admin,
    tmp_path: Path,
    values: str = "json",
) -> None:
    """A table whose checkpoint was put back refuses its runs from then on. The next round begins another table."""
    rounds = None
    for seed in seeds:
        if rounds is None:
            topic, output = unique("two"), tmp_path / f"{table_format}-{seed}"
            create_topic(bootstrap, topic, 2)
            given = {
                "bootstrap_servers": bootstrap, "topics": topic, "group": unique("g"), "output": str(output),
                "table_format": table_format, "writer": writer, "value_format": values, "schema": SCHEMAS[values],
                "options": {"maxOffsetsPerTrigger": "60"},
            }  # fmt: skip
            rounds = TableRounds(tmp_path, admin, drivers, given)
        foreign = functools.partial(foreign_commit, rounds.output) if table_format == "delta" else None
        refused = rounds.a_round(random.Random(f"{table_format} {writer} {seed}"), foreign)
        print(seed, rounds.history[-6:], flush=True)
        if refused:
            assert "\n" not in refused
            assert "adopt" in refused, "only a table whose checkpoint was put back refuses, and it says what helps"
            assert "the old checkpoint is put back" in rounds.history, refused
            rounds = None


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["workers", "spark"])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_rounds_of_two_replays_into_a_table(
    table_format: str, writer: str, drivers: tuple[Driver, Driver], bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    topic = unique("two")
    create_topic(bootstrap, topic, 2)
    given = {
        "job": "replay", "bootstrap_servers": bootstrap, "topics": topic, "output": str(tmp_path / "table"),
        "table_format": table_format, "writer": writer,
    }  # fmt: skip
    complete_rounds(ReplayedTableRounds(tmp_path, admin, drivers, given), f"replay {table_format} {writer}")


@pytest.mark.slow
@pytest.mark.parametrize("job", ["replay", "transform", "query"])
def test_rounds_of_two_drivers_into_a_topic(
    job: str, drivers: tuple[Driver, Driver], bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    """An old copy of the checkpoint ends the work on a target topic: the later runs refuse it."""
    numbers = iter(range(ROUNDS))
    done = 0
    while done < ROUNDS:
        topic, target = unique("two"), unique("rows")
        create_topic(bootstrap, topic, 2)
        create_topic(bootstrap, target, 3)
        given: dict[str, Any] = {"job": job, "bootstrap_servers": bootstrap, "topics": topic, "to_topic": target}
        if job == "replay":
            given |= {"exactly_once": True, "batch_size": "500"}
            rounds: DriverRounds = ReplayedTopicRounds(tmp_path, admin, drivers, given)
        else:
            given |= {"group": unique("g"), "checkpoint": str(tmp_path / f"checkpoint-{done}")}
            if job == "transform":
                given |= {"sql": f"SELECT {ORIGIN} FROM records", "options": {"maxOffsetsPerTrigger": "60"}}
            rounds = TopicRounds(tmp_path, admin, drivers, given)
        done += complete_rounds(rounds, job, numbers)


def complete_rounds(rounds: DriverRounds, name: str, numbers: Iterable[int] = range(ROUNDS)) -> int:
    """Runs rounds until one ends with a refusal. Returns their number."""
    done = 0
    for number in numbers:
        refused = rounds.a_round(random.Random(f"{name} {number}"))
        done += 1
        print(name, number, rounds.history[-6:], flush=True)
        if refused:
            assert "\n" not in refused
            assert "checkpoint" in refused, "only an old checkpoint is refused"
            assert "the old checkpoint is put back" in rounds.history, refused
            break
    return done
