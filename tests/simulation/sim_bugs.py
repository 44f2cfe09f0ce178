"""Bugs to inject, each of a kind that a developer might write: the simulator must detect them.

Each bug patches the real modules while a seed runs: ``python -m tests.simulation --bug NAME 0-99``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from odradek.coordinator_runtime.driver import Driver
from odradek.coordinator_runtime.loader import Loader
from odradek.coordinator_runtime.replies import resolve
from odradek.coordinator_runtime.runtime import Runtime
from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites
from odradek.core.effects import Result, SetTimer, SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.groups.classic.group import ClassicGroup
from odradek.groups.classic.protocol import JOIN, Membership
from odradek.groups.kip848 import assignors
from odradek.groups.kip848 import protocol as kip848_protocol
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.kip848.member import Reconciliation
from odradek.groups.offsets import committed_offsets as offsets
from odradek.groups.offsets.commit_plan import CommitBlock
from odradek.groups.offsets.committed_offsets import Offsets
from odradek.groups.shard import GroupShard
from odradek.storage.cleaning.rows import RowEngine

Bug = Callable[[], Any]


def _replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Bug:
    """Returns a patch that replaces one attribute. ``make`` makes the new value from the original one."""
    return lambda: patch.object(owner, name, make(getattr(owner, name)))


def _no_fencing_of_commits(real: Any) -> Any:
    def refuse(group: Any, request: Any) -> ErrorCode:
        error = real(group, request)
        return ErrorCode.none if error in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id) else error

    return refuse


def _no_fencing_of_static_members(real: Any) -> Any:
    def check(self: ClassicGroup, member_id: str, instance_id: str | None) -> ErrorCode:
        error = real(self, member_id, instance_id)
        return ErrorCode.none if error is ErrorCode.fenced_instance_id else error

    return check


def _deletion_lost_in_replay(real: Any) -> Any:
    def replay(self: Offsets, key: Any, value: Any) -> None:
        if value is not None:
            real(self, key, value)

    return replay


def _group_tombstone_lost_in_replay(real: Any) -> Any:
    def replay(self: GroupShard, decoded: Any) -> None:
        if decoded.value is not None:
            real(self, decoded)

    return replay


def _tombstones_lost_in_load(real: Any) -> Any:
    def replay(self: GroupShard, group_id: str, topic: str, commits: Any) -> None:
        real(self, group_id, topic, {one: stored for one, stored in commits.items() if stored is not None})

    return replay


def _a_partition_for_two(real: Any) -> Any:
    def assign(name: str, specs: Any, counts: Any, pace: Any, *, homogeneous: bool) -> Any:
        real_plan = yield from real(name, specs, counts, pace, homogeneous=homogeneous)
        plan = {member: dict(owned) for member, owned in real_plan.items()}
        given = next(((t, min(numbers)) for owned in plan.values() for t, numbers in owned.items() if numbers), None)
        if given is not None:
            for member, spec in specs.items():
                if given[0] in spec.topics:
                    owned = plan.setdefault(member, {})
                    owned[given[0]] = frozenset({*owned.get(given[0], ()), given[1]})
        return plan

    return assign


def _partitions_of_others_count_as_free(real: Any) -> Any:
    def step(self: Reconciliation, member: Any) -> Any:
        return real(self._replace(is_taken=lambda topic_id, partition: False), member)

    return step


def _waits_for_no_revocation(real: Any) -> Any:
    return lambda self, partitions: False


def _old_assignments_kept(real: Any) -> Any:
    """A member without assigned partitions keeps its old ones, or gets those of another member."""

    def handle(self: Membership, now_ms: int, request: Any) -> Any:
        group = self._groups.get(request.group_id)
        plan = dict(request.assignments)
        if group is not None and group.leader == request.member_id:
            kept = {one: member.assignment for one, member in group.members.items() if not plan.get(one)}
            # The leader names every member. So a member with an empty assignment gets the first one that is not empty.
            first = next((share for share in plan.values() if len(share) > 12), b"")
            plan |= {one: share or first for one, share in kept.items()}
            plan = {one: share if len(share) > 12 else first for one, share in plan.items()}
            request.assignments = plan
        return real(self, now_ms, request)

    return handle


def _replies_before_replicas_have_it(real: Any) -> Any:
    return lambda self, end_offset, entries, replies: resolve(replies)


def _writes_wait_for_ever(real: Any) -> Any:
    return lambda self: None


def _success_after_the_timeout(real: Any) -> Any:
    """A write that was not replicated in time counts as written."""

    def time_out(self: UnreplicatedWrites) -> None:
        for write in self.writes:
            resolve(write.replies)
            write.replies = []
        real(self)

    return time_out


def _reads_show_what_is_not_replicated(real: Any) -> Any:
    return lambda self, request: ()


def _heartbeats_wait_for_writes(real: Any) -> Any:
    return lambda self, request: None


def _refused_records_leave_changes(real: Any) -> Any:
    return lambda self, now_ms, entries, error: Result()


def _refused_records_are_replayed(real: Any) -> Any:
    """The shard has the state of records that the log has refused."""

    def append(self: Any, append: Any, replies: Any, undone: Any) -> Any:
        offset = real(self, append, replies, undone)
        if offset is None and undone is not None and self.error is ErrorCode.none:
            for record in undone:
                if isinstance(record, SimpleRecord):
                    self.shard.replay(self._partition.log_end_offset, record)
        return offset

    return append


def _late_loads_count(real: Any) -> Any:
    def load(self: Any, index: int, partition: Any, leader_epoch: int) -> None:
        real(self, index, partition, max(leader_epoch, self.epoch(index) + (index not in self.drivers)))

    return load


def _late_unloads_count(real: Any) -> Any:
    return lambda self, index, leader_epoch=None: self._end_term(index)


def _a_new_term_begins_with_an_empty_shard(real: Any) -> Any:
    def load(self: Any, index: int, partition: Any, leader_epoch: int) -> None:
        if leader_epoch > self.epoch(index):
            self._end_term(index)
        real(self, index, partition, leader_epoch)

    return load


def _replies_before_the_append(real: Any) -> Any:
    def take(self: Any, result: Any, origin: Any) -> None:
        if isinstance(result, Result) and result.records and result.reply is not None and origin.promise is not None:
            origin.promise.resolve(result.reply)
            result.reply = None
        real(self, result, origin)

    return take


def _subscribed_topics_expire(real: Any) -> Any:
    return lambda self, topic: False


def _retention_from_the_commit(real: Any) -> Any:
    """The retention of an offset starts at its commit, and not when the group becomes empty."""
    return lambda group: offsets.EACH_COMMIT


def _deleted_topics_keep_offsets(real: Any) -> Any:
    return lambda self, topics: []


def _no_rebalance_timeout(real: Any) -> Any:
    def handle(self: Membership, now_ms: int, group: Any, out: Any) -> Iterator[None]:
        yield from real(self, now_ms, group, out)
        out.effects = [one for one in out.effects if not (isinstance(one, SetTimer) and one.key[0] == JOIN)]

    return handle


def _generation_does_not_change(real: Any) -> Any:
    def start(self: ClassicGroup, now_ms: int, pace: Any) -> Iterator[None]:
        yield from real(self, now_ms, pace)
        if self.generation > 1:
            self.generation -= 1

    return start


def _stale_epochs_may_commit(real: Any) -> Any:
    def refuse(group: Kip848Group, request: Any, metadata_limit: int) -> ErrorCode:
        error = real(group, request, metadata_limit)
        return error if error is ErrorCode.unknown_member_id and not request.member_id else ErrorCode.none

    return refuse


def _first_commit_of_a_block_wins(real: Any) -> Any:
    def last(self: CommitBlock) -> Any:
        return self._offsets[: self.plan.count], self._epochs[: self.plan.count]

    return lambda: patch.object(CommitBlock, "last", property(last))


def _sessions_never_end(real: Any) -> Any:
    return lambda self, now_ms, group, member_id: Result()


def _members_of_848_never_end(real: Any) -> Any:
    return lambda self, now_ms, key, out: False


def _newest_record_dropped(real: Any) -> Any:
    """Compaction removes all records of the keys that end with partition 1, also the newest ones."""

    def remaining(self: RowEngine, records: Any, rules: Any, mapped_offset: int) -> list[int]:
        kept = real(self, records, rules, mapped_offset)
        return [number for number in kept if not (records.keys[number] or b"").endswith(b"\0\0\0\1")]

    return remaining


def _offsets_stay_when_a_group_is_deleted(real: Any) -> Any:
    return lambda self, group_id: []


def _load_stops_early(real: Any) -> Any:
    """The commits that the loader holds back at the end of a log are not loaded."""

    def finish(self: Loader[Any]) -> Iterator[None]:
        return iter(())

    return finish


def _pending_join_not_answered(real: Any) -> Any:
    """In every fifth generation, the members other than the leader get no reply to JoinGroup."""

    def answer(self: Membership, *arguments: Any) -> Any:
        member, reply = arguments[-3:-1]
        if reply.error is ErrorCode.none and reply.generation_id % 5 == 3 and not reply.members:
            member.parked_join = None
            return None
        return real(self, *arguments)

    return answer


def _no_record_of_an_empty_group(real: Any) -> Any:
    def complete(self: Membership, now_ms: int, group: Any, out: Any) -> Iterator[None]:
        yield from real(self, now_ms, group, out)
        if not group.members:
            out.records.clear()

    return complete


def _sessions_end_with_a_restart(real: Any) -> Any:
    return lambda self, now_ms, out: iter(())


def _generations_lost_in_load(real: Any) -> Any:
    def from_metadata(group_id: str, value: Any) -> Any:
        return real(group_id, value._replace(generation=0))

    return staticmethod(from_metadata)


def _revocation_never_ends(real: Any) -> Any:
    return lambda self, now_ms, key, epoch, timeout_ms, out: None


BUGS: dict[str, Bug] = {
    "no fencing of commits": _replacing(offsets, "check_classic_commit", _no_fencing_of_commits),
    "no fencing of static members": _replacing(ClassicGroup, "check_member", _no_fencing_of_static_members),
    "deletion lost in replay": _replacing(Offsets, "replay", _deletion_lost_in_replay),
    "group tombstone lost in replay": _replacing(GroupShard, "_replay_group", _group_tombstone_lost_in_replay),
    "tombstones lost in load": _replacing(GroupShard, "replay_commits", _tombstones_lost_in_load),
    "load stops early": _replacing(Loader, "finish", _load_stops_early),
    "a partition for two": _replacing(assignors, "assign_in_steps", _a_partition_for_two),
    "a share for two": _replacing(Membership, "handle_sync", _old_assignments_kept),
    "partitions of others are free": _replacing(Reconciliation, "step", _partitions_of_others_count_as_free),
    "no revocation is waited for": _replacing(Reconciliation, "_owns_any", _waits_for_no_revocation),
    "replies before replication": _replacing(UnreplicatedWrites, "send", _replies_before_replicas_have_it),
    "writes wait for ever": _replacing(UnreplicatedWrites, "time_out", _writes_wait_for_ever),
    "success after the timeout": _replacing(UnreplicatedWrites, "time_out", _success_after_the_timeout),
    "reads show what is not replicated": _replacing(GroupShard, "shown_to", _reads_show_what_is_not_replicated),
    "heartbeats wait for writes": _replacing(GroupShard, "shown_to", _heartbeats_wait_for_writes),
    "refused records leave changes": _replacing(GroupShard, "on_refused", _refused_records_leave_changes),
    "refused records are replayed": _replacing(Driver, "_append", _refused_records_are_replayed),
    "late loads count": _replacing(Runtime, "load", _late_loads_count),
    "late unloads count": _replacing(Runtime, "unload", _late_unloads_count),
    "a new term begins with an empty shard": _replacing(Runtime, "load", _a_new_term_begins_with_an_empty_shard),
    "replies before the append": _replacing(Driver, "_take", _replies_before_the_append),
    "subscribed topics expire": _replacing(ClassicGroup, "reads", _subscribed_topics_expire),
    "subscribed topics of 848 expire": _replacing(Kip848Group, "reads", _subscribed_topics_expire),
    "retention counts from the commit": _replacing(offsets, "_retention_start", _retention_from_the_commit),
    "deleted topics keep offsets": _replacing(Offsets, "on_topics_deleted", _deleted_topics_keep_offsets),
    "offsets stay when a group is deleted": _replacing(Offsets, "partitions", _offsets_stay_when_a_group_is_deleted),
    "no rebalance timeout": _replacing(Membership, "_prepare_rebalance", _no_rebalance_timeout),
    "a join is not answered": _replacing(Membership, "_reply_to_join", _pending_join_not_answered),
    "generations do not change": _replacing(ClassicGroup, "start_generation", _generation_does_not_change),
    "removed members of 848 may commit": _replacing(offsets, "check_kip848_commit", _stale_epochs_may_commit),
    "first commit of a block wins": _first_commit_of_a_block_wins(None),
    "sessions never end": _replacing(Membership, "on_session_timer", _sessions_never_end),
    "sessions of 848 never end": _replacing(
        kip848_protocol.MemberTimers, "has_session_ended", _members_of_848_never_end
    ),
    "revocations never end": _replacing(kip848_protocol.MemberTimers, "await_revocation", _revocation_never_ends),
    "an empty group is not written": _replacing(Membership, "_complete_join", _no_record_of_an_empty_group),
    "no sessions after a load": _replacing(Membership, "on_loaded", _sessions_end_with_a_restart),
    "no sessions of 848 after a load": _replacing(
        kip848_protocol.Kip848Protocol, "on_loaded", _sessions_end_with_a_restart
    ),
    "generations lost in load": _replacing(ClassicGroup, "from_metadata", _generations_lost_in_load),
    "compaction drops a newest record": _replacing(RowEngine, "_remaining", _newest_record_dropped),
}


@contextmanager
def injected(bug: str | None) -> Iterator[None]:
    """Runs the block with a bug injected; None: without a bug."""
    if bug is None:
        yield
        return
    with BUGS[bug]():
        yield
