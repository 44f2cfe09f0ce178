"""A query without Spark: calls the source as Spark's planner does."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.brokers import eventually
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.spark.options import parse_options
from odradek.spark.source import OdradekStreamReader

Offset = dict[str, Any]


class Planner:
    """Calls the source like Spark: each planned offset passes through JSON, and ``read`` reads every task."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.client = Admin(bootstrap)
        self.bootstrap, self.topic, self.group = bootstrap, topic, group
        self.reader = self.made()

    def made(self, **options: str | None) -> OdradekStreamReader:
        """Returns a reader with these options. The value ``None`` leaves an option out."""
        chosen = {
            "kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, "kafka.group.id": self.group,
            "startingOffsets": "committed", "fetchOffset.numRetries": "0", "onGroupReset": "follow",
        }  # fmt: skip
        given = {name: value for name, value in (chosen | options).items() if value is not None}
        return OdradekStreamReader(parse_options(given, streaming=True))

    def next(self, start: Offset, limit: Any = None) -> Offset:
        found = self.reader.latestOffset(start, limit or ReadAllAvailable())
        return dict(json.loads(json.dumps(found)))

    def read(self, start: Offset, end: Offset) -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        for task in self.reader.partitions(start, end):
            for batch in self.reader.read(task):
                rows += zip(*(batch.column(name).to_pylist() for name in ("partition", "offset")), strict=True)
        return sorted(rows)

    def commits(self) -> dict[int, OffsetAndMetadata]:
        return {tp.partition: row for tp, row in self.client.list_group_offsets(self.group).items()}

    def reset(self, offset: int, leader_epoch: int = -1) -> None:
        where = TopicPartition(self.topic, 0)
        self.client.alter_group_offsets(self.group, {where: OffsetAndMetadata(offset, leader_epoch)})

    def recreate_topic(self, count: int) -> None:
        self.client.delete_topics([self.topic])
        eventually(lambda: self.topic not in self.client.topics(), what="the deletion")
        create_topic(self.bootstrap, self.topic)
        publish(self.bootstrap, self.topic, numbers(count))

    def close(self) -> None:
        self.reader.stop()
        self.client.close()
