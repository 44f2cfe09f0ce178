"""Read of record batches as a slice of a segment file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from odradek.storage.segment import Segment
from odradek.storage.slice import Slice


def read_slice(
    segments: Sequence[Segment],
    offset: int,
    limit: int,
    *,
    max_bytes: int,
    min_one: bool,
    on_failure: Callable[[OSError], None],
) -> Slice:
    """Returns batches of one segment from ``offset`` on and below ``limit``, up to ``max_bytes``. Raises OSError.

    The first of ``segments`` is the one that may have the offset. The last batch may be cut off. If the first batch is
    larger than ``max_bytes``, ``min_one`` decides: True returns this batch, False an empty slice. ``on_failure`` is
    called if a later read of the slice fails.
    """
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
