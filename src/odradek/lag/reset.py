"""The new offsets of a group's reset: the scenarios of ``kafka-consumer-groups --reset-offsets``.

``targets`` and ``rows`` are pure; ``plan`` gets their input from a cluster. The rules are Kafka's. A target offset
outside the log becomes the log start or the log end, whichever is nearer. A time after the last record selects the log
end. ``to-current`` keeps committed offsets, even outside the log, and uses the log end if a partition has none.
``shift-by`` needs a committed offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound, UnknownTopic
from odradek.core.errors import ConfigError
from odradek.core.ids import (
    EARLIEST,
    LAST_MS,
    LATEST,
    NO_OFFSET,
    OffsetAndMetadata,
    TopicPartition,
    hash_order,
    java_string_hash,
)
from odradek.lag.describe import group_description
from odradek.lag.reset_mark import QUERY_MARK, mark_reset
from odradek.lag.reset_targets import ResetTarget
from odradek.text import units

_SPAN = re.compile(r"\d\s*(?:s|m|min|h|d|w|hour|minute|day|week)s?\b|ago|yesterday|today", re.I)
"""A text that means a time before now: a moment has digits and ``T``."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
RESETTABLE = ("Empty", "Dead")


class Scenario(NamedTuple):
    """A target of a reset with its value.

    ``value``: an offset, a shift or a time (ms since 1970).
    ``offsets``: the offsets of ``from-file``, by group.
    """

    kind: ResetTarget
    value: int = 0
    offsets: Mapping[str, Mapping[TopicPartition, int]] = {}


class PartitionBounds(NamedTuple):
    """One partition's log start and end, and the offset for the scenario's time.

    ``at_time`` is -1 if all records are older, or if the scenario has no time.
    """

    start: int
    end: int
    at_time: int = NO_OFFSET


class ResetRow(NamedTuple):
    """One partition of a reset. ``before`` is None without a committed offset.

    ``clamped_from`` is the target offset if it was outside the log and ``after`` differs from it. ``distance`` counts
    the offsets of the log from ``before`` (None: from the log start) to ``after``. If another store has a larger
    offset or the only one, ``distance`` counts from that offset. A negative distance is the number of offsets that are
    read again, a positive one the number that are skipped.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    distance: int
    clamped_from: int | None = None
    log_start: int = 0


class GroupResetPlan(NamedTuple):
    group: str
    state: str
    rows: tuple[ResetRow, ...]
    topic_ids: Mapping[str, UUID | None] = {}
    elsewhere: Mapping[TopicPartition, int] | None = None
    """The group's offsets in another store, if the reset moves these offsets too."""

    is_of_query: bool = False
    """Whether a Spark query with ``format("odradek")`` has made one of the present commits."""

    left_out: tuple[TopicPartition, ...] = ()
    """Partitions of a shift of all topics whose commit is below 0, so that there is no offset to shift from."""

    def commits(self, *, mark: bool = False) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets to commit, with empty metadata as Kafka's tool commits them.

        ``mark``: each has a mark (``reset_mark``) that a Spark query of this group follows.
        """
        return {
            TopicPartition(row.topic, row.partition): mark_reset(row.after, self.topic_ids.get(row.topic))
            if mark
            else OffsetAndMetadata(row.after)
            for row in self.rows
        }


def targets(
    scenario: Scenario,
    group: str,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionBounds],
) -> dict[TopicPartition, int]:
    """Returns the target offsets, which may be outside the log.

    Raises ConfigError for a shift without a committed offset."""
    offsets: dict[TopicPartition, int] = {}
    for tp in partitions:
        log, current = logs[tp], committed.get(tp)
        match scenario.kind:
            case ResetTarget.TO_EARLIEST:
                offsets[tp] = log.start
            case ResetTarget.TO_LATEST:
                offsets[tp] = log.end
            case ResetTarget.TO_OFFSET:
                offsets[tp] = scenario.value
            case ResetTarget.FROM_FILE:
                offsets[tp] = scenario.offsets[group][tp]
            case ResetTarget.TO_CURRENT:
                offsets[tp] = log.end if current is None else current.offset
            case ResetTarget.SHIFT_BY:
                if current is None:
                    raise ConfigError(
                        f"group {group} has no committed offset in {tp} to shift from: "
                        + (
                            "leave the partition out, or choose all topics"
                            if committed
                            else "it has none in any partition: choose another target"
                        )
                    )
                offsets[tp] = current.offset + scenario.value
            case ResetTarget.TO_DATETIME | ResetTarget.BY_DURATION:
                offsets[tp] = log.end if log.at_time == NO_OFFSET else log.at_time
    return offsets


def rows(
    scenario: Scenario,
    wished: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, PartitionBounds],
    starts: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
) -> tuple[ResetRow, ...]:
    """Returns the row of each partition, in the order of ``wished``.

    ``starts``: the offsets at which consumers would resume now; None means ``committed``."""
    made = []
    for tp, wish in wished.items():
        log = logs[tp]
        after = wish if scenario.kind.keeps_outside else _into(wish, log)
        before = committed[tp].offset if tp in committed else None
        start = (committed if starts is None else starts).get(tp)
        distance = _into(after, log) - (log.start if start is None else _into(start.offset, log))
        made.append(ResetRow(*tp, before, after, distance, None if after == wish else wish, log.start))
    return tuple(made)


def _into(offset: int, log: PartitionBounds) -> int:
    return max(log.start, min(offset, log.end))


def plan(
    admin: Admin,
    group: str,
    scenario: Scenario,
    *,
    topics: Iterable[str] = (),
    partitions: Iterable[TopicPartition] = (),
    all_topics: bool = False,
    elsewhere: Mapping[TopicPartition, int] | None = None,
) -> GroupResetPlan:
    """Plans the reset of one group and changes nothing. A group that does not exist has no committed offsets.

    ``elsewhere``: the group's offsets in another store. Consumers resume at the larger of the two offsets, so a shift
    starts at the larger one. Live members are not an error here: the caller checks ``state``. Raises UnknownTopic,
    ConfigError, GroupIdNotFound for a shift without a group, and the errors of ``Admin``.
    """
    missing: GroupIdNotFound | None = None
    try:
        state = group_description(admin, group).state
    except GroupIdNotFound as error:
        state, missing = "Dead", error
    commits = admin.group_commits(group)
    committed = {tp: one for tp, one in commits.items() if one is not None}
    starts = _larger(committed, elsewhere or {})
    if missing is not None and scenario.kind is ResetTarget.SHIFT_BY and not starts and not all_topics:
        raise missing  # nothing to shift from, whatever the partition
    if scenario.kind is ResetTarget.FROM_FILE:
        chosen = list(scenario.offsets.get(group, {}))
    elif all_topics:
        chosen = sorted(starts if scenario.kind is ResetTarget.SHIFT_BY else starts.keys() | commits.keys())
    else:
        names = list(topics)
        described = admin.describe_topics(names) if names else {}
        # The order of Kafka's tool, which its CSV shows.
        ordered = [described[name] for name in hash_order(described, java_string_hash)]
        whole = [TopicPartition(t.name, p.partition) for t in ordered for p in t.partitions]
        chosen = list(dict.fromkeys([*partitions, *whole]))
    topic_ids = _check_exist(admin, chosen)
    logs = log_bounds(admin, chosen, scenario)
    wished = targets(scenario, group, chosen, starts, logs)
    is_of_query = any(tp in committed and committed[tp].metadata.startswith(QUERY_MARK) for tp in chosen)
    moved = tuple(rows(scenario, wished, committed, logs, starts))
    left_out = tuple(sorted(commits.keys() - set(chosen))) if all_topics else ()
    return GroupResetPlan(group, state, moved, topic_ids, elsewhere, is_of_query, left_out)


def _larger(
    committed: Mapping[TopicPartition, OffsetAndMetadata], elsewhere: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetAndMetadata]:
    larger = dict(committed)
    for tp, offset in elsewhere.items():
        if tp not in larger or offset > larger[tp].offset:
            larger[tp] = OffsetAndMetadata(offset)
    return larger


def _check_exist(admin: Admin, chosen: list[TopicPartition]) -> dict[str, UUID | None]:
    """Returns the topics' ids. Raises UnknownTopic."""
    described = admin.describe_topics(sorted({tp.topic for tp in chosen})) if chosen else {}
    for tp in chosen:
        count = len(described[tp.topic].partitions)
        if tp.partition >= count:
            raise UnknownTopic(f"topic {tp.topic} has no partition {tp.partition} (it has {count})")
    return {name: topic.topic_id for name, topic in described.items()}


def log_bounds(
    admin: Admin, chosen: Sequence[TopicPartition], scenario: Scenario | None = None
) -> dict[TopicPartition, PartitionBounds]:
    """Looks up the log start and end of partitions, and the offset for the time of a scenario. Raises UnknownTopic."""
    if not chosen:
        return {}
    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    times = {}
    if scenario is not None and scenario.kind.is_time:
        times = admin.list_offsets(dict.fromkeys(chosen, max(scenario.value, 0)))
    return {
        tp: PartitionBounds(starts[tp].offset, ends[tp].offset, times[tp].offset if tp in times else NO_OFFSET)
        for tp in chosen
    }


def scenario_for(target: ResetTarget, text: str, now_ms: int) -> Scenario:
    """Returns the scenario of a target and the text of its value, "" if it takes none. Raises ConfigError."""
    if bool(text) != bool(target.example):
        needs = f"takes none, not {text!r}" if text else f"needs one, for example {target.example}"
        raise ConfigError(f"{target} {needs}")
    match target:
        case ResetTarget.TO_DATETIME:
            return Scenario(target, datetime_ms(text))
        case ResetTarget.BY_DURATION:
            return Scenario(target, now_ms - duration_ms(text))
        case ResetTarget.TO_OFFSET | ResetTarget.SHIFT_BY:
            digits = text.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and int(digits) <= LAST_MS):
                raise ConfigError(f"{target} needs a whole number, not {text!r}")
            return Scenario(target, int(text))
    return Scenario(target)


def duration_ms(text: str) -> int:
    """Reads ``PnDTnHnMn.nS`` as Java's Duration does, down to milliseconds, or a span such as ``2h``.

    Raises ConfigError."""
    if (span := units.span_ms(text)) is not None:
        return span
    try:
        return units.duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"{error}, or a span such as 2h or 7d") from None


def datetime_ms(text: str) -> int:
    """Reads ``YYYY-MM-DDTHH:mm:SS.sss`` as ms since 1970. A text without a UTC offset is in UTC. Raises ConfigError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        if _MOMENT.fullmatch(text) is not None:  # the form is right: Python names the part that does not exist
            raise ConfigError(f"{text!r}: there is no such time: {error}") from None
        remedy = "; a span before now is by-duration 2h" if _SPAN.search(text) is not None else ""
        raise ConfigError(
            f"{text!r}: expected YYYY-MM-DDTHH:mm:SS.sss in UTC, or with an offset such as +01:00{remedy}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def datetime_text(at_ms: int) -> str:
    """Returns a time in the form that ``datetime_ms`` reads, or the number of ms beyond Python's calendar."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
