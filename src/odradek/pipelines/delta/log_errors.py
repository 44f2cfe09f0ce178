"""Errors of deltalake in one line: what is wrong with the log of a Delta table, and what the user can do."""

from __future__ import annotations

import re

from odradek.core.errors import StorageError
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.text.printable import one_line
from odradek.text.table_paths import DELTA_LOG

_FRAMES = re.compile(r":? 0: <unknown>.*")
"""The stack of the native code."""
_INSIDES = re.compile(r": ParsedLogPath \{.*")
_DAMAGED = ("Json error", "No table metadata or protocol", "Expected contiguous commit files", "Arrow error", "Parquet")


def text_of(error: Exception) -> str:
    """Returns an error of deltalake in one line. deltalake does not know the mount tables in Spark's settings."""
    text = _INSIDES.sub("", _FRAMES.sub("", one_line(error)))
    if "viewfs" in text:
        text += ". Give the folder that viewfs has mounted (hdfs://…, file:…) as --output"
    return text


def unreadable(uri: str, error: Exception) -> StorageError:
    """Returns the error that a Delta table cannot be read. ``uri``: the table."""
    text = text_of(error)
    if any(said in text for said in _DAMAGED):
        text = (
            f"{text.rstrip('.')}. A file of its log ({DELTA_LOG}) is damaged or missing: restore the log from a copy "
            f"of the table, or {ANOTHER_TABLE}"
        )
    return StorageError(f"the Delta table {uri} cannot be read: {text}")
