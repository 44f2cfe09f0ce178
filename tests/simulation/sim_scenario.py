"""The world of one seed: its groups and members, the events, and the invariants.

A run has four parts:

1. events: all events that the seed chose;
2. stability: every group must become stable, and every partition must get an owner;
3. no members: every group must become empty;
4. the end of retention: no state may be left.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sim_classic import ClassicProcess
from sim_consumers import ConsumerProcess
from sim_coordinator import Coordinator
from sim_ledger import Key
from sim_members import OK, Process
from sim_network import Connection, NetworkFaults
from support.world import SimulationFailure, World

from odradek.core.ids import TopicPartition
from odradek.groups.classic.group import ClassicGroup
from odradek.groups.classic.group import State as Kip848GroupState
from odradek.groups.config import GroupConfig
from odradek.groups.kip848.member import Kip848MemberState
from odradek.groups.messages import (
    DeleteGroups,
    DescribeGroup,
    ListGroups,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicCommit,
)

HOUR_MS = 3_600_000
EVENTS_AT_MOST = 60_000
"""Far more events than any seed has. A seed with more events is in an endless loop."""
CALM_AT_MOST_MS = 240_000
FAULTS = (
    "crash",
    "hand_over",
    "member_crash",
    "loss",
    "slow",
    "late",
    "write_fails",
    "topics",
    "admin",
    "lag",
    "jump",
    "terms",
)
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
RETENTION = ((20_000, 5_000), (60_000, 5_000), (60_000, 30_000), (HOUR_MS, 30_000), (168 * HOUR_MS, HOUR_MS))
"""The retention of offsets and the interval of its checks, in ms."""
PATTERNS = ("t.*", "[ab].*|t0", "t[01]")


@dataclass
class Group:
    """``kind``: classic, consumer, mixed (both protocols in one group), simple (no members, only commits)."""

    name: str
    kind: str
    strategies: tuple[str, ...] = ()
    session_ms: int = 10_000
    rebalance_ms: int = 15_000
    static_topics: list[str] = field(default_factory=lambda: ["t0", "t1"])
    processes: list[Process] = field(default_factory=list)


class Scenario:
    """``without``: faults to leave out. This shows which faults a failure needs."""

    def __init__(self, seed: int, without: tuple[str, ...] = ()) -> None:
        self.world = world = World(seed, EVENTS_AT_MOST)
        rng = world.rng
        chosen = {name for name in FAULTS if rng.random() < 0.6}
        self.faults = chosen - set(without)
        retention_ms, check_ms = rng.choice(RETENTION)
        self.config = GroupConfig(
            offsets_retention_ms=retention_ms,
            offsets_retention_check_interval_ms=check_ms,
            group_initial_rebalance_delay_ms=rng.choice([0, 0, 1_000]),
            group_max_size=rng.choice([3, 1_000, 1_000]),
            consumer_max_size=rng.choice([3, 1_000, 1_000]),
            consumer_session_timeout_ms=rng.choice([6_000, 12_000]),
            consumer_assignment_interval_ms=rng.choice([0, 1_000]),
            new_member_join_timeout_ms=rng.choice([10_000, 30_000]),
            offsets_commit_timeout_ms=rng.choice([500, 5_000]),
        )
        self.network_faults = NetworkFaults()
        if "loss" in self.faults:
            self.network_faults.lost_request, self.network_faults.lost_reply = rng.random() * 0.05, rng.random() * 0.05
        if "slow" in self.faults:
            self.network_faults.slow, self.network_faults.slow_ms = rng.random() * 0.1, rng.choice([500, 3_000, 12_000])
        self.coordinator = Coordinator(world, self.config, rng.choice([1, 2]), rng.choice([0, 20_000, HOUR_MS]))
        if "late" in self.faults:
            self.network_faults.late = 0.5
            self.coordinator.ledger.going_back_allowed = True
        if "lag" in self.faults:
            lag_ms = rng.choice([5, 100, 2_000])
            self.coordinator.lag_ms = lambda: rng.randint(0, lag_ms)
            for log in self.coordinator.logs:
                log.held_back = 0
        self.coordinator.on_connections_lost = self._connections_lost
        self.coordinator.is_read = self._is_read
        self.coordinator.ledger.owns_of_deleted = self._owns_of_deleted
        self.groups = [self._group(number) for number in range(rng.randint(1, 3))]
        self.storm_ms = rng.choice([20_000, 40_000, 90_000])
        self._owners: dict[tuple[str, int, int], dict[TopicPartition, str]] = {}
        self._made = 0
        self._raging = True
        self._admin = Connection(world, self.coordinator, self.network_faults, "admin")
        world.checks.append(self._no_two_owners)

    def _group(self, number: int) -> Group:
        rng = self.world.rng
        kind = rng.choice(["classic", "classic", "classic", "consumer", "consumer", "mixed", "simple"])
        base = rng.choice(STRATEGIES)
        others = [one for one in STRATEGIES if one != base and rng.random() < 0.3]
        return Group(f"g{number}", kind, (base, *others), rng.choice([6_000, 9_000]), rng.choice([6_000, 15_000]))

    # --- the four parts ---------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises SimulationFailure, or the error of a bug."""
        with self.coordinator:
            self._run_events()
            self._reach_stability()
            self._empty_groups()
            self._expire_everything()

    def _run_events(self) -> None:
        world, rng = self.world, self.world.rng
        for number in range(rng.randint(1, 3)):
            self.coordinator.put_topic(f"t{number}", rng.randint(1, 5))
        for group in self.groups:
            for _ in range(rng.randint(1, 4)):
                self._appear(group)
        self._often(self._member_event, 1_000, 6_000)
        self._often(self._look, 2_000, 8_000)
        self._often(self._outside_commit, 1_000, 6_000)
        self._often(lambda: self.coordinator.compact(rng.randrange(len(self.coordinator.logs))), 3_000, 20_000)
        for fault, what, low, high in (
            ("crash", self._crash, 10_000, 60_000),
            ("hand_over", self._hand_over, 10_000, 60_000),
            ("write_fails", self._fail_write, 5_000, 30_000),
            ("topics", self._change_topics, 3_000, 25_000),
            ("admin", self._administrate, 1_000, 10_000),
            ("jump", self._jump, 10_000, 60_000),
            ("lag", self._stop_replication, 10_000, 40_000),
            ("terms", self._send_news, 2_000, 15_000),
        ):
            if fault in self.faults:
                self._often(what, low, high)
        world.run_until(world.now_ms + self.storm_ms)

    def _reach_stability(self) -> None:
        """No more faults: all remaining groups become stable."""
        world = self.world
        self._raging = False
        self.network_faults.end_faults()
        for group in self.groups:
            for process in group.processes:
                if isinstance(process, ClassicProcess) and process.alive:
                    process.patience_ms = 0
                    if group.kind == "mixed" or process.instance_id is not None:
                        # In Kafka, too, two things have no effect until a member requests a rebalance. One is a
                        # rebalance that was due when the coordinator crashed just after the group became classic. The
                        # other is a topic change while a static leader was absent.
                        process.nudge()
        for log in self.coordinator.logs:
            log.fail_with = log.refuses_with = None
        world.note("world", "has no more faults")
        if self.coordinator.topics.topic("t0") is None:
            self.coordinator.put_topic("t0", 2)
        end = world.now_ms + CALM_AT_MOST_MS
        rests = 0
        gives_up_since: dict[tuple[str, str, int], int] = {}
        world.after(60_000, self._recover)
        while rests < 2:
            self._check_revocations(gives_up_since)
            if world.now_ms >= end:
                for group in self.groups:
                    if trouble := self._trouble(group):
                        raise SimulationFailure(f"{group.name} does not come to rest: {trouble}", group.name)
            world.run_until(world.now_ms + 5_000)
            rests = rests + 1 if not any(self._trouble(group) for group in self.groups) else 0
        self.coordinator.ledger.compare(self._committed)

    def _recover(self) -> None:
        """Hanging members continue; the coordinator has long stopped waiting for them."""
        for group in self.groups:
            for process in group.processes:
                if isinstance(process, ConsumerProcess):
                    process.recover()

    def _check_revocations(self, since: dict[tuple[str, str, int], int]) -> None:
        """Checks that no KIP-848 member keeps revoked partitions much longer than the rebalance timeout."""
        waiting = {}
        for group in self.groups:
            shard = self._shard(group.name)
            consumer = None if shard is None else shard.consumer_groups.get(group.name)
            for member in consumer.members.values() if consumer is not None else ():
                if member.state is Kip848MemberState.UNREVOKED_PARTITIONS:
                    key = (group.name, member.member_id, member.epoch)
                    waiting[key] = since.get(key, self.world.now_ms)
                    if self.world.now_ms - waiting[key] > group.rebalance_ms + 10_000:
                        raise SimulationFailure(f"{key} is waited for since {waiting[key]}", group.name)
        since.clear()
        since.update(waiting)

    def _empty_groups(self) -> None:
        world = self.world
        world.note("world", "falls silent")
        for group in self.groups:
            for process in group.processes:
                process.crash()
        world.run_until(world.now_ms + 150_000)
        for group in self.groups:
            shard = self._shard(group.name)
            classic, consumer = shard.groups.get(group.name), shard.consumer_groups.get(group.name)
            if classic is not None and (classic.members or classic.state is not Kip848GroupState.EMPTY):
                raise SimulationFailure(f"{group.name} is {classic.state} with {list(classic.members)}", group.name)
            if classic is not None and classic.persisted is not None and classic.persisted.members:
                raise SimulationFailure(f"{group.name} is empty, but not in its log", group.name)
            if consumer is not None and consumer.members:
                raise SimulationFailure(f"{group.name} still has {list(consumer.members)}", group.name)
        runtime = self.coordinator.runtime
        assert runtime is not None
        for driver in runtime.drivers.values():
            if driver.parked:
                raise SimulationFailure(f"still waiting: {list(driver.parked)}")

    def _expire_everything(self) -> None:
        """Lets time pass until every offset has expired and compaction has removed all tombstones."""
        world, config = self.world, self.config
        end_ms = max(world.clock() + config.offsets_retention_ms, self._longest_expiry_ms())
        world.run_until(end_ms - world.jumped_ms + 2 * config.offsets_retention_check_interval_ms)
        for log in self.coordinator.logs:
            state = self.coordinator.shadows[log.index].durable_state()
            if any(state):
                raise SimulationFailure(f"not expired: {state}", *state.groups, *state.consumer_groups)
        for log in self.coordinator.logs:
            for _ in range(2):
                log.roll()
                log.compact(knows_last=False)
                world.now_ms += log.log.config.delete_retention_ms + 1
            left = log.rows()
            if left:
                raise SimulationFailure(f"compaction leaves {left[:3]} of {len(left)}")

    def _longest_expiry_ms(self) -> int:
        offsets = (row for shadow in self.coordinator.shadows for row in shadow.durable_state().offsets.values())
        return max((row.expire_timestamp_ms for row in offsets), default=0)

    # --- events -----------------------------------------------------------------------------------------------

    def _often(self, what: Any, low: int, high: int) -> None:
        def go() -> None:
            if self._raging:
                what()
                self.world.after(self.world.between(low, high), go)

        self.world.after(self.world.between(low, high), go)

    def _connections_lost(self) -> None:
        for group in self.groups:
            for process in group.processes:
                if process.alive:
                    process.net.break_off("the broker is gone")
        self._admin.break_off("the broker is gone")

    def _appear(self, group: Group) -> None:
        rng = self.world.rng
        if group.kind == "simple" or sum(process.alive for process in group.processes) >= 5:
            return
        self._made += 1
        instance = f"mi{rng.randint(0, 1)}" if rng.random() < 0.25 else None
        if instance is not None and any(p.alive and p.instance_id == instance for p in group.processes):
            instance = None if rng.random() < 0.8 else instance
        names = sorted(f"t{n}" for n in range(3) if rng.random() < 0.7) or ["t0"]
        if instance is not None:  # as in Kafka, a new subscription of a returning member is not noticed
            names = group.static_topics
        name = f"{group.name}.p{self._made}"
        where = (self.world, self.coordinator, self.network_faults, name, group.name, tuple(names), instance)
        if group.kind == "consumer" or (group.kind == "mixed" and rng.random() < 0.5):
            group.processes.append(
                ConsumerProcess(
                    *where,
                    pattern=rng.choice(PATTERNS) if rng.random() < 0.2 else None,
                    assignor=rng.choice([None, "uniform", "range"]),
                    patience_ms=600_000 if rng.random() < 0.05 else rng.choice([0, 500, 4_000]),
                    rebalance_ms=group.rebalance_ms,
                    number=self._made,
                )
            )
            return
        base, *others = group.strategies
        strategy = [base, *(one for one in others if rng.random() < 0.5)]
        rng.shuffle(strategy)
        group.processes.append(
            ClassicProcess(
                *where,
                strategy=tuple(strategy),
                session_ms=group.session_ms,
                rebalance_ms=group.rebalance_ms,
                patience_ms=rng.choice([0, 0, 0, 500, 30_000]),
                number=self._made,
            )
        )

    def _member_event(self) -> None:
        rng = self.world.rng
        group = rng.choice(self.groups)
        alive = [process for process in group.processes if process.alive and not process.leaving]
        what = rng.random()
        if not alive or what < 0.4:
            self._appear(group)
        elif what < 0.6:
            rng.choice(alive).leave()
        elif what < 0.8:
            if "member_crash" in self.faults:
                rng.choice(alive).crash()
        else:
            names = tuple(sorted(f"t{n}" for n in range(3) if rng.random() < 0.6)) or ("t1",)
            process = rng.choice(alive)
            if isinstance(process, ConsumerProcess) and rng.random() < 0.2:
                process.change_topics((), rng.choice(PATTERNS))
            elif process.instance_id is None:
                process.change_topics(names)

    def _crash(self) -> None:
        if self.coordinator.runtime is None:
            return
        self.coordinator.crash(loses_tail=self.world.chance(0.5))
        self.world.after(self.world.between(10, 8_000), self.coordinator.start)

    def _hand_over(self) -> None:
        index = self.world.rng.randrange(len(self.coordinator.logs))
        self.coordinator.hand_over(index)
        self.world.after(self.world.between(1, 3_000), lambda: self.coordinator.take_over(index))

    def _stop_replication(self) -> None:
        index = self.world.rng.randrange(len(self.coordinator.logs))
        self.coordinator.stop_replication(index, self.world.rng.choice([300, 2_000, 8_000]))

    def _send_news(self) -> None:
        index = self.world.rng.randrange(len(self.coordinator.logs))
        if self.world.chance(0.7):
            self.coordinator.send_late_news(index)
        else:
            self.coordinator.elect_again(index)

    def _fail_write(self) -> None:
        index = self.world.rng.randrange(len(self.coordinator.logs))
        if self.world.chance(0.5):
            self.coordinator.fail_next_append(index)
        else:
            self.coordinator.refuse_appends(index, self.world.rng.choice([100, 3_000, 15_000]))

    def _jump(self) -> None:
        """Sets the system time forward or back."""
        by_ms = self.world.rng.choice([-5_000, 3_000, 60_000])
        self.world.jumped_ms += by_ms
        self.world.note("world", "the clock is set by {} ms", by_ms)

    def _change_topics(self) -> None:
        rng, topics = self.world.rng, self.coordinator.topics
        name = f"t{rng.randint(0, 2)}"
        count = topics.count_of(name)
        if count is None:
            self.coordinator.put_topic(name, rng.randint(1, 5))
        elif rng.random() < 0.5 and count < 8:
            self.coordinator.put_topic(name, count + rng.randint(1, 2))
        else:
            self.coordinator.delete_topic(name)
            for group in self.groups:
                for process in group.processes:
                    process.on_topic_deleted(name)

    def _outside_commit(self) -> None:
        """A standalone consumer, or a tool that resets a group; accepted only if the group has no members."""
        rng = self.world.rng
        group = rng.choice(self.groups)
        name = f"t{rng.randint(0, 2)}"
        topic = self.coordinator.topics.topic(name)
        if topic is None:
            return
        rows = [
            (partition, rng.randint(0, 50), rng.choice([-1, 3]), rng.choice(["", "said"]))
            for partition in range(topic.partition_count)
            if rng.random() < 0.6
        ]
        if not rows:
            return
        retention_ms = rng.choice([-1, -1, -1, 5_000, 30_000])
        request = OffsetCommit(group.name, [TopicCommit(name, topic.topic_id, rows)], retention_time_ms=retention_ms)
        self._admin.call(group.name, request, lambda reply: self._noted("commits outside", group.name, reply))

    def _administrate(self) -> None:
        rng = self.world.rng
        group = rng.choice(self.groups)
        name = f"t{rng.randint(0, 2)}"
        if rng.random() < 0.4:
            self._admin.call(
                group.name, DeleteGroups([group.name]), lambda reply: self._noted("deletes", group.name, reply)
            )
        else:
            request = OffsetDelete(group.name, [(name, [0, rng.randint(1, 4)])])
            self._admin.call(
                group.name, request, lambda reply: self._noted(f"deletes offsets of {name}", group.name, reply)
            )

    def _noted(self, what: str, group_id: str, reply: Any) -> None:
        self.world.note("admin", "{} {}: {}", what, group_id, reply)

    def _look(self) -> None:
        """Fetches the offsets of a group, describes it and lists all groups. The ledger checks the offsets."""
        group = self.world.rng.choice(self.groups)
        everything = OffsetFetch(group.name)
        self._admin.call(group.name, everything, lambda reply: None)
        self._admin.call(group.name, DescribeGroup(group.name), lambda reply: None)
        self._admin.call(group.name, ListGroups(), lambda reply: None)

    # --- invariants -------------------------------------------------------------------------------------------

    def _shard(self, group_id: str) -> Any:
        runtime = self.coordinator.runtime
        return None if runtime is None else runtime.shard(runtime.partition_of(group_id))

    def _committed(self, key: Any) -> Any:
        return self._shard(key.group).committed(*key)

    def _no_two_owners(self) -> None:
        for group in self.groups:
            if group.kind == "simple":
                continue
            shard = self._shard(group.name)
            if shard is None:
                continue
            consumer_group = shard.consumer_groups.get(group.name)
            if consumer_group is not None:
                self._one_owner_now(group, consumer_group.members)
            if group.kind == "classic":
                classic = shard.groups.get(group.name)
                self._one_owner_in_generation(group, () if classic is None else classic.members)

    def _one_owner_now(self, group: Group, members: Any) -> None:
        """Checks that no two members own one partition. Partitions of deleted topics are left out."""
        seen: dict[TopicPartition, str] = {}
        for process in group.processes:
            if process.alive and self._is_member(process, members):
                for tp in self._held(process, members) - process.of_deleted:
                    other = seen.setdefault(tp, process.name)
                    if other != process.name:
                        raise SimulationFailure(f"{other} and {process.name} both own {tp}", group.name)

    def _held(self, process: Process, members: Any) -> set[TopicPartition]:
        """The partitions that the process owns.

        A classic member between join and sync may have been away for longer than its session. The group may have given
        the member's partitions to other members. Kafka still accepts the member's id, and the reply to its next sync
        has the new assignment.
        """
        owned = set(process.owned)
        if isinstance(process, ConsumerProcess) or process.at_rest:
            return owned
        member = members[process.identity()[0]]
        id_of = self.coordinator.topics.id_of
        return {
            tp for tp in owned
            if any(tp.partition in held.get(id_of(tp.topic), ()) for held in (member.assigned, member.to_revoke))
        }  # fmt: skip

    @staticmethod
    def _is_member(process: Process, members: Any) -> bool:
        if isinstance(process, ConsumerProcess):
            return process.member_id in members
        member_id, generation = process.identity()
        known = members.get(member_id)
        return known is not None and known.classic is not None and known.epoch == generation

    def _one_owner_in_generation(self, group: Group, members: Collection[str]) -> None:
        ended = self.coordinator.ends_of_groups.get(group.name, 0)
        for process in group.processes:
            if not (isinstance(process, ClassicProcess) and process.at_rest and process.owned):
                continue
            owners = self._owners.setdefault((group.name, ended, process.membership.generation), {})
            if process.membership.member_id not in members:  # its partitions are of an old generation
                continue
            me = process.instance_id or process.membership.member_id
            for tp in process.owned:
                other = owners.setdefault(tp, me)
                if other != me:
                    text = f"{other} and {me} both own {tp} in generation {process.membership.generation}"
                    raise SimulationFailure(text, group.name)

    def _owns_of_deleted(self, key: Key, member: str) -> bool:
        tp = TopicPartition(key.topic, key.partition)
        return any(
            tp in process.of_deleted and member in (process.identity()[0], process.instance_id)
            for group in self.groups
            if group.name == key.group
            for process in group.processes
        )

    def _is_read(self, group_id: str, topic: str) -> bool:
        """Whether a dynamic member that the coordinator knows subscribes, in its own view, to the topic.

        A KIP-848 member counts only if the coordinator knows this subscription, too. A classic member counts only if it
        is at rest in the current generation.
        """
        shard = self._shard(group_id)
        classic, consumer = shard.groups.get(group_id), shard.consumer_groups.get(group_id)
        for process in next(group for group in self.groups if group.name == group_id).processes:
            if not process.alive or topic not in self._reads(process) or process.instance_id is not None:
                continue
            if isinstance(process, ConsumerProcess):
                member = None if consumer is None else consumer.members.get(process.member_id)
                known = process.epoch > 0 and member is not None and topic in consumer.topics_of(member)
            else:
                member_id, generation = process.identity()
                known = process.at_rest and classic is not None and member_id in classic.members
                known = known and generation == classic.generation
            if known:
                return True
        return False

    def _trouble(self, group: Group) -> str:
        """The reason why a group is not stable; '' if it is stable."""
        shard = self._shard(group.name)
        if shard is None:
            return "it is not served"
        alive = [process for process in group.processes if process.alive]
        classic, consumer = shard.groups.get(group.name), shard.consumer_groups.get(group.name)
        if not alive:
            members = [*(classic.members if classic else ()), *(consumer.members if consumer else ())]
            return f"has members {members} that are gone" if members else ""
        state = classic.state.value if classic is not None else consumer.state.value if consumer is not None else "gone"
        if state != "Stable":
            return "" if consumer is not None and self._lacks_an_assignment(alive) else f"is {state}"
        members = [process for process in alive if not (classic is not None and self._cannot_join(process, classic))]
        for process in members:
            if not process.at_rest:
                return f"{process.name} is not at rest"
        return self._coverage(members)

    def _lacks_an_assignment(self, alive: list[Process]) -> bool:
        """Whether a KIP-848 group has only classic members, more than a classic group allows. In Kafka, too, such a
        group gets no assignment."""
        return len(alive) > self.config.group_max_size and all(isinstance(one, ClassicProcess) for one in alive)

    def _cannot_join(self, process: Process, classic: ClassicGroup) -> bool:
        """Whether the process is a KIP-848 consumer and the classic group has more members than a KIP-848 group
        allows. As in Kafka, it cannot join."""
        return isinstance(process, ConsumerProcess) and len(classic.members) > self.config.consumer_max_size

    def _coverage(self, alive: list[Process]) -> str:
        topics = self.coordinator.topics
        owned: dict[TopicPartition, str] = {}
        read: set[str] = set()
        for process in alive:
            mine = self._reads(process)
            read |= mine
            for tp in process.owned:
                if tp in owned:
                    return f"{tp} is owned by {owned[tp]} and {process.name}"
                if tp.topic not in mine:
                    return f"{process.name} owns {tp}, to which it does not subscribe"
                owned[tp] = process.name
        wanted = {TopicPartition(name, n) for name in read for n in range(topics.count_of(name) or 0)}
        missing = wanted - owned.keys()
        return f"without an owner: {sorted(map(str, missing))}" if missing else ""

    def _reads(self, process: Process) -> set[str]:
        if isinstance(process, ConsumerProcess) and process.pattern:
            import re

            return {name for name in self.coordinator.topics.topic_names() if re.fullmatch(process.pattern, name)}
        return set(process.topics)


assert OK is not None
