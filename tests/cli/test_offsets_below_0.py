"""Offsets below 0 that other clients commit are no commit, in each reader and tool: as in Kafka's own.

kafkajs commits -2 to begin at the log start. Kafka's consumer finds no committed offset then; its tools print ``-``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.brokers import eventually, unique
from support.publish import commit_raw

import odradek
from odradek import Admin, Consumer, Producer, TopicPartition, aio
from odradek.cli.main import run
from odradek.client import NoOffsetForPartition
from odradek.client.config import as_config
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.http.json_api import group_detail
from odradek.monitor.http.metrics import MetricsOptions, exposition
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions

Capture = pytest.CaptureFixture[str]
BELOW = [-2, -1, -(1 << 63)]
RECORDS, READ = 10, 4
"""Records of each partition, and the committed offset of partition 1. Partition 0 has one below 0."""


class Place(NamedTuple):
    bootstrap: str
    topic: str

    def group(self, offset: int) -> str:
        return f"{self.topic}-{BELOW.index(offset)}"


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """For each offset a group that commits 7 in partition 0, then this offset, and 4 in partition 1."""
    with odradek.Broker() as broker:
        found = Place(broker.bootstrap_servers, unique("below"))
        broker.create_topic(found.topic, 2)
        with Producer(found.bootstrap) as producer:
            for number in range(2 * RECORDS):
                producer.send(found.topic, b"%d" % number, partition=number % 2)
        for offset in BELOW:
            for row in ((7, -1, ""), (offset, -1, "")):
                commit_raw(found.bootstrap, found.group(offset), found.topic, {0: row, 1: (READ, -1, "")})
        yield found


@pytest.fixture(params=BELOW)
def offset(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def shown(place: Place, capsys: Capture, *line: str) -> str:
    assert run([*line, "-b", place.bootstrap]) == 0
    return capsys.readouterr().out


def test_describe(place: Place, offset: int, capsys: Capture) -> None:
    group = place.group(offset)
    table = [line.split() for line in shown(place, capsys, "groups", "describe", group).splitlines()]
    assert [row[2:6] for row in table if row[1:2] == [place.topic]] == [["0", "-", "10", "-"], ["1", "4", "10", "6"]]
    for more in ([], ["--time"]):
        (found,) = json.loads(shown(place, capsys, "groups", "describe", group, "--json", *more))
        rows = {row["partition"]: row for row in found["partitions"]}
        assert (rows[0]["current_offset"], rows[0]["lag"]) == (None, None)
        assert (rows[1]["current_offset"], rows[1]["lag"], found["total_lag"]) == (4, 6, 6)
        assert rows[0].get("lag_ms") is None
    by_lag = shown(place, capsys, "groups", "describe", group, "--sort", "lag", "--time").split()
    assert str(offset) not in by_lag


def test_the_dump_has_the_bytes_as_they_are(place: Place, offset: int, capsys: Capture) -> None:
    """As the formatter of Kafka's console consumer."""
    out = shown(place, capsys, "offsets", "dump", "--group", place.group(offset))
    assert f"[{place.group(offset)},{place.topic},0]::OffsetAndMetadata(offset={offset}, " in out


def test_a_plan_an_undo_file_and_a_reset(place: Place, offset: int, tmp_path: Path, capsys: Capture) -> None:
    scope, group = ["--all-topics", "--to-current"], unique("copy")
    commit_raw(place.bootstrap, group, place.topic, {0: (offset, -1, ""), 1: (READ, -1, "")})
    assert sorted(shown(place, capsys, "groups", "reset", group, *scope, "--export").split()) == [
        f"{place.topic},0,{RECORDS}", f"{place.topic},1,{READ}",
    ]  # fmt: skip
    undo = tmp_path / "undo.csv"
    line = ["groups", "reset", group, "--all-topics", "--to-latest", "--execute", "--undo-file", str(undo)]
    out = shown(place, capsys, *line)
    assert undo.read_text().split() == [f"{place.topic},1,{READ}"]
    assert f"groups delete-offsets --group {group} --topic {place.topic}:0" in out
    assert str(offset) not in out.split()
    shown(place, capsys, "groups", "reset", group, "--from-file", str(undo), "--execute", "--undo-file", "/dev/null")
    shown(place, capsys, "groups", "delete-offsets", group, "--topic", f"{place.topic}:0", "--yes")
    with Admin(place.bootstrap) as admin:
        assert {tp.partition: one.offset for tp, one in admin.list_group_offsets(group).items()} == {1: READ}


def test_delete_offsets_removes_it(place: Place, offset: int, capsys: Capture) -> None:
    group = unique("deleted")
    commit_raw(place.bootstrap, group, place.topic, {0: (offset, -1, ""), 1: (READ, -1, "")})
    out = shown(place, capsys, "groups", "delete-offsets", group, "--topic", f"{place.topic}:0", "--yes")
    assert out == f"Deleted from group {group}: {place.topic}-0 (-).\n"
    with Admin(place.bootstrap) as admin:
        assert admin.group_commits(group).keys() == {TopicPartition(place.topic, 1)}


@pytest.mark.parametrize("source", ["topic", "fetch"])
def test_the_monitor_and_its_metrics(place: Place, source: str) -> None:
    tracker = GroupTracker(VerdictRules())
    reader = OffsetsTopicReader(as_config(place.bootstrap), tracker, ReaderOptions(source=source))
    eventually(lambda: reader.step() or reader.is_ready, what="a complete view")
    text = exposition(tracker, reader.groups, MetricsOptions("c", "partition"), is_up=True, poll_ms=1)
    for offset in BELOW:
        found = group_detail(reader, place.group(offset))
        assert found is not None
        assert found["summary"]["lag"] == RECORDS - READ
        assert found["findings"] == []
        assert [(row["partition"], row["committed_offset"]) for row in found["partitions"]] == [(1, READ)]
        lines = [line for line in text.splitlines() if f'"{place.group(offset)}"' in line]
        assert any('partition="1"' in line for line in lines)
        assert not any('partition="0"' in line for line in lines)


def test_top(place: Place, offset: int, capsys: Capture) -> None:
    found = json.loads(shown(place, capsys, "top", "--once", "--json", "--group", place.group(offset)))
    assert [row["partition"] for row in found["partitions"]] == [1]
    assert found["summary"]["lag"] == RECORDS - READ


def test_the_history(place: Place, offset: int, capsys: Capture, tmp_path: Path) -> None:
    """The table has the number as it is. No finding follows from it: no record was read again or passed yet."""
    import pyarrow.parquet as pq

    line = ["pipeline", "history", "--group", place.group(offset), "--json", "--output", str(tmp_path)]
    found = json.loads(shown(place, capsys, *line))
    assert [row for row in found["findings"] if row["kind"] in ("rewind", "jump")] == []
    commits = pq.read_table(tmp_path / "commits.parquet").to_pylist()
    assert [row["committed_offset"] for row in commits if row["partition"] == 0] == [7, offset]
    expiring = pq.read_table(tmp_path / "expiry.parquet").to_pylist()
    assert [row["partition"] for row in expiring] == [1]
    lags = [row for row in pq.read_table(tmp_path / "lag.parquet").to_pylist() if row["partition"] == 0]
    assert lags[-1]["lag"] is None


def test_a_consumer_finds_no_commit(place: Place, offset: int) -> None:
    """Kafka's consumer raises NoOffsetForPartitionException with auto.offset.reset=none."""
    first, second = TopicPartition(place.topic, 0), TopicPartition(place.topic, 1)
    settings: dict[str, Any] = {"group_id": place.group(offset), "enable_auto_commit": False}
    with Consumer(place.bootstrap, auto_offset_reset="none", **settings) as consumer:
        consumer.assign([first, second])
        with pytest.raises(NoOffsetForPartition, match=str(first)) as caught:
            consumer.poll(10)
        assert str(second) not in str(caught.value)
        assert consumer.committed([first, second]) == {first: None, second: odradek.OffsetAndMetadata(READ)}
    for reset, wanted in (("earliest", 0), ("latest", RECORDS)):
        with Consumer(place.bootstrap, auto_offset_reset=reset, **settings) as consumer:
            consumer.assign([first, second])
            assert (consumer.position(first), consumer.position(second)) == (wanted, READ)


def test_a_consumer_of_asyncio_finds_no_commit(place: Place, offset: int) -> None:
    first = TopicPartition(place.topic, 0)

    async def poll() -> None:
        async with aio.Consumer(place.bootstrap, auto_offset_reset="none", group_id=place.group(offset)) as consumer:
            await consumer.assign([first])
            await consumer.poll(10)

    with pytest.raises(NoOffsetForPartition, match=str(first)):
        asyncio.run(poll())


def test_a_table_of_what_a_group_has_still_to_read(place: Place, offset: int) -> None:
    group = place.group(offset)
    left = odradek.read_table(place.topic, place.bootstrap, start_group=group, columns=["partition"])
    assert left["partition"].to_pylist() == [0] * RECORDS + [1] * (RECORDS - READ)
    done = odradek.read_table(place.topic, place.bootstrap, end_group=group, columns=["partition"])
    assert done["partition"].to_pylist() == [1] * READ
