"""The records that ``odradek consume --key`` and ``--grep`` choose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from odradek.batches.row_sets import RowBatch
from odradek.cli.records.record_lines import Batch
from odradek.cli.terminal import CommandError


class RecordFilter(NamedTuple):
    """Records with this key, and with a value in which the pattern is found. None: no such condition."""

    key: bytes | None = None
    pattern: re.Pattern[str] | None = None

    @classmethod
    def of(cls, key: str | None, pattern: str | None) -> RecordFilter:
        """Makes a filter from the texts of the command line. Raises CommandError for an invalid pattern."""
        try:
            compiled = None if pattern is None else re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise CommandError(f"--grep {pattern!r}: not a regular expression of Python: {error}") from None
        return cls(None if key is None else key.encode("utf-8", "surrogateescape"), compiled)

    @property
    def is_active(self) -> bool:
        return self.key is not None or self.pattern is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the conditions need."""
        return (("key",) if self.key is not None else ()) + (("value",) if self.pattern is not None else ())

    def chosen(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the chosen records of each batch that has any, in their order."""
        if not self.is_active:
            yield from batches
            return
        for batch in batches:
            kept = [number for number, fits in enumerate(self._fits(batch)) if fits]
            if len(kept) == batch.num_rows:
                yield batch
            elif kept:
                yield subset(batch, kept)

    def _fits(self, batch: Batch) -> list[bool]:
        fits = [True] * batch.num_rows
        if self.key is not None:
            fits = [key == self.key for key in _bytes(batch, "key")]
        if self.pattern is not None:
            search = self.pattern.search
            values = _bytes(batch, "value")
            fits = [
                fit and value is not None and search(value.decode(errors="replace")) is not None
                for fit, value in zip(fits, values, strict=True)
            ]
        return fits


def subset(batch: Batch, numbers: list[int]) -> Batch:
    """Returns the records of a batch with these numbers."""
    if isinstance(batch, RowBatch):
        rows = [batch.rows[number] for number in numbers]
        return RowBatch(rows, batch.partition, batch.timestamp_type, batch.columns)
    return batch.take(numbers)


def _bytes(batch: Batch, name: str) -> list[bytes | None]:
    if isinstance(batch, RowBatch):
        return [getattr(row, name) for row in batch.rows]
    values: list[bytes | None] = batch.column(name).to_pylist()
    return values
