"""What reads the values of records in a worker, and the column that says where that failed."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa

ERROR = "error"
"""The column that says why a record's value could not be read; null where it could."""


class ValueReader(ABC):
    """Reads the values of a format. Pickled by what it was made from."""

    type: pa.DataType

    @abstractmethod
    def read(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        """Values and errors of a column of bytes. Where a value could not be read it is null and its error is not;
        None where there are no errors at all."""
