"""The source of a pipeline: topics of a cluster, for a consumer group. They are checked before Spark starts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import GroupIdNotFound, GroupNotEmpty, UnknownTopic
from odradek.client.model import MemberDescription
from odradek.core.errors import KafkaError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, TopicPartition
from odradek.pipelines.values.arguments import ArgumentError, wrong
from odradek.spark.offsets import group_look
from odradek.spark.offsets.commit_refusal import missing_right
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.patterns import java_pattern
from odradek.spark.options import COMMITTED_BY_TABLE, ReadOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A command reports an unreachable cluster soon; a running query waits as long as Kafka's clients do.
_LOOK_MS = 10_000
_LAG_S = 2.0
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Source:
    """The source of a query: ``topics`` or ``pattern``. ``options``: further options of ``format("odradek")``; these
    override the options that this class sets."""

    bootstrap: str
    group: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def all_options(self) -> dict[str, str]:
        """Returns the options of the streaming source. Raises ConfigError for arguments that contradict each other."""
        if self.topics and self.pattern is not None:
            raise ArgumentError(
                lambda shown: f"{shown('topics')} and {shown('subscribe_pattern')} both say what to read: leave one out"
            )
        if not self.topics and self.pattern is None:
            raise ArgumentError(
                lambda shown: f"say what to read: give {shown('topics')} or {shown('subscribe_pattern')}"
            )
        if not self.group:
            raise ArgumentError(
                lambda shown: f"{shown('group')}: a group's name cannot be empty: the offsets are committed to it"
            )
        subscription = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": self.pattern or ""}
        ours = {
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.group.id": self.group,
            "startingOffsets": "committed",
        }
        chosen = ours | subscription | dict(self.options)
        parse_options(chosen, streaming=True)
        return chosen

    def committed_by_table(self, look: str) -> Source:
        """Returns the same source, which does not commit: the table's pipeline does, and leaves what it has seen in the
        file ``look``."""
        return replace(self, options={**self.options, COMMITTED_BY_TABLE: "true", group_look.OPTION: look})

    def stream(self, spark: SparkSession) -> DataFrame:
        """Returns the records from the group's committed offsets on."""
        from odradek.spark.registration import register

        register(spark)
        return spark.readStream.format("odradek").options(**self.all_options()).load()

    def check(self) -> int:
        """Checks the topics and the group; returns the number of offsets that the group has not read.

        Raises UnknownTopic, GroupNotEmpty, BrokerUnreachable, KafkaError with the right that the user lacks.
        """
        try:
            return self._check()
        except KafkaError as error:
            lacks = missing_right(error, self.group)
            if lacks is None:
                raise
            raise KafkaError(error.code, f"{lacks.why.partition(': ')[2]}. {lacks.remedy}") from error

    def check_letters(self, topic: str) -> None:
        """Checks the topic for dead letters. Raises UnknownTopic, ConfigError if it is read, BrokerUnreachable."""
        is_read = topic in self.topics
        if self.pattern is not None:
            is_read = java_pattern(self.pattern).fullmatch(topic) is not None
        check_letters(topic, parse_options(self.all_options(), streaming=True).client, is_read=is_read)

    def _check(self) -> int:
        found = parse_options(self.all_options(), streaming=True)
        with Admin(with_short_timeouts(found.client)) as admin:
            topics = check_topics(admin, self.topics, self.pattern)
            is_committed = found.commit_offsets or found.offsets_in_transaction
            members = _members(admin, self.group) if is_committed else []
            if members:
                names = ", ".join(sorted({member.client_id for member in members})[:3])
                raise GroupNotEmpty(
                    f"group {self.group} has members ({names}), and members commit its offsets: stop them, or use "
                    "another group"
                )
            return unread_offsets(admin, self.group, [tp for topic in topics for tp in admin.partitions(topic)])


def check_letters(topic: str, client: ClientConfig, *, is_read: bool) -> None:
    """Checks the topic for dead letters. Raises UnknownTopic, ConfigError if the pipeline reads it, too, and
    BrokerUnreachable."""
    if is_read:
        raise wrong("on_bad", f" topic:{topic}: the pipeline reads this topic, too: send the letters to another one")
    with Admin(with_short_timeouts(client)) as admin:
        check_topics(admin, [topic])


class TopicLag:
    """The number of offsets that a query has not read in its topics. Asks the cluster at most every two seconds: the
    value is only for display.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._lookups = Lookups(options)
        self._asked_s = 0.0

    def after(self, read: Mapping[TopicPartition, int]) -> int | None:
        """Returns the number of unread offsets. ``read``: the query's offset in each partition. Returns None if the
        cluster was asked less than two seconds ago, or if it does not reply."""
        now = time.monotonic()
        if now - self._asked_s < _LAG_S:
            return None
        self._asked_s = now
        try:
            ends = self._lookups.ends(read)
        except (OdradekError, OSError):
            return None
        return sum(max(0, end - read[tp]) for tp, end in ends.items())

    def close(self) -> None:
        self._lookups.close()


def _members(admin: Admin, group: str) -> Sequence[MemberDescription]:
    try:
        return admin.describe_groups([group])[group].members
    except GroupIdNotFound:
        return ()


def with_short_timeouts(config: ClientConfig) -> ClientConfig:
    """Returns the same configuration with short timeouts, for a user who waits at a terminal."""
    return replace(
        config,
        default_api_timeout_ms=min(_LOOK_MS, config.default_api_timeout_ms),
        bootstrap_timeout_ms=0,
        socket_connection_setup_timeout_ms=min(4_000, config.socket_connection_setup_timeout_ms),
    )


def check_topics(admin: Admin, topics: Sequence[str], pattern: str | None = None) -> list[str]:
    """Returns ``topics``, or the topics that match ``pattern`` (an empty list if none matches).

    Raises UnknownTopic, with the most similar name, for a topic that does not exist, and KafkaError for one that the
    user may not see.
    """
    known = admin.topics()
    if pattern is not None:
        return [name for name in known if java_pattern(pattern).fullmatch(name)]
    for name in topics:
        if name not in known:
            # A list hides a topic that the user may not see. This names the missing right.
            admin.describe_topics([name], missing_ok=True)
            from odradek.text.similar_names import nearest  # only for this error

            raise UnknownTopic(f"unknown topic {name}{nearest(name, known) or _some(known)}")
    return list(topics)


def _some(known: Sequence[str]) -> str:
    """Returns the first topics of the cluster. The wrong cluster is a frequent reason for an unknown topic."""
    own = [name for name in sorted(known) if not name.startswith("__")]
    if not own:
        return ": the cluster has no topics yet"
    more = ", …" if len(own) > _MOST_SHOWN else ""
    return f": the cluster has {', '.join(own[:_MOST_SHOWN])}{more}"


def unread_offsets(admin: Admin, group: str, partitions: Sequence[TopicPartition]) -> int:
    """Returns how many offsets of these partitions the group has not read."""
    committed = admin.list_group_offsets(group, partitions)
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    read = {tp: committed[tp].offset if tp in committed else starts[tp].offset for tp in partitions}
    return sum(max(0, ends[tp].offset - max(read[tp], starts[tp].offset)) for tp in partitions)
