"""The progress of an exactly-once replay, stored as commits of the replay's own group.

Each transaction commits, for each source partition, the ranges that the replay plans and those that are done. The
ranges are in the metadata of the commit. A later run may have other ranges, for example because the topic has grown, or
because the group whose reads are replayed has lost older commits. Even then the commits tell the later run which
records are in the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import LogTail, OffsetAndMetadata, TopicPartition
from odradek.pipelines.ranges import merge, subtract
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets.source_offset import Offsets

MARK = "odradek-replay:1:"
# Kafka's default of offset.metadata.max.bytes.
_MAX_METADATA_BYTES = 4096


class ReplayRefused(OdradekError):
    """A replay that does not run, because records could be sent twice or lost; the message names the remedy."""


@dataclass(frozen=True)
class ReplayProgress:
    """``planned``: the ranges of a replay. ``done``: the ranges that are in the target. Both are merged. ``tails``: the
    last batch that was read in a partition of a source, and the last one in a partition of the target, where it is
    known. ``target_ends``: the end of each partition of the target after the records of the last transaction; empty if
    an earlier version has written it. The first version with it noted the ends before that transaction."""

    planned: tuple[Range, ...] = ()
    done: tuple[Range, ...] = ()
    tails: Mapping[TopicPartition, LogTail] = field(default_factory=dict)
    target_ends: Offsets = field(default_factory=dict)

    @property
    def left(self) -> list[Range]:
        return subtract(self.planned, self.done)

    def with_plan(self, ranges: Iterable[Range]) -> ReplayProgress:
        """Returns the progress with further planned ranges."""
        return replace(self, planned=tuple(merge([*self.planned, *ranges])))

    def with_done(self, ranges: Iterable[Range]) -> ReplayProgress:
        return replace(self, done=tuple(merge([*self.done, *ranges])))

    def with_tails(self, tails: Mapping[TopicPartition, LogTail]) -> ReplayProgress:
        """Returns the progress with the last batches of further ranges. In each partition the later one stays."""
        later = {tp: max(one, self.tails.get(tp, one)) for tp, one in tails.items()}
        return replace(self, tails={**self.tails, **later})

    def _tail_of(self, tp: TopicPartition) -> str:
        """Returns the last batch of a partition in the form of the metadata."""
        return ":" + "-".join(map(str, self.tails[tp])) if tp in self.tails else ""

    def commits(self, ids: Mapping[str, UUID]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the commits that keep the progress. The committed offset is the end of the last range that
        is done, or the start of the first planned range if no range is done. Those of the target have no ranges.

        Raises ConfigError if a partition has too many ranges for the metadata of a commit.
        """
        found = {
            tp: OffsetAndMetadata(end, metadata=f"{MARK}::{self._tail_of(tp)}") for tp, end in self.target_ends.items()
        }
        for tp in sorted({piece.partition for piece in self.planned}):
            planned, done = ([one for one in ranges if one.partition == tp] for ranges in (self.planned, self.done))
            topic_id = ids.get(tp.topic)
            metadata = f"{MARK}{'' if topic_id is None else topic_id.hex}:{_spans(planned)}:{_spans(done)}"
            tail = self._tail_of(tp) if done else ""
            if len(metadata + tail) <= _MAX_METADATA_BYTES:
                metadata += tail
            if len(metadata) > _MAX_METADATA_BYTES:
                raise ConfigError(
                    f"{tp} has {len(planned)} ranges: an exactly-once replay keeps them in the metadata of a commit, "
                    f"which has at most {_MAX_METADATA_BYTES:,} bytes. Replay fewer ranges with one command"
                )
            found[tp] = OffsetAndMetadata(done[-1].end if done else planned[0].start, metadata=metadata)
        return found


def progress_of(
    commits: Mapping[TopicPartition, OffsetAndMetadata], ids: Mapping[str, UUID], group: str, target: str = ""
) -> ReplayProgress:
    """Reads the progress from the group's commits, without the commits of a topic that was created again since then.
    ``target``: the target topic.

    Raises ReplayRefused for a commit of another client.
    """
    planned: list[Range] = []
    done: list[Range] = []
    tails: dict[TopicPartition, LogTail] = {}
    target_ends: dict[TopicPartition, int] = {}
    for tp, commit in commits.items():
        try:
            topic_id, *texts = commit.metadata.removeprefix(MARK).split(":")
            spans, tail = [_ranges(tp, text) for text in texts[:2]], _tail(texts[2:])
            if not commit.metadata.startswith(MARK) or len(spans) != 2:
                raise ValueError
        except ValueError:
            raise ReplayRefused(
                f"group {group} keeps the progress of this replay, and another client has committed offset "
                f"{commit.offset} of {tp} to it. Stop that client; then use another target, or delete the group, which "
                "begins the replay again"
            ) from None
        now = ids.get(tp.topic)
        if tp.topic == target:
            target_ends[tp] = commit.offset
            tails |= {} if tail is None else {tp: tail}
        elif topic_id in ("", None if now is None else now.hex):
            planned += spans[0]
            done += spans[1]
            tails |= {} if tail is None else {tp: tail}
    return ReplayProgress(tuple(merge(planned)), tuple(merge(done)), tails, target_ends)


def first_offsets(left: Sequence[Range], counts: Mapping[TopicPartition, int]) -> list[Range]:
    """Returns the first ``counts[partition]`` offsets of the ranges of each partition."""
    room, found = dict(counts), []
    for tp, start, end in left:
        taken = Range(tp, start, min(end, start + room.get(tp, 0)))
        if taken.size > 0:
            room[tp] -= taken.size
            found.append(taken)
    return found


def _spans(ranges: Iterable[Range]) -> str:
    return ",".join(f"{start}-{end}" for _, start, end in ranges)


def _ranges(tp: TopicPartition, text: str) -> list[Range]:
    """Reads the ranges in the metadata of a commit. Raises ValueError."""
    pairs = [span.split("-") for span in text.split(",")] if text else []
    return [Range(tp, int(low), int(high)) for low, high in pairs]


def _tail(texts: Sequence[str]) -> LogTail | None:
    """Reads the last batch in the metadata of a commit. Raises ValueError."""
    if not texts:
        return None
    (text,) = texts
    end, base, crc = map(int, text.split("-"))
    return LogTail(end, base, crc)
