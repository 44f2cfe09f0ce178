"""Settings of the group coordinator. The broker's table of settings takes its rows from this declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

_READ: dict[str, Callable[[str], Any]] = {
    "int": int,
    "long": int,
    "string": str,
    "list": lambda text: tuple(text.split(",")),
}


def _unchanged(value: Any) -> Any:
    return value


def _minutes_as_ms(minutes: int) -> int:
    return minutes * 60_000


def _setting(row: str, convert: Callable[[Any], Any] = _unchanged) -> Any:  # Any: the field can have any type
    """Returns a field with its broker setting.

    ``row`` is a row of ``broker/config_table``: name, type, default, limits, description. ``convert`` turns the
    setting's value into the field's value.
    """
    name, kind, default, _, _ = (cell.strip() for cell in row.split("|", 4))
    return field(default=convert(_READ[kind](default)), metadata={"name": name, "row": row, "convert": convert})


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """The settings of groups. Times are in milliseconds."""

    offset_metadata_max_bytes: int = _setting(  # counted in characters, as Kafka does
        "offset.metadata.max.bytes | int | 4096 | | The longest metadata text of a committed offset."
    )
    offsets_retention_ms: int = _setting(
        "offsets.retention.minutes | int | 10080 | 1.. | How long offsets of an empty group are kept.", _minutes_as_ms
    )
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms | long | 600000 | 1.. | The interval of the check for expired offsets."
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms | int | 6000 | | The shortest session timeout that a classic member may request."
    )
    group_max_session_timeout_ms: int = _setting(
        "group.max.session.timeout.ms | int | 1800000 | "
        "| The longest session timeout that a classic member may request."
    )
    group_max_size: int = _setting(
        "group.max.size | int | 2147483647 | 1.. | The largest number of members of a classic group."
    )
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms | int | 0 | "
        "| How long a new group waits for more members. Kafka's default is 3000."
    )
    consumer_session_timeout_ms: int = _setting(
        "group.consumer.session.timeout.ms | int | 45000 | 1.. "
        "| The time without a heartbeat after which a KIP-848 member is removed."
    )
    consumer_heartbeat_interval_ms: int = _setting(
        "group.consumer.heartbeat.interval.ms | int | 5000 | 1.. "
        "| The interval between the heartbeats of a KIP-848 member."
    )
    consumer_assignment_interval_ms: int = _setting(
        "group.consumer.assignment.interval.ms | int | 1000 | 0.. "
        "| The least time between two assignments of a KIP-848 group."
    )
    consumer_regex_refresh_interval_ms: int = _setting(
        "group.consumer.regex.refresh.interval.ms | int | 600000 | 10000.. "
        "| The interval after which a group's patterns are resolved again."
    )
    consumer_max_size: int = _setting(
        "group.consumer.max.size | int | 2147483647 | 1.. | The largest number of members of a KIP-848 group."
    )
    consumer_assignors: tuple[str, ...] = _setting(
        "group.consumer.assignors | list | uniform,range | list uniform,range "
        "| The broker's assignors; the first is the default."
    )
    consumer_migration_policy: str = _setting(
        "group.consumer.migration.policy | string | bidirectional | "
        "| The allowed conversions between classic and KIP-848 groups: bidirectional, upgrade, downgrade or disabled.",
        str.lower,
    )
    new_member_join_timeout_ms: int = 300_000
    """A constant: Kafka has no setting for it."""

    @classmethod
    def of(cls, value_of: Callable[[str], Any]) -> Self:
        """Returns the config from a function that maps a broker setting's name to its value."""
        return cls(**{one.name: one.metadata["convert"](value_of(one.metadata["name"])) for one in cls._declared()})

    @classmethod
    def rows(cls) -> list[str]:
        """Returns the rows of the broker's table."""
        return [one.metadata["row"] for one in cls._declared()]

    @classmethod
    def _declared(cls) -> Iterator[Field[Any]]:
        return (one for one in fields(cls) if one.metadata)
