"""Fixtures of the pipeline tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark_session import admin

if TYPE_CHECKING:
    from restored_broker import Restored

__all__ = ["admin", "restored"]

# An environment that was set up before the extra ``iceberg`` was a part of the extra ``test``.
collect_ignore_glob = ["test_iceberg_*"] if importlib.util.find_spec("pyiceberg") is None else []


@pytest.fixture(params=["plain", pytest.param("spark", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The session of pipelines whose workers write the rows: Spark's, or in `make test` a stand-in.

    The stand-in needs a tenth of Spark's CPU time for a run (``tests/support/plain_engine.py``)."""
    if request.param == "spark":
        return request.getfixturevalue("spark")
    from support import plain_engine

    for owner, name, value in plain_engine.replacements():
        monkeypatch.setattr(owner, name, value)
    return None


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    """A broker whose data directory can be put back from an older copy."""
    from restored_broker import Restored  # it needs deltalake, which most of these tests do not

    found = Restored(tmp_path)
    yield found
    found.broker.close()
