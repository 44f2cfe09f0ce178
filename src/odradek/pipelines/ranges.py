"""Which offsets a replay reads: by places in the log, by hand, or by what a group read between two of its commits.

A group's commits stand in ``__consumer_offsets``. From one commit of a partition to the next, the group read what lies
between, if the second is higher; a lower one is a rewind, after which records were read again, and a deletion leaves
unknown where it went on. What it read is the union of these pieces: a range, or several with gaps that it jumped over
where its offsets were deleted. A commit made to skip records looks like one after reading them.

The topic is compacted: of each partition the last commit is kept for long, the ones before it only for a while. So the
commits have to reach back to the beginning that is asked for, and it is an error where they do not.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.core.json_depth import parse_json
from odradek.core.printable import shortened
from odradek.lag.reset import datetime_ms
from odradek.spark.offset_ranges import Range

if TYPE_CHECKING:
    import pyarrow as pa

EXAMPLE = '{"events":{"0":[100,200]}}'


class RangeGone(OdradekError):
    """Records, or commits, that a replay was to go by are not kept any more; the message names them and the cause."""


class Commit(NamedTuple):
    """A commit of a partition, ``at_ms`` since 1970; offset None: the group's offset was deleted or has expired."""

    at_ms: int
    offset: int | None


@dataclass(frozen=True)
class ReadByGroup:
    """What was read of a partition between the commits ``first`` and ``last``; ``rewinds``: how often it went back."""

    ranges: tuple[Range, ...]
    first: Commit
    last: Commit
    rewinds: int


def parse_ranges(text: str) -> list[Range]:
    """Ranges by hand, the end not included: ``{"events":{"0":[100,200]}}``; several as ``[[100,200],[300,310]]``.

    Raises ConfigError.
    """
    found: list[Range] = []
    try:
        for topic, partitions in parse_json(text).items():
            for number, given in partitions.items():
                pieces = given if given and isinstance(given[0], list) else [given]
                for start, end in pieces:
                    if not (type(start) is int and type(end) is int and 0 <= start < end):
                        raise ValueError(f"[{start},{end}] is no range")
                    found.append(Range(TopicPartition(topic, int(number)), start, end))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"offsets {shortened(text)!r}: expected for example {EXAMPLE} ({error})") from error
    if not found:
        raise ConfigError(f"offsets {text!r} name no range; expected for example {EXAMPLE}")
    return merge(found)


def merge(pieces: Iterable[Range]) -> list[Range]:
    """The same offsets as ranges that do not touch, in order."""
    merged: list[Range] = []
    for piece in sorted(piece for piece in pieces if piece.size > 0):
        if merged and merged[-1].partition == piece.partition and piece.start <= merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, piece.end))
        else:
            merged.append(piece)
    return merged


def legs(ranges: Sequence[Range]) -> list[list[Range]]:
    """Ranges of which each list has one of a partition at most: what one batch read can take."""
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
    """A group's commits by partition, oldest first, from the rows of ``read_offset_history(group=…)``.

    Those of a deleted topic of the same name (``topic_ids``: the ids now) are left out.
    """
    names = ("kind", "topic", "partition", "committed_offset", "is_tombstone", "topic_id", "record_offset")
    rows: list[dict[str, Any]] = history.select([*names, "commit_timestamp", "record_timestamp"]).to_pylist()
    found: dict[TopicPartition, list[Commit]] = {}
    for row in sorted(rows, key=lambda row: row["record_offset"]):
        topic = row["topic"]
        if row["kind"] != "offset_commit" or topic is None:
            continue
        now = topic_ids.get(topic)
        if row["topic_id"] is not None and now is not None and row["topic_id"] != now:
            continue
        at = row["commit_timestamp"] or row["record_timestamp"]
        offset = None if row["is_tombstone"] else row["committed_offset"]
        commit = Commit(round(at.timestamp() * 1000), offset)
        found.setdefault(TopicPartition(topic, row["partition"]), []).append(commit)
    return found


def read_between(
    partition: TopicPartition, commits: Sequence[Commit], since_ms: int | None, until_ms: int | None
) -> ReadByGroup | None:
    """What was read between the last commit not after ``since_ms`` and the last one not after ``until_ms``.

    None: the oldest and the newest commit that are kept. Returns None where nothing was committed until then. Raises
    RangeGone where no commit is as old as ``since_ms``.
    """
    chosen = [commit for commit in commits if until_ms is None or commit.at_ms <= until_ms]
    if not chosen:
        return None
    begin = 0
    if since_ms is not None:
        old = [number for number, commit in enumerate(chosen) if commit.at_ms <= since_ms]
        if not old:
            raise RangeGone(
                f"{partition}: of the group's commits the oldest that is kept, offset {chosen[0].offset}, is of"
                f" {iso(chosen[0].at_ms)}: __consumer_offsets is compacted, or the group read nothing before"
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
    """Reads an ISO 8601 time, UTC unless it says otherwise, as milliseconds since 1970. Raises ConfigError."""
    try:
        return datetime_ms(text)
    except ConfigError:
        raise ConfigError(f"{option} {text!r} is no time; expected for example 2026-01-31T12:00:00") from None


def iso(at_ms: int) -> str:
    """A time as it can be given again."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
