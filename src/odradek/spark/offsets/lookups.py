"""The source's requests to the cluster for planning: partitions, their logs, and the group's offsets."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.errors import LOOKUP_REFUSED, GroupIdNotFound, GroupNotEmpty, UnknownTopic
from odradek.client.model import EpochEnd, ListedOffset, MemberDescription, TopicDescription
from odradek.core.errors import KafkaError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, NO_OFFSET, OffsetAndMetadata, TopicPartition
from odradek.spark.offsets import data_loss, plan
from odradek.spark.offsets.commit_refusal import CommitRefusal, missing_right
from odradek.spark.offsets.data_loss import UNKNOWN_CAUSES
from odradek.spark.offsets.group_look import GroupLook
from odradek.spark.offsets.offset_ranges import LogRange, Range
from odradek.spark.offsets.patterns import java_pattern
from odradek.spark.offsets.plan import CommitDecision, Commits, NoCommittedOffset
from odradek.spark.offsets.source_offset import Offsets, SourceOffset
from odradek.spark.offsets.stable_offsets import stable_offsets
from odradek.spark.offsets.zookeeper_start import offsets_in_zookeeper
from odradek.spark.options import OnGroupReset, ReadOptions

log = logging.getLogger("odradek.spark.commits")

# The upper bound of a record's size: Kafka's default limit for batches.
_LARGE_RECORD_BYTES = 1_048_588
# The bytes that are fetched of each partition to estimate the size of its records.
_SMALLEST_SAMPLE_BYTES, _LARGEST_SAMPLE_BYTES = 4096, 262_144

# Kafka's default of message.timestamp.before.max.ms is the largest int64, which means no limit. A limit of ten years or
# more counts as none, too: it would not narrow a search by time.
_NO_LIMIT_MS = 10 * 365 * 86_400_000


class _EpochKey(NamedTuple):
    """The key of a cached end offset of ``epoch``.

    The end offset depends on the leader (``current_epoch``: the leader's epoch) and on the topic id, because epochs
    start at 0 in a new topic of the same name.
    """

    partition: TopicPartition
    topic_id: UUID | None
    epoch: int
    current_epoch: int


class Lookups:
    """The requests of one read, over one connection pool. Methods raise the errors of ``Admin``.

    ``own_group``: what a user does for a group without other members, at the end of a message."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        own_group: str = "give the query its own kafka.group.id, or set commitOffsets=false",
    ) -> None:
        self.options = options
        self._own_group = own_group
        self._admin: Admin | None = None
        self._closed = threading.Event()
        self._topic_ids: dict[str, UUID | None] = {}
        self._epochs: dict[TopicPartition, int] = {}
        self._epoch_ends: dict[_EpochKey, EpochEnd] = {}
        self._other_queries: set[str] = set()  # queries that a warning has named
        self._overwritten: set[TopicPartition] = set()  # partitions whose overwritten commit a warning has named
        self.other_outputs: set[str] = set()
        """Other tables that have committed the group's offsets, as far as a warning has named them."""
        self._has_warned_of_no_transaction = False
        self.commit_with: Callable[[Admin, str, Commits], None] | None = None
        """Commits offsets to a group in place of ``Admin.alter_group_offsets``."""
        self._cause: tuple[type[Exception], object] | None = None  # why the last commit failed
        self.refusal: CommitRefusal | None = None
        """The reason why the last commit failed; None if it succeeded."""

    @property
    def admin(self) -> Admin:
        """The client. It is created at first use, because Spark pickles the reader that contains this object."""
        if self._admin is None:
            self._admin = Admin(self.options.client)
        return self._admin

    def close(self) -> None:
        self._closed.set()
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    # --- partitions and their logs

    def partitions(self, *, strict: bool = False) -> list[TopicPartition]:
        """Returns the partitions to read that exist in the cluster now.

        Named topics and partitions that do not exist are left out, because a running query reports their loss itself.
        With ``strict`` they raise UnknownTopic.
        """
        options = self.options
        if options.pattern is not None:
            pattern = java_pattern(options.pattern)
            topics = self.admin.describe_topics().values()
            return sorted(self._all_of(t for t in topics if not t.internal and pattern.fullmatch(t.name)))
        names = sorted({tp.topic for tp in options.assigned} or set(options.topics))
        there = set(self._all_of(self._describe(names, strict)))
        if not options.assigned:
            return sorted(there)
        missing = [tp for tp in options.assigned if tp not in there]
        if missing and strict:
            raise UnknownTopic(f"the cluster has no partition {', '.join(map(str, missing))}")
        return [tp for tp in options.assigned if tp in there]

    def _describe(self, names: list[str], strict: bool) -> Iterable[TopicDescription]:
        try:
            return self.admin.describe_topics(names).values()
        except UnknownTopic as error:
            everything = self.admin.describe_topics()
            if strict:
                from odradek.text.similar_names import nearest  # only for this error

                near = next(filter(None, (nearest(name, everything) for name in error.names)), "")
                raise UnknownTopic(f"{error.message}{near}", error.names) from None
            return [everything[name] for name in names if name in everything]

    def _all_of(self, topics: Iterable[TopicDescription]) -> Iterator[TopicPartition]:
        for topic in topics:
            self._topic_ids[topic.name] = topic.topic_id
            yield from (TopicPartition(topic.name, item.partition) for item in topic.partitions)

    def topic_ids(self, names: set[str]) -> dict[str, UUID | None]:
        """Returns the topics' ids, so that workers notice when a topic was deleted and created again."""
        if not names <= self._topic_ids.keys():
            self.partitions()
        return {name: self._topic_ids.get(name) for name in names}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the end of each log for a consumer with the isolation level of the options."""
        found = self._listed(dict.fromkeys(partitions, LATEST))
        self._epochs.update({tp: listed.leader_epoch for tp, listed in found.items()})
        return {tp: listed.offset for tp, listed in found.items()}

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the log start offsets of partitions."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def seen(self, look: GroupLook) -> dict[TopicPartition, int]:
        """Takes the log ends, the epochs and the topic ids of a look as those of a request; returns the log ends."""
        self._topic_ids.update(look.ids)
        self._epochs.update(look.epochs)
        return dict(look.ends)

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Returns the epoch of the leader that reported the log end offset; -1 if it reported none."""
        return self._epochs.get(partition, NO_EPOCH)

    def epoch_ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns the end offsets of these epochs in the logs of the current leaders.

        A request is sent only where the current leader has a later epoch, and once for each leader epoch. Unknown end
        offsets are left out.
        """
        keys = {
            tp: _EpochKey(tp, self._topic_ids.get(tp.topic), epoch, self.leader_epoch(tp))
            for tp, epoch in epochs.items()
            if 0 <= epoch < self.leader_epoch(tp)
        }
        if unknown := {tp: epochs[tp] for tp, key in keys.items() if key not in self._epoch_ends}:
            try:
                found = self.admin.epoch_ends(unknown)
            except KafkaError as error:
                if error.code not in LOOKUP_REFUSED:
                    raise
                found = dict.fromkeys(unknown, EpochEnd(NO_EPOCH, NO_OFFSET))
            self._epoch_ends.update({keys[tp]: end for tp, end in found.items()})
        ends = {tp: self._epoch_ends[key] for tp, key in keys.items()}
        return {tp: end.end_offset for tp, end in ends.items() if end.leader_epoch >= 0 and end.end_offset >= 0}

    def has_nothing_new(self, done: SourceOffset, ends: Offsets) -> bool:
        """Returns whether the query has read exactly these partitions to their ends, in the logs that exist now.

        False before the first micro-batch, because that micro-batch records the start offsets of the query.
        """
        if done.is_initial or dict(ends) != dict(done.positions):
            return False
        ids = self.topic_ids({tp.topic for tp in ends})
        if any(done.is_of_another_topic(topic, ids) for topic in ids):
            return False
        epoch_ends = self.epoch_ends(done.epochs_of(ends))
        return all(epoch_ends.get(tp, position) >= position for tp, position in done.positions.items())

    def log(self, ends: Offsets, expected: Offsets | None = None) -> dict[TopicPartition, LogRange]:
        """Returns the log start offset, the end and the leader epoch of each partition in ``ends``.

        ``expected``: the query's positions. A new leader may not know its high watermark yet. So the end of a log that
        ends below the position is looked up again, ``fetchOffset.numRetries`` times at most.
        """
        ends = self._held(ends, expected or {})
        for _ in range(self.options.fetch_offset_retries):
            behind = [tp for tp, end in ends.items() if end < (expected or {}).get(tp, 0)]
            if not behind or self._closed.wait(self.options.fetch_offset_retry_interval_ms / 1000):
                break
            ends.update(self.ends(behind))
        starts = self.starts(ends)
        return {tp: LogRange(starts[tp], max(end, starts[tp]), self.leader_epoch(tp)) for tp, end in ends.items()}

    def held_log(self, log: Mapping[TopicPartition, LogRange], wanted: Offsets) -> dict[TopicPartition, LogRange]:
        """Returns the logs. Where an open transaction keeps a consumer from records below an offset that is ``wanted``,
        the log ends at this offset: a query that begins there waits for the transaction."""
        ends = self._held({tp: bounds.end for tp, bounds in log.items()}, wanted)
        return {tp: bounds._replace(end=ends[tp]) for tp, bounds in log.items()}

    def _held(self, ends: Offsets, wanted: Offsets) -> dict[TopicPartition, int]:
        """Returns the ends, raised to ``wanted`` where the log has these offsets, and a transaction is open."""
        behind = [tp for tp, end in ends.items() if end < wanted.get(tp, 0)]
        if not behind or self.options.isolation_level != "read_committed":
            return dict(ends)
        marks = self.admin.list_offsets(dict.fromkeys(behind, LATEST), isolation_level="read_uncommitted")
        return {**ends, **{tp: wanted[tp] for tp, mark in marks.items() if mark.offset >= wanted[tp]}}

    def at_times(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns the first offset whose record is not older than a time in ms, per partition; −1 if there is none."""
        return self._offsets(wanted)

    def disorder_ms(self, topics: set[str]) -> dict[str, int | None]:
        """Returns by how many ms a record of each topic can be older than an earlier one. None: no known limit."""
        if self.options.max_timestamp_disorder_ms is not None:
            return dict.fromkeys(topics, self.options.max_timestamp_disorder_ms)
        return {topic: disorder_ms(settings) for topic, settings in self._settings(topics).items()}

    def removed_by(self, topic: str) -> str:
        """Returns what may have removed records of an existing topic.

        Raises nothing: the cause is for a message only, and a query that continues needs none.
        """
        try:
            return data_loss.removed_by(self._settings({topic})[topic])
        except OdradekError as error:
            return f"{UNKNOWN_CAUSES.removed_by(topic)} (the topic's settings are unknown: {error})"

    def is_there(self, topic: str) -> bool | None:
        """Returns whether the topic exists; None if the request fails."""
        try:
            return topic in self.admin.topics()
        except OdradekError:
            return UNKNOWN_CAUSES.is_there(topic)

    def _settings(self, topics: set[str]) -> dict[str, dict[str, str | None]]:
        """Returns the topics' settings; empty if the broker does not report them."""
        try:
            found = self.admin.describe_topic_configs(sorted(topics)) if topics else {}
        except KafkaError as error:
            if error.code not in LOOKUP_REFUSED:
                raise
            return {topic: {} for topic in topics}
        return {topic: {entry.name: entry.value for entry in entries} for topic, entries in found.items()}

    def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: listed.offset for tp, listed in self._listed(wanted).items()}

    def _listed(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        if not wanted:
            return {}
        return self.admin.list_offsets(wanted, isolation_level=self.options.isolation_level)

    def bytes_per_offset(self, wanted: Iterable[Range], budget: int) -> dict[TopicPartition, float]:
        """Estimates the stored, compressed bytes per offset of each range, from a sample at its start.

        Ranges whose first offsets no longer exist are left out. If all ranges fit into ``budget`` even with records of
        the maximum size, there is no request and the result is empty.
        """
        ranges = list(wanted)
        if sum(item.size for item in ranges) * _LARGE_RECORD_BYTES <= budget:
            return {}
        from odradek.client.reader import samples  # here, because few planners use it

        sample = min(_LARGEST_SAMPLE_BYTES, max(_SMALLEST_SAMPLE_BYTES, budget // len(ranges)))
        found = samples(self.options.client, {item.partition: item.start for item in ranges}, sample)
        return {tp: one.bytes_per_offset for tp, one in found.items()}

    def times_of_next(self, positions: Offsets) -> dict[TopicPartition, int]:
        """Returns the timestamp in ms of the first record at or after each position.

        It is the timestamp of the record's batch, which is close to the record's. Fetches one batch of each partition.
        Partitions without such a record are left out.
        """
        from odradek.client.reader import samples

        found = samples(self.options.client, positions, 1)
        return {tp: one.timestamp_ms for tp, one in found.items()}

    # --- the group

    @property
    def group_id(self) -> str:
        assert self.options.group_id is not None  # used only if the options have a group
        return self.options.group_id

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the group's commits. With commitOffsets=transaction, first waits for the end of open transactions."""
        if self.options.offsets_in_transaction:
            return stable_offsets(self.admin, self.group_id, partitions)
        return self.admin.list_group_offsets(self.group_id, partitions)

    def in_zookeeper(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Returns the offsets of startingOffsets=zookeeper. Partitions without an offset in ZooKeeper are left out.

        If kafka.auto.offset.reset is none, raises NoCommittedOffset for them. Raises ConfigError, ZooKeeperErrors.
        """
        start = self.options.zookeeper
        assert start is not None  # used only with such a start
        found = offsets_in_zookeeper(start, partitions)
        missing = [start.layout.path(start.group, tp) for tp in partitions if tp not in found]
        if missing and self.options.auto_offset_reset == "none":
            raise NoCommittedOffset(
                f"ZooKeeper has no offset at {', '.join(sorted(missing))}, and kafka.auto.offset.reset is none"
            )
        return found

    def acknowledge(self, commits: Commits) -> bool:
        """Commits offsets that the next micro-batch starts from, and returns whether that succeeded.

        With commitOffsets=transaction a failure raises the error of the commit: the transaction would fail, too.
        """
        if not commits or not self.options.offsets_in_transaction:
            return self.commit(commits)
        try:
            self.admin.alter_group_offsets(self.group_id, commits)
        except GroupNotEmpty as error:
            raise GroupNotEmpty(f"group {self.group_id}: {'. '.join(self._refusal_of(error))}") from error
        return True

    def commit(self, commits: Commits) -> bool:
        """Commits offsets to the group, and returns whether that succeeded.

        The checkpoint decides what the query has read, so the query continues after a failed commit. A warning reports
        the failure, once per cause until a commit succeeds. Raises only after ``close``.
        """
        if not commits:
            return True
        try:
            if self.commit_with is None:
                self.admin.alter_group_offsets(self.group_id, commits)
            else:
                self.commit_with(self.admin, self.group_id, commits)
        except OdradekError as error:
            if self._closed.is_set():
                raise
            self.note_refusal(error)
            return False
        if self._cause is not None:
            log.info("offsets are committed to group %s again", self.group_id)
        self._cause = self.refusal = None
        return True

    def note_refusal(self, error: Exception) -> None:
        """Stores why offsets cannot be committed now, and logs a warning if the cause is new."""
        cause = type(error), getattr(error, "code", None)
        if cause == self._cause:
            return
        self._cause = cause
        self.refusal = self._refusal_of(error)
        log.warning(
            "the offsets of finished micro-batches are not committed to group %s yet: %s. %s. The next commit includes "
            "them",
            self.group_id,
            *self.refusal,
        )

    def _refusal_of(self, error: Exception) -> CommitRefusal:
        if not isinstance(error, GroupNotEmpty):
            return missing_right(error, self.group_id) or CommitRefusal(str(error), "Remove the cause")
        named = ", ".join(f"{m.client_id} at {m.host.lstrip('/')} ({m.member_id})" for m in self._members())
        return CommitRefusal(
            f"it has live members, and only they may commit: {named or 'unknown, or they have left'}",
            f"Stop them, or {self._own_group}",
        )

    @property
    def is_behind(self) -> bool:
        """Whether the last commit failed, or the group had live members at the last check."""
        return self._cause is not None

    def commit_decision(self, done: SourceOffset, committed: Commits) -> CommitDecision:
        """Returns the meaning of the group's commits for the query. Raises GroupReset.

        While a group has live members, only they may commit. So if the group has live members, or if members made the
        last commit fail, then new commits are those of the members. Even with ``onGroupReset=follow``, the query
        follows them only if their metadata asks for a reset.
        """
        on_reset = self.options.on_group_reset
        if on_reset is OnGroupReset.FOLLOW and self._had_members:
            on_reset = OnGroupReset.ASKED
        found = plan.decide_commits(done, committed, on_reset, uuid.uuid4().hex[:12])
        if found.resets and on_reset is OnGroupReset.FOLLOW and self.warn_of_members():
            found = plan.decide_commits(done, committed, OnGroupReset.ASKED, "")
        return found

    @property
    def _had_members(self) -> bool:
        return self._cause is not None and issubclass(self._cause[0], GroupNotEmpty)

    def existing_ends(self, done: SourceOffset, ends: Offsets) -> dict[TopicPartition, int]:
        """Returns up to which offset each log still has the records that were read.

        Topics that were deleted and created again are left out. Call it before ``committed``, so that the commit
        follows ``committed`` without another request between.
        """
        ids = self.topic_ids({tp.topic for tp in ends})
        epoch_ends = self.epoch_ends(done.epochs_of(ends))
        ends = self._held(ends, done.positions)
        return {
            tp: min(end, epoch_ends.get(tp, end))
            for tp, end in ends.items()
            if not done.is_of_another_topic(tp.topic, ids)
        }

    def commit_existing(self, decision: CommitDecision, existing: Offsets, query: str) -> bool:
        """Commits the offsets that exist in the logs, and returns whether that succeeded.

        Offsets that a log does not have are left out, as in ``plan.existing_commits``.
        """
        commits = plan.existing_commits(decision, existing)
        if not self.commit(commits):
            return False
        self.warn_of_overwritten(decision, commits, query)
        return True

    def warn_of_overwritten(self, decision: CommitDecision, commits: Commits, query: str) -> None:
        """Logs a warning once for each other query whose commits ``commits`` have overwritten, and once for each
        partition with an overwritten commit of any other client.
        """
        overwritten = {tp: offset for tp, offset in decision.overwritten.items() if tp in commits}
        if overwritten.keys() - self._overwritten:
            self._overwritten |= overwritten.keys()
            positions = {tp: commits[tp].offset for tp in overwritten}
            log.warning("%s", plan.overwritten_message(self.group_id, overwritten, positions))
        for other in sorted({decision.others[tp] for tp in commits if tp in decision.others} - self._other_queries):
            self._other_queries.add(other)
            theirs = [tp for tp in commits if decision.others.get(tp) == other]
            log.warning("%s", plan.two_queries_message(self.group_id, query, other, theirs))

    def warn_of_outputs(self, theirs: Mapping[TopicPartition, str]) -> None:
        """Logs a warning once for each table that has committed for a partition in place of this one."""
        for other in sorted(set(theirs.values()) - self.other_outputs):
            self.other_outputs.add(other)
            first = min(tp for tp, output in theirs.items() if output == other)
            log.warning("%s", plan.two_tables_message(self.group_id, other, first))

    def warn_of_no_transaction(self, behind: Iterable[TopicPartition]) -> None:
        """Logs once that nothing has committed a finished micro-batch although ``commitOffsets=transaction``."""
        if not self._has_warned_of_no_transaction:
            self._has_warned_of_no_transaction = True
            log.warning("%s", plan.no_transaction_message(self.group_id, behind))

    def warn_of_members(self) -> bool:
        """Returns whether the group has live members, and names them in a warning."""
        if not self._members():
            return False
        self.note_refusal(GroupNotEmpty(f"group {self.group_id} has live members"))
        return True

    def _members(self) -> tuple[MemberDescription, ...]:
        """Returns the group's members; empty if they are unknown."""
        try:
            return self.admin.describe_groups([self.group_id])[self.group_id].members
        except GroupIdNotFound:
            return ()
        except OdradekError as error:
            log.debug("the members of group %s are unknown: %s", self.group_id, error)
            return ()


def disorder_ms(settings: Mapping[str, str | None]) -> int | None:
    """Returns by how many ms a record can be older than an earlier one. None: no known limit.

    ``pushdown`` has the rules."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return 0
    # Before Kafka 3.6 there was one limit for both directions.
    both = settings.get("message.timestamp.difference.max.ms")
    before = settings.get("message.timestamp.before.max.ms", both)
    after = settings.get("message.timestamp.after.max.ms", both)
    if before is None or after is None:
        return None
    total = int(before) + int(after)
    return total if total < _NO_LIMIT_MS else None
