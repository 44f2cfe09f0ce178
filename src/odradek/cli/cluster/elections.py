"""The results of ``odradek topics elect``: their rows, and a line for each cause of a failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.cli.terminal import with_remedy
from odradek.core.counts import counted
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.client.model import PartitionDescription
    from odradek.core.ids import TopicPartition

_ELECTED, _NOT_NEEDED = "elected", "not needed"
_MOST_PARTITIONS = 3
"""The most partitions that a line names."""

Results = Mapping["TopicPartition", KafkaError | None]


def election_rows(
    results: Results, described: Mapping[tuple[str, int], PartitionDescription]
) -> list[dict[str, object]]:
    """Returns a row for each partition: topic, partition, leader (-1: none) and result."""
    rows = []
    for tp, error in sorted(results.items()):
        result = _ELECTED if error is None else error.code.name.upper()
        if error is not None and error.code is ErrorCode.election_not_needed:
            result = _NOT_NEEDED
        leader = described[tp].leader if tp in described else -1
        rows.append({"topic": tp.topic, "partition": tp.partition, "leader": leader, "result": result})
    return rows


def failure_lines(results: Results, described: Mapping[tuple[str, int], PartitionDescription]) -> list[str]:
    """Returns a line with the remedy for each cause of failed elections; without one, an empty list."""
    causes: dict[str, list[TopicPartition]] = {}
    for tp, error in sorted(results.items()):
        if error is not None and error.code is not ErrorCode.election_not_needed:
            causes.setdefault(_cause(error, described.get(tp)), []).append(tp)
    return [f"{_named(partitions)}: {cause}" for cause, partitions in causes.items()]


def _cause(error: KafkaError, partition: PartitionDescription | None) -> str:
    replicas = [] if partition is None else list(partition.replicas)
    match error.code:
        case ErrorCode.preferred_leader_not_available if replicas:
            return (
                f"the preferred leader, broker {replicas[0]}, does not run or is not in sync: start it, and elect "
                "again when odradek topics describe has it in the column ISR"
            )
        case ErrorCode.eligible_leaders_not_available if replicas:
            brokers = " or ".join(map(str, replicas))
            return f"no broker with a replica runs: start broker {brokers}, and elect again if it does not lead then"
    return with_remedy(str(error).partition(": ")[2] or str(error))


def _named(partitions: list[TopicPartition]) -> str:
    more = len(partitions) - _MOST_PARTITIONS
    return ", ".join(map(str, partitions[:_MOST_PARTITIONS])) + (f" and {counted(more, 'other')}" if more > 0 else "")
