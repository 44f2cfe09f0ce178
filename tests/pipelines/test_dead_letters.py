"""``--on-bad topic:NAME``: unreadable records are in a topic before their micro-batch is in the table, at least once.

The micro-batches run without Spark (``support/plain_engine``), with the code of the pipelines; one test runs Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from support import plain_engine
from support.brokers import unique
from support.publish import create_topic

from odradek import Admin, Producer, TopicPartition
from odradek.cli.main import run
from odradek.client.reader import read_range
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import LATEST
from odradek.pipelines import ingest, replay
from odradek.pipelines.replays.input import Replayed
from odradek.spark.writes import write_task as writes

GOOD, BAD = b'{"id": 1}', b"no JSON"


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name, value in plain_engine.replacements():
        monkeypatch.setattr(owner, name, value)


@pytest.fixture
def letters(bootstrap: str) -> str:
    name = unique("letters")
    create_topic(bootstrap, name)
    return name


@pytest.fixture
def filled(bootstrap: str, topic: str) -> str:
    """Ten records in each of two partitions; 3 and 7 of partition 1 are unreadable, and have a key and headers."""
    create_topic(bootstrap, topic, partitions=2)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for partition in (0, 1):
            for number in range(10):
                is_bad = partition == 1 and number in (3, 7)
                headers = {"trace": b"\xff%d" % number, "none": None} if is_bad else None
                producer.send(topic, BAD if is_bad else GOOD, key=b"k%d" % number, headers=headers, partition=partition)
    return topic


def given(topic: str, letters: str, table: Path, **more: Any) -> dict[str, Any]:
    into = {"topics": topic, "output": table, "value_format": "json", "on_bad": f"topic:{letters}"}
    return into | more


def read(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """The records of the topic's one partition."""
    tp = TopicPartition(topic, 0)
    with Admin(bootstrap) as admin:
        end = admin.list_offsets({tp: LATEST})[tp].offset
    found = read_range(bootstrap, tp, 0, end, columns=("key", "value", "headers"))
    return [row for batch in found for row in batch.to_pylist()]


def headers_of(letter: dict[str, Any]) -> dict[str, bytes | None]:
    return {one["key"]: one["value"] for one in letter["headers"]}


def table_of(folder: Path) -> list[dict[str, Any]]:
    rows = ds.dataset(folder, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.usefixtures("plain")
def test_letters_have_the_record_its_place_and_the_reason(
    bootstrap: str, filled: str, letters: str, group: str, tmp_path: Path
) -> None:
    done = ingest(bootstrap, group=group, **given(filled, letters, tmp_path / "t"))
    assert (done.rows, done.bad) == (20, 2)
    found = read(bootstrap, letters)
    assert [(one["key"], one["value"]) for one in found] == [(b"k3", BAD), (b"k7", BAD)]
    for letter, offset in zip(found, (3, 7), strict=True):
        assert headers_of(letter) == {
            "trace": b"\xff%d" % offset,
            "none": None,
            "odradek-topic": filled.encode(),
            "odradek-partition": b"1",
            "odradek-offset": b"%d" % offset,
            "odradek-error": b"it is not one JSON value",
        }
    rows = table_of(tmp_path / "t")
    assert len(rows) == 20, "each offset stays in the table"
    bad = [row for row in rows if row["error"] is not None]
    assert [(row["partition"], row["offset"], row["raw"], row["value"]) for row in bad] == [
        (1, 3, BAD, None), (1, 7, BAD, None),
    ]  # fmt: skip
    assert "headers" not in rows[0], "headers are read for the letters only"


@pytest.mark.usefixtures("plain")
def test_a_micro_batch_that_comes_again_sends_its_letters_again(
    bootstrap: str, filled: str, letters: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends between its letters and its entry, as if it were killed: the topic has the letters first."""

    class KilledError(Exception):
        """In place of a kill."""

    def kill(self: object, *given: object) -> None:
        assert len(read(bootstrap, letters)) == 2
        raise KilledError

    job = {"group": group, **given(filled, letters, tmp_path / "t")}
    with monkeypatch.context() as patch:
        patch.setattr("odradek.pipelines.commit.machine.CommitMachine._append", kill)
        with pytest.raises(KilledError):
            ingest(bootstrap, **job)
    assert ingest(bootstrap, **job).rows == 20
    assert [one["key"] for one in read(bootstrap, letters)] == [b"k3", b"k7"] * 2
    assert len(table_of(tmp_path / "t")) == 20
    assert ingest(bootstrap, **job).rows == 0
    assert len(read(bootstrap, letters)) == 4


@pytest.mark.usefixtures("plain")
def test_nothing_is_added_if_a_letter_cannot_be_sent(
    bootstrap: str, filled: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = unique("small")
    create_topic(bootstrap, small, **{"max.message.bytes": "100"})
    job = {"group": group, **given(filled, small, tmp_path / "t")}
    with pytest.raises(OdradekError, match=f"the dead letters cannot be sent to topic {small}: .*Nothing was") as said:
        ingest(bootstrap, **job)
    assert "\n" not in str(said.value)
    assert list((tmp_path / "t").glob("*.parquet")) == []
    with Admin(bootstrap) as admin:
        assert admin.list_group_offsets(group) == {}
    assert ingest(bootstrap, **job | {"on_bad": "keep"}).bad == 2
    assert read(bootstrap, small) == []
    assert not [options for _, options in writes._producers if options.topic == small], "no producer stays open"


@pytest.mark.usefixtures("plain")
def test_a_replay_sends_letters_too(bootstrap: str, filled: str, letters: str, tmp_path: Path) -> None:
    job = given(filled, letters, tmp_path / "t")
    done = replay(bootstrap, start="0", end="5", **job)
    assert isinstance(done, Replayed)
    assert done.rows == 10
    assert [one["key"] for one in read(bootstrap, letters)] == [b"k3"]
    replay(bootstrap, start="0", end="5", **job)
    assert len(read(bootstrap, letters)) == 1, "the table has this replay"


@pytest.mark.usefixtures("plain")
def test_many_letters_are_sent_while_a_task_reads(
    bootstrap: str, topic: str, letters: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no value can be read, the letters of a task do not wait in memory until its end."""
    create_topic(bootstrap, topic)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(3000):
            producer.send(topic, b"x" * 100, key=b"%d" % number)
    monkeypatch.setattr("odradek.pipelines.values.dead_letters._AT_ONCE_BYTES", 10_000)
    real, sizes = writes.write_task, []

    def write_task(options: Any, batches: Any) -> int:
        sizes.append(real(options, batches))
        return sizes[-1]

    monkeypatch.setattr(writes, "write_task", write_task)
    assert ingest(bootstrap, group=group, **given(topic, letters, tmp_path / "t", options=SMALL)).bad == 3000
    assert sum(sizes) == 3000
    assert len(sizes) > 1
    assert sorted(int(one["key"]) for one in read(bootstrap, letters)) == list(range(3000))


SMALL = {"kafka.max.partition.fetch.bytes": "20000"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"on_bad": "topic:"}, "on_bad topic:: give the name of a topic behind topic:"),
        ({"on_bad": "topics:x"}, "on_bad 'topics:x' is unknown; choose one of keep, fail, topic:NAME"),
        ({"on_bad": "topic:SOURCE"}, "the pipeline reads this topic, too"),
        ({"value_format": "raw"}, "is for values of json or avro: raw values are not read"),
        ({"writer": "spark"}, "only workers send records to a topic"),
        ({"topics": (), "subscribe_pattern": ".*"}, "the pipeline reads this topic, too"),
        ({"on_bad": "topic:no-such-topic"}, "unknown topic no-such-topic"),
    ],
)
def test_wrong_topics_and_options_are_refused_before_anything_is_written(
    bootstrap: str, filled: str, letters: str, group: str, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    job = given(filled, letters, tmp_path / "t") | changed
    job["on_bad"] = job["on_bad"].replace("SOURCE", filled)
    with pytest.raises((ConfigError, OdradekError), match=message) as said:
        ingest(bootstrap, group=group, **job)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "t").exists()


def test_the_command_with_spark(
    spark: object, bootstrap: str, filled: str, letters: str, group: str, tmp_path: Path, capsys: Any
) -> None:
    line = ["pipeline", "ingest", "-b", bootstrap, "--topics", filled, "--group", group]
    line += ["--output", str(tmp_path / "t"), "--value-format", "json", "--schema", "id bigint"]
    assert run([*line, "--on-bad", f"topic:{letters}"]) == 0
    assert f"2 records with an unreadable value: see columns error and raw, and topic {letters}." in (
        capsys.readouterr().out
    )
    assert len(read(bootstrap, letters)) == 2
