"""Settings of the group coordinator. The broker's table of settings takes its rows from this declaration."""

from __future__ import annotations

from dataclasses import dataclass

from odradek.core.state_machines.declared_settings import DeclaredSettings, setting


def _minutes_as_ms(minutes: int) -> int:
    return minutes * 60_000


@dataclass(slots=True, frozen=True)
class GroupConfig(DeclaredSettings):
    """The settings of groups. Times are in milliseconds."""

    offset_metadata_max_bytes: int = setting(  # counted in characters, as Kafka does
        "offset.metadata.max.bytes | int | 4096 | | The longest metadata text of a committed offset."
    )
    offsets_retention_ms: int = setting(
        "offsets.retention.minutes | int | 10080 | 1.. | How long offsets of an empty group are kept.", _minutes_as_ms
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms | long | 600000 | 1.. | The interval of the check for expired offsets."
    )
    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms | int | 5000 | 1.. "
        "| How long a request to a group waits for the replicas of its records. Then the error is "
        "`COORDINATOR_NOT_AVAILABLE`."
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms | int | 6000 | | The shortest session timeout that a classic member may request."
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms | int | 1800000 | "
        "| The longest session timeout that a classic member may request."
    )
    group_max_size: int = setting(
        "group.max.size | int | 2147483647 | 1.. | The largest number of members of a classic group."
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms | int | 0 | "
        "| How long a new group waits for more members. Kafka's default is 3000."
    )
    consumer_session_timeout_ms: int = setting(
        "group.consumer.session.timeout.ms | int | 45000 | 1.. "
        "| The time without a heartbeat after which a KIP-848 member is removed."
    )
    consumer_heartbeat_interval_ms: int = setting(
        "group.consumer.heartbeat.interval.ms | int | 5000 | 1.. "
        "| The interval between the heartbeats of a KIP-848 member."
    )
    consumer_assignment_interval_ms: int = setting(
        "group.consumer.assignment.interval.ms | int | 1000 | 0.. "
        "| The least time between two assignments of a KIP-848 group."
    )
    consumer_regex_refresh_interval_ms: int = setting(
        "group.consumer.regex.refresh.interval.ms | int | 600000 | 10000.. "
        "| The interval after which a group's patterns are resolved again."
    )
    consumer_max_size: int = setting(
        "group.consumer.max.size | int | 2147483647 | 1.. | The largest number of members of a KIP-848 group."
    )
    consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors | list | uniform,range | list uniform,range "
        "| The broker's assignors; the first is the default."
    )
    consumer_migration_policy: str = setting(
        "group.consumer.migration.policy | string | bidirectional | "
        "| The allowed conversions between classic and KIP-848 groups: bidirectional, upgrade, downgrade or disabled.",
        str.lower,
    )
    new_member_join_timeout_ms: int = 300_000
    """A constant: Kafka has no setting for it."""
