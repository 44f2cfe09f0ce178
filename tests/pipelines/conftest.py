"""Fixtures of the pipeline tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.spark_session import admin

if TYPE_CHECKING:
    from restored_broker import Restored

__all__ = ["admin", "restored"]


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    """A broker whose data directory can be put back from an older copy."""
    from restored_broker import Restored  # it needs deltalake, which most of these tests do not

    found = Restored(tmp_path)
    yield found
    found.broker.close()
