"""Whether a micro-batch is in its topic: its number, the number in the query's group and ``first_batch`` decide."""

from __future__ import annotations

import pytest

from odradek.core.ids import OffsetAndMetadata
from odradek.spark.driver.micro_batch_number import BatchTimes, MicroBatchRefused, check_first, commit_of, is_written


@pytest.mark.parametrize(
    ("batch", "last", "first_batch", "expected"),
    [
        (0, None, None, False),
        (0, 0, None, True),
        (0, None, 1, True),
        (0, None, 0, False),
        (1, 0, None, False),
        (7, 6, None, False),
        (7, 7, None, True),
        (7, 7, 7, True),
        (7, None, 7, False),
        (7, 3, 7, False),
        (6, None, 7, True),
        (4, 3, 7, False),
        (6, 3, 7, True),
        (4, 3, 100, False),
    ],
)
def test_a_micro_batch_is_written_once(batch: int, last: int | None, first_batch: int | None, expected: bool) -> None:
    commit = None if last is None else commit_of(last, "query")
    assert is_written(batch, commit, "group", first_batch) is expected


@pytest.mark.parametrize(
    ("batch", "last", "first_batch", "message"),
    [
        (3, 5, None, "checkpoint is older than its output"),
        (3, 5, 3, "checkpoint is older than its output"),
        (3, None, None, "has expired or was deleted.*pass first_batch=3, else first_batch=4"),
        (8, None, 7, "has expired or was deleted"),
        (0, None, 100, "first_batch=100 belongs to another checkpoint.* asks for 99 or later.*remove first_batch"),
        (0, None, 2, "first_batch=2 belongs to another checkpoint"),
        (5, 3, 7, "first_batch=7 belongs to another checkpoint"),
        (8, 5, None, "batch 8 is not the next one.*pass first_batch=8"),
    ],
)
def test_a_micro_batch_that_could_be_lost_or_written_twice_is_refused(
    batch: int, last: int | None, first_batch: int | None, message: str
) -> None:
    commit = None if last is None else commit_of(last, "query")
    with pytest.raises(MicroBatchRefused, match=message):
        is_written(batch, commit, "group", first_batch)


def test_a_batch_that_is_planned_again_with_another_end_is_refused() -> None:
    commit = commit_of(3, "query", "a")
    assert is_written(3, commit, "group", None, "a")
    with pytest.raises(MicroBatchRefused, match=r"checkpoint is older than its output.*another end.*Restore"):
        is_written(3, commit, "group", None, "b")
    assert is_written(3, commit, "group", None, None), "the checkpoint's end is unknown"
    assert is_written(3, commit_of(3, "query"), "group", None, "b"), "the number of an earlier release"
    assert not is_written(4, commit, "group", None, "b")


def test_a_batch_after_one_that_has_another_end_in_the_checkpoint_is_refused() -> None:
    commit = commit_of(3, "query", "a")
    assert not is_written(4, commit, "group", None, "c", before="a")
    with pytest.raises(MicroBatchRefused, match="another copy than the one of its output: micro-batch 3 is"):
        is_written(4, commit, "group", None, "c", before="b")
    assert not is_written(4, commit, "group", None, "c", before=None), "the checkpoint's end is unknown"
    assert not is_written(4, commit_of(3, "query"), "group", None, "c", before="b"), "the number of an earlier release"


def test_an_offset_of_another_client_is_no_number() -> None:
    with pytest.raises(MicroBatchRefused, match="offset 3 of another client"):
        is_written(3, OffsetAndMetadata(3), "group", None)


HOUR_MS = 3_600_000


def test_a_first_micro_batch_is_refused_if_its_number_may_have_expired() -> None:
    for begun_ms in (None, 0, HOUR_MS):
        check_first(BatchTimes(begun_ms, 2 * HOUR_MS, 2 * HOUR_MS - 1), None, "group")
    with pytest.raises(
        MicroBatchRefused, match=r"planned 2\.0 hours ago.*keeps the number for 2\.0 hours .*pass first_batch=0"
    ):
        check_first(BatchTimes(HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS), None, "group")


def test_first_batch_1_skips_a_first_micro_batch_only_if_its_number_may_have_expired() -> None:
    check_first(BatchTimes(HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS), 1, "group")
    check_first(BatchTimes(None, 2 * HOUR_MS, 3 * HOUR_MS), 1, "group")
    with pytest.raises(
        MicroBatchRefused, match=r"would skip micro-batch 0.*planned 1\.0 hours ago.*remove first_batch"
    ):
        check_first(BatchTimes(2 * HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS), 1, "group")


def test_a_number_that_went_back_may_be_that_of_a_cluster_that_was_put_back() -> None:
    """Then first_batch would lose records that are new at old offsets. Before, the line gave no other way out."""
    with pytest.raises(MicroBatchRefused, match="use a new checkpoint that starts after the records") as refused:
        is_written(3, commit_of(0, "q"), "group", None)
    assert "written micro-batches 1 to 2: Check whether" in str(refused.value)
    with pytest.raises(MicroBatchRefused, match="written micro-batch 1: Check whether"):
        is_written(2, commit_of(0, "q"), "group", None)
