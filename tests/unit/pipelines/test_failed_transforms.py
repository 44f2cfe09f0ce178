"""A transform whose query cannot begin ends with one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError

from odradek.pipelines.options import TransformOptions
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.sources import Source
from odradek.pipelines.transforms import job


def test_a_java_that_has_lost_its_python_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the error was Java's, of many lines."""

    def fail(source: Source, spark: Any) -> NoReturn:
        raise Py4JError("java.io.IOException: Stream closed")

    monkeypatch.setattr(Source, "stream", fail)
    options = TransformOptions(
        "127.0.0.1:1", group="g", topics="a", to_topic="b", checkpoint=str(tmp_path), sql="SELECT value FROM records"
    )
    running: Any = SimpleNamespace()
    with pytest.raises(QueryFailed, match="Stream closed: a Python process of Spark has ended"):
        job._run_query(job.Transform.of(options), job.location_of(str(tmp_path), None), running, None, (int, None))
