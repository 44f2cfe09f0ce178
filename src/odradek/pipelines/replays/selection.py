"""The offsets that a replay reads, chosen in one of three ways.

The ways are: two offsets or times, a list of ranges, or the ranges that a group has read.

``__consumer_offsets`` has the commits of a group. If the second of two successive commits of a partition is higher, the
group read the records between them. If the second is lower, the group was rewound and read records again. After a
deletion of the committed offset, it is unknown where the group continued. The records that the group read are the union
of these ranges. The union has a gap at each deletion: from the last commit before it to the first commit after it. A
commit that skips records looks the same as a commit after reading them, so the skipped records count as read.

The topic is compacted: it keeps the last commit of each partition for long, and older commits only for a while. So the
commits must reach back to the requested start; otherwise RangeGone is raised.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.lag.reset import datetime_ms, datetime_text
from odradek.pipelines.ranges import merge
from odradek.pipelines.values.arguments import ArgumentError
from odradek.spark.offsets.offset_ranges import Range
from odradek.text.json_depth import NameRepeated, parse_json
from odradek.text.printable import one_line, shortened

if TYPE_CHECKING:
    import pyarrow as pa

_TIMES = ("commit_timestamp", "record_timestamp")
EXAMPLE = '{"events":{"0":[100,200]}}'
SEVERAL = '{"events":{"0":[[100,200],[300,310]]}}'


class RangeGone(OdradekError):
    """A replay needs records or commits that are deleted; the message names them and the cause."""


class _WrongRange(ValueError):
    """The text is JSON of the right form, and two numbers of it are no range. Other texts are Python's own."""


class Commit(NamedTuple):
    """A commit of a partition. ``at_ms``: since 1970. ``offset``: None if the offset was deleted or has expired."""

    at_ms: int
    offset: int | None


@dataclass(frozen=True)
class ReadByGroup:
    """The ranges that a group read of a partition between the commits ``first`` and ``last``, with the number of
    rewinds."""

    ranges: tuple[Range, ...]
    first: Commit
    last: Commit
    rewinds: int


def parse_ranges(text: str) -> list[Range]:
    """Reads ranges from JSON; the end is excluded. One range: ``{"events":{"0":[100,200]}}``, several:
    ``[[100,200],[300,310]]``.

    Raises ConfigError.
    """
    found: list[Range] = []
    try:
        for topic, partitions in parse_json(text, distinct=True).items():
            for number, given in partitions.items():
                pieces = given if given and isinstance(given[0], list) else [given]
                for start, end in pieces:
                    if not (type(start) is int and type(end) is int and 0 <= start < end):
                        raise _WrongRange(f"[{start},{end}] is not a range")
                    found.append(Range(TopicPartition(topic, int(number)), start, end))
    except (ValueError, TypeError, AttributeError) as error:
        why = f" ({one_line(error)})" if isinstance(error, _WrongRange) else ""
        if isinstance(error, NameRepeated):
            why = f"; {one_line(error)}: give the ranges of a partition as {SEVERAL}"
        raise ArgumentError(
            lambda shown: f"{shown('offsets')} {shortened(text)!r}: expected for example {EXAMPLE}{why}"
        ) from error
    if not found:
        raise ArgumentError(lambda shown: f"{shown('offsets')} {text!r} has no range; expected for example {EXAMPLE}")
    return merge(found)


def batch_reads(ranges: Sequence[Range]) -> list[list[Range]]:
    """Divides ranges into lists with at most one range of each partition: one batch read can read one such list."""
    found: list[list[Range]] = []
    seen: dict[TopicPartition, int] = {}
    for piece in sorted(ranges):
        number = seen.get(piece.partition, 0)
        seen[piece.partition] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(piece)
    return found


def commits_of(history: pa.Table, topic_ids: Mapping[str, bytes | None]) -> dict[TopicPartition, list[Commit]]:
    """Returns a group's commits by partition, oldest first, from the rows of ``read_offset_history(group=…)``.

    Commits to a deleted topic of the same name are left out. ``topic_ids``: the present ids.
    """
    names = ("kind", "topic", "partition", "committed_offset", "is_tombstone", "topic_id", "record_offset")
    columns = history.select([*names, *_TIMES])
    for name in _TIMES:  # as numbers, because Python's calendar ends before Kafka's
        columns = columns.set_column(columns.schema.get_field_index(name), name, columns[name].cast("int64"))
    rows: list[dict[str, Any]] = columns.to_pylist()
    found: dict[TopicPartition, list[Commit]] = {}
    for row in sorted(rows, key=lambda row: row["record_offset"]):
        topic = row["topic"]
        if row["kind"] != "offset_commit" or topic is None:
            continue
        now = topic_ids.get(topic)
        if row["topic_id"] is not None and now is not None and row["topic_id"] != now:
            continue
        at_us = row["record_timestamp"] if row["commit_timestamp"] is None else row["commit_timestamp"]
        # an offset below 0 is no commit for Kafka's clients
        offset = None if row["is_tombstone"] or row["committed_offset"] < 0 else row["committed_offset"]
        commit = Commit(at_us // 1000, offset)
        found.setdefault(TopicPartition(topic, row["partition"]), []).append(commit)
    return found


def read_between(
    partition: TopicPartition, commits: Sequence[Commit], since_ms: int | None, until_ms: int | None
) -> ReadByGroup | None:
    """Returns the ranges that were read between the last commit at or before ``since_ms`` and the last at or before
    ``until_ms``.

    If ``since_ms`` is None, the oldest stored commit is used; if ``until_ms`` is None, the newest. Returns None if
    there is no commit up to ``until_ms``. Raises RangeGone if no commit is as old as ``since_ms``.
    """
    chosen = [commit for commit in commits if until_ms is None or commit.at_ms <= until_ms]
    if not chosen:
        return None
    begin = 0
    if since_ms is not None:
        old = [number for number, commit in enumerate(chosen) if commit.at_ms <= since_ms]
        if not old:
            raise RangeGone(
                f"{partition}: the group's oldest stored commit is offset {chosen[0].offset} at"
                f" {datetime_text(chosen[0].at_ms)}: __consumer_offsets is compacted, or the group read nothing before"
            )
        begin = old[-1]
    chosen = chosen[begin:]
    pieces: list[Range] = []
    rewinds = 0
    for before, after in itertools.pairwise(chosen):
        if before.offset is None or after.offset is None:
            continue
        rewinds += after.offset < before.offset
        pieces.append(Range(partition, before.offset, after.offset))
    return ReadByGroup(tuple(merge(pieces)), chosen[0], chosen[-1], rewinds)


def time_ms(text: str, option: str) -> int:
    """Returns an ISO 8601 time as milliseconds since 1970. The default time zone is UTC. ``option``: the name of the
    argument. Raises ConfigError."""
    try:
        return datetime_ms(text)
    except ConfigError:
        raise ArgumentError(
            lambda shown: (
                f"{shown(option)} {text!r} is not a time; expected for example 2026-01-31T12:00:00 "
                "(UTC; +01:00 behind it names another zone)"
            )
        ) from None
