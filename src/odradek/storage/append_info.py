"""What an append to a log says of itself."""

from __future__ import annotations

from typing import Literal, NamedTuple

Origin = Literal["client", "coordinator"]


class AppendInfo(NamedTuple):
    """Where records went. ``log_append_time_ms`` is -1 unless the topic stamps it. Times in ms.

    ``duplicate``: nothing was written, the offsets are those of the first time.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
