"""The choice of the class that reads fetched bytes, and what these classes have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from odradek.batches.kernels import kernel_loader
from odradek.batches.row_sets import ColumnsMissing, RowSet, needs_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.batches.aborted_transactions import AbortedTransaction
    from odradek.batches.header import Buffer
    from odradek.batches.row_sets import RowBatch


class DecodedBatches(Iterator["pa.RecordBatch | RowBatch"], Protocol):
    """An iterator over RecordBatches, which decodes each one on demand. ``RowBatch``: records that columns cannot have.
    Raises CorruptRecord; the next call raises it again."""

    @property
    def is_over(self) -> bool:
        """Whether all batches were read. If False, there still may be no further element."""


class FetchedSet(Protocol):
    """The complete batches in the bytes of a fetch reply for one partition. ``next_offset``: after the last batch.
    ``leader_epoch``: of the last batch. Both are -1 if there is no batch."""

    next_offset: int
    leader_epoch: int

    @property
    def is_small_part(self) -> bool:
        """Whether the buffer, which these batches keep in memory, is more than twice as large as they are."""

    @property
    def is_compressed(self) -> bool:
        """Whether any batch is compressed."""

    def copy(self) -> FetchedSet:
        """Returns a copy with its own memory."""

    def record_batches(
        self,
        topic: str,
        partition: int,
        *,
        start: int = ...,
        end: int = ...,
        columns: tuple[str, ...] = ...,
        check_crcs: bool = ...,
        aborted: Sequence[AbortedTransaction] = ...,
    ) -> DecodedBatches:
        """Returns records with ``start <= offset < end``, except control records and ``aborted`` transactions."""


def record_set() -> Callable[[Buffer], FetchedSet]:
    """Returns the class that reads fetched bytes now: with kernels if they are loaded, else in plain Python.

    Without the packages of the extra ``arrow`` it is ``RowSet``, whose records are rows. The classes raise
    CorruptRecord, and KafkaError (UNSUPPORTED_FOR_MESSAGE_FORMAT) for batches of format v0 or v1.
    """
    found: Callable[[Buffer], FetchedSet] = kernel_loader.kernel_record_set() or _plain_record_set()
    return found


@cache
def _plain_record_set() -> Callable[[Buffer], FetchedSet]:
    try:
        with needs_columns("reading columns"):
            from odradek.batches.columns.arrow_rows import PlainRecordSet
    except ColumnsMissing:
        return RowSet
    return PlainRecordSet
