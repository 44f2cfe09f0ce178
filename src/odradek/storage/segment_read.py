"""Record batches of a log as a slice of one of its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from odradek.storage.segment import Segment, Slice


class ReadBounds(NamedTuple):
    """From ``offset`` on, below ``limit``, up to ``max_bytes``.

    ``min_one`` returns a first batch that is larger than ``max_bytes``; without it the slice is empty then.
    """

    offset: int
    limit: int
    max_bytes: int
    min_one: bool


def read_slice(segments: Sequence[Segment], bounds: ReadBounds, on_failure: Callable[[OSError], None]) -> Slice:
    """Whole batches of one segment, the last of which may be cut off. Raises OSError.

    ``segments`` begin with the one that may hold the offset. ``on_failure`` is called when the slice cannot be read
    later.
    """
    offset, limit, max_bytes, min_one = bounds
    for segment in segments:
        found = segment.locate(offset)
        if found is None:
            continue
        position, header = found
        if header.base_offset >= limit:
            break
        end = segment.size
        if limit < segment.next_offset:
            beyond = segment.locate(limit)
            end = beyond[0] if beyond is not None else end
        size = header.size_in_bytes
        if size > max_bytes and not min_one:
            break
        length = min(max(max_bytes, size), end - position)
        return Slice(segment.file, position, length, header.base_offset, on_failure)
    return Slice(None, 0, 0, offset)
