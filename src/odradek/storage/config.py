"""The topic settings that a log uses, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_LONG = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a log. Sizes in bytes, times in ms. A size or a time of -1 means "no limit", as in Kafka."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_zstd_level: int = 3
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = HOUR_MS
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = DAY_MS
    transaction_partition_verification_enable: bool = False
    min_isr: int = 1
    """min.insync.replicas: the least in-sync replicas for appends that wait for replicas; at most all replicas."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes_old(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The age at which the active segment is rolled. A compacted topic also limits it by max.compaction.lag.ms."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.is_compacted else self.segment_ms

    @property
    def compression_level(self) -> int | None:
        """The level of the topic's codec for the broker's compression; ``None`` for a codec without levels."""
        return {"gzip": self.compression_gzip_level, "zstd": self.compression_zstd_level}.get(self.compression_type)

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"
