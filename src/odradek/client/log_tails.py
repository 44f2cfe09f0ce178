"""The check that a log still has the last batch that was read (``core/ids.LogTail``).

The check needs no request of its own: the first fetch of a range begins at that batch in place of the range's start.
It decides nothing if the batch was removed, or if compaction has written the batch in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from odradek.batches.header import BatchHeader, scan
from odradek.client.errors import OffsetOutOfRange
from odradek.core.errors import CorruptRecord, OdradekError
from odradek.core.ids import LogTail, TopicPartition

if TYPE_CHECKING:
    from odradek.client.cluster import Cluster
    from odradek.wire.fetch_messages import FetchReplyPartition


class FetchSource(Protocol):
    """What fetches for a reader."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def partition(self) -> TopicPartition: ...

    async def advance(self, position: int, end: int) -> FetchReplyPartition | None: ...


class LogReplaced(OdradekError):
    """The log has another batch in place of the last one that was read. ``tail``: that one."""

    def __init__(self, partition: TopicPartition, tail: LogTail) -> None:
        self.partition = partition
        self.tail = tail
        super().__init__(f"{partition} has other records below offset {tail.end} than those that were read")


class TailCheck:
    """The tails of one read. ``known``: the one of the range before it, if the read begins at its end. ``found``: the
    one of the range that is read; None if it is not known. ``is_rewritten``: whether compaction has written its batch.
    ``is_undecided``: whether the log has records before the range, and the check of ``known`` does not say whether
    they are those that were read."""

    def __init__(self, known: LogTail | None = None) -> None:
        self.known = known
        self.found: LogTail | None = None
        self.is_rewritten = False
        self.is_undecided = False

    def note(self, reply: FetchReplyPartition, end: int) -> None:
        """Notes the last batch of a fetch that begins before ``end``, the end of the range."""
        try:
            for _, header in scan(reply.records):
                if header.base_offset < end:
                    self.found = LogTail(end, header.base_offset, header.crc)
                    self.is_rewritten = _is_rewritten(header)
        except CorruptRecord:  # the reader reports it
            self.found = None


async def advance(source: FetchSource, start: int, end: int, check: TailCheck | None) -> FetchReplyPartition | None:
    """Does the same as ``source.advance``, and checks the known tail if it ends at ``start``. Raises LogReplaced."""
    tail = None if check is None else check.known
    if check is None or tail is None or tail.end != start:
        return await source.advance(start, end)
    try:
        reply = await source.advance(tail.base, end)
    except OffsetOutOfRange as error:  # the batch was removed, or the log ends before it: the read says which
        check.is_undecided = error.log_start_offset < start
        return await source.advance(start, end)
    try:
        headers = scan(b"" if reply is None else reply.records)
        first = next((header for _, header in headers), None)
        if first is None:
            check.is_undecided = True
            return await source.advance(start, end)
        if (first.base_offset, first.crc) != (tail.base, tail.crc):
            check.known = None  # a reader that goes on does not ask again
            check.is_undecided = first.base_offset > tail.base or _is_rewritten(first)
            if not check.is_undecided:
                raise LogReplaced(source.partition, tail)
        if first.last_offset >= start or any(header.last_offset >= start for _, header in headers):
            return reply
    except CorruptRecord:  # the read from ``start`` reports what it meets
        pass
    return await source.advance(start, end)


def _is_rewritten(header: BatchHeader) -> bool:
    """Returns whether compaction has written the batch again. Only compaction leaves gaps in a batch, or sets the time
    at which its tombstones may be removed; a batch of which it keeps all records stays as it is. The topic's present
    cleanup.policy does not tell: it may have been changed since."""
    return header.record_count <= header.last_offset_delta or header.has_delete_horizon
