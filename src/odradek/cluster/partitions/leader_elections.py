"""Elections that are asked for, or due from time to time: Kafka's ElectLeaders, electPreferred and electUnclean.

A preferred leader is the first replica. An unclean leader may lack records that were acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from odradek.catalog.records import MetadataRecord
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import Topic
from odradek.cluster.cluster_catalog import ControlResult, ControlSteps
from odradek.cluster.partitions.elections import Election, partition_change
from odradek.cluster.partitions.partition_changes import PartitionChanges
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE
from odradek.core.pace import Pace

MOST_AT_ONCE = 1000
"""The most elections of one check; another one follows at once."""
_FAILED = {
    Election.PREFERRED: (ErrorCode.preferred_leader_not_available, "The preferred leader was not available."),
    Election.UNCLEAN: (ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available."),
}
_NOT_NEEDED = ErrorCode.election_not_needed, "Leader election not needed for topic partition."


class ElectionResult(NamedTuple):
    """What the election of a partition has led to. ``text``: None without an error."""

    partition_id: int
    code: ErrorCode = ErrorCode.none
    text: str | None = None


ElectionResults = list[tuple[str, list[ElectionResult]]]
"""The results of each topic."""


def elect_leaders(
    changes: PartitionChanges, election: Election, asked: Sequence[tuple[str, Iterable[int]]] | None
) -> ControlSteps[ElectionResults]:
    """Generates the records of elections, PREFERRED or UNCLEAN. The response has the results in the order of ``asked``.

    ``asked``: topics with partitions. None asks for all; then the results are only of partitions that need an election.

    Errors of a partition: UNKNOWN_TOPIC_OR_PARTITION, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    topics = changes.catalog.topics
    wanted = _all(changes) if asked is None else asked
    generated: list[MetadataRecord] = []
    results: ElectionResults = []
    pace = Pace()
    for name, indexes in wanted:
        of_topic: list[ElectionResult] = []
        topic = topics.get(name)
        for index in indexes:
            if pace.spend():
                yield
            if topic is None:
                result = ElectionResult(index, ErrorCode.unknown_topic_or_partition, f"No such topic as {name}")
            elif not 0 <= index < topic.partition_count:
                text = f"No such partition as {name}-{index}"
                result = ElectionResult(index, ErrorCode.unknown_topic_or_partition, text)
            else:
                made, error = _elect(changes, election, topic, topic.partitions[index])
                generated += made
                result = ElectionResult(index, *error)
            if asked is not None or result.code is not ErrorCode.election_not_needed:
                of_topic.append(result)
        results.append((name, of_topic))
    return ControlResult(generated, results)


def _all(changes: PartitionChanges) -> Iterator[tuple[str, Iterable[int]]]:
    for topic in list(changes.catalog.topics.values()):
        yield topic.name, range(topic.partition_count)


def _elect(
    changes: PartitionChanges, election: Election, topic: Topic, partition: PartitionRegistration
) -> tuple[list[MetadataRecord], tuple[ErrorCode, str | None]]:
    wanted = partition.replicas[0] if election is Election.PREFERRED else partition.leader
    if partition.leader == wanted != NO_NODE:
        return [], _NOT_NEEDED
    rules = changes.rules(topic, partition, election=election)
    record = partition_change(topic.id, partition, partition.isr, rules)
    return ([], _FAILED[election]) if record is None else ([record], (ErrorCode.none, None))


def balance_leaders(changes: PartitionChanges) -> ControlSteps[bool]:
    """Generates the elections of preferred leaders that can lead now. The response: whether more may be due."""
    return _due(changes, Election.PREFERRED, _unbalanced(changes))


def elect_unclean_leaders(changes: PartitionChanges) -> ControlSteps[bool]:
    """Generates unclean elections of the partitions without a leader whose topics allow them. The response: whether
    more may be due."""
    return _due(changes, Election.UNCLEAN, _leaderless(changes))


def _unbalanced(changes: PartitionChanges) -> Iterator[tuple[Topic, PartitionRegistration] | None]:
    """Yields the partitions that another than their first replica leads, and None for each other one."""
    for topic in list(changes.catalog.topics.values()):
        for partition in topic.partitions:
            yield (topic, partition) if partition.leader != partition.replicas[0] else None


def _leaderless(changes: PartitionChanges) -> Iterator[tuple[Topic, PartitionRegistration] | None]:
    for topic in list(changes.catalog.topics.values()):
        allows = changes.catalog.elects_unclean(topic.name)
        for partition in topic.partitions:
            yield (topic, partition) if allows and partition.leader == NO_NODE else None


def _due(
    changes: PartitionChanges, election: Election, found: Iterable[tuple[Topic, PartitionRegistration] | None]
) -> ControlSteps[bool]:
    generated: list[MetadataRecord] = []
    pace = Pace()
    for one in found:
        if pace.spend():
            yield
        if one is not None:
            generated += _elect(changes, election, *one)[0]
            if len(generated) >= MOST_AT_ONCE:
                return ControlResult(generated, True)
    return ControlResult(generated, False)
