"""The history of consumer groups: the records of ``__consumer_offsets`` in typed Arrow columns, and findings from them.

Importing this package loads neither numba nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.history.records.decode import decode_batch
    from odradek.history.records.read import read_offset_history, stream_offset_history

__all__ = ["decode_batch", "read_offset_history", "stream_offset_history"]

_HOMES = {
    "decode_batch": "odradek.history.records.decode",
    "read_offset_history": "odradek.history.records.read",
    "stream_offset_history": "odradek.history.records.read",
}
__getattr__ = loader(__name__, _HOMES)
