"""Lag from Spark's progress reports, and its metrics, without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest

from odradek.core.ids import TopicPartition
from odradek.spark.lag import Lag, QueryLag, latest_to_json, progress_of, prometheus_text
from odradek.spark.offsets.source_offset import SourceOffset

P0, P1, P2 = (TopicPartition("flights", number) for number in range(3))
NOW = 1_700_000_010_000


def end(**offsets: int) -> str:
    return json.dumps(SourceOffset({TopicPartition("flights", int(n[1:])): to for n, to in offsets.items()}).to_json())


def lag_of(done: str, latest: str, unread_ms: Mapping[TopicPartition, int] | None = None) -> Lag | None:
    progress = progress_of(done, latest)
    return None if progress is None else progress.lag(NOW, unread_ms or {})


def test_lag_is_the_unread_rest_of_each_partition() -> None:
    latest = json.dumps(latest_to_json({P0: 100, P1: 50, P2: 7}))
    lag = lag_of(end(p0=40, p1=50), latest, {P0: NOW - 2500, P1: NOW - 500})
    assert lag is not None
    assert lag == Lag({P0: 60, P1: 0}, 2.5), "partition 2 is not read yet, partition 1 has nothing unread"
    assert (lag.least, lag.most, lag.average, lag.total) == (0, 60, 30.0, 60)
    assert str(lag) == "60 offsets behind latest (min 0, max 60, avg 30.0), 2.5 s behind"
    assert lag_of(end(p0=100, p1=60), latest) == Lag({P0: 0, P1: 0}, 0.0), (
        "a position after the end of an older report has no lag"
    )
    assert lag_of(end(p0=40), json.dumps(latest_to_json({P0: 41}))) == Lag({P0: 1}, None)
    assert lag_of(end(p0=40), json.dumps(latest_to_json({P0: 41})), {P0: NOW + 5}) == Lag({P0: 1}, 0.0)


def test_reports_of_sparks_own_source_have_no_times() -> None:
    assert lag_of('{"flights":{"0":40}}', '{"flights":{"0":41}}') == Lag({P0: 1}, None)
    assert lag_of('{"flights":{"0":40}}', '{"flights":{"0":40}}') == Lag({P0: 0}, None)


@pytest.mark.parametrize(
    ("done", "latest"),
    [(None, None), ("", ""), ('{"flights":{"0":1}}', None), ("5", "6"), ('"x"', '{"a":{"0":1}}'), ("[]", "[]"),
     ('{"logOffset":3}', '{"logOffset":4}')],
)  # fmt: skip
def test_other_sources_are_skipped(done: str | None, latest: str | None) -> None:
    assert progress_of(done, latest) is None


SAMPLE = re.compile(r'odradek_spark_([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (-?[0-9.]+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')


def parsed(text: str) -> tuple[dict[tuple[object, ...], float], dict[str, str]]:
    """Samples by name and labels, and the type of each family. Every line must have the Prometheus text format."""
    found: dict[tuple[object, ...], float] = {}
    kinds: dict[str, str] = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# "):
            what, name, rest = line[2:].split(" ", 2)
            assert rest
            if what == "TYPE":
                kinds[name.removeprefix("odradek_spark_")] = rest
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] in kinds, "the samples of a family are together, after its type"
        labels = [
            (n, v.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")) for n, v in LABEL.findall(match[2])
        ]
        found[match[1], *sorted(labels)] = float(match[3])
    return found, kinds


def test_metrics_are_prometheus_text() -> None:
    queries = [
        QueryLag('the "lake"\n', "id-1", 7, 1234, NOW, {0: Lag({P0: 60, P1: 0}, 2.5), 1: Lag({P2: 1}, None)}),
        QueryLag("idle", "id-2", 0, 0, NOW, {0: Lag({}, 0.0)}),
    ]
    found, kinds = parsed(prometheus_text(queries))
    lake = (("query", 'the "lake"\n'), ("query_id", "id-1"))
    assert found["rows_read_total", *lake] == 1234
    assert found["last_batch_id", *lake] == 7
    assert found["last_progress_timestamp_seconds", *lake] == NOW / 1000
    zero = (*lake, ("source", "0"))
    for name, value in (("min", 0), ("max", 60), ("avg", 30), ("total", 60)):
        assert found[f"{name}_offsets_behind_latest", *zero] == value
    assert found["seconds_behind_latest", *zero] == 2.5
    assert ("seconds_behind_latest", *lake, ("source", "1")) not in found
    assert found["partition_offsets_behind_latest", ("partition", "0"), *zero, ("topic", "flights")] == 60
    assert kinds.pop("rows_read_total") == "counter"
    assert set(kinds.values()) == {"gauge"}
    assert prometheus_text([]) == ""
