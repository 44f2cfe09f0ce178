"""Where the offsets of a group go in a reset: the scenarios of ``kafka-consumer-groups --reset-offsets``.

``targets`` and ``rows`` are pure; ``plan`` asks a cluster for what they need. The rules are Kafka's: a wished offset
outside of the log is moved to its nearest end, a time after the last record means the end, ``to-current`` leaves
committed offsets alone and takes the end where there is none, ``shift-by`` needs a committed offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from odradek.client import durations
from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound, UnknownTopic
from odradek.client.model import EARLIEST, LATEST
from odradek.core.errors import ConfigError
from odradek.core.ids import NO_OFFSET, OffsetAndMetadata, TopicPartition, java_string_hash
from odradek.lag.reset_csv import hash_order
from odradek.lag.reset_mark import mark_reset

RESETTABLE = ("Empty", "Dead")


class Scenario(NamedTuple):
    """What to reset to. ``kind`` is Kafka's option without its dashes; ``value`` an offset, a shift or a time in ms."""

    kind: str
    value: int = 0
    offsets: Mapping[str, Mapping[TopicPartition, int]] = {}


class Log(NamedTuple):
    """One partition's bounds, and what a lookup by time found (-1: no record that young)."""

    start: int
    end: int
    at_time: int = NO_OFFSET


class ResetRow(NamedTuple):
    """``before`` is None where nothing was committed. ``clamped_from`` is the wish that lay outside of the log.

    ``distance`` counts offsets inside the log between the two: negative ones are read again, positive ones skipped.
    Where nothing was committed, it counts from the log start.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    distance: int
    clamped_from: int | None = None
    log_start: int = 0


class GroupReset(NamedTuple):
    group: str
    state: str
    rows: tuple[ResetRow, ...]
    topic_ids: Mapping[str, UUID | None] = {}

    def commits(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit. The marks have a query that reads as this group follow (``reset_mark``)."""
        return {
            TopicPartition(row.topic, row.partition): mark_reset(row.after, self.topic_ids.get(row.topic))
            for row in self.rows
        }


def targets(
    scenario: Scenario,
    group: str,
    partitions: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, Log],
) -> dict[TopicPartition, int]:
    """The offsets wished for, not yet held against the log. Raises ConfigError for a shift from nowhere."""
    found: dict[TopicPartition, int] = {}
    for tp in partitions:
        log, current = logs[tp], committed.get(tp)
        match scenario.kind:
            case "to-earliest":
                found[tp] = log.start
            case "to-latest":
                found[tp] = log.end
            case "to-offset":
                found[tp] = scenario.value
            case "from-file":
                found[tp] = scenario.offsets[group][tp]
            case "to-current":
                found[tp] = log.end if current is None else current.offset
            case "shift-by":
                if current is None:
                    raise ConfigError(f"--shift-by: group {group} has no committed offset in {tp} to shift from")
                found[tp] = current.offset + scenario.value
            case "to-datetime" | "by-duration":
                found[tp] = log.end if log.at_time == NO_OFFSET else log.at_time
            case _:
                raise ConfigError(f"unknown reset scenario {scenario.kind}")
    return found


def rows(
    scenario: Scenario,
    wished: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    logs: Mapping[TopicPartition, Log],
) -> tuple[ResetRow, ...]:
    """Before and after of each partition, in the order of ``wished``."""
    made = []
    for tp, wish in wished.items():
        log = logs[tp]
        # A committed offset that stays is not moved, wherever it lies: Kafka's tool does not, either.
        after = wish if scenario.kind == "to-current" else _into(wish, log)
        before = committed[tp].offset if tp in committed else None
        distance = _into(after, log) - (log.start if before is None else _into(before, log))
        made.append(ResetRow(*tp, before, after, distance, None if after == wish else wish, log.start))
    return tuple(made)


def _into(offset: int, log: Log) -> int:
    return max(log.start, min(offset, log.end))


def plan(
    admin: Admin,
    group: str,
    scenario: Scenario,
    *,
    topics: Iterable[str] = (),
    partitions: Iterable[TopicPartition] = (),
    all_topics: bool = False,
) -> GroupReset:
    """What a reset of one group would do; nothing is changed. A group that does not exist yet counts as empty.

    Live members are no error here: ``state`` tells. Raises UnknownTopic, ConfigError, and as ``Admin`` does.
    """
    try:
        state = admin.describe_groups([group])[group].state
    except GroupIdNotFound:
        state = "Dead"
    committed = admin.list_group_offsets(group)
    if scenario.kind == "from-file":
        chosen = list(scenario.offsets.get(group, {}))
    elif all_topics:
        chosen = sorted(committed)
    else:
        names = list(topics)
        described = admin.describe_topics(names) if names else {}
        # In the order that Kafka's tool has them, which shows in its CSV.
        ordered = [described[name] for name in hash_order(described, {n: java_string_hash(n) for n in described})]
        whole = [TopicPartition(t.name, p.partition) for t in ordered for p in t.partitions]
        chosen = list(dict.fromkeys([*partitions, *whole]))
    topic_ids = _check_exist(admin, chosen)
    logs = _logs(admin, chosen, scenario)
    wished = targets(scenario, group, chosen, committed, logs)
    return GroupReset(group, state, rows(scenario, wished, committed, logs), topic_ids)


def _check_exist(admin: Admin, chosen: list[TopicPartition]) -> dict[str, UUID | None]:
    """Returns the topics' ids."""
    described = admin.describe_topics(sorted({tp.topic for tp in chosen})) if chosen else {}
    for tp in chosen:
        count = len(described[tp.topic].partitions)
        if tp.partition >= count:
            raise UnknownTopic(f"topic {tp.topic} has no partition {tp.partition} (it has {count})")
    return {name: topic.topic_id for name, topic in described.items()}


def _logs(admin: Admin, chosen: list[TopicPartition], scenario: Scenario) -> dict[TopicPartition, Log]:
    if not chosen:
        return {}
    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    timed = scenario.kind in ("to-datetime", "by-duration")
    times = admin.list_offsets(dict.fromkeys(chosen, max(scenario.value, 0))) if timed else {}
    return {
        tp: Log(starts[tp].offset, ends[tp].offset, times[tp].offset if tp in times else NO_OFFSET) for tp in chosen
    }


def duration_ms(text: str) -> int:
    """Reads ``PnDTnHnMn.nS`` as Java's Duration does, down to milliseconds. Raises ConfigError."""
    try:
        return durations.duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"--by-duration {error}") from None


def datetime_ms(text: str) -> int:
    """Reads ``YYYY-MM-DDTHH:mm:SS.sss`` (ISO 8601), UTC unless it says otherwise. Raises ConfigError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"--to-datetime {text!r}: expected YYYY-MM-DDTHH:mm:SS.sss, UTC unless it ends in an offset"
                          ) from None  # fmt: skip
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
