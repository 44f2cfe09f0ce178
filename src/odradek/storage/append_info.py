"""The result of an append to a log."""

from __future__ import annotations

from typing import Literal, NamedTuple

Origin = Literal["client", "coordinator"]


class AppendInfo(NamedTuple):
    """The offsets of appended records. ``log_append_time_ms`` is -1 unless the topic uses LogAppendTime.

    ``duplicate``: nothing was written. The offsets are those of the first append, and ``log_append_time_ms`` is the
    largest timestamp of the first append, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False
