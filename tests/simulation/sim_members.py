"""What members of both protocols share: a process that has positions, and fetches and commits offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sim_coordinator import Coordinator
from sim_network import Connection, NetworkFaults
from support.world import World

from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.groups.messages import OffsetCommit, OffsetFetch, TopicCommit
from odradek.groups.offsets.commit_plan import CommitPlan, PlannedCommits

OK = ErrorCode.none
RETRY_MS = 100


class Process:
    """A consumer, alive until it leaves or crashes. Subclasses join groups and return the identity of the member."""

    def __init__(
        self,
        world: World,
        coordinator: Coordinator,
        network_faults: NetworkFaults,
        name: str,
        group_id: str,
        topics: tuple[str, ...],
        instance_id: str | None,
    ) -> None:
        self.world = world
        self.coordinator = coordinator
        self.name = name
        self.group_id = group_id
        self.topics = topics
        self.instance_id = instance_id
        self.alive = True
        self.leaving = False
        self.owned: set[TopicPartition] = set()
        # owned partitions of deleted topics. New topics may have these names now.
        self.of_deleted: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self._tenure = 0  # increases with every change of the owned partitions
        self.commit_interval_ms = world.between(500, 4_000)
        self.net = Connection(world, coordinator, network_faults, name)
        self._plan: tuple[object, CommitPlan] | None = None
        self.later(world.between(0, 500), self.start)
        self.later(self.commit_interval_ms, self._commit_now_and_then)

    # --- implemented by subclasses ----------------------------------------------------------------------------

    def start(self) -> None:
        raise TypeError("subclasses join")

    def identity(self) -> tuple[str, int]:
        """Member id, and generation or epoch, for commits."""
        raise TypeError("subclasses know")

    @property
    def may_commit(self) -> bool:
        raise TypeError("subclasses know")

    def on_commit_refused(self, error: ErrorCode) -> None: ...

    # --- life -------------------------------------------------------------------------------------------------

    def later(self, by_ms: int, callback: Callable[[], None]) -> None:
        """Calls back after this time, if the process is still alive."""
        self.world.after(by_ms, lambda: callback() if self.alive else None)

    def note(self, what: str, *values: Any) -> None:
        self.world.note(self.name, what, *values)

    def crash(self) -> None:
        if self.alive:
            self.note("crashes")
        self.die()

    def die(self) -> None:
        self.alive = False
        self.owned = set()
        self.net.close()

    # --- owned partitions -------------------------------------------------------------------------------------

    def give_up(self, partitions: Iterable[TopicPartition]) -> None:
        self._tenure += 1
        for tp in list(partitions):
            self.owned.discard(tp)
            self.positions.pop(tp, None)

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        self._tenure += 1
        self.owned |= set(partitions)
        self.of_deleted = set()
        if any(tp not in self.positions for tp in self.owned):
            self.fetch()

    def on_topic_deleted(self, topic: str) -> None:
        """The positions in the deleted topic are invalid, even if a new topic gets its name soon."""
        self._tenure += 1
        self.of_deleted |= {tp for tp in self.owned if tp.topic == topic}
        for tp in [tp for tp in self.positions if tp.topic == topic]:
            del self.positions[tp]

    def fetch(self) -> None:
        missing = sorted(tp for tp in self.owned if tp not in self.positions)
        if not missing:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in missing:
            by_topic.setdefault(topic, []).append(partition)
        member_id, epoch = self.fetch_identity()
        tenure = self._tenure
        request = OffsetFetch(self.group_id, list(by_topic.items()), False, member_id, epoch)

        def fetched(reply: Any | None) -> None:
            if not self.alive:
                return
            if reply is None or reply.error is not OK:
                self.later(RETRY_MS, self.fetch)
                return
            if self._tenure != tenure:
                self.fetch()  # the topic may have been deleted and created again
                return
            for topic, rows in reply.topics:
                for row in rows:
                    tp = TopicPartition(topic, row[0])
                    if tp in self.owned:
                        self.positions.setdefault(tp, max(row[1], 0))

        self.net.call(self.group_id, request, fetched)

    def fetch_identity(self) -> tuple[str | None, int]:
        return None, -1

    # --- committing -------------------------------------------------------------------------------------------

    def _commit_now_and_then(self) -> None:
        self.later(self.commit_interval_ms, self._commit_now_and_then)
        if not self.leaving:
            self.fetch()
            self.commit()

    def commit(self, then: Callable[[], None] | None = None) -> None:
        """Increases and commits the positions. ``then`` is called after any result, if the process is still alive."""
        known = sorted(tp for tp in self.owned if tp in self.positions)
        if not known or not self.may_commit:
            if then is not None:
                then()
            return
        for tp in known:
            self.positions[tp] += self.world.between(0, 3)
        request = self._commit_request(known)

        def committed(reply: Any | None) -> None:
            if not self.alive:
                return
            if reply is not None and reply.error is not OK:
                self.note("commit refused: {}", reply.error.name)
                self.on_commit_refused(reply.error)
            if then is not None:
                then()

        self.net.call(self.group_id, request, committed)

    def _commit_request(self, known: list[TopicPartition]) -> OffsetCommit | PlannedCommits:
        member_id, generation = self.identity()
        topics: dict[str, list[int]] = {}
        for topic, partition in known:
            topics.setdefault(topic, []).append(partition)
        rows = [
            TopicCommit(
                topic,
                self.coordinator.topics.id_of(topic),
                [(partition, self.positions[TopicPartition(topic, partition)], -1, "") for partition in partitions],
            )
            for topic, partitions in topics.items()
        ]
        request = OffsetCommit(self.group_id, rows, member_id, generation, self.instance_id)
        if self.world.chance(0.5):
            return request
        # As on the fast path: commits of the same partitions use the same plan again.
        facts = tuple(self.coordinator.topics.topic(topic) for topic in topics)
        if any(fact is None or max(topics[fact.name]) >= fact.partition_count for fact in facts):
            return request
        alike = (member_id, generation, tuple(known), facts)
        if self._plan is None or self._plan[0] != alike:
            self._plan = (alike, CommitPlan(request))
        offsets = [self.positions[tp] for tp in known]
        if self.world.chance(0.3):  # two commits in one read of the socket
            offsets = offsets + [offset + 1 for offset in offsets]
            for tp in known:
                self.positions[tp] += 1
        return PlannedCommits(self._plan[1], offsets, None)
