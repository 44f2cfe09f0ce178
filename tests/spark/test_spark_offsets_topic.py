"""``format("odradek-offsets")``: the offsets topic as DataFrames, equal to the tables of the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.brokers import RunningBroker, unique
from support.publish import create_topic

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.history import read_offset_history
from odradek.history.analysis import analyse_offset_history
from odradek.history.findings import FindingRules
from odradek.history.views import SCHEMAS, view
from odradek.pipelines.history.frames import analyse_on_spark, offset_history, stream_offset_history, table_of
from odradek.spark.offsets_source import parse_history_options

BROKER = {"kafka.bootstrap.servers": "h:1"}


def in_client(bootstrap: str, table: str, group: str) -> list[dict[str, Any]]:
    whole = read_offset_history(bootstrap, group=group)
    rows = pa.Table.from_batches([view(batch, table) for batch in whole.to_batches()], SCHEMAS[table]).to_pylist()
    return [row | {"kind": row.get("kind")} for row in rows]


def in_spark(frame: Any) -> list[dict[str, Any]]:
    return [row | {"kind": row.get("kind")} for row in frame.toArrow().to_pylist()]


def order(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as sorted texts. Both sides have times as UTC instants."""
    return sorted(repr(sorted(row.items())) for row in rows)


def committed(admin: Admin, bootstrap: str) -> tuple[str, str]:
    """A group with three commits of partition 0, and a commit and a tombstone of partition 1."""
    topic, group = unique("history"), unique("history-group")
    create_topic(bootstrap, topic, partitions=2)
    for offset in (5, 7, 6):
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset, 0, "note")})
    admin.alter_group_offsets(group, {TopicPartition(topic, 1): OffsetAndMetadata(1)})
    admin.delete_group_offsets(group, [TopicPartition(topic, 1)])
    return topic, group


@pytest.mark.claim(82, 83, 85, part=True)
def test_tables_equal_those_of_the_client(spark: Any, admin: Admin, bootstrap: str) -> None:
    """Spark, too, has one row for each commit record."""
    topic, group = committed(admin, bootstrap)
    for table in ("records", "commits", "tombstones"):
        frame = offset_history(spark, bootstrap, table, group=group)
        assert order(in_spark(frame)) == order(in_client(bootstrap, table, group)), table
    commits = in_spark(offset_history(spark, bootstrap, "commits", group=group))
    assert [(row["topic"], row["partition"], row["committed_offset"]) for row in commits] == [
        (topic, 0, 5), (topic, 0, 7), (topic, 0, 6), (topic, 1, 1),
    ]  # fmt: skip
    assert {row["metadata"] for row in commits} == {"note", ""}


def test_a_stream_begins_at_the_start_and_continues(spark: Any, admin: Admin, bootstrap: str, tmp_path: Path) -> None:
    topic, group = committed(admin, bootstrap)
    seen: list[tuple[int, int]] = []

    def run() -> None:
        frame = stream_offset_history(spark, bootstrap, "commits", group=group)
        query = (
            frame.writeStream.foreachBatch(
                lambda batch, _: seen.extend((row.partition, row.committed_offset) for row in batch.collect())
            )
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    run()
    assert seen == [(0, 5), (0, 7), (0, 6), (1, 1)]
    admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(8)})
    run()
    assert seen[4:] == [(0, 8)]


@pytest.mark.claim(77, part=True)
def test_without_any_group_there_are_no_rows(spark: Any, own_broker: Callable[..., RunningBroker]) -> None:
    """The first request for a coordinator creates the topic."""
    running = own_broker()
    assert offset_history(spark, running.bootstrap, "commits").collect() == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "comits"}, "table: expected records, commits"),
        ({"subscribe": "orders"}, "subscribe is not for odradek-offsets"),
        ({"pushFilters": "true"}, "pushFilters is not for"),
        ({"commitOffsets": "true"}, "each commit would be a new record"),
        ({"grup": "g"}, "unknown option grup"),
    ],
)
def test_errors_name_options_that_do_not_apply(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){said}"):
        parse_history_options(BROKER | given, streaming=False)


def test_the_defaults_suit_a_history() -> None:
    for streaming in (False, True):
        read = parse_history_options(BROKER, streaming=streaming).read
        assert (read.starting.kind.value, read.isolation_level, read.commit_offsets) == (
            "earliest", "read_committed", False,
        )  # fmt: skip
    given = parse_history_options(BROKER | {"startingOffsets": "latest"}, streaming=True)
    assert given.read.starting.kind.value == "latest"


@pytest.fixture
def few_groups(own_broker: Callable[..., RunningBroker]) -> Iterator[tuple[str, Admin]]:
    """A broker of one test, for analyses of all groups: the shared broker has hundreds of groups of other tests."""
    running = own_broker()
    with Admin(running.bootstrap) as admin:
        yield running.bootstrap, admin


@pytest.mark.slow
def test_the_analysis_on_spark_equals_that_on_one_machine(spark: Any, few_groups: tuple[str, Admin]) -> None:
    """Workers and this machine compute the same findings, expiry and tables for each of two groups."""
    bootstrap, admin = few_groups
    committed(admin, bootstrap)
    topic, group = committed(admin, bootstrap)
    rules = FindingRules(expires_within_ms=8 * 86_400_000)
    frames = analyse_on_spark(spark, bootstrap, rules=rules)
    try:
        here = analyse_offset_history(bootstrap, rules=rules)
        assert [row["text"] for row in of_group(frames.findings, group) if row["kind"] == "rewind"] == [
            f"{topic}-0: from 7 back to 6: record 6 is read again. No member of the group is known at that "
            "time: a tool or a consumer outside of the group moved it"
        ]
        for name in ("kind", "from_offset", "to_offset", "certainty", "history_complete", "proof"):
            ours = sorted(repr(row[name]) for row in of_group(frames.findings, group))
            assert ours == sorted(repr(row[name]) for row in here.findings.to_pylist() if row["group"] == group)
        assert order(of_group(frames.expiry, group)) == order(
            [row for row in here.expiry.to_pylist() if row["group"] == group]
        )
        newest = max(of_group(frames.lag, group), key=lambda row: (row["timestamp"], -row["partition"]))
        assert (newest["partition"], newest["committed_offset"], newest["log_end_offset"]) == (0, 6, 0)
        for table in ("commits", "tombstones", "generations"):
            of_records = in_spark(table_of(frames.records, table).where(f"group = '{group}'"))
            assert order(of_records) == order(in_client(bootstrap, table, group)), table
    finally:
        frames.records.unpersist()


def of_group(frame: Any, group: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = frame.where(frame["group"] == group).toArrow().to_pylist()
    return rows


@pytest.mark.slow
def test_the_analysis_of_one_group_on_spark_has_only_this_group(spark: Any, admin: Admin, bootstrap: str) -> None:
    _, group = committed(admin, bootstrap)
    frames = analyse_on_spark(spark, bootstrap, group=group)
    try:
        assert [row["kind"] for row in frames.findings.toArrow().to_pylist()] == ["rewind"]
        assert {row["group"] for row in frames.expiry.toArrow().to_pylist()} == {group}
    finally:
        frames.records.unpersist()


def test_the_spark_examples_of_the_page_run(
    spark: Any, few_groups: tuple[str, Admin], capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/offset-history.md, unchanged except for the broker's address."""
    bootstrap, admin = few_groups
    committed(admin, bootstrap)
    page = Path(__file__).resolve().parents[2] / "docs" / "offset-history.md"
    (program,) = re.findall(r"^```python spark\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(program.replace("127.0.0.1:9092", bootstrap), str(page), "exec"), names)
    names["frames"].records.unpersist()
    assert names["tombstones"].isStreaming
    assert "from_offset" in capsys.readouterr().out
