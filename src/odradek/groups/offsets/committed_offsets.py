"""Committed offsets: commit, fetch, delete, expire.

Rules
* The key of an offset is group, topic name and partition. Only the replay methods and
  ``end_transaction`` change offsets.
* ``commit_fence`` says which commits are accepted. A client without a generation may commit to a group without members.
  Consumers with manual assignment and tools do this. If the group does not exist, such a commit creates a "simple"
  group, which has offsets and no group record.
* The offset of a commit is not checked: every number is valid.
* An offset with an expiry timestamp expires at this time. Every other offset expires when
  ``offsets.retention.minutes`` have passed. For a classic group that has had members, this time starts when the group
  becomes Empty. For simple and KIP-848 groups, and for topics that a Stable group no longer reads, it starts at the
  commit.
* No offset of a classic group expires while the group rebalances. No offset of a topic expires while the group reads
  the topic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from odradek.codecs.offsets_topic import (
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    StoredOffset,
    offset_key_prefix,
    offset_value,
)
from odradek.core.effects import Result, ResultOrSteps, ResultParts, ResultSteps, SimpleRecord, most_bytes
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_OFFSET, is_longer
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.classic.protocol import Membership
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.messages import (
    FetchedRows,
    OffsetCommit,
    OffsetCommitReply,
    OffsetDelete,
    OffsetDeleteReply,
    OffsetFetch,
    OffsetFetchReply,
    TopicCommit,
    TxnOffsetCommit,
)
from odradek.groups.offsets.commit_fence import (
    check_classic_commit,
    check_classic_transactional_commit,
    check_kip848_commit,
    check_kip848_fetch,
    check_kip848_transactional_commit,
)
from odradek.groups.offsets.commit_plan import (
    COMMITTED,
    CommitBlock,
    CommitPlan,
    PlannedCommits,
    parts_of,
)
from odradek.groups.offsets.pending_offsets import NewlyCommittedOffsets, PendingOffsets

NOTHING = (NO_OFFSET, -1, "")
TOPICS_AT_ONCE = 1000
"""A number of topics. An OffsetFetch of more topics reads the offsets of each topic when the reply is packed."""
LONG_COMMIT = 500
"""A number of partitions. A commit of more partitions is handled in steps."""
RUN_PARTITIONS = 500
"""The number of partitions of a topic in one part of a scan."""
KEPT_FROM_ROWS = 32
KEPT_ROWS_AT_MOST = 50_000
# The retention of each offset starts at its commit. -1 is also the ``state_since_ms`` of a group with an unknown time.
EACH_COMMIT = -1

Group = ClassicGroup | Kip848Group

TopicIds = Callable[[str], bytes | None]
"""Returns the current id (16 bytes) of the topic with this name, or None if the topic does not exist."""


class DecodedRecord(SimpleRecord):
    """A record with its decoded form, so that a replay does not read its bytes."""

    __slots__ = ("decoded",)
    __setattr__ = object.__setattr__  # fast: a broker makes 100,000 of these records a second

    decoded: OffsetCommitRecord

    def __init__(self, key: bytes, value: bytes | None, decoded: OffsetCommitRecord) -> None:
        self.key = key  # type: ignore[misc]
        self.value = value  # type: ignore[misc]
        self.timestamp_ms = None  # type: ignore[misc]
        self.decoded = decoded


class Offsets:
    """The offsets of one shard's groups."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        membership: Membership,
        consumer_groups: Mapping[str, Kip848Group],
    ) -> None:
        self._config = config
        self.batch_bytes: Callable[[], int] = lambda: sys.maxsize
        """Returns the largest number of bytes of records in a batch."""
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._membership = membership
        # Plain tuples with the fields of an OffsetCommitValue: the garbage collector untracks such tuples, so a million
        # of them do not slow it down.
        self._by_group: dict[str, dict[str, dict[int, StoredOffset]]] = {}
        self._fetched: dict[tuple[str, str], FetchedRows] = {}  # the rows of the last fetch, until the next commit
        self.pending = PendingOffsets()
        self._has_pending = self.pending.open  # the same dict; each commit tests whether it is empty

    # --- the store --------------------------------------------------------------------------------------------

    def stored(self, group_id: str) -> Mapping[str, Mapping[int, StoredOffset]]:
        """Returns the committed offsets of a group: topic → partition → offset."""
        return self._by_group.get(group_id, {})

    def replay(self, key: OffsetKey, value: OffsetCommitValue | None) -> None:
        group_id, topic, partition = key
        if value is not None:
            self._of_topic(group_id, topic)[partition] = value[:]
            if self._has_pending:
                self.pending.overtake(group_id, topic, (partition,))
        else:
            self.replay_tombstones(group_id, topic, (partition,))

    def replay_tombstones(self, group_id: str, topic: str, partitions: Collection[int]) -> None:
        """Applies the tombstones of these partitions' offsets."""
        if self._has_pending:
            self.pending.remove(group_id, topic, partitions)
        by_topic = self._by_group.get(group_id, {})
        by_partition = by_topic.get(topic, {})
        for partition in partitions:
            by_partition.pop(partition, None)
        self._fetched.pop((group_id, topic), None)
        if not by_partition:
            by_topic.pop(topic, None)
        if not by_topic:
            self._by_group.pop(group_id, None)

    def replay_block(self, block: CommitBlock) -> None:
        """Applies all records of a block. Of commits of the same partitions, only the last one counts."""
        group_id, at = block.plan.request.group_id, 0
        offsets, epochs = block.last
        for topic, partitions, metadatas, topic_id in block.plan.keys:
            end = at + len(partitions)
            values = zip(
                offsets[at:end], epochs[at:end], metadatas, repeat(block.now_ms), repeat(-1), repeat(topic_id)
            )  # without strict: repeat has no end
            self._of_topic(group_id, topic).update(zip(partitions, values, strict=False))
            if self._has_pending:
                self.pending.overtake(group_id, topic, partitions)
            at = end

    def replay_commits(self, group_id: str, topic: str, commits: Mapping[int, StoredOffset | None]) -> None:
        """Applies the last commit of each partition; None is a tombstone."""
        kept = {partition: stored for partition, stored in commits.items() if stored is not None}
        if kept:
            self._of_topic(group_id, topic).update(kept)
            if self._has_pending:
                self.pending.overtake(group_id, topic, kept)
        if len(kept) < len(commits):
            for partition, stored in commits.items():
                if stored is None:
                    self.replay(OffsetKey(group_id, topic, partition), None)

    def end_transaction(self, producer_id: int, *, commit: bool) -> Iterator[NewlyCommittedOffsets]:
        """Ends a transaction in steps. Each step yields the offsets that it has committed."""
        for ended in self.pending.end(producer_id, commit=commit):
            if ended.offsets:
                self._of_topic(ended.group_id, ended.topic).update(ended.offsets)
            yield ended

    def _of_topic(self, group_id: str, topic: str) -> dict[int, StoredOffset]:
        """Returns the dict of a topic's offsets, which the caller changes. Makes the dict if it does not exist."""
        if self._fetched:
            self._fetched.pop((group_id, topic), None)
        by_topic = self._by_group.get(group_id)
        if by_topic is None:
            by_topic = self._by_group[group_id] = {}
        by_partition = by_topic.get(topic)
        if by_partition is None:
            by_partition = by_topic[sys.intern(topic)] = {}
        return by_partition

    def get(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        stored = self._by_group.get(group_id, {}).get(topic, {}).get(partition)
        return None if stored is None else OffsetCommitValue._make(stored)

    def items(self) -> Iterator[tuple[OffsetKey, OffsetCommitValue]]:
        for group_id in self._by_group:
            yield from self._of_group(group_id)

    def _of_group(self, group_id: str) -> Iterator[tuple[OffsetKey, OffsetCommitValue]]:
        for topic, by_partition in self._by_group.get(group_id, {}).items():
            for partition, value in by_partition.items():
                yield OffsetKey(group_id, topic, partition), OffsetCommitValue._make(value)

    # --- OffsetCommit -----------------------------------------------------------------------------------------

    def handle_commit(self, now_ms: int, request: OffsetCommit) -> ResultOrSteps[OffsetCommitReply]:
        topics = request.topics
        if len(topics) > LONG_COMMIT or sum([len(topic.partitions) for topic in topics]) > LONG_COMMIT:
            return self._commit_in_steps(now_ms, request)
        out: Result[OffsetCommitReply] = Result()
        error = self._accept(now_ms, request, out)
        if error is not ErrorCode.none:
            return Result(OffsetCommitReply(error))
        refused: dict[tuple[str, int], ErrorCode] = {}
        self._add_records(now_ms, request, out.records, refused)
        out.reply = OffsetCommitReply(ErrorCode.none, refused or None)
        return out

    def _add_records(
        self, now_ms: int, request: OffsetCommit, records: list[SimpleRecord], refused: dict[tuple[str, int], ErrorCode]
    ) -> None:
        limit = self._config.offset_metadata_max_bytes
        has_expiry = request.retention_time_ms != -1
        expire_ms = now_ms + request.retention_time_ms if has_expiry else -1
        group_id = request.group_id
        for topic, topic_id, partitions in request.topics:
            prefix = offset_key_prefix(group_id, topic)
            for partition, offset, leader_epoch, metadata in partitions:
                if metadata and is_longer(metadata, limit):
                    refused[topic, partition] = ErrorCode.offset_metadata_too_large
                    continue
                if has_expiry:  # a record with an expiry has neither leader epoch nor topic id
                    leader_epoch, topic_id = -1, None
                value = OffsetCommitValue(offset, leader_epoch, metadata or "", now_ms, expire_ms, topic_id)
                decoded = OffsetCommitRecord(OffsetKey(group_id, topic, partition), value)
                key = prefix + partition.to_bytes(4, "big", signed=True)
                records.append(DecodedRecord(key, offset_value(value), decoded))

    def _commit_in_steps(self, now_ms: int, request: OffsetCommit) -> ResultSteps[OffsetCommitReply]:
        """Handles a commit of many partitions in steps. The commit fails if its records do not fit in one batch."""
        out: Result[OffsetCommitReply] = Result()
        consumer_group = self._consumer_groups.get(request.group_id)
        if consumer_group is not None and request.group_id not in self._groups:
            for part in parts_of(request):
                error = check_kip848_commit(consumer_group, part, self._config.offset_metadata_max_bytes)
                if error is not ErrorCode.none:
                    return Result(OffsetCommitReply(error))
                yield None
        else:
            error = self._accept(now_ms, request, out)
            if error is not ErrorCode.none:
                return Result(OffsetCommitReply(error))
        refused: dict[tuple[str, int], ErrorCode] = {}
        if request.retention_time_ms != -1:
            left = self.batch_bytes()
            for part in parts_of(request):
                begin = len(out.records)
                self._add_records(now_ms, part, out.records, refused)
                left -= sum([len(record.key or b"") + len(record.value or b"") for record in out.records[begin:]])
                if left < 0:
                    return Result(OffsetCommitReply(ErrorCode.unknown_server_error), effects=out.effects)
                yield None
        elif not (yield from self._add_block(now_ms, request, out, refused)):
            return Result(OffsetCommitReply(ErrorCode.unknown_server_error), effects=out.effects)
        out.reply = OffsetCommitReply(ErrorCode.none, refused or None)
        return out

    def _add_block(
        self, now_ms: int, request: OffsetCommit, out: ResultParts, refused: dict[tuple[str, int], ErrorCode]
    ) -> Generator[None, None, bool]:
        """Sets ``out.block`` to the commit's records. Returns False if the records do not fit in a batch."""
        limit = self._config.offset_metadata_max_bytes
        plan, left = CommitPlan(replace(request, topics=())), self.batch_bytes()
        offsets: list[int] = []
        epochs: list[int] = []
        for part in parts_of(request):
            for topic, topic_id, rows in part.topics:
                too_long = [row[0] for row in rows if row[3] and is_longer(row[3], limit)]
                taken = rows
                if too_long:
                    refused.update(((topic, partition), ErrorCode.offset_metadata_too_large) for partition in too_long)
                    taken = [row for row in rows if not row[3] or not is_longer(row[3], limit)]
                left -= plan.add(topic, topic_id, taken)
                offsets += [row[1] for row in taken]
                epochs += [row[2] for row in taken]
            if left < 0:
                return False
            yield
        if offsets:
            out.block = PlannedCommits(plan, offsets, epochs).block(now_ms)
        return True

    def handle_planned(self, now_ms: int, request: PlannedCommits) -> Result[OffsetCommitReply]:
        """Handles commits that differ from their plan only in offsets and leader epochs (``commit_plan``)."""
        out: Result[OffsetCommitReply] = Result(COMMITTED)
        error = self._accept(now_ms, request.plan.request, out)
        if error is not ErrorCode.none:
            return Result(OffsetCommitReply(error))
        out.block = request.block(now_ms)
        return out

    def handle_transactional(self, now_ms: int, request: TxnOffsetCommit) -> ResultSteps[OffsetCommitReply]:
        """Handles a commit in a transaction. As in Kafka, it renews no session, and its records have no topic id."""
        commit, limit = request.commit, self._config.offset_metadata_max_bytes
        group, consumer_group = self._groups.get(commit.group_id), self._consumer_groups.get(commit.group_id)
        records: list[SimpleRecord] = []
        refused: dict[tuple[str, int], ErrorCode] = {}
        left = self.batch_bytes()
        for number, part in enumerate(parts_of(commit)):
            if number:
                yield None
            if group is None and consumer_group is not None:
                error = check_kip848_transactional_commit(consumer_group, part, limit)
            else:
                error = check_classic_transactional_commit(group, part)
            if error is not ErrorCode.none:
                return Result(OffsetCommitReply(error))
            begin = len(records)
            topics = [TopicCommit(topic, None, partitions) for topic, _, partitions in part.topics]
            self._add_records(now_ms, replace(part, topics=topics), records, refused)
            left -= sum(map(most_bytes, records[begin:]))
            if left < 0:
                return Result(OffsetCommitReply(ErrorCode.unknown_server_error))
        reply = OffsetCommitReply(ErrorCode.none, refused or None)
        return Result(reply, records, producer=request.producer if records else None)

    def _accept(self, now_ms: int, request: OffsetCommit, out: ResultParts) -> ErrorCode:
        """Returns the error of a commit, or ``ErrorCode.none``.

        An accepted commit renews the member's session if the group is a classic group and Stable or PreparingRebalance.
        """
        group = self._groups.get(request.group_id)
        if group is None:
            consumer_group = self._consumer_groups.get(request.group_id)
            if consumer_group is not None:
                return check_kip848_commit(consumer_group, request, self._config.offset_metadata_max_bytes)
        error = check_classic_commit(group, request)
        if error is ErrorCode.none and group is not None and group.state in (State.STABLE, State.PREPARING_REBALANCE):
            self._membership.renew_session(now_ms, group, request.member_id, out)
        return error

    # --- OffsetFetch ------------------------------------------------------------------------------------------

    def handle_fetch(self, now_ms: int, request: OffsetFetch) -> Result[OffsetFetchReply]:
        consumer_group = self._consumer_groups.get(request.group_id)
        if consumer_group is not None:
            error = check_kip848_fetch(consumer_group, request.member_id, request.member_epoch)
            if error is not ErrorCode.none:
                return Result(OffsetFetchReply(error))
        by_topic = self._by_group.get(request.group_id, {})
        asked: Iterable[tuple[str, Sequence[int]]]
        if request.topics is None:
            asked = ((topic, tuple(by_partition)) for topic, by_partition in list(by_topic.items()))
        else:
            asked = request.topics
        rows = self._fetched_rows(request, asked, by_topic)
        count = len(by_topic if request.topics is None else request.topics)
        return Result(OffsetFetchReply(topics=list(rows) if count <= TOPICS_AT_ONCE else rows))

    def _fetched_rows(
        self,
        request: OffsetFetch,
        asked: Iterable[tuple[str, Sequence[int]]],
        by_topic: Mapping[str, Mapping[int, StoredOffset]],
    ) -> Iterator[tuple[str, FetchedRows]]:
        group_id = request.group_id
        for topic, partitions in asked:
            by_partition = by_topic.get(topic, {})
            unstable = self.pending.partitions(group_id, topic) if request.require_stable and self._has_pending else ()
            if not unstable:
                yield topic, self._rows(group_id, topic, partitions, by_partition)
                continue
            values = [NOTHING if number in unstable else by_partition.get(number, NOTHING) for number in partitions]
            yield topic, FetchedRows(partitions, values, frozenset(unstable))

    def _rows(
        self, group_id: str, topic: str, partitions: Sequence[int], by_partition: Mapping[int, StoredOffset]
    ) -> FetchedRows:
        key = (group_id, topic)
        known = self._fetched.get(key)
        if known is not None and (known.partitions is partitions or known.partitions == partitions):
            return known
        made = FetchedRows(partitions, [by_partition.get(partition, NOTHING) for partition in partitions])
        if len(partitions) >= KEPT_FROM_ROWS:
            if sum(map(len, self._fetched.values())) + len(partitions) > KEPT_ROWS_AT_MOST:
                self._fetched.clear()
            self._fetched[key] = made
        return made

    # --- deletion ---------------------------------------------------------------------------------------------

    def handle_delete(self, now_ms: int, request: OffsetDelete) -> Result[OffsetDeleteReply]:
        if not request.group_id:
            return Result(OffsetDeleteReply(ErrorCode.invalid_group_id))
        classic = self._groups.get(request.group_id)
        group = classic or self._consumer_groups.get(request.group_id)
        if group is None or group.state is State.DEAD:
            return Result(OffsetDeleteReply(ErrorCode.group_id_not_found))
        if classic is not None and classic.state is not State.EMPTY and not classic.is_consumer_group:
            return Result(OffsetDeleteReply(ErrorCode.non_empty_group))
        out: Result[OffsetDeleteReply] = Result()
        topics = []
        for topic, partitions in request.topics:
            error = ErrorCode.group_subscribed_to_topic if group.reads(topic) else ErrorCode.none
            topics.append((topic, [(partition, error) for partition in partitions]))
            if error is ErrorCode.none:
                kept = self._by_group.get(request.group_id, {}).get(topic, {})
                pending = self.pending.partitions(request.group_id, topic)
                deleted = [number for number in partitions if number in kept or number in pending]
                out.records += _tombstones(request.group_id, topic, deleted)
        if sum(map(most_bytes, out.records)) > self.batch_bytes():
            return Result(request.error_reply(ErrorCode.unknown_server_error))
        out.reply = OffsetDeleteReply(topics=topics)
        return out

    def partitions(self, group_id: str) -> Iterator[tuple[str, list[int]]]:
        """Yields (topic, partitions) for the partitions with a committed or pending offset of the group.

        A topic with many partitions is yielded several times, each time with other partitions.
        """
        for topic, by_partition in list(self._by_group.get(group_id, {}).items()):
            for some in _in_runs(by_partition):
                yield topic, some
        for topic in list(self.pending.topics(group_id)):
            for some in _in_runs(self._only_pending(group_id, topic)):
                yield topic, some

    def _only_pending(self, group_id: str, topic: str) -> list[int]:
        """Returns the partitions with a pending offset and without a committed one."""
        committed = self._by_group.get(group_id, {}).get(topic, {})
        return [partition for partition in self.pending.partitions(group_id, topic) if partition not in committed]

    def on_topics_deleted(self, topics: Collection[str]) -> Iterator[SimpleRecord | None]:
        """Yields a tombstone for each committed offset of deleted topics and, as in Kafka, for each pending offset.

        None between the tombstones lets ``in_parts`` count the work of the scan.
        """
        for group_id, by_topic in list(self._by_group.items()):
            for topic in topics:
                if topic in by_topic:
                    yield from _tombstones(group_id, topic, list(by_topic[topic]))
                yield None
        for group_id in list(self.pending.open):
            for topic in topics:
                pending = self.pending.partitions(group_id, topic).items()
                each = [partition for partition, producer_ids in pending for _ in producer_ids]
                yield from _tombstones(group_id, topic, each)
                yield None

    def of_deleted_topics(self, topic_id: TopicIds) -> Iterator[SimpleRecord | None]:
        """Yields tombstones for offsets of deleted topics.

        A new topic may have the same name: then the topic ids in the committed offsets show which offsets to delete.
        """
        ids: dict[str, bytes | None] = {}
        for group_id, by_topic in list(self._by_group.items()):
            for topic, by_partition in list(by_topic.items()):
                if topic not in ids:
                    ids[topic] = topic_id(topic)
                now = ids[topic]
                for some in _in_runs(by_partition):
                    stored = ((partition, by_partition[partition][5]) for partition in some)
                    deleted = [p for p, then in stored if now is None or (then is not None and then != now)]
                    yield from repeat(None, _scan_work(some))
                    yield from _tombstones(group_id, topic, deleted)
        for group_id, topics in list(self.pending.open.items()):
            for topic in list(topics):  # pending offsets have no topic id
                if topic_id(topic) is None:
                    yield from _tombstones(group_id, topic, self._only_pending(group_id, topic))
                yield None

    # --- expiry -----------------------------------------------------------------------------------------------

    def expire(self, now_ms: int, group: Group) -> Generator[SimpleRecord | None, None, bool]:
        """Yields tombstones of expired offsets and returns whether the group has no other offsets.

        An offset does not expire while its partition has a pending one.
        """
        group_id = group.group_id
        if group_id not in self._by_group:
            return not self.pending.topics(group_id)
        since = _retention_start(group)
        if since is None:
            return False
        until = now_ms - self._config.offsets_retention_ms
        left = False
        for topic, by_partition in list(self._by_group[group_id].items()):
            if group.reads(topic):
                left = True
                continue
            pending = self.pending.partitions(group_id, topic)
            for some in _in_runs(by_partition):
                stored = ((partition, by_partition[partition]) for partition in some)
                expired = [
                    partition
                    for partition, (_, _, _, committed_ms, expires_ms, _) in stored
                    if (committed_ms if since == EACH_COMMIT else since) <= until or expires_ms != -1
                    if expires_ms == -1 or expires_ms <= now_ms
                    if partition not in pending
                ]
                left = left or len(expired) < len(some)
                yield from repeat(None, _scan_work(some))
                yield from _tombstones(group_id, topic, expired)
        return not left and not self.pending.topics(group_id)


def _retention_start(group: Group) -> int | None:
    """Returns when the retention of a group's offsets started (ms) or EACH_COMMIT; None if no offset can expire."""
    if isinstance(group, Kip848Group) or group.protocol_type is None:
        return EACH_COMMIT
    if group.state is State.EMPTY:
        return group.state_since_ms
    if group.state is State.STABLE and group.is_consumer_group and group.subscribed_topics is not None:
        return EACH_COMMIT
    return None


def _in_runs(by_partition: Collection[int]) -> Iterator[list[int]]:
    """Yields the current partitions of a topic in lists of at most ``RUN_PARTITIONS``."""
    partitions = list(by_partition)
    for first in range(0, len(partitions), RUN_PARTITIONS):
        yield partitions[first : first + RUN_PARTITIONS]


def _scan_work(partitions: Collection[int]) -> int:
    """Returns the work of a scan of these partitions' offsets, in elements of a step (``core/pace``)."""
    return 1 + len(partitions) // 3


def _tombstones(group_id: str, topic: str, partitions: Iterable[int]) -> Iterator[SimpleRecord]:
    prefix = offset_key_prefix(group_id, topic)
    return (
        DecodedRecord(
            prefix + partition.to_bytes(4, "big", signed=True),
            None,
            OffsetCommitRecord(OffsetKey(group_id, topic, partition), None),
        )
        for partition in partitions
    )
