"""A run of a pipeline that counts as killed, although its process, or a thread of it, still lives."""

from __future__ import annotations

import contextlib

import pytest

from odradek.pipelines.tables import runs
from odradek.pipelines.tables import table as tables


def count_as_killed(patch: pytest.MonkeyPatch) -> None:
    """From here on no run counts as alive, and the lock of a table is free."""
    patch.setattr(tables, "_lock", lambda *of: contextlib.ExitStack())
    patch.setattr(runs, "_is_alive", lambda run: False)
