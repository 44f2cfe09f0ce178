"""A change of the topics while an ingest plans a micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from odradek.pipelines.ingestion import job

Planned = Callable[[Any, int], Any]


@contextmanager
def planning(change: Callable[[Planned], Planned]) -> Iterator[None]:
    """During the block, a job plans with ``change(planned_batch)``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "planned_batch", change(job.planned_batch))
        yield
