"""The choice of the class that reads fetched bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

from odradek.batches.kernels import kernel_loader
from odradek.batches.row_sets import ColumnsMissing, RowSet, needs_columns


def record_set() -> Any:
    """Returns the class that reads fetched bytes now: with kernels if they are loaded, else in plain Python.

    Without the packages of the extra ``arrow`` it is ``RowSet``, whose records are rows.
    """
    return kernel_loader.kernel_record_set() or _plain_record_set()


@cache
def _plain_record_set() -> object:
    try:
        with needs_columns("reading columns"):
            from odradek.batches.columns.arrow_rows import PlainRecordSet
    except ColumnsMissing:
        return RowSet
    return PlainRecordSet
