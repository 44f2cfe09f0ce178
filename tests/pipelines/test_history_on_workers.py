"""The history of groups on Spark: workers find the same values at ranks of a column, and the same coverage, as one
machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from odradek.history import stream_offset_history
from odradek.history.coverage import Coverage
from odradek.pipelines.history.frames import offset_coverage
from odradek.pipelines.history.quantiles import at_ranks


@pytest.mark.parametrize("parts", [256, 1 << 16])
def test_values_at_ranks_of_an_unsorted_column_equal_those_of_the_sorted_one(spark: Any, parts: int) -> None:
    chance = np.random.default_rng(7)
    crowded = chance.integers(0, 50, 400) + 1_700_000_000_000_000
    values = np.concatenate((crowded, chance.integers(-1, 1 << 62, 50), [-1, -1, 1 << 62]))
    frame = spark.createDataFrame([(int(one),) for one in values], "at long").repartition(3)
    ranks = np.array([0, 1, 2, 7, 200, 201, 399, 410, 451, 452])
    found = at_ranks(frame, ranks, parts)
    assert found.tolist() == np.sort(values)[ranks].tolist()
    assert at_ranks(frame, ranks[:0]).tolist() == []


def test_the_coverage_of_the_topic_is_the_same(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of ``offsets_log`` has markers, aborted transactions and compacted records."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[1] / "client"))
    from support.offsets_log import COMPACTED, serving

    with serving(COMPACTED) as made:
        here = Coverage()
        list(stream_offset_history(made.bootstrap, coverage=here))
        there = offset_coverage(spark, made.bootstrap)
        of_group = offset_coverage(spark, made.bootstrap, group="g")
    assert here.incomplete_below == {0: 20}
    assert there == of_group == here
