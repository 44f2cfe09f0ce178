"""Transactions, plain commits, deletions, expiry, compaction and restarts in any order, against a simple model.

The model applies Kafka's rule directly: it stores the number of the record of each committed offset. At a commit, a
transaction's offset replaces the committed offset if the transaction's record has the larger number. The shard does not
store these numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples
from support.transaction_harness import TransactionHarness

from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import ProducerIdentity
from odradek.groups.messages import OffsetCommit, TopicCommit
from odradek.groups.offsets.commit_plan import CommitPlan, PlannedCommits

OK = ErrorCode.none
RETENTION_MS = 7 * 86_400_000
CHECK_MS = 600_000
PARTITIONS = 3
TOPICS = ("t", "u")

groups = st.sampled_from(["g", "h"])
topics = st.sampled_from(TOPICS)
partitions = st.sets(st.integers(0, PARTITIONS - 1), min_size=1)
producers = st.sampled_from([ProducerIdentity(1, 0), ProducerIdentity(2, 0), ProducerIdentity(3, 7)])
Key = tuple[str, str, int]


@dataclass
class Model:
    """``committed``: by group, topic and partition, the number of the commit's record and the offset that it commits.
    ``pending``: the same for each producer id."""

    number: int = 0
    committed: dict[Key, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[Key, tuple[int, int]]] = field(default_factory=dict)

    def commit(self, key: Key, offset: int, producer_id: int | None = None) -> None:
        self.number += 1
        into = self.committed if producer_id is None else self.pending.setdefault(producer_id, {})
        into[key] = (self.number, offset)

    def end(self, producer_id: int, *, commit: bool) -> None:
        for key, record in self.pending.pop(producer_id, {}).items():
            if commit and record[0] > self.committed.get(key, (-1, 0))[0]:
                self.committed[key] = record

    def delete(self, key: Key) -> None:
        self.committed.pop(key, None)
        for offsets in self.pending.values():
            offsets.pop(key, None)

    @property
    def unstable(self) -> set[Key]:
        return {key for offsets in self.pending.values() for key in offsets}


class Transactions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.harness = TransactionHarness(partition_count=1)
        for topic in TOPICS:
            self.harness.catalog.add(topic, PARTITIONS)
        self.model = Model()
        self.offset = 0

    def _offsets(self, chosen: set[int]) -> dict[int, int]:
        self.offset += 1
        return dict.fromkeys(sorted(chosen), self.offset)

    def _noted(self, group: str, topic: str, offsets: dict[int, int], producer_id: int | None = None) -> None:
        for partition, offset in offsets.items():
            self.model.commit((group, topic, partition), offset, producer_id)

    # --- commits ----------------------------------------------------------------------------------------------

    @rule(group=groups, topic=topics, chosen=partitions, producer=producers)
    def commit_in_a_transaction(self, group: str, topic: str, chosen: set[int], producer: ProducerIdentity) -> None:
        offsets = self._offsets(chosen)
        assert self.harness.txn_commit(group, topic, offsets, producer) is OK
        self._noted(group, topic, offsets, producer.producer_id)

    @rule(group=groups, topic=topics, chosen=partitions)
    def commit(self, group: str, topic: str, chosen: set[int]) -> None:
        offsets = self._offsets(chosen)
        assert set(self.harness.commit(group, topic, offsets).values()) == {OK}
        self._noted(group, topic, offsets)

    @rule(group=groups, topic=topics, chosen=partitions)
    def commit_by_the_fast_path(self, group: str, topic: str, chosen: set[int]) -> None:
        offsets = self._offsets(chosen)
        rows = [(partition, 0, -1, "") for partition in offsets]
        plan = CommitPlan(OffsetCommit(group, [TopicCommit(topic, None, rows)]))
        self.harness.runtime.submit(0, PlannedCommits(plan, list(offsets.values()), None))
        self.harness.world.settle()
        self._noted(group, topic, offsets)

    @rule(group=groups, topic=topics, first=producers, second=producers, ends=st.lists(producers, max_size=3))
    def commit_twice_in_a_tick(
        self, group: str, topic: str, first: ProducerIdentity, second: ProducerIdentity, ends: list[ProducerIdentity]
    ) -> None:
        """Two transactional commits, with a plain commit between or before them. Then transactions are committed."""
        promises: list[Any] = []
        for producer in (first, None, second) if len(ends) % 2 else (None, first, second):
            offsets = self._offsets({0, 1})
            if producer is not None:
                promises.append(self.harness.begin_txn_commit(group, topic, offsets, producer))
            else:
                rows = [(partition, offset, -1, "") for partition, offset in offsets.items()]
                promises.append(self.harness.runtime.submit(0, OffsetCommit(group, [TopicCommit(topic, None, rows)])))
            self._noted(group, topic, offsets, None if producer is None else producer.producer_id)
        for producer in ends:
            self.end(producer, commit=True)
        self.harness.world.settle()
        assert [promise.value.error for promise in promises] == [OK, OK, OK]

    @rule(producer=producers, commit=st.booleans())
    def end(self, producer: ProducerIdentity, commit: bool) -> None:
        assert self.harness.end(producer, commit=commit) is OK
        self.model.end(producer.producer_id, commit=commit)

    @rule(producer=producers, commit=st.booleans())
    def a_marker_fails(self, producer: ProducerIdentity, commit: bool) -> None:
        self.harness.partitions[0].fail_with = KafkaError(ErrorCode.not_enough_replicas, "no replica")
        assert self.harness.end(producer, commit=commit) is ErrorCode.coordinator_not_available

    # --- deletions --------------------------------------------------------------------------------------------

    @rule(group=groups, topic=topics, chosen=partitions)
    def delete_offsets(self, group: str, topic: str, chosen: set[int]) -> None:
        rows = [{"partition_index": partition} for partition in sorted(chosen)]
        reply = self.harness.call(47, 0, group_id=group, topics=[{"name": topic, "partitions": rows}])
        if reply.error_code is OK:
            for partition in chosen:
                self.model.delete((group, topic, partition))
        else:
            assert not [key for key in (*self.model.committed, *self.model.unstable) if key[0] == group]

    @rule(group=groups)
    def delete_the_group(self, group: str) -> None:
        self.harness.call(42, 2, groups_names=[group])
        for key in (*self.model.committed, *self.model.unstable):
            if key[0] == group:
                self.model.delete(key)

    @rule(topic=topics)
    def delete_the_topic(self, topic: str) -> None:
        self.harness.runtime.on_topics_deleted([topic])
        self.harness.world.settle()
        for key in (*self.model.committed, *self.model.unstable):
            if key[1] == topic:
                self.model.delete(key)

    @rule()
    def all_stable_offsets_expire(self) -> None:
        self.harness.advance(RETENTION_MS + 2 * CHECK_MS)
        for key in set(self.model.committed) - self.model.unstable:
            self.model.delete(key)

    # --- loads ------------------------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        before = self.harness.shard("g").durable_state()
        self.harness.restart()
        assert self.harness.shard("g").durable_state() == before
        assert not self.harness.shard("g").skipped

    @rule()
    def compact_and_restart(self) -> None:
        log = self.harness.partitions[0]
        log.roll()
        log.compact()
        self.restart()

    # --- invariants -------------------------------------------------------------------------------------------

    @invariant()
    def fetches_have_the_offsets_of_the_model(self) -> None:
        named = {topic: list(range(PARTITIONS)) for topic in TOPICS}
        unstable = self.model.unstable
        for group in ("g", "h"):
            committed = {key[1:]: offset for key, (_, offset) in self.model.committed.items() if key[0] == group}
            pending = {key[1:] for key in unstable if key[0] == group}
            plain = self.harness.fetched(group, named, require_stable=False)
            stable = self.harness.fetched(group, named)
            every = self.harness.fetched(group)
            for topic in TOPICS:
                for partition in range(PARTITIONS):
                    key = topic, partition
                    offset = committed.get(key, -1)
                    assert plain[topic][partition] == offset
                    expected = ErrorCode.unstable_offset_commit if key in pending else offset
                    assert stable[topic][partition] == expected
                    assert every.get(topic, {}).get(partition, -1) == (-1 if key not in committed else expected)

    @invariant()
    def the_shard_has_the_pending_offsets_of_the_model(self) -> None:
        pending = self.harness.shard("g")._offsets.pending
        known = {producer_id: {tuple(key) for key in offsets} for producer_id, offsets in pending.state().items()}
        assert known == {producer_id: set(offsets) for producer_id, offsets in self.model.pending.items() if offsets}
        opened = {
            (group, topic, partition)
            for group, by_topic in pending.open.items()
            for topic, by_partition in by_topic.items()
            for partition in by_partition
        }
        assert opened == self.model.unstable


Transactions.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
TestTransactions = Transactions.TestCase
