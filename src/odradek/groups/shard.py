"""The groups of one partition of ``__consumer_offsets``: dispatch, replay, timers.

Rules
* ``handle`` and ``on_timer`` generate records and change soft state; durable state (committed offsets, and each
  group's last record) changes in ``replay`` alone, which living and restarting share.
* While the log is read, a group is built from each of its records anew. From ``on_loaded`` on, its record only
  confirms what the living group knows.
* A record of a kind that is not understood here is left alone and counted in ``skipped``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

from odradek.core.effects import Record, Result, SetTimer
from odradek.core.errors import ErrorCode
from odradek.core.records import (
    GroupMetadata,
    GroupRecord,
    OffsetCommitRecord,
    OffsetCommitValue,
    OffsetKey,
    UnknownRecord,
    decode,
    group_key,
)
from odradek.groups.classic import ClassicGroup, State
from odradek.groups.commit_plan import CommitBlock, PlannedCommits
from odradek.groups.config import GroupConfig
from odradek.groups.membership import JOIN, SESSION, SYNC, Membership
from odradek.groups.messages import (
    DeleteGroups,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    Request,
    SyncGroup,
)
from odradek.groups.offsets import Offsets, Prepared, TopicIds

EXPIRY: Hashable = ("expiry",)
CLASSIC = "classic"


class DurableState(NamedTuple):
    """What the log alone determines: each group's last record (None: it has offsets only), and all offsets."""

    groups: dict[str, GroupMetadata | None]
    offsets: dict[OffsetKey, OffsetCommitValue]


class GroupShard:
    """See the module's docstring, and core/effects for the contract."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.groups: dict[str, ClassicGroup] = {}
        self.skipped: Counter[str] = Counter()
        self._loaded = False
        self._membership = Membership(config, self.groups)
        self._offsets = Offsets(config, self.groups, self._membership)
        self._handlers: dict[type, Callable[[int, Any], Result]] = {
            OffsetCommit: self._offsets.handle_commit,
            PlannedCommits: self._offsets.handle_planned,
            OffsetFetch: self._offsets.handle_fetch,
            OffsetDelete: self._offsets.handle_delete,
            JoinGroup: self._membership.handle_join,
            SyncGroup: self._membership.handle_sync,
            Heartbeat: self._membership.handle_heartbeat,
            LeaveGroup: self._membership.handle_leave,
            DescribeGroup: self._describe,
            ListGroups: self._list,
            DeleteGroups: self._delete,
        }

    def handle(self, now_ms: int, request: Request) -> Result:
        return self._handlers[type(request)](now_ms, request)

    def take_back(self, now_ms: int, request: Request) -> Result | None:
        """The records of a request just handled are more than a batch takes, and all its answers became errors.

        None: what else it changed cannot be undone here.
        """
        if isinstance(request, SyncGroup):
            return self._membership.take_back_sync(now_ms, request)
        if isinstance(request, OffsetCommit | PlannedCommits | OffsetDelete | DeleteGroups):
            return Result()  # they change nothing but through their records
        return None

    def committed(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        """What was committed last, if anything."""
        return self._offsets.get(group_id, topic, partition)

    def durable_state(self) -> DurableState:
        offsets = dict(self._offsets.items())
        groups: dict[str, GroupMetadata | None] = {key.group: None for key in offsets}
        groups |= {name: group.persisted for name, group in self.groups.items() if group.persisted is not None}
        return DurableState(groups, offsets)

    # --- log --------------------------------------------------------------------------------------------------

    def replay(self, offset: int, record: Record) -> None:
        """Takes over one record of the log, at ``offset``."""
        decoded = record.decoded if isinstance(record, Prepared) else decode(record.key, record.value)
        if isinstance(decoded, OffsetCommitRecord):
            self._replay_offset(decoded)
        elif isinstance(decoded, GroupRecord):
            self._replay_group(decoded)
        elif isinstance(decoded, UnknownRecord):
            self.skipped[decoded.reason] += 1
        else:
            self.skipped[f"{decoded.kind.name} is not supported yet"] += 1

    def replay_block(self, offset: int, block: CommitBlock) -> None:
        """Takes over a block, just written; ``offset`` is that of its first record."""
        self._ensure_group(block.plan.request.group_id, block.now_ms)
        self._offsets.replay_block(block)

    def _replay_offset(self, decoded: OffsetCommitRecord) -> None:
        key, value = decoded
        if value is not None:
            self._ensure_group(key.group, value.commit_timestamp_ms)
        self._offsets.replay(key, value)

    def _ensure_group(self, group_id: str, since_ms: int) -> None:
        if group_id not in self.groups:  # a simple group: it has no record of its own
            self.groups[group_id] = ClassicGroup(group_id, State.EMPTY, since_ms)

    def _replay_group(self, decoded: GroupRecord) -> None:
        group_id, value = decoded.key.group, decoded.value
        if value is None:
            group = self.groups.pop(group_id, None)
            if group is not None:
                group.transition(State.DEAD, group.state_since_ms)
        elif self._loaded and group_id in self.groups:
            self.groups[group_id].persisted = value
        else:
            self.groups[group_id] = ClassicGroup.from_metadata(group_id, value)

    def on_loaded(self, now_ms: int) -> Result:
        """The log was read to its end: members get time to find us, and expiry starts its rounds."""
        self._loaded = True
        out = Result(effects=[SetTimer(EXPIRY, now_ms + self.config.offsets_retention_check_interval_ms)])
        self._membership.on_loaded(now_ms, out)
        return out

    # --- timers and events ------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> Result:
        if key == EXPIRY:
            return self._expire(now_ms)
        assert isinstance(key, tuple)
        kind, group_id = key[:2]
        group = self.groups.get(group_id)
        if group is None:
            return Result()
        if kind == SESSION:
            return self._membership.on_session_timer(now_ms, group, key[2])
        if kind == JOIN:
            return self._membership.on_join_timer(now_ms, group)
        assert kind == SYNC
        return self._membership.on_sync_timer(now_ms, group)

    def _expire(self, now_ms: int) -> Result:
        out = Result(effects=[SetTimer(EXPIRY, now_ms + self.config.offsets_retention_check_interval_ms)])
        for group in self.groups.values():
            nothing_left = self._offsets.expire(now_ms, group, out.records)
            if nothing_left and group.state is State.EMPTY:
                out.records.append(Record(group_key(group.group_id), None))
        return out

    def on_clock_jumped(self, by_ms: int) -> None:
        """The time was set, or nothing ran for a while: what members were given they still have."""
        for group in self.groups.values():
            for member in group.members.values():
                member.session_deadline_ms += by_ms
                if member.session_timer_ms is not None:
                    member.session_timer_ms += by_ms

    def on_topics_deleted(self, topics: Collection[str]) -> Result:
        """Their offsets go, for every group."""
        return Result(records=self._offsets.on_topics_deleted(topics))

    def on_topics_known(self, topic_id: TopicIds) -> Result:
        """Offsets go whose topic was deleted while nobody could write that down: a crash came in between."""
        return Result(records=self._offsets.of_topics_gone(topic_id))

    # --- administration ---------------------------------------------------------------------------------------

    def _describe(self, now_ms: int, request: DescribeGroup) -> Result:
        group = self.groups.get(request.group_id)
        if group is None:
            return Result(
                DescribedGroup(
                    request.group_id,
                    ErrorCode.group_id_not_found,
                    f"Group {request.group_id} not found.",
                    state=State.DEAD.value,
                )
            )
        stable = group.state is State.STABLE
        members = [
            DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ]
        return Result(
            DescribedGroup(
                group.group_id,
                state=group.state.value,
                protocol_type=group.protocol_type or "",
                protocol_name=(group.protocol or "") if stable else "",
                members=members,
            )
        )

    def _list(self, now_ms: int, request: ListGroups) -> Result:
        if request.types and CLASSIC not in request.types:
            return Result(ListGroupsReply())
        listed = [
            ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
            for group in self.groups.values()
            if not request.states or group.state.value.lower() in request.states
        ]
        return Result(ListGroupsReply(groups=listed))

    def _delete(self, now_ms: int, request: DeleteGroups) -> Result:
        out = Result()
        answers = []
        for group_id in request.group_ids:
            group = self.groups.get(group_id)
            if group is None:
                answers.append((group_id, ErrorCode.group_id_not_found))
            elif group.state is not State.EMPTY:
                answers.append((group_id, ErrorCode.non_empty_group))
            else:
                out.records += self._offsets.delete_all(group_id)
                out.records.append(Record(group_key(group_id), None))
                answers.append((group_id, ErrorCode.none))
        out.reply = answers
        return out
