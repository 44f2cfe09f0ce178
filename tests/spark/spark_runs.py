"""Shared code of the Spark tests: rows as pairs, and a query that runs many times with one checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition


def rows_of(frame: Any) -> list[tuple[int, int]]:
    """(partition, offset) of every row, in order; a record read twice occurs twice."""
    return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())


def span(partition: int, start: int, end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(start, end)]


@dataclass
class StreamingRun:
    """A query that may run many times with one checkpoint, like a scheduled job."""

    spark: Any
    admin: Admin
    bootstrap: str
    topic: str
    group: str | None
    checkpoint: Path
    options: dict[str, str] = field(default_factory=dict)

    def frame(self, **options: str) -> Any:
        reader = self.spark.readStream.format("odradek").option("kafka.bootstrap.servers", self.bootstrap)
        chosen = {"subscribe": self.topic, "startingOffsets": "committed"} | self.options | options
        if self.group is not None:
            chosen["kafka.group.id"] = self.group
            if chosen.get("commitOffsets") != "false":
                chosen.setdefault("onGroupReset", "follow")
        elif chosen["startingOffsets"] == "committed":
            chosen["startingOffsets"] = "earliest"
        if "subscribePattern" in chosen:
            del chosen["subscribe"]
        return reader.options(**chosen).load()

    def run(self, **options: str) -> list[list[tuple[int, int]]]:
        """Reads all available records (Trigger.AvailableNow). Returns the rows of each micro-batch."""
        batches: list[list[tuple[int, int]]] = []
        writer = self.frame(**options).writeStream.foreachBatch(lambda frame, _: batches.append(rows_of(frame)))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        return batches

    def rows(self, **options: str) -> list[tuple[int, int]]:
        return sorted(row for batch in self.run(**options) for row in batch)

    # --- the checkpoint

    def log(self, name: str) -> list[int]:
        return sorted(int(path.name) for path in (self.checkpoint / name).iterdir() if path.name.isdigit())

    def source_offset(self, batch: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
        return found

    def forget_that_the_last_batch_was_done(self) -> int:
        """Restores the state after a kill between the work of a micro-batch and the moment at which Spark marks it as
        complete. Returns the number of the micro-batch."""
        last = self.log("commits")[-1]
        for name in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return last

    def query(self) -> str:
        """The id with which the query commits."""
        return str(self.source_offset(self.log("offsets")[-1])["$odradek"]["query"])

    # --- the group

    def partitions(self) -> list[TopicPartition]:
        return self.admin.partitions(self.topic)

    def commits(self) -> dict[int, OffsetAndMetadata]:
        assert self.group is not None
        found = self.admin.list_group_offsets(self.group)
        return {tp.partition: commit for tp, commit in sorted(found.items()) if tp.topic == self.topic}

    def committed(self) -> dict[int, int]:
        return {partition: commit.offset for partition, commit in self.commits().items()}

    def reset(self, offsets: dict[int, int], metadata: str = "") -> None:
        """Commits like kafka-consumer-groups --reset-offsets: from outside, without our commit mark."""
        assert self.group is not None
        commits = {TopicPartition(self.topic, p): OffsetAndMetadata(o, metadata=metadata) for p, o in offsets.items()}
        self.admin.alter_group_offsets(self.group, commits)
