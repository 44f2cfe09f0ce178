"""Checks of offsets against the logs of a Kafka cluster: unknown topics and partitions, offsets outside the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.lag.reset import PartitionBounds, Scenario, log_bounds


class ClusterLogs(NamedTuple):
    """The logs of known partitions, the problems of unknown partitions, and the partition counts of known topics."""

    logs: dict[TopicPartition, PartitionBounds]
    unknown: dict[TopicPartition, str]
    partition_counts: dict[str, int]

    def problem(self, tp: TopicPartition, offset: int) -> str | None:
        """Returns why a consumer cannot resume at an offset, or None if it can."""
        if tp in self.unknown:
            return self.unknown[tp]
        log = self.logs[tp]
        if log.start <= offset <= log.end:
            return None
        return f"offset {offset} is outside the log of {tp}, which has {log.start} to {log.end}"

    def problems(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
        """Returns the problems by partition; a partition whose offset has no problem is not in the mapping."""
        problems = {tp: self.problem(tp, offset) for tp, offset in offsets.items()}
        return {tp: problem for tp, problem in problems.items() if problem is not None}


def cluster_logs(admin: Admin, partitions: Iterable[TopicPartition], scenario: Scenario | None = None) -> ClusterLogs:
    """Looks up the logs of partitions, with the offset for the scenario's time in each. Raises the errors of Admin."""
    wanted = list(partitions)
    described = admin.describe_topics(sorted({tp.topic for tp in wanted}), missing_ok=True) if wanted else {}
    counts = {name: len(topic.partitions) for name, topic in described.items()}
    unknown = {}
    for tp in wanted:
        if tp.topic not in counts:
            unknown[tp] = f"Kafka has no topic {tp.topic}"
        elif tp.partition >= counts[tp.topic]:
            unknown[tp] = f"topic {tp.topic} has no partition {tp.partition} (it has {counts[tp.topic]})"
    return ClusterLogs(log_bounds(admin, [tp for tp in wanted if tp not in unknown], scenario), unknown, counts)
