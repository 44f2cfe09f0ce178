"""The groups of one partition of ``__consumer_offsets``: dispatch, replay, timers.

Rules
* ``handle`` and ``on_timer`` generate records and change state that is not durable. Durable state (committed offsets
  and the contents of group records) changes only in the replay methods and in ``end_transaction``, both in operation
  and in a load.
* During a load each record of a classic group makes a new group object. After ``on_loaded`` the existing group applies
  its record and keeps the state that is not in the record: parked requests, sessions, all protocols of a member.
* A record of an unknown or unsupported type is ignored and counted in ``skipped``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple, TypeVar, cast

from odradek.codecs.offsets_topic import (
    CoordinatorRecord,
    GroupKey,
    GroupMetadata,
    GroupRecord,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    StoredOffset,
    UnknownRecord,
    decode,
    group_key,
)
from odradek.core.effects import (
    Block,
    LogEntry,
    Request,
    Result,
    ResultOrSteps,
    ResultParts,
    ResultSteps,
    SetTimer,
    SimpleRecord,
    result_of,
    run_first_step,
)
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace, in_parts
from odradek.core.state_machines.tables import RequestTable
from odradek.groups.administration import Administration
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.classic.protocol import JOIN, SESSION, SYNC, Membership
from odradek.groups.classic.records import ClassicChange
from odradek.groups.config import GroupConfig
from odradek.groups.early_checks import join_error
from odradek.groups.kip848 import records as kip848_records
from odradek.groups.kip848.classic_members import ClassicMembers
from odradek.groups.kip848.group import EmptyGroupCatalog, GroupCatalog, Kip848Group
from odradek.groups.kip848.messages import DescribeKip848Group, Kip848Heartbeat
from odradek.groups.kip848.protocol import Kip848Protocol
from odradek.groups.kip848.timers import KINDS
from odradek.groups.messages import (
    DeleteGroups,
    DescribeGroup,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    SyncGroup,
    SyncGroupReply,
    TopicsChanged,
    TopicsDeleted,
    TxnOffsetCommit,
)
from odradek.groups.offsets.commit_plan import CommitBlock, PlannedCommits
from odradek.groups.offsets.committed_offsets import TOPICS_AT_ONCE, DecodedRecord, Offsets, TopicIds
from odradek.groups.offsets.former_offsets import FormerState, committed_fetch, former_state, new_groups
from odradek.groups.offsets.pending_offsets import PendingOffset
from odradek.groups.offsets.tombstones import Tombstones

R = TypeVar("R")
EXPIRY: Hashable = ("expiry",)


class DurableState(NamedTuple):
    """The state that the log determines.

    It has the last record of each classic group (None: the group has only offsets), all offsets, the durable state of
    each KIP-848 group, and the pending offsets of each producer.
    """

    groups: dict[str, GroupMetadata | None]
    offsets: dict[OffsetKey, OffsetCommitValue]
    consumer_groups: dict[str, tuple[object, ...]]
    pending: dict[int, dict[OffsetKey, PendingOffset | None]]


class GroupShard:
    """The shard of groups. The contract is in coordinator_runtime/shard.

    ``catalog`` has the topics for KIP-848 groups. ``topic_id`` returns the id of a topic. ``catch_up`` needs it to find
    the offsets of deleted topics; without it ``catch_up`` deletes nothing.
    """

    reads: ClassVar[tuple[type, ...]] = (OffsetFetch, DescribeKip848Group)

    def __init__(
        self, config: GroupConfig, catalog: GroupCatalog | None = None, topic_id: TopicIds | None = None
    ) -> None:
        self.config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, Kip848Group] = {}  # KIP-848 groups; no group is in both dicts
        self.skipped: Counter[str] = Counter()
        self._loaded = False
        self._topic_id = topic_id
        self._membership = Membership(config, self.groups)
        self._offsets = Offsets(config, self.groups, self._membership, self.consumer_groups)
        self.consumers = Kip848Protocol(
            config, catalog or EmptyGroupCatalog(), self.consumer_groups, self.groups, self._membership
        )
        self._classic_members = ClassicMembers(self.consumers)
        self.requests = table = RequestTable()
        table.add(OffsetCommit, self._offsets.handle_commit)
        table.add(PlannedCommits, self._offsets.handle_planned)
        table.add(TxnOffsetCommit, self._offsets.handle_transactional)
        table.add(OffsetFetch, self._offsets.handle_fetch)
        table.add(OffsetDelete, self._offsets.handle_delete)
        table.add(JoinGroup, self._join)
        table.add(SyncGroup, self._sync)
        table.add(Heartbeat, self._heartbeat)
        table.add(LeaveGroup, self._leave)
        table.add(Kip848Heartbeat, self.consumers.handle_heartbeat)
        table.add(DescribeKip848Group, self.consumers.handle_describe)
        administration = Administration(self.groups, self.consumer_groups, self._offsets, self.consumers)
        self._administration = administration
        table.add(DescribeGroup, administration.handle_describe)
        table.add(ListGroups, administration.handle_list)
        table.add(DeleteGroups, administration.handle_delete)
        self._handlers = table.by_type

    def limit_batches(self, batch_bytes: Callable[[], int]) -> None:
        """Sets the largest size of a batch. A request with more bytes of records fails and writes none of them."""
        for part in (self._membership, self._offsets, self.consumers, self.consumers.patterns):
            part.batch_bytes = batch_bytes

    def handle(self, now_ms: int, request: Request[R]) -> ResultOrSteps[R]:
        return run_first_step(self._handlers[type(request)](now_ms, request))

    def reply_to_dropped(self, request: Request[object], error: ErrorCode) -> object:
        """Returns the reply to a parked request that can no longer complete. A JoinGroup reply has the member's id."""
        if isinstance(request, JoinGroup):
            return replace(request.error_reply(error), member_id=request.member_id or request.new_member_id)
        return request.error_reply(error)

    def on_refused(self, now_ms: int, entries: Sequence[LogEntry], error: ErrorCode) -> ResultOrSteps[None]:
        """Restores the groups of refused records from their durable state. Other groups do not notice."""
        return run_first_step(self._restore(now_ms, entries, error))

    def _restore(self, now_ms: int, entries: Sequence[LogEntry], error: ErrorCode) -> ResultSteps[None]:
        out: Result[None] = Result()
        changes = dict.fromkeys(change for entry in entries for change in self.changes_of(entry))
        for group_id in [group_id for group_id, is_offset in changes if not is_offset]:
            group = self.groups.get(group_id)
            consumer_group = self.consumer_groups.get(group_id)
            if group is not None:
                has_offsets = any(True for _ in self._offsets.partitions(group_id))
                yield from self._membership.restore(now_ms, group, error, out, has_offsets=has_offsets)
            if consumer_group is not None:
                self.groups.pop(group_id, None)  # a classic group would have replaced this one
                yield from self.consumers.restore(now_ms, consumer_group, out)
        return out

    def changes_of(self, entry: LogEntry) -> Iterator[tuple[str, bool]]:
        """Yields (group id, whether offsets change) for the groups of a record or block."""
        if isinstance(entry, DecodedRecord):
            yield entry.decoded.key.group, True
        elif isinstance(entry, CommitBlock):
            yield entry.plan.request.group_id, True
        elif isinstance(entry, Tombstones):
            for group_id, topic, _ in entry.rows:
                yield group_id, topic is not None
        elif isinstance(entry, SimpleRecord):
            decoded = decode(entry.key, entry.value)
            if isinstance(decoded, OffsetCommitRecord | GroupRecord):
                yield decoded.key.group, isinstance(decoded, OffsetCommitRecord)
            elif isinstance(decoded, CoordinatorRecord):
                yield decoded.key["group_id"], False

    def former(self, entries: Sequence[LogEntry]) -> FormerState:
        """Returns the offsets that unreplicated records are going to replace."""
        return former_state(entries, self._offsets)

    def handle_committed(self, request: Request[object], former: Sequence[object]) -> object | None:
        """Answers fetches of offsets, except those that ask for stable offsets or are long, and lists of groups, unless
        one of the groups has changed."""
        writes = cast(Sequence[FormerState], former)
        if isinstance(request, ListGroups):
            changes = (change for write in writes for entry in write.entries for change in self.changes_of(entry))
            if not all(is_offset for _, is_offset in changes):
                return None
            return self._administration.list_without(request, new_groups(writes, self._offsets))
        if not isinstance(request, OffsetFetch) or request.require_stable:
            return None
        if request.member_id and request.group_id in self.consumer_groups:  # the member's epoch may not be replicated
            return None
        if len(self._offsets.stored(request.group_id) if request.topics is None else request.topics) > TOPICS_AT_ONCE:
            return None
        return committed_fetch(request, writes, self._offsets)

    def reply_limit_ms(self, request: Request[object]) -> int:
        return self.config.offsets_commit_timeout_ms

    def shown_to(self, request: Request[object]) -> Collection[Hashable] | None:
        """A classic heartbeat shows nothing of the log. Kafka's waits for all earlier records of the partition."""
        if isinstance(request, Heartbeat):
            return ()
        if isinstance(request, ListGroups):
            return None
        if isinstance(request, DeleteGroups):
            return [(group_id, kind) for group_id in request.group_ids for kind in (False, True)]
        group_id = cast(GroupRequest, request).group_id
        if isinstance(request, OffsetFetch | OffsetDelete):
            return (group_id, False), (group_id, True)
        return ((group_id, False),)

    @property
    def has_pending_offsets(self) -> bool:
        return bool(self._offsets.pending.open)

    def committed(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        """Returns the committed offset of a partition, or None."""
        return self._offsets.get(group_id, topic, partition)

    def durable_state(self) -> DurableState:
        offsets = dict(self._offsets.items())
        simple = (key.group for key in offsets if key.group not in self.consumer_groups)
        groups: dict[str, GroupMetadata | None] = dict.fromkeys(simple)
        groups |= {name: group.persisted for name, group in self.groups.items() if group.persisted is not None}
        consumers = {name: group.durable_state() for name, group in self.consumer_groups.items()}
        return DurableState(groups, offsets, consumers, self._offsets.pending.state())

    # --- the classic protocol, for groups of both kinds -------------------------------------------------------

    def _join(self, now_ms: int, request: JoinGroup) -> ResultOrSteps[JoinGroupReply]:
        group = self.consumer_groups.get(request.group_id)
        if group is None or join_error(self.config, request) is not ErrorCode.none:
            return self._membership.handle_join(now_ms, request)
        if not group.is_empty:
            return self._classic_members.handle_join(now_ms, group, request)
        if request.member_id:
            return Result(JoinGroupReply(ErrorCode.unknown_member_id, member_id=request.member_id))
        gone: Result[None] = Result()
        self.consumers.delete(group, gone)
        return self._join_after(gone, self._membership.handle_join(now_ms, request))

    @staticmethod
    def _join_after(gone: ResultParts, steps: ResultSteps[JoinGroupReply]) -> ResultSteps[JoinGroupReply]:
        out = yield from steps
        out.records = gone.records + out.records
        return out

    def _sync(self, now_ms: int, request: SyncGroup) -> ResultOrSteps[SyncGroupReply]:
        group = self.consumer_groups.get(request.group_id)
        if group is None or group.is_empty:
            return self._membership.handle_sync(now_ms, request)
        return self._classic_members.handle_sync(now_ms, group, request)

    def _heartbeat(self, now_ms: int, request: Heartbeat) -> Result[ErrorCode]:
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            return self._membership.handle_heartbeat(now_ms, request)
        return self._classic_members.handle_heartbeat(now_ms, group, request)

    def _leave(self, now_ms: int, request: LeaveGroup) -> ResultSteps[LeaveGroupReply]:
        group = self.consumer_groups.get(request.group_id)
        if group is None:
            return self._membership.handle_leave(now_ms, request)
        return self._classic_members.handle_leave(now_ms, group, request)

    # --- log --------------------------------------------------------------------------------------------------

    def replay(self, offset: int, record: SimpleRecord) -> None:
        """Applies one record of the log at ``offset``."""
        if isinstance(record, DecodedRecord):
            self._replay_offset(record.decoded)
            return
        if isinstance(record, kip848_records.GroupChange):
            self._consumer_group(record.group_id).replay_change(record)
            return
        if isinstance(record, ClassicChange):
            self._replay_group(record.decoded, record)
            return
        decoded = decode(record.key, record.value)
        if isinstance(decoded, OffsetCommitRecord):
            self._replay_offset(decoded)
        elif isinstance(decoded, GroupRecord):
            self._replay_group(decoded)
        elif isinstance(decoded, UnknownRecord):
            self.skipped[decoded.reason] += 1
        elif decoded.kind.number in kip848_records.TYPES:
            self._replay_consumer_group(decoded)
        else:
            self.skipped[f"{decoded.kind.name} is not supported yet"] += 1

    def replay_transactional(self, offset: int, record: SimpleRecord, producer_id: int) -> None:
        """Applies a record of a producer's open transaction. A committed offset is pending until the transaction ends.

        All other records, such as tombstones, apply at once.
        """
        decoded = record.decoded if isinstance(record, DecodedRecord) else decode(record.key, record.value)
        if isinstance(decoded, OffsetCommitRecord) and decoded.value is not None:
            self._ensure_group(decoded.key.group, decoded.value.commit_timestamp_ms)
            self._offsets.pending.add(offset, producer_id, decoded.key, decoded.value[:])
        else:
            self.replay(offset, record)

    def end_transaction(self, producer_id: int, *, commit: bool) -> Generator[None, None, None]:
        """Applies the marker of a producer's transaction in steps."""
        for ended in self._offsets.end_transaction(producer_id, commit=commit):
            for stored in ended.offsets.values():
                self._ensure_group(ended.group_id, stored[3])
                break
            yield

    def replay_block(self, offset: int, block: Block) -> None:
        """Applies a block after its write. ``offset`` is the offset of its first record."""
        if isinstance(block, Tombstones):
            self._replay_tombstones(block)
            return
        assert isinstance(block, CommitBlock)
        self._ensure_group(block.plan.request.group_id, block.now_ms)
        self._offsets.replay_block(block)

    def _replay_tombstones(self, block: Tombstones) -> None:
        for group_id, topic, partitions in block.rows:
            if topic is None:
                self._replay_group(GroupRecord(GroupKey(group_id), None))
            else:
                self._offsets.replay_tombstones(group_id, topic, partitions)

    def replay_commits(self, group_id: str, topic: str, commits: Mapping[int, StoredOffset | None]) -> None:
        """Applies the last record of each of these partitions; None is a tombstone."""
        for stored in commits.values():
            if stored is not None:
                self._ensure_group(group_id, stored[3])
                break
        self._offsets.replay_commits(group_id, topic, commits)

    def _replay_offset(self, decoded: OffsetCommitRecord) -> None:
        key, value = decoded
        if value is not None:
            self._ensure_group(key.group, value.commit_timestamp_ms)
        self._offsets.replay(key, value)

    def _ensure_group(self, group_id: str, since_ms: int) -> None:
        if group_id not in self.groups and group_id not in self.consumer_groups:  # a simple group, without a record
            self.groups[group_id] = ClassicGroup(group_id, State.EMPTY, since_ms)

    def _replay_group(self, decoded: GroupRecord, change: ClassicChange | None = None) -> None:
        group_id, value = decoded.key.group, decoded.value
        if value is None:
            group = self.groups.pop(group_id, None)
            if group is not None:
                group.transition(State.DEAD, group.state_since_ms)
        elif change is not None and change.converted is not None:
            self.groups[group_id] = change.converted
            change.converted.persisted = value
        elif self._loaded and group_id in self.groups:
            self.groups[group_id].replay(value, None if change is None else change.returned)
        else:
            self.consumer_groups.pop(group_id, None)  # compaction may have removed the old group's tombstone
            self.groups[group_id] = ClassicGroup.from_metadata(group_id, value)
            if self._loaded:
                result_of(self.groups[group_id].read_subscriptions(Pace()))

    def _replay_consumer_group(self, decoded: CoordinatorRecord) -> None:
        number, group_id, value = decoded.kind.number, decoded.key["group_id"], decoded.value
        group = self.consumer_groups.get(group_id) if value is None else self._consumer_group(group_id)
        if group is None:
            return  # the group was deleted
        if value is None and number == kip848_records.GROUP:
            del self.consumer_groups[group_id]
        else:
            group.replay(number, decoded.key, value)

    def _consumer_group(self, group_id: str) -> Kip848Group:
        """Returns the KIP-848 group of a record. The group's first record creates it."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            self.groups.pop(group_id, None)  # compaction may have removed the old group's tombstone
            group = self.consumer_groups[group_id] = Kip848Group(group_id)
        return group

    def on_loaded(self, now_ms: int) -> ResultOrSteps[None]:
        """Starts the sessions of all members and the expiry timer when the load has reached the end of the log."""
        self._loaded = True
        return run_first_step(self._begin(now_ms))

    def _begin(self, now_ms: int) -> ResultSteps[None]:
        out: Result[None] = Result(effects=[SetTimer(EXPIRY, now_ms + self.config.offsets_retention_check_interval_ms)])
        yield from self._membership.on_loaded(now_ms, out)
        yield from self.consumers.on_loaded(now_ms, out)
        return out

    # --- timers and events ------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> ResultOrSteps[None]:
        if key == EXPIRY:
            return run_first_step(self._expire(now_ms))
        assert isinstance(key, tuple)
        kind, group_id = key[:2]
        if kind in KINDS:
            return run_first_step(self.consumers.on_timer(now_ms, key))
        group = self.groups.get(group_id)
        if group is None:
            return Result()
        if kind == SESSION:
            return run_first_step(self._membership.on_session_timer(now_ms, group, key[2]))
        if kind == JOIN:
            return run_first_step(self._membership.on_join_timer(now_ms, group))
        assert kind == SYNC
        return run_first_step(self._membership.on_sync_timer(now_ms, group))

    def _expire(self, now_ms: int) -> ResultSteps[None]:
        out: Result[None] = Result(effects=[SetTimer(EXPIRY, now_ms + self.config.offsets_retention_check_interval_ms)])
        return in_parts(self._expired(now_ms, out), out)

    def _expired(self, now_ms: int, out: ResultParts) -> Iterator[SimpleRecord | None]:
        for group in list(self.groups.values()):
            nothing_left = yield from self._offsets.expire(now_ms, group)
            if nothing_left and group.state is State.EMPTY:
                yield SimpleRecord(group_key(group.group_id), None)
            yield None
        for consumer_group in list(self.consumer_groups.values()):
            nothing_left = yield from self._offsets.expire(now_ms, consumer_group)
            if nothing_left and consumer_group.is_empty:
                gone: Result[None] = Result()
                self.consumers.delete(consumer_group, gone)
                out.effects += gone.effects
                yield from gone.records
            yield None

    def on_work(self, now_ms: int, key: Hashable, value: object) -> ResultOrSteps[None]:
        """Takes the result of work in the background: the topics of resolved patterns."""
        return run_first_step(self.consumers.on_work(now_ms, key, value))

    def on_clock_jumped(self, by_ms: int) -> None:
        """Moves all session deadlines after a clock change or a pause, so that members keep the rest of their time."""
        for group in self.groups.values():
            for member in group.members.values():
                member.session_deadline_ms += by_ms
                if member.session_timer_ms is not None:
                    member.session_timer_ms += by_ms
        self.consumers.timers.shift(by_ms)

    def on_notice(self, notice: object) -> None:
        """Handles a change of topics: groups that read them check for a new assignment at their next heartbeat."""
        assert isinstance(notice, TopicsChanged)
        self.consumers.on_topics_changed(notice.topics, created=notice.created)

    def on_event(self, now_ms: int, event: object) -> ResultOrSteps[None]:
        """Deletes the offsets of deleted topics in every group."""
        assert isinstance(event, TopicsDeleted)
        return run_first_step(in_parts(self._offsets.on_topics_deleted(event.topics), Result()))

    def catch_up(self, now_ms: int) -> ResultOrSteps[None]:
        """Deletes offsets of topics that were deleted when no shard could write the tombstones, e.g. before a crash."""
        if self._topic_id is None:
            return Result()
        return run_first_step(in_parts(self._offsets.of_deleted_topics(self._topic_id), Result()))
