"""The reader of record values in a worker, and the name of the error column."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

ERROR = "error"
"""The column with the reason why a record's value could not be read; null if it was read."""

BAD_TIME = "the column timestamp cannot hold the record's time, which odradek consume --json shows"
"""The error of a record whose timestamp is null."""


class ValueReader(ABC):
    """Reads the values of a format. Its pickle has only its constructor's arguments."""

    type: pa.DataType

    @abstractmethod
    def read(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """Reads a column of bytes. Returns the values, and the errors as a column of the same length.

        An unreadable value is null and has an error. If every value is readable, the second result is None."""
