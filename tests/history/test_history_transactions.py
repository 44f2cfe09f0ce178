"""Commits within transactions (``sendOffsetsToTransaction``) in the history of groups.

By default the history has no commits of aborted or open transactions. Transaction markers belong to no group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from support.brokers import eventually, kafka_with_transactions, unique
from support.offsets_log import COMPACTED, TRANSACTIONS, Batch, Log, commit, serving
from support.scripted import ScriptedCluster

from odradek import Admin, TopicPartition
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.history import read_offset_history, stream_offset_history
from odradek.history.analysis import analyse_offset_history
from odradek.history.coverage import Coverage, CoverageRow
from odradek.history.report import render


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with serving(TRANSACTIONS) as made:
        yield made


def commits_of(bootstrap: str, group: str, level: str) -> list[tuple[int, int]]:
    """Partition and offset of each commit, in the order of the log."""
    rows = [
        row
        for batch in stream_offset_history(bootstrap, group=group, isolation_level=level)
        for row in batch.to_pylist()
        if row["kind"] == "offset_commit"
    ]
    return [(row["partition"], row["committed_offset"]) for row in rows]


@pytest.mark.claim(82, 83, part=True)
def test_the_history_has_only_commits_of_committed_transactions(cluster: ScriptedCluster) -> None:
    found = read_offset_history(cluster.bootstrap).to_pylist()
    assert [row["record_offset"] for row in found] == [0, 1, 2, 5]
    assert {row["kind"] for row in found} == {"offset_commit"}, "markers are records of no group"
    kept = [(0, 10), (0, 20), (1, 3), (0, 30)]
    assert commits_of(cluster.bootstrap, "g", "read_committed") == kept
    assert commits_of(cluster.bootstrap, "g", "read_uncommitted") == [*kept[:3], (0, 90), kept[3], (0, 99), (1, 4)]


def test_an_aborted_commit_is_no_rewind_and_no_jump(cluster: ScriptedCluster) -> None:
    """The commit of 90 is aborted, so the history has no move from 20 to 90 and no move back to 30. Markers and aborted
    records do not count as missing."""
    found = analyse_offset_history(cluster.bootstrap)
    assert [row["kind"] for row in found.findings.to_pylist() if row["kind"] in ("rewind", "jump")] == []
    assert (found.commit_count, found.record_count, found.groups) == (4, 4, ("g",))
    assert found.incomplete_below == {}
    assert covered(found.coverage.to_pylist()) == CoverageRow(
        0, 0, 8, records=4, control_records=3, rolled_back=1, removed_records=0, removed_unknown=0, incomplete_below=0
    )
    assert "have no record any more" not in render(found, "here")
    assert {row["partition"]: row["committed_offset"] for row in found.expiry.to_pylist()} == {0: 30, 1: 3}


def covered(rows: list[dict[str, int]]) -> CoverageRow:
    """Returns the coverage of the only partition. Asserts that its counts add up to the end offset."""
    (found,) = [CoverageRow(**row) for row in rows]
    counts = (found.records, found.control_records, found.rolled_back, found.removed)
    assert sum(counts) == found.end_offset
    return found


def test_coverage_counts_compacted_records_and_markers_separately(capsys: pytest.CaptureFixture[str]) -> None:
    """A gap within a batch is a removed record. An offset outside all batches may have been a record or a marker. The
    batch headers show the offsets of markers and aborted records."""
    with serving(COMPACTED) as made:
        assert [row["record_offset"] for row in read_offset_history(made.bootstrap).to_pylist()] == [5, 7, 15, 16, 20]
        found = analyse_offset_history(made.bootstrap)
        other = analyse_offset_history(made.bootstrap, group="of the same partition")
        assert run(["pipeline", "history", "-b", made.bootstrap]) == 0
    actual = covered(found.coverage.to_pylist())
    assert actual == CoverageRow(
        0, 0, 22, records=5, control_records=5, rolled_back=2, removed_records=4, removed_unknown=6, incomplete_below=20
    )
    assert found.incomplete_below == {0: 20}
    assert other.record_count == 0
    assert other.coverage == found.coverage
    text = "10 of the 22 offsets of the offsets topic have no record any more, in 1 partition: compaction removed older"
    assert text in capsys.readouterr().out
    page = render(found, "here")
    assert text in page
    assert '<td class="name">control records</td><td class="n">5</td><td class="n">22.7%</td>' in page
    assert '<td class="name">removed, records</td><td class="n">4</td><td class="n">18.2%</td>' in page


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        # DeleteRecords: the log starts within a batch.
        (
            Log([Batch(4, 7, {at: commit(0, at) for at in range(4, 8)})], stable=8, end=8, start=6),
            CoverageRow(0, 6, 8, 2, 0, 0, removed_records=0, removed_unknown=6, incomplete_below=6),
        ),
        # A gap that starts below the log start continues above it.
        (
            Log([Batch(4, 9, {4: commit(0, 1), 9: commit(0, 2)})], stable=10, end=10, start=6),
            CoverageRow(0, 6, 10, 1, 0, 0, removed_records=3, removed_unknown=6, incomplete_below=9),
        ),
        # No record is left.
        (
            Log([], stable=100, end=100, start=100),
            CoverageRow(0, 100, 100, 0, 0, 0, removed_records=0, removed_unknown=100, incomplete_below=100),
        ),
        # The last records were removed with their batch.
        (
            Log([Batch(0, 1, {0: commit(0, 1), 1: commit(0, 2)})], stable=5, end=5),
            CoverageRow(0, 0, 5, 2, 0, 0, removed_records=0, removed_unknown=3, incomplete_below=5),
        ),
        # The log was always empty.
        (Log([], stable=0, end=0), None),
    ],
)
def test_coverage_is_correct_at_the_start_and_end_of_a_log(log: Log, expected: CoverageRow | None) -> None:
    with serving(log) as made:
        coverage = Coverage()
        list(stream_offset_history(made.bootstrap, coverage=coverage))
    assert coverage.rows == ([expected] if expected else [])


# --- Apache Kafka -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_with_transactions(Path(tmp_path_factory.mktemp("apache"))) as bootstrap:
        yield bootstrap


def coverage_of(bootstrap: str, group: str) -> CoverageRow:
    """The coverage of the partition with the group's commits, below the last stable offset."""
    found = Coverage()
    list(stream_offset_history(bootstrap, group=group, coverage=found))
    return found.rows[0]


@pytest.mark.slow
def test_on_apache_kafka_the_history_has_only_commits_of_committed_transactions(transactional: str, topic: str) -> None:
    """librdkafka's producer sends a consumer's offsets in transactions: committed, aborted, committed, open.

    Each end of a transaction is a marker in the group's partition; coverage does not count it as missing.
    """
    group = unique("txn-group")
    with Admin(transactional) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    reader = confluent_kafka.Consumer(
        {"bootstrap.servers": transactional, "group.id": group, "enable.auto.commit": False}
    )
    reader.subscribe([topic])
    producer = confluent_kafka.Producer({"bootstrap.servers": transactional, "transactional.id": topic})
    producer.init_transactions(30)
    try:
        while not reader.assignment():
            reader.poll(0.2)
        before = coverage_of(transactional, group)
        for offset, finish in ((5, "commit"), (90, "abort"), (7, "commit"), (99, None)):
            producer.begin_transaction()
            producer.produce(topic, b"result")
            where = [confluent_kafka.TopicPartition(topic, 0, offset)]
            producer.send_offsets_to_transaction(where, reader.consumer_group_metadata(), 30)
            if finish == "commit":
                producer.commit_transaction(30)
            elif finish == "abort":
                producer.abort_transaction(30)
        everything, kept = [(0, 5), (0, 90), (0, 7), (0, 99)], [(0, 5), (0, 7)]
        # The coordinator replies to the producer before it writes the markers.
        eventually(lambda: commits_of(transactional, group, "read_committed") == kept, what="the second commit")
        assert commits_of(transactional, group, "read_uncommitted") == everything
        found = analyse_offset_history(transactional, group=group)
        assert [row["kind"] for row in found.findings.to_pylist() if row["kind"] in ("rewind", "jump")] == []
        after = coverage_of(transactional, group)
        grown = (after.control_records - before.control_records, after.rolled_back - before.rolled_back)
        assert grown == (3, 1)
        assert after.records - before.records >= 2
        assert (after.removed, after.incomplete_below) == (before.removed, before.incomplete_below)
        with Admin(transactional) as admin:
            assert admin.list_group_offsets(group)[TopicPartition(topic, 0)].offset == 7
        producer.commit_transaction(30)
        eventually(
            lambda: commits_of(transactional, group, "read_committed") == [*kept, (0, 99)], what="the last commit"
        )
    finally:
        reader.close()
