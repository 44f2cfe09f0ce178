"""The KIP-848 protocol: ConsumerGroupHeartbeat, its timeouts, and reactions to changed topics.

Rules
* There is one request, ConsumerGroupHeartbeat. A member joins with epoch 0, reports its partitions and gets its
  assignment. It leaves with epoch -1; a static member that will rejoin leaves with epoch -2. The records of a request
  change the group when they are replayed.
* A member without heartbeats is removed when its session ends. A member that does not revoke its partitions is removed
  when its rebalance timeout ends.
* If the newest group epoch has no target, a heartbeat of any member computes the target. This can be the heartbeat that
  starts the epoch. But the assignment interval must have passed since the last target.
* A heartbeat with a new pattern sets a timer that is due at once, and the timer resolves the group's patterns. Any
  heartbeat sets the timer if a pattern is not resolved yet, if topics were created, or if the refresh interval (by
  default ten minutes) has passed. No heartbeat sets it in the ten seconds after a resolution. A match of many topics
  runs in the background.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping, Sequence
from typing import Any

from odradek.core.effects import Result, ResultParts, ResultSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from odradek.core.pace import Pace
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.classic.protocol import Membership
from odradek.groups.classic.records import group_record
from odradek.groups.config import GroupConfig
from odradek.groups.kip848 import assignors, migration, records
from odradek.groups.kip848.checks import check_epoch, check_request, check_size, find_member
from odradek.groups.kip848.group import GroupCatalog, Kip848Group, MemberChange
from odradek.groups.kip848.member import (
    Kip848Member,
    Kip848MemberState,
    Reconciliation,
    TargetAssignment,
    without_epochs,
)
from odradek.groups.kip848.messages import (
    DescribedKip848Group,
    DescribeKip848Group,
    Kip848Heartbeat,
    Kip848HeartbeatReply,
)
from odradek.groups.kip848.pattern_resolution import PatternResolution
from odradek.groups.kip848.timers import JOIN, PATTERNS, REVOKE, SESSION, MemberTimers


class Kip848Protocol:
    """Handles KIP-848 members of ``groups``. ``classic_groups`` and ``classic`` serve conversions of groups."""

    def __init__(
        self,
        config: GroupConfig,
        catalog: GroupCatalog,
        groups: dict[str, Kip848Group],
        classic_groups: dict[str, ClassicGroup],
        classic: Membership,
    ) -> None:
        self.config = config
        self.catalog = catalog
        self.groups = groups
        self.timers = MemberTimers()
        self._classic_groups = classic_groups
        self._classic = classic
        self.batch_bytes: Callable[[], int] = lambda: sys.maxsize
        """Returns the largest number of bytes of records in a batch."""
        self.pace = Pace()
        """The work of the current request since its last pause."""
        self.patterns = PatternResolution(config, catalog, groups)

    # --- ConsumerGroupHeartbeat -----------------------------------------------------------------------------------

    def handle_heartbeat(self, now_ms: int, request: Kip848Heartbeat) -> ResultSteps[Kip848HeartbeatReply]:
        out: Result[Kip848HeartbeatReply] = Result()
        self.pace = Pace()
        try:
            check_request(request, self.config.consumer_assignors)
            if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
                yield from self._leave(now_ms, request, out)
            else:
                yield from self._beat(now_ms, request, out)
        except KafkaError as error:
            self.patterns.on_refusal(now_ms, request.group_id, out)
            return Result(Kip848HeartbeatReply(error.code, error.message or None))
        return out

    def _beat(self, now_ms: int, request: Kip848Heartbeat, out: Result[Kip848HeartbeatReply]) -> Iterator[None]:
        joins = request.member_epoch == JOIN_EPOCH
        group, classic = yield from self._group_for(request.group_id, joins, out)
        self.check_room(group, request.member_id)
        member_id = request.member_id or request.new_member_id
        existing = group.static_member(request.instance_id) or group.members.get(member_id)
        member = self._member(group, member_id, request, out)
        updated = member._replace(
            instance_id=member.instance_id if request.instance_id is None else request.instance_id,
            rack_id=member.rack_id if request.rack_id is None else request.rack_id,
            rebalance_timeout_ms=member.rebalance_timeout_ms
            if request.rebalance_timeout_ms == -1
            else request.rebalance_timeout_ms,
            assignor=member.assignor if request.assignor is None else request.assignor,
            topics=member.topics if request.topics is None else frozenset(request.topics),
            pattern=member.pattern if request.pattern is None else request.pattern,
            client_id=request.client_id,
            client_host=request.client_host,
            classic=None,
        )
        change = MemberChange(now_ms, group, member, updated, existing, request.may_describe)
        names_changed = yield from self.note_member(change, out)
        pattern_changed, pattern_known = self.patterns.note(change, out)
        target = yield from self.next_target(change, names_changed or pattern_known, out)
        updated = yield from self.reconcile(change, target, request.owned, names_changed or pattern_changed, out)
        if out.records:
            check_size(out.records, self.batch_bytes())
        if classic is not None:
            yield from self._upgrade(now_ms, classic, group, out)
        self.forget_replaced(change, out)
        if updated != change.updated:
            self._watch_revocation(now_ms, group.group_id, updated, out)
        self._renew(now_ms, group.group_id, member_id, out)
        is_full = (
            request.rebalance_timeout_ms != -1
            and (request.topics is not None or request.pattern is not None)
            and request.owned is not None
        )
        sends_assignment = joins or is_full or updated.assigned != member.assigned
        out.reply = Kip848HeartbeatReply(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._setting(
                group.group_id, "consumer.heartbeat.interval.ms", self.config.consumer_heartbeat_interval_ms
            ),
            assignment=without_epochs(updated.assigned) if sends_assignment else None,
        )

    def _group_for(
        self, group_id: str, joins: bool, out: ResultParts
    ) -> Generator[None, None, tuple[Kip848Group, ClassicGroup | None]]:
        """Returns the KIP-848 group, and the classic group that this request converts to it (None: no conversion).

        Only a join can make a new group or convert a classic one. Raises KafkaError (GROUP_ID_NOT_FOUND).
        """
        group = self.groups.get(group_id)
        if group is not None:
            return group, None
        classic = self._classic_groups.get(group_id)
        if classic is None:
            if not joins:
                raise KafkaError(ErrorCode.group_id_not_found, f"Consumer group {group_id} not found.")
            return Kip848Group(group_id), None
        if not joins:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group_id} is not a consumer group.")
        out.records.append(migration.classic_tombstone(group_id))
        if classic.state is State.EMPTY:
            return Kip848Group(group_id), classic
        group = yield from migration.upgraded(classic, self.config, self.catalog, self.pace)
        out.records += yield from migration.upgrade_records(group, self.pace)
        return group, classic

    def _upgrade(self, now_ms: int, classic: ClassicGroup, group: Kip848Group, out: ResultParts) -> Iterator[None]:
        """Moves the sessions of a classic group's members to the KIP-848 group. The caller has made all checks."""
        yield from self._classic.end_sessions(classic, out, self.pace)
        for member in group.members.values():
            assert member.classic is not None
            self.timers.renew(now_ms, (group.group_id, member.member_id), member.classic.session_timeout_ms, out)
            if self.pace.spend():
                yield

    def check_room(self, group: Kip848Group, member_id: str) -> None:
        """Raises KafkaError (GROUP_MAX_SIZE_REACHED) if a new member would exceed the largest size of the group."""
        limit = self.config.consumer_max_size
        if len(group.members) >= limit and member_id not in group.members:
            text = f"The consumer group has reached its maximum capacity of {limit} members."
            raise KafkaError(ErrorCode.group_max_size_reached, text)

    def _member(self, group: Kip848Group, member_id: str, request: Kip848Heartbeat, out: ResultParts) -> Kip848Member:
        instance_id = request.instance_id
        if request.member_epoch == JOIN_EPOCH:
            holder = group.static_member(instance_id)
            if holder is None:
                return group.members.get(member_id) or Kip848Member(member_id)
            if holder.classic is None and holder.epoch != LEAVE_STATIC_EPOCH:
                raise KafkaError(
                    ErrorCode.unreleased_instance_id,
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {holder.member_id} member.",
                )
            return self.give_new_id(group, holder, member_id, out)
        member = find_member(group, member_id, instance_id)
        check_epoch(member, request)
        return member

    @staticmethod
    def give_new_id(group: Kip848Group, existing: Kip848Member, member_id: str, out: ResultParts) -> Kip848Member:
        """Writes the records that give a static member a new id, and returns the member."""
        member = existing._replace(member_id=member_id, epoch=0, previous_epoch=0)
        group_id = group.group_id
        out.records += records.member_tombstones(group_id, existing.member_id)
        out.records.append(records.member(group_id, member))
        target = group.targets.get(existing.member_id, {})
        out.records.append(records.target_member(group_id, member_id, target))
        out.records.append(records.current(group_id, member))
        return member

    def forget_replaced(self, change: MemberChange, out: ResultParts) -> None:
        """Cancels the timers of a static member's old id."""
        existing = change.existing
        if existing is not None and existing.member_id != change.updated.member_id:
            self.timers.forget((change.group.group_id, existing.member_id), out)

    def note_member(self, change: MemberChange, out: ResultParts) -> Generator[None, None, bool]:
        """Writes the record of a changed member and returns whether its topic names have changed."""
        if change.updated == change.member:
            return False
        out.records.append((yield from records.member_in_steps(change.group.group_id, change.updated, self.pace)))
        return change.updated.topics != change.member.topics

    # --- epochs and targets ---------------------------------------------------------------------------------------

    def next_target(
        self, change: MemberChange, is_new_epoch: bool, out: ResultParts
    ) -> Generator[None, None, TargetAssignment]:
        """Starts a new epoch if necessary, and returns the member's target.

        Computes a new target for the group if the newest epoch has none and the assignment interval has passed."""
        now_ms, group = change.now_ms, change.group
        epoch = group.epoch
        if is_new_epoch or group.refresh_due(now_ms):
            epoch = yield from self.next_epoch(change, is_new_epoch, out)
        if group.assignment_epoch >= epoch or not self._may_assign(now_ms, group):
            return self.last_target(change)
        assignment = yield from self._assign(change)
        for member_id, partitions in assignment.items():
            if member_id not in group.targets or group.targets[member_id] != partitions:
                record = yield from records.target_member_in_steps(group.group_id, member_id, partitions, self.pace)
                out.records.append(record)
            if self.pace.spend():
                yield
        out.records.append(records.target(group.group_id, epoch, now_ms))
        return TargetAssignment(epoch, assignment.get(change.updated.member_id, {}))

    @staticmethod
    def last_target(change: MemberChange) -> TargetAssignment:
        group, member = change.group, change.updated
        return TargetAssignment(group.assignment_epoch, group.target_of(member.member_id, member.instance_id))

    def next_epoch(self, change: MemberChange, is_new_epoch: bool, out: ResultParts) -> Generator[None, None, int]:
        """Starts a new epoch if the topics' metadata has changed or ``is_new_epoch`` is set. Returns the epoch."""
        group = change.group
        metadata_hash = yield from group.hash_in_steps(change.subscriptions(), self.catalog, self.pace)
        epoch = group.epoch
        if is_new_epoch or metadata_hash != group.metadata_hash:
            epoch += 1
            out.records.append(records.group_epoch(group.group_id, epoch, metadata_hash))
        group.note_refresh(change.now_ms, epoch)
        if group.has_partition_metadata:  # a record that Apache Kafka wrote before 4.2
            out.records.append(records.partition_metadata_tombstone(group.group_id))
        return epoch

    def _may_assign(self, now_ms: int, group: Kip848Group) -> bool:
        last_ms = group.assignment_timestamp_ms
        if last_ms == 0:
            return True
        interval_ms = self._setting(
            group.group_id, "consumer.assignment.interval.ms", self.config.consumer_assignment_interval_ms
        )
        return interval_ms == 0 or now_ms >= last_ms + interval_ms

    def _assign(self, change: MemberChange) -> Generator[None, None, dict[str, assignors.Partitions]]:
        group, updated, existing = change.group, change.updated, change.existing
        members = {member_id: (member, group.targets.get(member_id, {})) for member_id, member in group.members.items()}
        assigned = group.targets.get(updated.member_id, {})
        if existing is not None and existing.member_id != updated.member_id:
            assigned = members.pop(existing.member_id)[1]
        members[updated.member_id] = (updated, assigned)
        counts: dict[bytes, int] = {}
        read: dict[tuple[frozenset[str], str], frozenset[bytes]] = {}  # topic ids by subscription
        specs: dict[str, assignors.MemberSpec] = {}
        for member_id, (member, target) in members.items():
            topic_ids = read.get((member.topics, member.pattern))
            if topic_ids is None:
                topic_ids = yield from self._read_by(group, member, counts)
                read[member.topics, member.pattern] = topic_ids
            specs[member_id] = assignors.MemberSpec(topic_ids, target, member.instance_id)
            if self.pace.spend():
                yield
        name = group.preferred_assignor(self.config.consumer_assignors[0], existing, updated)
        is_homogeneous = change.subscriptions().are_equal(len(specs))
        assignment = yield from assignors.assign_in_steps(name, specs, counts, self.pace, homogeneous=is_homogeneous)
        empty: assignors.Partitions = {}
        ordered = yield from assignors.members_order(specs, self.pace)
        return {member_id: assignment.get(member_id, empty) for member_id in ordered}

    def _read_by(
        self, group: Kip848Group, member: Kip848Member, counts: dict[bytes, int]
    ) -> Generator[None, None, frozenset[bytes]]:
        """Returns the ids of a member's existing topics, and adds the partition count of each one to ``counts``."""
        topic_ids: list[bytes] = []
        for name in group.topics_of(member):
            topic = self.catalog.topic(name)
            if topic is not None:
                topic_ids.append(topic.topic_id)
                counts[topic.topic_id] = topic.partition_count
            if self.pace.spend():
                yield
        return frozenset(topic_ids)

    def reconcile(
        self,
        change: MemberChange,
        target: TargetAssignment,
        owned: Mapping[bytes, Collection[int]] | None,
        subscription_changed: bool,
        out: ResultParts,
    ) -> Generator[None, None, Kip848Member]:
        """Moves the member to its next state on the way to the target. Raises KafkaError (FENCED_MEMBER_EPOCH)."""
        group, before = change.group, change.updated
        if before.is_reconciled(target.epoch) and not subscription_changed:
            return before
        subscribed = yield from self._read_by(group, before, {})
        after = yield from Reconciliation(
            target, subscribed, owned, group.is_taken, subscription_changed, self.pace
        ).advance(before)
        if after == before:
            return after
        out.records.append((yield from records.current_in_steps(group.group_id, after, self.pace)))
        return after

    def _watch_revocation(self, now_ms: int, group_id: str, member: Kip848Member, out: ResultParts) -> None:
        """Sets the revocation timer (the rebalance timeout) of a member with partitions to revoke, or cancels it."""
        key = (group_id, member.member_id)
        if member.state is Kip848MemberState.UNREVOKED_PARTITIONS:
            self.timers.await_revocation(now_ms, key, member.epoch, member.rebalance_timeout_ms, out)
        else:
            self.timers.cancel_revocation(key, out)

    # --- leaving --------------------------------------------------------------------------------------------------

    def _leave(self, now_ms: int, request: Kip848Heartbeat, out: Result[Kip848HeartbeatReply]) -> Iterator[None]:
        group = self.groups.get(request.group_id)
        if group is None:
            known = request.group_id in self._classic_groups
            text = f"Group {request.group_id} {'is not a consumer group' if known else 'not found'}."
            raise KafkaError(ErrorCode.group_id_not_found, text)
        member = find_member(group, request.member_id, request.instance_id)
        if request.member_epoch == LEAVE_STATIC_EPOCH and request.instance_id is not None:
            # The member will rejoin. It stays in the group with its partitions until its session ends.
            assigned = {topic_id: dict.fromkeys(owned, 0) for topic_id, owned in member.assigned.items()}
            away = member._replace(epoch=LEAVE_STATIC_EPOCH, assigned=assigned, to_revoke={})
            out.records.append((yield from records.current_in_steps(group.group_id, away, self.pace)))
        else:
            yield from self.fence(now_ms, group, [member], out, self.batch_bytes())
        out.reply = Kip848HeartbeatReply(member_id=member.member_id, member_epoch=request.member_epoch)

    def fence(
        self,
        now_ms: int,
        group: Kip848Group,
        leaving: Sequence[Kip848Member],
        out: ResultParts,
        limit: int = sys.maxsize,
    ) -> Iterator[None]:
        """Removes members. The group becomes a classic group if ``migration.may_downgrade`` allows it.

        Raises KafkaError if this takes more than ``limit`` bytes of records.
        """
        if not leaving:
            return
        left = len(group.members) - len(leaving)
        if migration.may_downgrade(group, leaving, self.config, left):
            leaving_ids = {member.member_id for member in leaving}
            classic = yield from self.downgraded(now_ms, group, leaving_ids, None, out)
            check_size(out.records, limit)
            yield from self.downgrade(now_ms, group, classic, out, rebalances=True)
            return
        group_id = group.group_id
        for member in leaving:
            out.records += records.member_tombstones(group_id, member.member_id)
            if self.pace.spend(3 * migration.RECORD_WORK):
                yield
        subscriptions = yield from group.subscriptions_without(leaving, self.pace)
        out.records += [
            records.pattern_tombstone(group_id, pattern)
            for pattern in group.subscriptions.patterns
            if pattern not in subscriptions.patterns
        ]
        metadata_hash = yield from group.hash_in_steps(subscriptions, self.catalog, self.pace)
        out.records.append(records.group_epoch(group_id, group.epoch + 1, metadata_hash))
        check_size(out.records, limit)
        for member in leaving:
            self.timers.forget((group_id, member.member_id), out)
            if self.pace.spend():
                yield

    def downgraded(
        self,
        now_ms: int,
        group: Kip848Group,
        leaving: Collection[str],
        joining: Kip848Member | None,
        out: ResultParts,
    ) -> Generator[None, None, ClassicGroup]:
        """Returns the classic group that the group becomes, and writes the records of the conversion.

        Raises KafkaError (GROUP_ID_NOT_FOUND).
        """
        classic = yield from migration.downgraded(group, leaving, joining, now_ms, self.catalog, pace=self.pace)
        replaced = None if joining is None else group.static_member(joining.instance_id)
        renamed = {} if joining is None or replaced is None else {replaced.member_id: joining.member_id}
        for record in group.tombstones(renamed):
            out.records.append(record)
            if self.pace.spend(migration.RECORD_WORK):
                yield
        change = yield from group_record(classic, self.pace)
        change.converted = classic
        out.records.append(change)
        return classic

    def downgrade(
        self, now_ms: int, group: Kip848Group, classic: ClassicGroup, out: ResultParts, *, rebalances: bool
    ) -> Iterator[None]:
        """Moves the members' sessions to the classic group. The caller has made all checks."""
        for member_id in group.members:
            self.timers.forget((group.group_id, member_id), out)
            if self.pace.spend():
                yield
        yield from self._classic.begin_sessions(now_ms, classic, rebalances, out, self.pace)

    def on_work(self, now_ms: int, key: Hashable, value: Any) -> ResultSteps[None]:
        """Takes the result of patterns that were resolved in the background; ``value`` is None after a failure."""
        assert isinstance(key, tuple)
        _, group_id, version = key
        out: Result[None] = Result()
        self.pace = Pace()
        yield from self.patterns.take(now_ms, group_id, value or {}, version, pace=self.pace, out=out)
        return out

    @staticmethod
    def delete(group: Kip848Group, out: ResultParts) -> None:
        """Deletes a group without members."""
        out.records += group.tombstones()

    def handle_describe(self, now_ms: int, request: DescribeKip848Group) -> Result[DescribedKip848Group]:
        group_id = request.group_id
        if not group_id:
            return Result(request.error_reply(ErrorCode.invalid_group_id))
        group = self.groups.get(group_id)
        if group is None:
            why = "is not a consumer group" if group_id in self._classic_groups else "not found"
            error = ErrorCode.group_id_not_found
            return Result(DescribedKip848Group(group_id, error, f"Group {group_id} {why}."))
        return Result(
            DescribedKip848Group(
                group_id,
                state=group.state.value,
                epoch=group.epoch,
                assignment_epoch=group.assignment_epoch,
                assignor=group.preferred_assignor(self.config.consumer_assignors[0]),
                members=[(member, group.targets.get(member.member_id, {})) for member in group.members.values()],
            )
        )

    # --- timers and events ----------------------------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> ResultSteps[None]:
        assert isinstance(key, tuple)
        kind, group_id = key[:2]
        out: Result[None] = Result()
        self.pace = Pace()
        if kind == PATTERNS:
            yield from self.patterns.resolve(now_ms, group_id, self.pace, out)
            return out
        member_key = key[1:]
        member_id = key[2]
        if kind == SESSION and not self.timers.has_session_ended(now_ms, member_key, out):
            return out
        if kind == JOIN:
            self.timers.cancel_join(member_key, out)
        group = self.groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if kind == REVOKE:
            epoch = self.timers.take_revocation_epoch(member_key)
            if member is None or member.epoch != epoch:
                return out
        if group is not None and member is not None:
            yield from self.fence(now_ms, group, [member], out)
        return out

    def on_loaded(self, now_ms: int, out: ResultParts) -> Iterator[None]:
        """Gives every member a full session timeout, and those with partitions to revoke a full rebalance timeout."""
        self.pace = Pace()
        self.patterns.on_topics_created()
        for group in self.groups.values():
            yield from self._begin(now_ms, group, out)

    def _begin(self, now_ms: int, group: Kip848Group, out: ResultParts) -> Iterator[None]:
        for member in group.members.values():
            self._renew(now_ms, group.group_id, member.member_id, out)
            if member.state is Kip848MemberState.UNREVOKED_PARTITIONS:
                key = (group.group_id, member.member_id)
                self.timers.await_revocation(now_ms, key, member.epoch, member.rebalance_timeout_ms, out)
            if self.pace.spend():
                yield

    def restore(self, now_ms: int, group: Kip848Group, out: ResultParts) -> Iterator[None]:
        """Starts the timeouts of a group's members again, because the log has refused records of the group."""
        self.pace = Pace()
        self.patterns.on_topics_created()
        group.refresh = (0, 0)
        for member_id in group.members:
            self.timers.forget((group.group_id, member_id), out)
            if self.pace.spend():
                yield
        yield from self._begin(now_ms, group, out)

    def on_topics_changed(self, names: Collection[str], *, created: bool) -> None:
        """Marks each group that reads one of these topics: its next heartbeat reads the topics' metadata again."""
        if created:
            self.patterns.on_topics_created()
        for group in self.groups.values():
            if any(group.reads(name) for name in names):
                group.refresh = (0, 0)

    def _renew(self, now_ms: int, group_id: str, member_id: str, out: ResultParts) -> None:
        timeout_ms = self._setting(group_id, "consumer.session.timeout.ms", self.config.consumer_session_timeout_ms)
        self.timers.renew(now_ms, (group_id, member_id), timeout_ms, out)

    def _setting(self, group_id: str, name: str, default: int) -> int:
        text = self.catalog.group_setting(group_id, name)
        return default if text is None else int(text)
