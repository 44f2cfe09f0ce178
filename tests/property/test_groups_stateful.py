"""Members that join, leave, crash, return, commit and wait in any order, with coordinators that restart and fail, on
a disk that is full for one write or for a long time.

Invariants after every step:

* A replay of the log gives the durable state of the coordinator, also while its load is delayed.
* After a refused write the coordinator is back within a second. Committed offsets can be read all the time.
* In a generation, no partition has two owners.
* Outside a rebalance, the last record of the group describes its present members.
* No commit is lost.
* No rebalance lasts longer than two rebalance timeouts and one session timeout.
* The fields of a group and of its members agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule
from support.examples import examples
from support.group_harness import GroupHarness, Pending, subscription

from odradek.codecs.offsets_topic import GroupRecord
from odradek.coordinator_runtime.shard_loads import RELOAD_MS
from odradek.core.effects import SimpleRecord, result_of
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace
from odradek.groups.classic.group import ClassicGroup, State
from odradek.groups.classic.records import group_record
from odradek.groups.config import GroupConfig
from odradek.groups.shard import GroupShard

GROUP = "g"
PARTITIONS = 4
SESSION_MS, REBALANCE_MS = 10_000, 20_000
PROTOCOLS = (("range",), ("range", "sticky"), ("sticky", "range"))
OK = ErrorCode.none


@dataclass
class Member:
    """A client's view: its member id, its generation, and the reply that it waits for."""

    instance: str | None
    protocols: tuple[str, ...]
    member_id: str = ""
    generation: int = -1
    owned: frozenset[int] = frozenset()
    joining: Pending | None = None
    syncing: Pending | None = None

    def forget(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, frozenset()
        self.joining = self.syncing = None


class Groups(RuleBasedStateMachine):
    members = Bundle("members")

    @initialize(delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, delay_ms: int) -> None:
        self.harness = GroupHarness(GroupConfig(group_initial_rebalance_delay_ms=delay_ms), partition_count=1)
        self.harness.catalog.add("t", PARTITIONS)
        self.incarnation = 0
        self.owners: dict[tuple[int, int], dict[int, str]] = {}  # for each generation: partition → member id
        self.committed: dict[int, int] = {}
        self.crashes = 0
        self.absent_since_ms: int | None = None

    # --- actions of members -----------------------------------------------------------------------------------

    @rule(target=members, instance=st.none() | st.sampled_from(["a", "b"]), protocols=st.sampled_from(PROTOCOLS))
    def appear(self, instance: str | None, protocols: tuple[str, ...]) -> Member:
        member = Member(instance, protocols)
        self._join(member)
        return member

    @rule(member=members)
    def go_on(self, member: Member) -> None:
        """Reads the reply, if there is one, and does the next step of a consumer."""
        if member.joining is not None:
            if member.joining.answered:
                self._joined(member, member.joining)
        elif member.syncing is not None:
            if member.syncing.answered:
                self._synced(member, member.syncing)
        elif member.generation >= 0:
            self._heartbeat(member)
        else:
            self._join(member)

    @rule(member=members, protocols=st.sampled_from(PROTOCOLS))
    def rejoin(self, member: Member, protocols: tuple[str, ...]) -> None:
        """Rejoins with another subscription or after a topic change. The reply to an earlier request may be lost."""
        member.protocols = protocols
        self._join(member)

    @rule(member=members)
    def leave(self, member: Member) -> None:
        if member.member_id:
            self.harness.leave(GROUP, member.member_id, instance=member.instance)
        member.forget()

    @rule(member=consumes(members))
    def crash(self, member: Member) -> None:
        """The member is lost; another member may use its instance id."""

    @rule(member=members, partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 99))
    def commit(self, member: Member, partition: int, offset: int) -> None:
        self._commit(
            member.member_id, member.generation, member.instance if member.member_id else None, partition, offset
        )

    @rule(partition=st.integers(0, PARTITIONS - 1), offset=st.integers(0, 99), version=st.sampled_from([3, 5, 6, 9]))
    def commit_from_outside(self, partition: int, offset: int, version: int) -> None:
        """Commits without a member id. Version 3 has a retention time, and writes another version of the record."""
        codes = self.harness.commit(
            GROUP, "t", {partition: offset}, version=version, leader_epoch=3, metadata="m", retention_ms=1_000_000_000
        )
        if codes[partition] is OK:
            self.committed[partition] = offset

    def _commit(self, member_id: str, generation: int, instance: str | None, partition: int, offset: int) -> None:
        asked = {"member": member_id, "generation": generation, "instance": instance}
        codes = self.harness.commit(GROUP, "t", {partition: offset}, **asked)
        if codes[partition] is OK:
            self.committed[partition] = offset

    def _join(self, member: Member) -> None:
        member.syncing = None
        member.joining = self.harness.join(
            GROUP,
            member.member_id,
            instance=member.instance,
            protocols=member.protocols,
            metadata=subscription("t"),
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
        )

    def _joined(self, member: Member, answer: Pending) -> None:
        reply = answer.reply
        member.joining = None
        if reply.error_code is ErrorCode.member_id_required:
            member.member_id = reply.member_id
            self._join(member)
        elif reply.error_code is not OK:
            if reply.error_code is not ErrorCode.rebalance_in_progress:
                member.forget()
        else:
            member.member_id, member.generation = reply.member_id, reply.generation_id
            names = sorted(row.member_id for row in reply.members)
            plan = {name: bytes(range(place, PARTITIONS, len(names))) for place, name in enumerate(names)}
            member.syncing = self.harness.sync(
                GROUP,
                member.member_id,
                member.generation,
                plan,
                instance=member.instance,
                protocol=reply.protocol_name,
            )

    def _synced(self, member: Member, answer: Pending) -> None:
        reply = answer.reply
        member.syncing = None
        if reply.error_code is OK:
            member.owned = frozenset(reply.assignment)
            owners = self.owners.setdefault((self.incarnation, member.generation), {})
            for partition in member.owned:
                owner = owners.setdefault(partition, member.instance or member.member_id)
                assert owner == (member.instance or member.member_id), f"two owners of {partition}"
        else:
            member.owned = frozenset()
            if reply.error_code is not ErrorCode.rebalance_in_progress:
                member.forget()

    def _heartbeat(self, member: Member) -> None:
        error = self.harness.heartbeat(GROUP, member.member_id, member.generation, member.instance)
        if error is ErrorCode.rebalance_in_progress:
            self._join(member)
        elif error is ErrorCode.illegal_generation:
            member.generation = -1
        elif error is not OK:
            member.forget()

    # --- other events -----------------------------------------------------------------------------------------

    @rule(by_ms=st.sampled_from([1, 500, 3_000, 9_999, 10_001, 20_000, 60_000, 310_000]))
    def wait(self, by_ms: int) -> None:
        self.harness.advance(by_ms)

    @precondition(lambda self: self.crashes < 5)
    @rule()
    def restart(self) -> None:
        self.crashes += 1
        self.there_is_room_again()  # without room a broker does not start
        self.harness.restart()

    @precondition(lambda self: self.crashes < 5)
    @rule(member=members)
    def a_write_fails(self, member: Member) -> None:
        """The disk is full for the next write that this member causes."""
        self.crashes += 1
        self.the_disk_fills(0)
        self.go_on(member)
        self.there_is_room_again()

    @precondition(lambda self: self.crashes < 5)
    @rule(changes=st.integers(0, 3))
    def the_disk_fills(self, changes: int) -> None:
        self.harness.partitions[0].files.fill_after(changes)

    @rule(times=st.integers(1, 3))
    def all_leave_on_a_full_disk(self, times: int) -> None:
        """The group becomes empty, but its record is refused. So the members are still in the group."""
        self.the_disk_fills(0)
        for _ in range(times):
            group = self._group()
            for member_id in () if group is None else list(group.members):
                self.harness.leave(GROUP, member_id)

    @rule()
    def there_is_room_again(self) -> None:
        self.harness.partitions[0].files.make_room()

    # --- invariants -------------------------------------------------------------------------------------------

    def _group(self) -> ClassicGroup | None:
        """The group; None if there is none, or while the load of the coordinator is delayed."""
        shard = self.harness.runtime.shard(0)
        return None if shard is None else shard.groups.get(GROUP)

    @invariant()
    def a_delayed_load_begins(self) -> None:
        if self.harness.runtime.shard(0) is not None:
            self.absent_since_ms = None
        elif self.absent_since_ms is None:
            self.absent_since_ms = self.harness.world.now_ms
        else:
            assert self.harness.world.now_ms - self.absent_since_ms < RELOAD_MS

    @invariant()
    def replay_gives_the_state_of_the_coordinator(self) -> None:  # behaviour 36
        live = self.harness.runtime.shard(0) or self.harness.runtime.drivers[0].loads.former
        assert live is not None
        replayed = GroupShard(self.harness.config)
        for offset, (key, value) in enumerate(self.harness.partitions[0].raw()):
            assert key is not None
            replayed.replay(offset, SimpleRecord(key, value))
        assert replayed.durable_state() == live.durable_state()
        assert not replayed.skipped

    @invariant()
    def a_group_without_a_rebalance_has_the_state_of_the_log(self) -> None:  # behaviour 36
        group = self._group()
        if group is None or group.persisted is None or group.state not in (State.STABLE, State.EMPTY):
            return
        living, written = result_of(group_record(group, Pace())).decoded.value, group.persisted
        assert living is not None
        if group.state is State.EMPTY and group.generation == 0:
            return  # the group has only given out a member id so far
        same_time = written.current_state_timestamp_ms
        ordered = sorted(living.members), sorted(written.members)
        assert ordered[0] == ordered[1]
        assert living._replace(current_state_timestamp_ms=same_time, members=()) == written._replace(members=())

    @invariant()
    def commits_do_not_get_lost(self) -> None:  # claim 92
        if self.harness.runtime.shard(0) is not None and self._group() is None:
            self.incarnation += 1
            assert not self.committed, "a group with offsets was removed"
        for partition, offset in self.committed.items():
            assert self.harness.offset(GROUP, "t", partition) == offset

    @invariant()
    def every_rebalance_ends(self) -> None:  # behaviour 44, behaviour 45
        group = self._group()
        if group is not None and group.state in (State.PREPARING_REBALANCE, State.COMPLETING_REBALANCE):
            longest = REBALANCE_MS * 2 + SESSION_MS
            assert self.harness.world.now_ms - group.state_since_ms <= longest

    @invariant()
    def members_are_consistent(self) -> None:
        group = self._group()
        if group is None:
            return
        assert (group.state is State.EMPTY) <= (not group.members)
        assert not group.members or group.leader in group.members
        assert set(group.static_members.values()) <= set(group.members)
        for member in group.members.values():
            assert member.session_timer_ms is not None or member.needs_no_heartbeat
        assert not group.pending_joins & set(group.members)

    def teardown(self) -> None:
        """Without requests from members the group becomes empty, and no request stays unanswered."""
        if not hasattr(self, "harness"):
            return
        self.there_is_room_again()
        self.harness.advance(2 * 310_000)
        group = self.harness.shard(GROUP).groups.get(GROUP)
        assert group is None or group.state is State.EMPTY
        assert not self.harness.runtime.drivers[0].parked
        last = [record for record in self.harness.partitions[0].records() if isinstance(record, GroupRecord)][-1:]
        assert all(record.value is None or not record.value.members for record in last)


Groups.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
TestGroups = Groups.TestCase
