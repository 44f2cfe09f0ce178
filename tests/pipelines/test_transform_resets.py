"""A transform follows resets to offsets that the log does not have, or does not show yet, as an ingest does
(``test_resets_outside_of_the_log``): no row is written twice or left out without a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.publish import open_transaction
from transform_runs import TransformRuns

from odradek import Admin, Producer, TopicPartition
from odradek.core.ids import OffsetAndMetadata


@pytest.fixture
def runs(bootstrap: str, spark: Any, tmp_path: Path) -> TransformRuns:
    return TransformRuns(bootstrap, spark, tmp_path, is_begun=True)


@pytest.mark.slow
def test_a_reset_above_the_log_is_a_line(runs: TransformRuns) -> None:
    with Admin(runs.bootstrap) as admin:
        beyond = OffsetAndMetadata(2000, metadata="odradek-reset:1:2000")
        admin.alter_group_offsets(runs.topic, {TopicPartition(runs.topic, 0): beyond})
    assert f"group {runs.topic} was reset to offset 2000, and the log ends at 40" in runs.refusal()
    assert runs.rows() == list(range(20))
    assert runs.run(failOnDataLoss="false") == 0
    runs.send(5)
    assert runs.run() == 5
    assert runs.rows() == [*range(20), *range(40, 45)]


@pytest.mark.parametrize(("to", "first"), [pytest.param(5, 20, marks=pytest.mark.slow), (25, 25)])
def test_a_reset_does_not_hide_deleted_records(runs: TransformRuns, to: int, first: int) -> None:
    runs.reset(f"--to-offset {to}")
    with Admin(runs.bootstrap) as admin:
        admin.delete_records({TopicPartition(runs.topic, 0): 30})
    assert f"offsets {first} to 29 are lost (its log starts at 30)" in runs.refusal()
    assert runs.run(failOnDataLoss="false") == 10
    assert runs.rows() == [*range(20), *range(30, 40)]


@pytest.mark.slow
def test_a_reset_into_deleted_records_that_were_read_reads_the_rest(runs: TransformRuns) -> None:
    assert runs.run() == 20
    runs.reset("--to-offset 5")
    with Admin(runs.bootstrap) as admin:
        admin.delete_records({TopicPartition(runs.topic, 0): 30})
    assert runs.run() == 10
    assert runs.rows() == sorted([*range(40), *range(30, 40)])


def test_a_reset_to_the_end_skips_an_open_transaction(runs: TransformRuns) -> None:
    """The reset is above the last stable offset, up to which a transform reads."""
    assert runs.run() == 20
    with Producer(runs.bootstrap, transactional_id=runs.topic, transaction_timeout_ms=300_000) as producer:
        open_transaction(runs.topic, producer)
        runs.send(10)
        runs.reset("--to-latest")
        assert runs.run() == 0
        assert runs.run() == 0
        producer.commit_transaction()
    runs.send(5)
    assert runs.run() == 5
    assert runs.rows() == [*range(40), *range(61, 66)], "50 to 59 are skipped, and 60 is the marker"


@pytest.mark.slow
def test_a_group_above_the_last_stable_offset_is_no_loss(bootstrap: str, spark: Any, tmp_path: Path) -> None:
    runs = TransformRuns(bootstrap, spark, tmp_path, is_begun=False)
    with Producer(bootstrap, transactional_id=runs.topic, transaction_timeout_ms=300_000) as producer:
        open_transaction(runs.topic, producer)
        with Admin(bootstrap) as admin:
            admin.alter_group_offsets(runs.topic, {TopicPartition(runs.topic, 0): OffsetAndMetadata(25)})
        assert runs.run() == 0
        producer.commit_transaction()
    assert runs.run() == 5
    assert runs.rows() == list(range(25, 30))
