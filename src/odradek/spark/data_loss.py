"""Records that a query should have read and that are gone: which, and why.

Pure but for ``Causes``, who may ask, and ``warn``.

| what is seen                                              | cause                                                  |
|-----------------------------------------------------------|--------------------------------------------------------|
| the log starts behind the position                        | retention, or somebody's DeleteRecords; the latter     |
|                                                           | alone where the topic has no retention                 |
| the log ends before the position, the topic is the same   | truncation: a replica that lacked them became leader   |
| a new leader's log ends what the epoch of the position    | the same, however long that log has grown by now       |
| wrote before the position                                 |                                                        |
| the topic has another id, or fewer partitions             | it was deleted and created again                       |
| the topic is not there                                    | it was deleted                                         |
| a group's commit lies outside of the log                  | as in the first two rows: read too late                |
| a group has no commit                                     | none yet, or it expired or was deleted: no loss by     |
|                                                           | itself; ``auto.offset.reset`` says what then           |
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition

logger = logging.getLogger(__name__)


class DataLoss(OdradekError):
    """Records that the query should have read are gone; the message names partitions, ranges and causes."""


class Causes(Protocol):
    """Asked only once something is gone. Who cannot answer raises nothing: what is gone counts, not why."""

    def removed_by(self, topic: str) -> str:
        """Who may have raised the log start of its partitions."""
        ...

    def is_there(self, topic: str) -> bool | None:
        """Whether the cluster still has a topic of this name; None where nobody could be asked."""
        ...


class Held(Protocol):
    """``plan.LogRange``."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class NobodyKnows:
    """Causes where nobody can be asked."""

    def removed_by(self, topic: str) -> str:
        return "retention or DeleteRecords"

    def is_there(self, topic: str) -> bool | None:
        return None


NOBODY_KNOWS = NobodyKnows()


def removed_by(settings: Mapping[str, str | None]) -> str:
    """Who removes records of a topic with these settings."""
    kept_ms, kept_bytes = settings.get("retention.ms"), settings.get("retention.bytes")
    limits = f"retention.ms={kept_ms}, retention.bytes={kept_bytes}"
    if kept_ms is None or kept_bytes is None:
        return "retention or DeleteRecords"
    if "delete" not in (settings.get("cleanup.policy") or "delete"):
        return f"DeleteRecords (nothing else removes them: cleanup.policy={settings['cleanup.policy']})"
    if kept_ms == kept_bytes == "-1":
        return f"DeleteRecords (nothing else removes them: {limits})"
    return f"retention ({limits}) or DeleteRecords"


def removed(partition: TopicPartition, first: int, log_start: int, causes: Causes, *, end: int | None = None) -> str:
    """Offsets ``first`` up to the log start are not there any more; those from ``end`` on nobody asked for."""
    last = (log_start if end is None else min(end, log_start)) - 1
    return (
        f"{partition}: offsets {first} to {last} are gone (its log starts at {log_start}), "
        f"removed by {causes.removed_by(partition.topic)}"
    )


def truncated(partition: TopicPartition, position: int, log_end: int, *, same_topic: bool) -> str:
    """The log ends before what was read, or committed."""
    cause = "it was truncated: a replica without them became leader"
    if not same_topic:
        cause = "it was truncated, or deleted and created again"
    return (
        f"{partition}: it was read up to offset {position} but ends at {log_end}, "
        f"so offsets {log_end} to {position - 1} are gone ({cause})"
    )


def parted(partition: TopicPartition, position: int, reach: int, held: Held) -> str:
    """The log of a new leader parts from what was read, or committed, at ``reach``, and went on without it."""
    first = max(reach, held.start)
    others = f"others are there now, offsets {first} to {held.end - 1}" if held.end > first else "none are there now"
    return (
        f"{partition}: it was read up to offset {position}, but the log of its new leader (epoch {held.leader_epoch}) "
        f"parts from that at offset {reach}, so offsets {reach} to {position - 1} as they were read are gone, and "
        f"{others} (truncation: a replica without the former became leader)"
    )


def reset_that_parted(partition: TopicPartition, offset: int, reach: int, held: Held) -> str:
    """Of a commit that a query is to follow: what it has read stands, but it goes elsewhere than it was sent to."""
    return (
        f"{partition}: the group was reset to offset {offset}, but the log of its leader (epoch {held.leader_epoch}) "
        f"parts at offset {reach} from the one that this was committed under (truncation: a replica without the rest "
        f"became leader): reading from offset {max(reach, held.start)}"
    )


def parted_since(partition: TopicPartition, reach: int, end: int) -> str:
    """The same, seen by who reads what was planned up to ``end`` under the leader before."""
    return (
        f"{partition}: the log of its new leader parts at offset {reach} from the one that was there when the batch "
        f"was planned, so offsets {reach} to {end - 1} as they were then are gone (truncation: a replica without the "
        "former became leader)"
    )


def missing(partition: TopicPartition, position: int, causes: Causes) -> str:
    """The partition is not among those that are read any more."""
    is_there = causes.is_there(partition.topic)
    if is_there is None:
        why = "nobody could be asked whether its topic is there"
    elif is_there:
        why = "its topic is there: created again with fewer partitions, or no longer asked for by this query"
    else:
        why = "its topic was deleted"
    return f"{partition} is gone (it was read up to offset {position}): {why}"


def deposed(partition: TopicPartition, held: Held, known_epoch: int) -> str:
    """No loss: who told where the log ends does not lead it any more."""
    return (
        f"{partition}: the leader of epoch {held.leader_epoch} told where its log ends, that of epoch {known_epoch} "
        "has reigned before: waiting until that one, or a later one, tells"
    )


def note(what: str) -> None:
    """Something that a query does otherwise than one may expect, without a loss of what it reads."""
    logger.warning("%s", what)


def fail_or_warn(lost: Collection[str], *, fail: bool, cause: Exception | None = None) -> None:
    """Raises DataLoss if anything is lost and a query shall ``fail`` by it."""
    if lost and fail:
        raise DataLoss(loss_message(lost)) from cause
    warn(lost)


def warn(lost: Iterable[str]) -> None:
    """``failOnDataLoss=false``: what a query passes over goes to its log."""
    for one in lost:
        logger.warning("data may have been lost: %s. Going on, since failOnDataLoss=false", one)


def loss_message(lost: Iterable[str]) -> str:
    return f"data may have been lost: {'; '.join(lost)}. failOnDataLoss=false goes on with what is there"
