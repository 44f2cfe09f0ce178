"""Drivers that change a table's columns in processes: kill -9 and SIGSTOP at each operation of the commit, and drivers
with an older schema. Each record is in the table once, and no record is there without its fields."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from evolutions import FORMATS, ID, READERS, TEXT, options_of, schema, send, values_by_offset, with_formats
from ingest_runs import committed
from support.brokers import unique
from support.fork_server import Fork
from support.forks import start_driver
from support.publish import create_topic

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition

Child = Fork | subprocess.Popen[bytes]
V1, V2, V3 = schema(ID), schema(ID, ("name", TEXT)), schema(ID, ("name", TEXT), ("more", TEXT))
MOMENTS = [
    ("WriteRows", "before"), ("WriteRows", "after"), ("publish", "before"), ("publish", "after"),
    ("CommitGroup", "before"), ("CommitGroup", "after"),
]  # fmt: skip


def some(moments: list[tuple[str, str]], *quick: tuple[str, str]) -> list[Any]:
    """The moments as parameters. Those that are not ``quick`` are for the long suite."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(one, marks=marks[one in quick], id=" ".join(one)) for one in moments]


def said_by(child: Child) -> dict[str, Any]:
    """Waits for the end of a run. Returns the last line of what it said."""
    child.wait(timeout=300)  # the few lines that it says fit into the pipe
    assert child.stdout is not None
    found: dict[str, Any] = json.loads(child.stdout.read().splitlines()[-1])
    return found


class Runs:
    """Runs of one table. ``given``: their common keywords."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.stopped: list[Child] = []

    def begin(self, schema_text: str, **more: Any) -> Child:
        return start_driver("evolution_child", json.dumps(self.given | {"schema": schema_text} | more))

    def run(self, schema_text: str, **more: Any) -> dict[str, Any]:
        return said_by(self.begin(schema_text, **more))

    def stop_at(self, moment: tuple[str, str], schema_text: str, **more: Any) -> Child:
        """Begins a run that stops itself there."""
        halt = {"operation": moment[0], "when": moment[1], "signal": "STOP"}
        child = self.begin(schema_text, halt=halt, **more)
        self.stopped.append(child)
        assert child.stdout is not None
        assert "halted" in json.loads(child.stdout.readline())
        return child

    def end(self, child: Child) -> dict[str, Any]:
        """Lets a stopped run go on to its end."""
        child.send_signal(signal.SIGCONT)
        return said_by(child)


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runs(kind: str, bootstrap: str, tmp_path: Path) -> Iterator[Runs]:
    topic = unique("evolves")
    create_topic(bootstrap, topic, 1)
    found = Runs(options_of(kind, tmp_path, bootstrap, topic))
    send(bootstrap, topic, V1, {"id": 0})
    assert found.run(V1)["rows"] == 1
    yield found
    for child in found.stopped:
        if child.poll() is None:
            child.kill()
            child.send_signal(signal.SIGCONT)
            child.wait(30)


def check(kind: str, root: Path, names: list[str], expected: dict[int, dict[str, Any]]) -> None:
    for reader in READERS[kind]:
        assert values_by_offset(READERS[kind][reader](root), names) == expected, reader


@pytest.mark.parametrize("moment", some(MOMENTS, ("publish", "before")))
def test_a_driver_is_killed_while_it_changes_the_columns(
    moment: tuple[str, str], kind: str, runs: Runs, bootstrap: str, tmp_path: Path, admin: Admin
) -> None:
    topic = runs.given["topics"]
    send(bootstrap, topic, V2, {"id": 1, "name": "b"})
    halt = {"operation": moment[0], "when": moment[1], "signal": "KILL"}
    assert "halted" in runs.run(V2, schema_evolution="add", halt=halt)
    if moment in MOMENTS[3:]:  # it is published
        assert "the schema lacks it" in runs.run(V1)["error"]
    else:
        assert "--schema-evolution add adds it" in runs.run(V2)["error"]
    assert "error" not in runs.run(V2, schema_evolution="add")
    check(kind, tmp_path, ["id", "name"], {0: {"id": 0, "name": None}, 1: {"id": 1, "name": "b"}})
    assert committed(admin, topic) == {TopicPartition(topic, 0): 2}


@pytest.mark.parametrize("moment", some(MOMENTS[:4], ("WriteRows", "after")))
def test_a_paused_driver_has_the_older_schema(
    moment: tuple[str, str], kind: str, runs: Runs, bootstrap: str, tmp_path: Path, admin: Admin
) -> None:
    """It was paused before the other one changed the columns. It adds nothing afterwards, and removes no file."""
    topic = runs.given["topics"]
    send(bootstrap, topic, V1, {"id": 1})
    older = runs.stop_at(moment, V1)
    newer = runs.run(V2, schema_evolution="add")
    assert "error" not in newer or moment == ("publish", "after"), newer
    said = runs.end(older)
    assert "error" in said or moment == ("publish", "after"), said
    send(bootstrap, topic, V2, {"id": 2, "name": "c"})
    assert "error" not in runs.run(V2, schema_evolution="add")
    assert "the schema lacks it" in runs.run(V1, schema_evolution="add")["error"]
    found = {0: {"id": 0}, 1: {"id": 1}, 2: {"id": 2}}
    ids = values_by_offset(next(iter(READERS[kind].values()))(tmp_path), ["id"])
    assert {at: row for at, row in ids.items() if at != 1} == {at: row for at, row in found.items() if at != 1}
    assert set(ids) == set(found), "record 1 is there once, perhaps as an unreadable value of the newer schema"
    assert committed(admin, topic) == {TopicPartition(topic, 0): 3}


@pytest.mark.parametrize(("moment", "kind"), with_formats(MOMENTS[:3]), indirect=["kind"])
def test_two_drivers_change_the_columns_at_the_same_time(
    moment: tuple[str, str], kind: str, runs: Runs, bootstrap: str, tmp_path: Path
) -> None:
    """One adds a column, and is paused; the other adds two. The first one publishes nothing afterwards."""
    topic = runs.given["topics"]
    send(bootstrap, topic, V3, {"id": 1, "name": "b", "more": "m"})
    first = runs.stop_at(moment, V2, schema_evolution="add")
    assert "error" not in runs.run(V3, schema_evolution="add")
    assert "error" in runs.end(first)
    check(kind, tmp_path, ["id", "name", "more"],
          {0: {"id": 0, "name": None, "more": None}, 1: {"id": 1, "name": "b", "more": "m"}})  # fmt: skip
    assert runs.run(V3)["rows"] == 0
