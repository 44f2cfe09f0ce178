"""Settings of the group coordinator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """Values of the broker settings named beside them; times in milliseconds."""

    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_max_bytes: int = 4096  # offset.metadata.max.bytes; counted in characters, as Kafka does
    group_min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    group_max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms (Kafka: 3000; embedded: 0)
    group_max_size: int = 2_147_483_647  # group.max.size
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_assignment_interval_ms: int = 1_000  # group.consumer.assignment.interval.ms
    consumer_regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms
    consumer_max_size: int = 2_147_483_647  # group.consumer.max.size
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors; the first is the default
    consumer_migration_policy: str = "bidirectional"  # group.consumer.migration.policy
    new_member_join_timeout_ms: int = 300_000  # group.new.member.join.timeout.ms
