"""The coverage of the offsets topic, counted while the topic is read, equals a count of one offset after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.batches.arrow import BatchSpans
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.history.coverage import SCHEMA, Coverage, CoverageRow
from odradek.pipelines.history import frames as history
from odradek.spark.offsets.offset_ranges import Range

DATA, CONTROL, ROLLED_BACK, GONE = "data", "control", "rolled back", "gone"
STRETCH = st.one_of(
    st.tuples(st.just(DATA), st.lists(st.booleans(), min_size=1, max_size=5)),
    st.tuples(st.just(CONTROL), st.lists(st.just(False), min_size=1, max_size=1)),
    st.tuples(st.just(ROLLED_BACK), st.lists(st.just(False), min_size=1, max_size=4)),
    st.tuples(st.just(GONE), st.lists(st.just(False), min_size=1, max_size=4)),
)
"""Parts of a log: the kind, and for each offset whether its record exists."""


def truth(kinds: list[str], kept: list[bool], start: int) -> CoverageRow:
    """Counts one offset after another."""
    kinds = [GONE] * start + kinds[start:]
    kept = [False] * start + kept[start:]
    removed = [kind == GONE or (kind == DATA and not there) for kind, there in zip(kinds, kept, strict=True)]
    last = max((at for at, gone in enumerate(removed) if gone), default=-1)
    whole_from = 0 if last < 0 else next((at for at in range(last, len(kinds)) if kept[at]), len(kinds))
    in_batches = sum(kind == DATA and not there for kind, there in zip(kinds, kept, strict=True))
    counts = (sum(kept), kinds.count(CONTROL), kinds.count(ROLLED_BACK), in_batches, kinds.count(GONE))
    return CoverageRow(3, start, len(kinds), *counts, whole_from)


def spans_of(batches: list[tuple[str, int, int]]) -> BatchSpans:
    begins, ends = (np.array([batch[at] for batch in batches], np.int64) for at in (1, 2))
    kinds = [batch[0] for batch in batches]
    return BatchSpans(begins, ends, np.array([one == CONTROL for one in kinds], bool),
                      np.array([one == ROLLED_BACK for one in kinds], bool))  # fmt: skip


@given(st.lists(STRETCH, min_size=1, max_size=12), st.data())
def test_the_coverage_equals_the_count_of_single_offsets(stretches: list[tuple[str, list[bool]]], data: Any) -> None:
    """A fetch has one to four batches. The coverage notes the batches up to three fetches before their records."""
    kinds = [kind for kind, kept in stretches for _ in kept]
    kept = [there for _, some in stretches for there in some]
    start = data.draw(st.integers(0, len(kinds)))
    batches, at = [], 0
    for kind, some in stretches:
        if kind != GONE and at + len(some) > start:
            batches.append((kind, at, at + len(some)))
        at += len(some)
    size, ahead = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 3))
    fetches = [batches[first : first + size] for first in range(0, len(batches), size)]
    coverage = Coverage()
    covering = coverage.begin(3, start, len(kinds))
    for number in range(len(fetches) + ahead):
        if number < len(fetches):
            covering.note_batches(spans_of(fetches[number]))
        if number >= ahead:
            begin, end = fetches[number - ahead][0][1], fetches[number - ahead][-1][2]
            found = [offset for offset in range(max(begin, start), end) if kept[offset]]
            covering.note_records(pa.array(found, pa.int64()))
    covering.finish()
    assert coverage.rows == [truth(kinds, kept, start)]
    assert coverage.table().schema == SCHEMA
    below = coverage.rows[0].incomplete_below
    assert coverage.incomplete_below == ({3: below} if below else {})


def test_the_whole_log_is_covered_up_to_the_planned_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be empty, and the requested end may be below the log start offset."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "client"))
    from support.offsets_log import COMPACTED, serving

    def planned(start: int, **options: str) -> list[Range]:
        with serving(COMPACTED._replace(start=start)) as made:
            return history._plan_read(made.bootstrap, None, options).ranges

    offsets = TopicPartition("__consumer_offsets", 0)
    assert planned(4) == [Range(offsets, 4, 22)]
    assert planned(22) == [Range(offsets, 22, 22)]
    assert planned(4, endingOffsets='{"__consumer_offsets":{"0":9}}') == [Range(offsets, 4, 9)]
    assert planned(4, endingOffsets='{"__consumer_offsets":{"0":3}}') == [Range(offsets, 4, 3)]
    assert planned(4, startingOffsets="earliest") == [Range(offsets, 4, 22)]
    coverage = Coverage()
    coverage.begin(0, 4, 3).finish()
    assert coverage.rows == [CoverageRow(0, 4, 3, 0, 0, 0, 0, 3, 3)], "all three offsets are removed"


@pytest.mark.parametrize(
    "starting",
    [{"startingOffsets": '{"__consumer_offsets":{"0":9}}'}, {"startingTimestamp": "5"}],
)
def test_a_later_start_is_refused_because_earlier_records_would_count_as_removed(starting: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"count as removed\. Use since_us"):
        history.offset_coverage(None, "127.0.0.1:9", options=starting)  # refused before Spark
