"""The progress of an exactly-once replay, stored as commits of the replay's own group.

Each transaction commits, for each source partition, the ranges that the replay plans and those that are done. The
ranges are in the metadata of the commit. A later run may have other ranges, for example because the topic has grown, or
because the group whose reads are replayed has lost older commits. Even then the commits tell the later run which
records are in the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines.ranges import merge
from odradek.spark.offsets.offset_ranges import Range

MARK = "odradek-replay:1:"
# Kafka's default of offset.metadata.max.bytes.
_MAX_METADATA_BYTES = 4096


class ReplayRefused(OdradekError):
    """A replay that does not run, because records could be sent twice or lost; the message names the remedy."""


@dataclass(frozen=True)
class ReplayProgress:
    """``planned``: the ranges of a replay. ``done``: the ranges that are in the target. Both are merged."""

    planned: tuple[Range, ...] = ()
    done: tuple[Range, ...] = ()

    @property
    def left(self) -> list[Range]:
        return subtract(self.planned, self.done)

    def with_plan(self, ranges: Iterable[Range]) -> ReplayProgress:
        """Returns the progress with further planned ranges."""
        return ReplayProgress(tuple(merge([*self.planned, *ranges])), self.done)

    def with_done(self, ranges: Iterable[Range]) -> ReplayProgress:
        return ReplayProgress(self.planned, tuple(merge([*self.done, *ranges])))

    def commits(self, ids: Mapping[str, UUID]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the commits that keep the progress. The committed offset is the end of the last range that
        is done, or the start of the first planned range if no range is done.

        Raises ConfigError if a partition has too many ranges for the metadata of a commit.
        """
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for tp in sorted({piece.partition for piece in self.planned}):
            planned, done = ([one for one in ranges if one.partition == tp] for ranges in (self.planned, self.done))
            topic_id = ids.get(tp.topic)
            metadata = f"{MARK}{'' if topic_id is None else topic_id.hex}:{_spans(planned)}:{_spans(done)}"
            if len(metadata) > _MAX_METADATA_BYTES:
                raise ConfigError(
                    f"{tp} has {len(planned)} ranges: an exactly-once replay keeps them in the metadata of a commit, "
                    f"which has at most {_MAX_METADATA_BYTES:,} bytes. Replay fewer ranges with one command"
                )
            found[tp] = OffsetAndMetadata(done[-1].end if done else planned[0].start, metadata=metadata)
        return found


def progress_of(
    commits: Mapping[TopicPartition, OffsetAndMetadata], ids: Mapping[str, UUID], group: str
) -> ReplayProgress:
    """Reads the progress from the group's commits, without the commits of a topic that was created again since then.

    Raises ReplayRefused for a commit of another client.
    """
    planned: list[Range] = []
    done: list[Range] = []
    for tp, commit in commits.items():
        try:
            topic_id, *texts = commit.metadata.removeprefix(MARK).split(":")
            spans = [_ranges(tp, text) for text in texts]
            if not commit.metadata.startswith(MARK) or len(spans) != 2:
                raise ValueError
        except ValueError:
            raise ReplayRefused(
                f"group {group} keeps the progress of this replay, and another client has committed offset "
                f"{commit.offset} of {tp} to it. Stop that client; then use another target, or delete the group, which "
                "begins the replay again"
            ) from None
        now = ids.get(tp.topic)
        if topic_id in ("", None if now is None else now.hex):
            planned += spans[0]
            done += spans[1]
    return ReplayProgress(tuple(merge(planned)), tuple(merge(done)))


def subtract(wanted: Iterable[Range], done: Sequence[Range]) -> list[Range]:
    """Returns the parts of the ranges that are not done, in order. ``done`` must be merged."""
    left: list[Range] = []
    for tp, start, end in wanted:
        for _, low, high in (one for one in done if one.partition == tp and one.start < end and one.end > start):
            left.append(Range(tp, start, low))
            start = max(start, high)
        left.append(Range(tp, start, end))
    return [piece for piece in left if piece.size > 0]


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
