"""``commit_group`` when the cluster refuses: the returned state has the reason and what the next run does."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from odradek.cli.pipeline.ingest_progress import reasons
from odradek.cli.pipeline.query_runs import group_line
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.group_commit import commit_group
from odradek.pipelines.sources import Source
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.source_offset import SourceOffset


def _checkpoint(tmp_path: Path) -> Any:
    """A checkpoint whose only micro-batch is finished at offset 5."""
    end = SourceOffset(positions={TopicPartition("t", 0): 5})
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
        (tmp_path / log / "0").write_text("v1\n{}\n" + json.dumps(end.to_json()))
    return location_of(str(tmp_path), None)


@pytest.mark.parametrize(
    ("options", "is_committed", "line", "warnings"),
    [
        (
            {},
            False,
            "group g is not committed: GROUP_AUTHORIZATION_FAILED: the user may not use group g. Allow the user Read on"
            " group g: the output is complete, and the next run commits.",
            1,
        ),
        (
            {"commitOffsets": "transaction"},
            None,
            "it is unknown whether group g is committed: its offsets cannot be read: GROUP_AUTHORIZATION_FAILED. Each"
            " transaction commits its records and their offsets. Remove the cause, and compare with 'odradek groups"
            " describe'.",
            0,
        ),
    ],
)
def test_a_refused_commit_names_the_reason_and_what_is_already_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, str],
    is_committed: bool | None,
    line: str,
    warnings: int,
) -> None:
    def refuse(*_: Any) -> Any:
        raise KafkaError(ErrorCode.group_authorization_failed)

    monkeypatch.setattr(Lookups, "committed", refuse)
    monkeypatch.setattr(Lookups, "partitions", refuse)
    with caplog.at_level(logging.WARNING):
        state = commit_group(Source("127.0.0.1:9", "g", ("t",), options=options), _checkpoint(tmp_path))
    assert state.is_committed is is_committed
    assert group_line("g", state) == line
    assert reasons(state) == {"why_not_committed": state.why, "remedy": state.remedy}
    assert len([text for text in caplog.messages if "are not committed to group g yet" in text]) == warnings
