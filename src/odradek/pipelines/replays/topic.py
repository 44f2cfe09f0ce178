"""A topic as the destination of a replay: its options, its check, and the records to send."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.core.counts import counted
from odradek.core.errors import ConfigError
from odradek.core.ids import EARLIEST, LATEST, TopicPartition
from odradek.pipelines.sources import check_topics, with_short_timeouts
from odradek.pipelines.topic_writer import sending_options
from odradek.pipelines.values.record_values import null_bad_timestamps

if TYPE_CHECKING:
    from uuid import UUID

    from pyspark.sql import DataFrame

REPLAYED_FROM = "odradek-replayed-from"
"""The header of a record that was replayed into a topic. Its value is the record's origin: ``events-3@1027``."""
REPLAYED_BY = "odradek-replay"
"""The header with the name of the exactly-once replay that has sent the record."""
ORIGIN_COLUMNS = ("source", "offset")
"""Additional columns of the records to send: the origin's topic with its partition, and the offset."""


@dataclass(frozen=True)
class ReplayTopic:
    """A topic to replay into.

    ``keep_partitions``: True sends each record to the partition of the same number, False lets the producer choose.
    ``keep_timestamps``: True keeps each record's timestamp (retention may then delete it soon), False sets the time of
    sending. ``mark``: whether to add the headers that name the origin and the replay. ``producer``: settings by Kafka's
    names (``compression.type``). ``exactly_once``: True sends in transactions, False at least once. A transaction has
    at most ``batch_bytes`` of the source's stored bytes.
    """

    name: str
    keep_partitions: bool = False
    keep_timestamps: bool = False
    mark: bool = True
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)
    exactly_once: bool = False
    batch_bytes: int = 256 << 20

    def source_options(self, given: Mapping[str, str]) -> dict[str, str]:
        """Returns the options of the source: a time that no column holds ends a replay only if the records keep it.
        ``given``: options that the user has set."""
        return {} if self.keep_timestamps else null_bad_timestamps(given)

    def options(self, reading: Mapping[str, str]) -> dict[str, str]:
        """Returns the options of ``write.format("odradek")``: those of the source that apply to a writer, then the
        producer's. Leaves out options that only readers have. Raises ConfigError for invalid options.
        """
        return sending_options(
            self.name, reading, self.producer, with_times=self.keep_timestamps, in_transactions=self.exactly_once
        )


@dataclass(frozen=True)
class FoundTopic:
    """The partitions of an existing topic, and its id if the cluster has ids."""

    partitions: tuple[TopicPartition, ...]
    topic_id: UUID | None


def find_target(into: ReplayTopic, config: ClientConfig, most: int) -> FoundTopic:
    """Looks the topic up. ``most``: the highest partition number that is read. Raises UnknownTopic, ConfigError."""
    with Admin(with_short_timeouts(config)) as admin:
        check_topics(admin, [into.name])
        partitions = tuple(admin.partitions(into.name))
        topic_id = admin.describe_topics([into.name])[into.name].topic_id
    if into.keep_partitions and most >= len(partitions):
        has = counted(len(partitions), "partition")
        raise ConfigError(f"topic {into.name} has {has}: there is no partition {most} to keep")
    return FoundTopic(partitions, topic_id)


_TAIL_OFFSETS, _TAIL_BYTES = 1_000, 16 << 20
"""How much of the end of a partition ``sent_records`` looks at."""


class ReplayedRecord(NamedTuple):
    """A record of the target that an exactly-once replay has sent. ``origin``: where it is from, ``events-3@1027``."""

    partition: TopicPartition
    offset: int
    origin: str
    key: bytes | None
    value: bytes | None

    def origin_in(self, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, int] | None:
        """Returns the partition and offset of the origin; None if it is in none of these partitions."""
        source, _, offset = self.origin.rpartition("@")
        topic, _, number = source.rpartition("-")
        if not (number.isdecimal() and offset.isdecimal()):
            return None
        found = TopicPartition(topic, int(number))
        return (found, int(offset)) if found in partitions else None


def sent_records(
    admin: Admin,
    config: ClientConfig,
    target: FoundTopic,
    replay: str,
    since: Mapping[TopicPartition, int] | None = None,
) -> Iterator[ReplayedRecord]:
    """Yields committed records that the exactly-once replay has sent, of the last 1,000 offsets of each partition of
    the target (or about the first 16 MiB of them). ``since``: offsets at which to begin at the earliest."""
    from odradek.client.reader import PartitionReader

    found = {
        time: admin.list_offsets(dict.fromkeys(target.partitions, time), isolation_level="read_committed")
        for time in (EARLIEST, LATEST)
    }
    columns = ("offset", "key", "value", "headers")
    for tp in target.partitions:
        end, read_bytes = found[LATEST][tp].offset, 0
        start = max(found[EARLIEST][tp].offset, end - _TAIL_OFFSETS, (since or {}).get(tp, 0))
        for batch in PartitionReader(config, tp, columns, "read_committed").read(start, end):
            rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
            for offset, key, value, headers in rows:
                marks = {one["key"]: one["value"] for one in headers or ()}
                if marks.get(REPLAYED_BY) == replay.encode():
                    yield ReplayedRecord(tp, offset, (marks.get(REPLAYED_FROM) or b"").decode(), key, value)
            read_bytes += batch.nbytes
            if read_bytes > _TAIL_BYTES:
                break


def records_to_send(records: DataFrame, into: ReplayTopic, replay: str | None = None) -> DataFrame:
    """Returns the records with the columns of the sink, and ``ORIGIN_COLUMNS``. ``replay``: the name of an exactly-once
    replay."""
    from pyspark.sql import functions as f

    source = f.concat_ws("", f.col("topic"), f.lit("-"), f.col("partition"))
    origin = f.concat_ws("", source, f.lit("@"), f.col("offset"))
    marks = {REPLAYED_FROM: origin} | ({} if replay is None else {REPLAYED_BY: f.lit(replay)})
    mark = f.array(
        *(f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in marks.items())
    )
    headers = f.col("headers")
    if into.mark:
        none = f.array().cast("array<struct<key:string,value:binary>>")
        headers = f.concat(f.coalesce(headers, none), mark)
    columns = ["key", "value", headers.alias("headers"), source.alias("source"), "offset"]
    columns += ["partition"] if into.keep_partitions else []
    columns += ["timestamp"] if into.keep_timestamps else []
    return records.select(*columns)
