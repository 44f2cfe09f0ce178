"""The progress of an exactly-once replay: the contents of its commits, and what is left for a run with other ranges."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.errors import ConfigError
from odradek.core.ids import LogTail, OffsetAndMetadata, TopicPartition
from odradek.pipelines.ranges import merge, subtract
from odradek.pipelines.replays.progress import (
    ReplayProgress,
    ReplayRefused,
    first_offsets,
    progress_of,
)
from odradek.spark.offsets.offset_ranges import Range

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ID, OTHER = UUID(int=1), UUID(int=2)
RANGES = st.lists(
    st.builds(
        lambda tp, start, size: Range(tp, start, start + size),
        st.sampled_from([T0, T1]), st.integers(0, 30), st.integers(0, 12),
    )
)  # fmt: skip


def offsets(ranges: list[Range]) -> set[tuple[TopicPartition, int]]:
    return {(tp, offset) for tp, start, end in ranges for offset in range(start, end)}


@given(RANGES, RANGES)
def test_the_remaining_ranges_are_planned_and_not_done(wanted: list[Range], done: list[Range]) -> None:
    left = subtract(merge(wanted), merge(done))
    assert offsets(left) == offsets(wanted) - offsets(done)
    assert left == merge(left)


@given(RANGES, RANGES, st.integers(1, 5))
def test_a_replay_that_continues_with_other_ranges_does_each_offset_once(
    first: list[Range], second: list[Range], room: int
) -> None:
    """The first run is killed after its first transaction; the second plans other ranges, and does the rest of both
    plans."""
    progress = ReplayProgress().with_plan(first)
    some = first_offsets(progress.left, {T0: room, T1: room})
    progress = progress_of(progress.with_done(some).commits({"t": ID}), {"t": ID}, "g").with_plan(second)
    done = [*some]
    while progress.left:
        more = first_offsets(progress.left, {T0: room, T1: room})
        assert more
        done += more
        progress = progress_of(progress.with_done(more).commits({"t": ID}), {"t": ID}, "g")
    assert sum(piece.size for piece in done) == len(offsets(done)), "an offset was done twice"
    assert offsets(done) == offsets(first) | offsets(second)


def test_the_commit_has_the_end_of_the_done_ranges() -> None:
    progress = ReplayProgress().with_plan([Range(T0, 5, 9), Range(T0, 20, 30), Range(T1, 3, 4)])
    assert {tp: one.offset for tp, one in progress.commits({}).items()} == {T0: 5, T1: 3}
    progress = progress.with_done([Range(T0, 5, 9), Range(T0, 20, 22)])
    commits = progress.commits({"t": ID})
    assert {tp: one.offset for tp, one in commits.items()} == {T0: 22, T1: 3}
    assert commits[T0].metadata == f"odradek-replay:1:{ID.hex}:5-9,20-30:5-9,20-22"
    assert progress_of(commits, {"t": ID}, "g") == progress


def test_a_topic_that_was_created_again_has_no_progress() -> None:
    commits = ReplayProgress().with_plan([Range(T0, 5, 9)]).with_done([Range(T0, 5, 9)]).commits({"t": ID})
    assert progress_of(commits, {"t": OTHER}, "g") == ReplayProgress()
    assert progress_of(commits, {}, "g") == ReplayProgress(), "it does not exist"


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "odradek-spark:1:x",
        "odradek-replay:1:",
        "odradek-replay:1:a:b:c",
        "odradek-replay:1::1-2:x-y",
        "odradek-replay:1::1-2:1-2:2-1",
        "odradek-replay:1::1-2:1-2:2-1-7:x",
    ],
)
def test_a_commit_of_another_client_is_refused(metadata: str) -> None:
    with pytest.raises(ReplayRefused, match="another client has committed offset 7 of t-0"):
        progress_of({T0: OffsetAndMetadata(7, metadata=metadata)}, {"t": ID}, "g")


def test_a_plan_that_fits_into_no_commit_is_refused() -> None:
    many = [Range(T0, number * 1000, number * 1000 + 1) for number in range(400)]
    with pytest.raises(ConfigError, match=r"t-0 has 400 ranges: .* at most 4,096 bytes. Replay fewer ranges"):
        ReplayProgress().with_plan(many).commits({"t": ID})


def test_the_commit_has_the_last_batch_that_was_read() -> None:
    """In each partition the later one stays: a run may fill a gap before it."""
    progress = ReplayProgress().with_plan([Range(T0, 0, 30), Range(T1, 0, 5)]).with_done([Range(T0, 20, 30)])
    progress = progress.with_tails({T0: LogTail(30, 28, 7), T1: LogTail(5, 0, 9)})
    commits = progress.commits({"t": ID})
    assert commits[T0].metadata == f"odradek-replay:1:{ID.hex}:0-30:20-30:30-28-7"
    assert commits[T1].metadata == f"odradek-replay:1:{ID.hex}:0-5:", "nothing of it is done"
    found = progress_of(commits, {"t": ID}, "g")
    assert found.tails == {T0: LogTail(30, 28, 7)}
    assert found.with_tails({T0: LogTail(20, 18, 8), T1: LogTail(5, 0, 9)}).tails == progress.tails
    assert progress_of(commits, {"t": OTHER}, "g") == ReplayProgress()


def test_a_commit_without_room_has_no_last_batch() -> None:
    first = Range(T0, 0, 1)
    progress = ReplayProgress((first,), (first,), {T0: LogTail(1 << 60, 1 << 60, 1 << 31)})
    metadata = progress.commits({"t": ID})[T0].metadata
    assert metadata.endswith(f":0-1:0-1:{1 << 60}-{1 << 60}-{1 << 31}")
    for number in range(1, 400):
        progress = progress.with_plan([Range(T0, number * 1000, number * 1000 + 1)])
        try:
            metadata = progress.commits({"t": ID})[T0].metadata
        except ConfigError:
            break
    assert metadata.endswith(":0-1")
    assert 4080 < len(metadata) <= 4096


def test_the_commits_of_the_target_have_its_ends() -> None:
    """An earlier version reads no range in them."""
    target = TopicPartition("u", 0)
    progress = ReplayProgress((Range(T0, 0, 9),), (Range(T0, 0, 5),), target_ends={target: 12})
    commits = progress.commits({"t": ID})
    assert commits[target] == OffsetAndMetadata(12, metadata="odradek-replay:1:::")
    assert progress_of(commits, {"t": ID}, "g", "u") == progress
    assert progress_of(commits, {"t": ID, "u": OTHER}, "g").planned == progress.planned
