"""KIP-848 groups with any mix of KIP-848 and classic members: joins, crashes, restarts, topic changes.

Invariants (36 and 38 of docs/offset-behaviours.md):

* No two members own a partition at the same time, as the members see it.
* A restarted coordinator reads from the log the state that it had before.
* When all members follow the protocol for a while, the group is Stable and every partition of a subscribed topic
  has an owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.consumer_harness import Client, ConsumerHarness
from support.examples import examples
from support.group_harness import Pending

from odradek.core import pace
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.groups.config import GroupConfig
from odradek.groups.kip848 import pattern_resolution
from odradek.groups.kip848 import records as kip848_records
from odradek.groups.kip848.embedded import pack_assignment, read_assignment, read_subscription
from odradek.groups.shard import GroupShard

GROUP = "g"
OK = ErrorCode.none
NAMES = ["a", "b", "c", "d"]
SUBSCRIPTIONS: list[tuple[tuple[str, ...], str | None]] = [
    (("t",), None),
    (("u",), None),
    (("t", "u"), None),
    ((), "[tu]"),
    (("t",), "u|w"),
]


def subscription(topics: tuple[str, ...], owned: dict[str, list[int]]) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    have = pack_assignment(0, owned.items())[2:-4]
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + have


@dataclass
class Classic:
    """A classic consumer that rebalances cooperatively, and makes assignments when it is the leader."""

    harness: ConsumerHarness
    topics: tuple[str, ...] = ("t",)
    member_id: str = ""
    generation: int = -1
    joining: Pending | None = None
    syncing: Pending | None = None
    owned: dict[str, list[int]] | None = None

    def forget(self) -> None:
        self.member_id, self.generation, self.joining, self.syncing, self.owned = "", -1, None, None, None

    def act(self) -> None:
        if self.joining is not None:
            if self.joining.answered:
                self._joined(self.joining.reply)
        elif self.syncing is not None:
            if self.syncing.answered:
                self._synced(self.syncing.reply)
        elif self.generation < 0:
            self._join()
        else:
            error = self.harness.heartbeat(GROUP, self.member_id, self.generation)
            if error is ErrorCode.rebalance_in_progress:
                self._join()
            elif error is not OK:
                self.forget()

    def _join(self) -> None:
        metadata = subscription(self.topics, self.owned or {})
        self.joining = self.harness.join(
            GROUP, self.member_id, metadata=metadata, session_ms=45_000, rebalance_ms=30_000
        )

    def _joined(self, reply: object) -> None:
        self.joining = None
        error = reply.error_code
        if error is ErrorCode.member_id_required:
            self.member_id = reply.member_id
            self._join()
            return
        if error is ErrorCode.rebalance_in_progress:
            self._join()
            return
        if error is not OK:
            self.forget()
            return
        self.generation = reply.generation_id
        plan: dict[str, bytes] = {}
        for number, row in enumerate(reply.members):
            counts = {name: self._count(name) for name in read_subscription(row.metadata).topics}
            first = {name: list(range(count)) for name, count in counts.items()} if number == 0 else {}
            plan[row.member_id] = pack_assignment(1, first.items())
        self.syncing = self.harness.sync(GROUP, self.member_id, self.generation, plan)

    def _count(self, name: str) -> int:
        topic = self.harness.catalog.topic(name)
        return 0 if topic is None else topic.partition_count

    def _synced(self, reply: object) -> None:
        self.syncing = None
        error = reply.error_code
        if error is ErrorCode.rebalance_in_progress:
            self._join()
        elif error is not OK:
            self.forget()
        else:
            got, _ = read_assignment(reply.assignment)
            before, self.owned = self.owned, {topic: list(numbers) for topic, numbers in got}
            if any(set(numbers) - set(self.owned.get(topic, ())) for topic, numbers in (before or {}).items()):
                self._join()  # like cooperative consumers after they have given up a partition


class Groups(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.harness = ConsumerHarness(GroupConfig(), partition_count=1)
        self.harness.catalog.add("t", 3)
        self.harness.catalog.add("u", 2)
        self.clients: dict[str, Client] = {}
        self.classic: list[Classic] = []

    # --- actions ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(SUBSCRIPTIONS), static=st.booleans())
    def appear(self, name: str, how: tuple[tuple[str, ...], str | None], static: bool) -> None:
        """A member joins, or changes its subscription."""
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Client(self.harness, GROUP, name, instance=f"i-{name}" if static else None)
        client.topics, client.pattern = how[0], how[1] or ("" if client.epoch else None)
        client.beat()

    @rule(name=st.sampled_from(NAMES))
    def beat(self, name: str) -> None:
        if name in self.clients:
            self.clients[name].beat()

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if name in self.clients:
            self.clients.pop(name).leave()

    @rule(name=st.sampled_from(NAMES))
    def crash(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule()
    def appear_classic(self) -> None:
        if len(self.classic) < 2:
            self.classic.append(Classic(self.harness))

    @rule(number=st.integers(0, 1), times=st.integers(1, 4))
    def act_classic(self, number: int, times: int) -> None:
        for _ in range(times if number < len(self.classic) else 0):
            self.classic[number].act()

    @rule(number=st.integers(0, 1))
    def leave_classic(self, number: int) -> None:
        if number < len(self.classic):
            member = self.classic.pop(number)
            if member.member_id:
                self.harness.leave(GROUP, member.member_id)

    @rule(name=st.sampled_from(["t", "u", "w"]))
    def change_topic(self, name: str) -> None:
        topic = self.harness.catalog.topic(name)
        if topic is None:
            self.harness.catalog.add(name, 2)
        elif topic.partition_count < 6:
            topic.partition_count += 1
        self.harness.change_topics(name, created=topic is None)

    @rule(by_ms=st.sampled_from([500, 1_000, 5_000, 12_000]))
    def wait(self, by_ms: int) -> None:
        self.harness.advance(by_ms)

    @rule()
    def restart(self) -> None:
        before = self.harness.shard(GROUP).durable_state()
        self.harness.restart()
        for member in self.classic:
            member.forget()  # a waiting member has lost its connection
        assert self.harness.shard(GROUP).durable_state() == before

    # --- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        group = self.harness.shard(GROUP).consumer_groups.get(GROUP)
        if group is None:
            return
        seen: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.to_revoke):
                for topic_id, partitions in owned.items():
                    for partition in partitions:
                        assert seen.setdefault((topic_id, partition), member.member_id) == member.member_id
        # No client believes that it owns a partition which the group has assigned to another member.
        for client in self.clients.values():
            if client.member_id in group.members and client.epoch == group.members[client.member_id].epoch:
                for name, numbers in client.owned.items():
                    topic = self.harness.catalog.topic(name)
                    assert topic is not None
                    for number in numbers:
                        assert seen.get((topic.id.bytes, number), client.member_id) == client.member_id

    @invariant()
    def replay_gives_the_live_state(self) -> None:  # 36 of docs/offset-behaviours.md
        lived = self.harness.shard(GROUP)
        replayed = GroupShard(self.harness.config, self.harness.group_catalog)
        for offset, (key, value) in enumerate(self.harness.partition_of(GROUP).raw()):
            assert key is not None
            replayed.replay(offset, SimpleRecord(key, value))
        assert replayed.durable_state().consumer_groups == lived.durable_state().consumer_groups
        assert not replayed.skipped

    def _obey(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients.values():
                client.beat()
            for member in self.classic:
                for _ in range(4):
                    member.act()
            self.harness.advance(3_000)

    def teardown(self) -> None:
        """All remaining members follow the protocol: the group becomes stable, and all subscribed partitions are
        owned."""
        if not hasattr(self, "harness"):
            return
        self._obey(30)
        self.change_topic("t")  # no topic changes after this point
        self._obey(10)
        group = self.harness.shard(GROUP).consumer_groups.get(GROUP)
        if group is None or not self.clients:
            return
        assert group.state.value == "Stable"
        owned = sorted(
            (topic_id, partition)
            for member in group.members.values()
            for topic_id, partitions in member.assigned.items()
            for partition in partitions
        )
        read = set().union(*(group.topics_of(member) for member in group.members.values()))
        found = [topic for topic in map(self.harness.group_catalog.topic, read) if topic is not None]
        assert owned == sorted((topic.topic_id, number) for topic in found for number in range(topic.partition_count))
        for client in self.clients.values():
            held = {
                self.harness.topic_name(UUID(bytes=topic_id)): sorted(partitions)
                for topic_id, partitions in group.members[client.member_id].assigned.items()
            }
            assert {name: numbers for name, numbers in client.owned.items() if numbers} == held


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)


class GroupsInSteps(Groups):
    """``Groups``, with each request handled in as many steps as possible. Only replay may change the state."""

    def __init__(self) -> None:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(pace, "STEP_WORK", 1)
        self._patch.setattr(kip848_records, "FEW", -1)
        self._patch.setattr(pattern_resolution, "_MATCHES_AT_ONCE", 0)
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._patch.undo()


TestGroupsInSteps = GroupsInSteps.TestCase
TestGroupsInSteps.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)
