"""Settings of the group coordinator: each is declared here alone, and the broker's table, keys and values follow."""

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


def _setting(row: str, convert: Callable[[Any], Any] = _unchanged) -> Any:  # Any: it stands for a field of any type
    """A field with the broker setting it comes from, as a row of ``broker/config_table``: name, type, default, limits,
    what it does. ``convert`` makes the field's value of the setting's."""
    name, kind, default, _, _ = (cell.strip() for cell in row.split("|", 4))
    return field(default=convert(_READ[kind](default)), metadata={"name": name, "row": row, "convert": convert})


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """What groups go by. Times are in milliseconds."""

    offset_metadata_max_bytes: int = _setting(  # counted in characters, as Kafka does
        "offset.metadata.max.bytes | int | 4096 | | Length of the text that may go with a committed offset."
    )
    offsets_retention_ms: int = _setting(
        "offsets.retention.minutes | int | 10080 | 1.. | How long offsets of an empty group are kept.", _minutes_as_ms
    )
    offsets_retention_check_interval_ms: int = _setting(
        "offsets.retention.check.interval.ms | long | 600000 | 1.. | How often expired offsets are looked for."
    )
    group_min_session_timeout_ms: int = _setting(
        "group.min.session.timeout.ms | int | 6000 | | The shortest session timeout a member may ask for."
    )
    group_max_session_timeout_ms: int = _setting("group.max.session.timeout.ms | int | 1800000 | | The longest.")
    group_max_size: int = _setting("group.max.size | int | 2147483647 | 1.. | Members of a group.")
    group_initial_rebalance_delay_ms: int = _setting(
        "group.initial.rebalance.delay.ms | int | 0 | "
        "| How long a new group waits for members. Kafka's default is 3000."
    )
    consumer_session_timeout_ms: int = _setting(
        "group.consumer.session.timeout.ms | int | 45000 | 1.. | How long a KIP-848 member may be silent."
    )
    consumer_heartbeat_interval_ms: int = _setting(
        "group.consumer.heartbeat.interval.ms | int | 5000 | 1.. | How often KIP-848 members are told to heartbeat."
    )
    consumer_assignment_interval_ms: int = _setting(
        "group.consumer.assignment.interval.ms | int | 1000 | 0.. "
        "| The least time between two assignments of a KIP-848 group."
    )
    consumer_regex_refresh_interval_ms: int = _setting(
        "group.consumer.regex.refresh.interval.ms | int | 600000 | 10000.. "
        "| How old the topics of a group's pattern get."
    )
    consumer_max_size: int = _setting("group.consumer.max.size | int | 2147483647 | 1.. | Members of a KIP-848 group.")
    consumer_assignors: tuple[str, ...] = _setting(
        "group.consumer.assignors | list | uniform,range | list uniform,range "
        "| The server's assignors; the first is the default."
    )
    consumer_migration_policy: str = _setting(
        "group.consumer.migration.policy | string | bidirectional | "
        "| Ways groups change sides: upgrade, downgrade, disabled.",
        str.lower,
    )
    new_member_join_timeout_ms: int = 300_000
    """Kafka has no setting for it."""

    @classmethod
    def of(cls, value_of: Callable[[str], Any]) -> Self:
        """From the values of the broker's settings, by name."""
        return cls(**{one.name: one.metadata["convert"](value_of(one.metadata["name"])) for one in cls._declared()})

    @classmethod
    def rows(cls) -> list[str]:
        """The settings, for the broker's table."""
        return [one.metadata["row"] for one in cls._declared()]

    @classmethod
    def _declared(cls) -> Iterator[Field[Any]]:
        return (one for one in fields(cls) if one.metadata)
