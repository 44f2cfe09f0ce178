"""The live findings are those of the batch analysis, row for row, however the entries are cut and after restarts."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.offset_entries import batch_of

from odradek.core.ids import TopicPartition, partition_for_group
from odradek.history.findings import FindingRules, as_table, gather
from odradek.history.group_findings import expiring, expiry_table, never_commit, storms
from odradek.history.log_ends import LogEnds, Logs
from odradek.history.records.columns import NO_MEMBER, rows_with_numbers
from odradek.history.records.journal import Journal
from odradek.history.rewinds import moves
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker, LogBoundsRow

STORES = 2
LOGS = [TopicPartition(topic, number) for topic in ("orders", "ünits") for number in range(2)]
RULES = FindingRules(
    storm_rebalances=3, storm_window_ms=4_000, jump_records=1 << 62, expires_within_ms=3_600_000, never_after_ms=5_000,
    stall_after_ms=1 << 40, gap_after_ms=1 << 40,
)  # fmt: skip
NULL_ROW: dict[str, Any] = dict.fromkeys(
    ("topic", "partition", "committed_offset", "commit_timestamp", "expire_timestamp", "metadata", "topic_id",
     "generation", "protocol_type", "state_timestamp", "member_id", "members")
)  # fmt: skip


@dataclass
class Scenario:
    """Entries of two partitions of the offsets topic: what readers, tools, queries and coordinators write."""

    draw: random.Random
    rows: list[dict[str, Any]] = field(default_factory=list)
    now_ms: int = 1_700_000_000_000

    def __post_init__(self) -> None:
        self.places = [0] * STORES
        self.groups = [f"group-{number}" for number in range(self.draw.randrange(1, 4))]
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        self.generations: dict[str, int] = {}
        self.ids = dict.fromkeys(LOGS)
        steps = (self.reads, self.reads, self.reads, self.reads, self.falls, self.resets, self.deletes, self.rebalances)
        for _ in range(self.draw.randrange(10, 100)):
            self.now_ms += self.draw.choice((0, 1, 500, 2_000))
            self.draw.choice((*steps, self.consumer_record, self.recreates))(self.draw.choice(self.groups))
        if self.draw.random() < 0.2:
            for _ in range(9):
                self.rebalances("idle")

    def _entry(self, kind: str, group: str, **values: Any) -> None:
        store = partition_for_group(group, STORES)
        self.places[store] += self.draw.choice((1, 1, 3))
        place = {"record_partition": store, "record_offset": self.places[store]}
        time = {"record_timestamp": (self.now_ms + self.draw.choice((0, 0, 3))) * 1000}
        self.rows.append(NULL_ROW | {"kind": kind, "group": group, "is_tombstone": False} | place | time | values)

    def _commit(self, group: str, offset: int, tp: TopicPartition | None = None, metadata: str = "") -> None:
        tp = tp or self.draw.choice(LOGS)
        self.offsets[group, tp] = offset
        expires = (self.now_ms + self.draw.choice((5_000, 1 << 40))) * 1000 if self.draw.random() < 0.03 else None
        self._entry(
            "offset_commit", group, topic=tp.topic, partition=tp.partition, committed_offset=offset, metadata=metadata,
            commit_timestamp=(self.now_ms - self.draw.choice((0, 0, 20, 900))) * 1000, expire_timestamp=expires,
            topic_id=self.ids[tp],
        )  # fmt: skip

    def reads(self, group: str) -> None:
        """Several commits of one reader; sometimes of a query of Spark with this package's source."""
        tp, query = self.draw.choice(LOGS), self.draw.choice(("", "", "", "q1", "q2", "-"))
        for _ in range(self.draw.choice((1, 1, 3, 9))):
            offset = self.offsets.get((group, tp), 100) + self.draw.choice((0, 1, 40))
            mark = "" if not query else f"odradek-spark:1:{offset}:" + ("" if query == "-" else f":{query}")
            self._commit(group, offset, tp, mark)
            self.now_ms += self.draw.choice((0, 10, 400))

    def falls(self, group: str) -> None:
        """A lower commit; sometimes only one that was stored out of order."""
        tp = self.draw.choice(LOGS)
        before = self.offsets.get((group, tp), 100)
        offset = max(0, before - self.draw.choice((1, 30, 1_000)))
        self._commit(group, offset, tp, self.draw.choice(("", "", "", f"odradek-spark:1:{offset}::q3")))
        if self.draw.random() < 0.4:
            self._commit(group, before + 5, tp)

    def resets(self, group: str) -> None:
        for _ in range(self.draw.choice((1, 1, 2, 7))):
            offset = self.draw.randrange(0, 400)
            self._commit(group, offset, self.draw.choice(LOGS[:2]), f"odradek-reset:1:{offset}")

    def deletes(self, group: str) -> None:
        tp = self.draw.choice(LOGS)
        self.offsets.pop((group, tp), None)
        if self.draw.random() < 0.1:
            self._commit(group, -5, tp)
        else:
            self._entry("offset_commit", group, topic=tp.topic, partition=tp.partition, is_tombstone=True)

    def recreates(self, group: str) -> None:
        self.ids[self.draw.choice(LOGS)] = self.draw.choice((b"a" * 16, b"b" * 16, None))

    def rebalances(self, group: str) -> None:
        """A record of a classic group, or its tombstone."""
        for _ in range(self.draw.choice((1, 1, 5))):
            if self.draw.random() < 0.1:
                self._entry("group_metadata", group, is_tombstone=True)
                continue
            self.generations[group] = self.generations.get(group, 0) + self.draw.choice((0, 1, 1))
            topics = self.draw.choice((["orders"], ["orders", "ünits"], None))
            names = [f"m{number}" for number in range(self.draw.choice((0, 0, 1, 3)))]
            self._entry(
                "group_metadata", group, generation=self.generations[group],
                protocol_type=self.draw.choice(("consumer", "consumer", "", "connect")),
                state_timestamp=self.draw.choice((None, self.now_ms * 1000)),
                members=[NO_MEMBER | {"member_id": name, "subscription": topics} for name in names],
            )  # fmt: skip
            self.now_ms += self.draw.choice((0, 700))

    def consumer_record(self, group: str) -> None:
        """A record of a KIP-848 group: an epoch, or a member, or the tombstone of one."""
        if self.draw.random() < 0.4:
            self.generations[group] = self.generations.get(group, 0) + 1
            self._entry("consumer_group_metadata", group, generation=self.generations[group])
            return
        name, is_gone = self.draw.choice(("x", "y")), self.draw.random() < 0.5
        member = NO_MEMBER | {"member_id": name, "subscription": ["ünits"]}
        self._entry(
            "consumer_group_member_metadata", group, member_id=name, members=None if is_gone else [member],
            is_tombstone=is_gone,
        )  # fmt: skip

    def logs(self, ends: dict[TopicPartition, int]) -> Logs:
        nothing = np.zeros(0, np.int64)
        by_partition = {tp: LogEnds(0, end, nothing, nothing) for tp, end in ends.items()}
        return Logs(self.now_ms * 1000, nothing, 7_200_000, retention_is_known=True, by_partition=by_partition)


def batch_tables(scenario: Scenario, ends: dict[TopicPartition, int]) -> tuple[pa.Table, pa.Table]:
    journal = Journal()
    for store in range(STORES):
        rows = [row for row in scenario.rows if row["record_partition"] == store]
        if rows:
            journal.add(batch_of(rows))
    evidence = gather(journal, scenario.logs(ends), lambda records: {}, RULES)
    found = [*moves(evidence), *storms(evidence), *expiring(evidence), *never_commit(evidence)]
    return as_table(found), expiry_table(evidence)


def play(scenario: Scenario, ends: dict[TopicPartition, int]) -> GroupTracker:
    """Feeds a tracker: batches of random sizes, some entries twice, polls and restarts in between."""
    draw, tracker = scenario.draw, GroupTracker(VerdictRules(), finding_rules=RULES)
    tracker.live.retention_ms, tracker.live.retention_is_known = 7_200_000, True
    waiting = {store: [row for row in scenario.rows if row["record_partition"] == store] for store in range(STORES)}
    begins = dict.fromkeys(waiting, 0)
    time = scenario.now_ms - 1_000
    while any(begins[store] < len(rows) for store, rows in waiting.items()):
        store = draw.choice([store for store, rows in waiting.items() if begins[store] < len(rows)])
        size, again = draw.choice((1, 2, 5, 1_000)), draw.choice((0, 0, 3))
        begin = begins[store]
        tracker.add_entries(batch_of(waiting[store][max(0, begin - again) : begin + size]))
        begins[store] += size
        if draw.random() < 0.5:
            time += 1
            polled = {tp: LogBoundsRow(0, draw.choice((end, 10))) for tp, end in ends.items()}
            tracker.add_bounds(time, polled, {})
        if draw.random() < 0.1:
            tracker = copy.deepcopy(tracker)
    tracker.add_bounds(scenario.now_ms, {tp: LogBoundsRow(0, end) for tp, end in ends.items()}, {})
    return tracker


def check(seed: int) -> set[tuple[str, str | None]]:
    """Compares the tables of one scenario. Returns the kinds of findings with their causes."""
    scenario = Scenario(random.Random(seed))
    scenario.now_ms += scenario.draw.choice((0, 5_000_000))
    ends = {tp: scenario.draw.choice((50, 1 << 40)) for tp in LOGS}
    tracker = play(scenario, ends)
    # The monitor polls the logs in which a group has a committed offset.
    findings, expiry = batch_tables(scenario, {tp: ends[tp] for tp in tracker.partitions()})
    live = tracker.findings(scenario.now_ms)
    assert rows_with_numbers(live) == rows_with_numbers(findings)
    assert rows_with_numbers(tracker.expiry(scenario.now_ms)) == rows_with_numbers(expiry)
    rows = rows_with_numbers(live)
    for group in (*scenario.groups, "idle"):
        of_group = rows_with_numbers(tracker.findings(scenario.now_ms, group))
        assert of_group == [row for row in rows if row["group"] == group]
    return {(row["kind"], row["cause"]) for row in rows}


@pytest.mark.parametrize("part", range(2))
def test_live_findings_are_those_of_the_batch_analysis(part: int) -> None:
    seen: set[tuple[str, str | None]] = set()
    for seed in range(25):
        seen |= check(part * 1_000 + seed)
    causes = ("reset", "reader", "unknown", "another query", "restarted without an offset")
    wanted = {("rewind", cause) for cause in causes} | {
        ("expiring", "commit"),
        ("expiring", "empty"),
        ("expiring", "own"),
    }
    assert wanted | {("jump", "reset"), ("rebalance_storm", "rebalances"), ("never_commits", "no commits")} <= seen


@pytest.mark.slow
def test_live_findings_of_many_histories() -> None:
    for seed in range(10_000, 12_000):
        check(seed)
