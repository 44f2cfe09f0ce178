"""A transform whose query cannot begin ends with one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from py4j.protocol import Py4JError

from odradek.core.errors import ConfigError
from odradek.pipelines.options import TransformOptions
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.sources import Source
from odradek.pipelines.transforms import job


def options_of(checkpoint: Path) -> TransformOptions:
    return TransformOptions(
        "127.0.0.1:1", group="g", topics="a", to_topic="b", checkpoint=str(checkpoint), sql="SELECT value FROM records"
    )


def test_the_checkpoint_of_a_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a transform whose topics the table had read to the end ended with 0 and sent nothing."""
    monkeypatch.setattr(job.Transform, "check", lambda self: 0)
    (tmp_path / "odradek-table").write_text("0123")
    with pytest.raises(ConfigError, match="belongs to the query of a table: give the transform a folder of its own"):
        job.run_transform(job.Transform.of(options_of(tmp_path)), lambda: NotImplemented)


def test_a_java_that_has_lost_its_python_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the error was Java's, of many lines."""

    def fail(source: Source, spark: Any) -> NoReturn:
        raise Py4JError("java.io.IOException: Stream closed")

    monkeypatch.setattr(Source, "stream", fail)
    options = options_of(tmp_path)
    running: Any = SimpleNamespace()
    with pytest.raises(QueryFailed, match="Stream closed: a Python process of Spark has ended"):
        job._run_query(job.Transform.of(options), job.location_of(str(tmp_path), None), running, None, (int, None))
