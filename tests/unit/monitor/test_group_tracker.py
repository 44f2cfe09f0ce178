"""The live tracker gives the verdicts of the batch analysis, however the entries are cut and after restarts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.offset_entries import STEP_MS, batch_of, entry, machine_with
from support.verdict_oracle import group_clear_ms

from odradek.core.ids import TopicPartition, partition_for_group
from odradek.history.batch_verdicts import verdicts_of
from odradek.history.findings import FindingRules, gather
from odradek.history.log_ends import LogEnds, Logs
from odradek.history.records.journal import Journal
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.code_table import CodeTable, NameCodes
from odradek.monitor.group_tracker import GroupTracker, ListedState, LogBoundsRow

STORES = 3


@dataclass
class Poll:
    time_ms: int
    bounds: dict[TopicPartition, LogBoundsRow]


@dataclass
class History:
    """Entries of three partitions of the offsets topic, and polls in between, in the order of time."""

    draw: random.Random
    events: list[dict[str, Any] | Poll] = field(default_factory=list)
    now_ms: int = 1_700_000_000_000
    seen: set[TopicPartition] = field(default_factory=set)

    def __post_init__(self) -> None:
        draw = self.draw
        groups = [f"group-{number}" for number in range(draw.randrange(1, 6))]
        logs = [TopicPartition(topic, number) for topic in ("orders", "ünits") for number in range(2)]
        ends, starts = dict.fromkeys(logs, 100), dict.fromkeys(logs, 0)
        live: dict[tuple[str, TopicPartition], int] = {}
        places = [0] * STORES
        ids = {"orders": b"a" * 16, "ünits": None}
        for _ in range(draw.randrange(5, 120)):
            self.now_ms += draw.choice((0, 1, 300, STEP_MS))
            for tp in logs:
                ends[tp] += draw.choice((0, 0, 5, 1 << 33 if draw.random() < 0.02 else 1))
                if draw.random() < 0.01:
                    starts[tp] = ends[tp] - 2
            if draw.random() < 0.15:
                self.poll(live, starts, ends)
                continue
            group, tp = draw.choice(groups), draw.choice(logs)
            if draw.random() < 0.01:
                ids["orders"] = bytes([draw.randrange(256)]) * 16
            offset: int | None = draw.choice((ends[tp], ends[tp] - 3, live.get((group, tp), 5), 7, ends[tp] - 50))
            if draw.random() < 0.08:
                offset = None
            places[store := partition_for_group(group, STORES)] += draw.choice((1, 1, 4))
            ms = self.now_ms - draw.choice((0, 0, 0, 20))
            self.events.append(entry(group, tp, (store, places[store]), ms, offset, ids[tp.topic]))
            if offset is None:
                live.pop((group, tp), None)
            else:
                live[group, tp] = offset
        self.now_ms += STEP_MS
        self.poll(live, starts, ends)

    def poll(self, live: dict[Any, int], starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """The reader polls the partitions that have a committed offset. One in ten polls gets no answer."""
        polled = {tp: LogBoundsRow(starts[tp], ends[tp]) for _, tp in live}
        unanswered = {tp for tp in polled if self.draw.random() < 0.1}
        self.now_ms += 1
        self.events.append(Poll(self.now_ms, {tp: row for tp, row in polled.items() if tp not in unanswered}))

    @property
    def polls(self) -> list[Poll]:
        return [one for one in self.events if isinstance(one, Poll)]

    def batch_table(self, rules: VerdictRules) -> pa.Table:
        journal = Journal()
        for store in range(STORES):
            rows = [one for one in self.events if isinstance(one, dict) and one["record_partition"] == store]
            if rows:
                journal.add(batch_of(rows))
        moments = np.array([poll.time_ms * 1000 for poll in self.polls])
        logs = Logs(self.polls[-1].time_ms * 1000, moments, by_partition=self.log_ends())
        return verdicts_of(gather(journal, logs, lambda records: {}, FindingRules()), rules)

    def log_ends(self) -> dict[TopicPartition, LogEnds]:
        """What the tracker knows: a poll forgets the partitions in which no group has a committed offset any more."""
        known: dict[TopicPartition, list[int]] = {}
        newest: dict[TopicPartition, LogBoundsRow] = {}
        keys: set[tuple[str, TopicPartition]] = set()
        count = 0
        for event in self.events:
            if isinstance(event, Poll):
                polled = {tp for _, tp in keys}
                for tp in known.keys() - polled:
                    del known[tp]
                    newest.pop(tp, None)
                for tp in polled:
                    ends = known.setdefault(tp, [])
                    ends += [-1] * (count - len(ends)) + [event.bounds[tp].end if tp in event.bounds else -1]
                newest |= event.bounds
                count += 1
            else:
                tp = TopicPartition(event["topic"], event["partition"])
                if event["is_tombstone"]:
                    keys.discard((event["group"], tp))
                else:
                    keys.add((event["group"], tp))
        return {
            tp: LogEnds(row.start, row.end, np.array((known[tp] + [-1] * count)[:count]), np.full(count, -1))
            for tp, row in newest.items()
        }


def play(history: History, tracker: GroupTracker, restart: Callable[[GroupTracker], GroupTracker]) -> pa.Table:
    """Feeds the tracker: entries between two polls in batches of random sizes, some of them twice."""
    draw = history.draw
    waiting: dict[int, list[dict[str, Any]]] = {store: [] for store in range(STORES)}
    delivered: dict[int, list[dict[str, Any]]] = {store: [] for store in range(STORES)}

    def deliver() -> None:
        for store, rows in waiting.items():
            while rows:
                size = draw.choice((1, 2, len(rows)))
                if draw.random() < 0.2:
                    again = delivered[store][-draw.randrange(1, 5) :]
                    tracker.add_entries(batch_of([*again, *rows[:size]]))
                else:
                    tracker.add_entries(batch_of(rows[:size]))
                delivered[store] += rows[:size]
                del rows[:size]

    for event in history.events:
        if isinstance(event, Poll):
            deliver()
            if draw.random() < 0.2:
                tracker = restart(tracker)
            tracker.add_bounds(event.time_ms, event.bounds, {})
        else:
            waiting[event["record_partition"]].append(event)
    return tracker.table(history.polls[-1].time_ms)


@pytest.mark.parametrize("seed", range(4))
def test_live_verdicts_are_those_of_the_batch_analysis(seed: int) -> None:
    """A restart keeps the tracker's state; the reader then delivers some entries again."""
    for part in range(10):
        draw = random.Random(seed * 1000 + part)
        rules = VerdictRules(
            intervals=draw.choice((1, 3, 10)),
            min_distance_ms=draw.choice((0, 0, 2_000)),
            recent_ms=10 * STEP_MS,
            known_for_ms=5 * STEP_MS,
        )
        history = History(draw)
        live = play(history, GroupTracker(rules, polls=200), copy.deepcopy)
        assert live.to_pylist() == history.batch_table(rules).to_pylist()


def test_a_machine_that_begins_late_knows_no_lag_at_older_commits() -> None:
    """It reads the entries from the start again, but has no polls from before its start."""
    history = History(random.Random(7))
    rules = VerdictRules()
    first, *others = [at for at, event in enumerate(history.events) if isinstance(event, Poll)]
    late = History(random.Random(7))
    late.events = [
        event for at, event in enumerate(history.events) if not (isinstance(event, Poll) and at < others[-1])
    ]
    assert first < others[-1]
    assert play(late, GroupTracker(rules), lambda one: one).to_pylist() == late.batch_table(rules).to_pylist()


ORDERS = [TopicPartition("orders", number) for number in range(3)]


def test_groups_are_sums_of_their_partitions() -> None:
    tracker = machine_with({("a", ORDERS[0]): [10, 20], ("a", ORDERS[1]): [100], ("b", ORDERS[2]): [70, 60]})
    tracker.set_groups({"a": ListedState("Stable", "consumer"), "idle": ListedState("Empty", "classic")})
    found = tracker.groups(tracker.last_poll_ms)
    table = tracker.table(tracker.last_poll_ms).to_pylist()
    assert found.names == ["a", "b", "idle"]
    assert found.lags.tolist() == [80, 40, 0]
    assert found.partitions.tolist() == [2, 1, 0]
    worst = [tracker.partitions_of(np.array([slot]))[0] for slot in found.worst.tolist() if slot >= 0]
    assert worst == [ORDERS[0], ORDERS[2]]
    for number, name in enumerate(found.names[:2]):
        rows = [row for row in table if row["group"] == name]
        clear = group_clear_ms([(row["lag"], row["clear_ms"]) for row in rows])
        assert found.clear_ms[number] == (-1 if clear is None else clear)
        assert {row["group_status"] for row in rows} == {["NOTFOUND", "OK", "WARN", "ERR"][found.statuses[number]]}


def test_deleted_offsets_free_their_keys_and_names() -> None:
    """The state does not grow while groups come and go."""
    tracker = GroupTracker(VerdictRules())
    for number in range(100):
        tp = TopicPartition(f"topic-{number % 7}", number % 3)
        group = f"console-consumer-{number}"
        rows = [
            entry(group, tp, (0, 2 * number), number, 5, None),
            entry(group, tp, (0, 2 * number + 1), number, None, None),
        ]
        tracker.add_entries(batch_of(rows[:1]))
        tracker.add_entries(batch_of(rows[1:]))
    assert tracker.key_count == 0
    assert tracker.group_names() == []
    assert tracker.partitions() == []
    assert tracker.nbytes < 100_000


def test_a_forgotten_group_comes_back_with_its_next_commit() -> None:
    tracker = machine_with({("a", ORDERS[0]): [10], ("a", ORDERS[1]): [20], ("b", ORDERS[1]): [20]})
    assert tracker.forget_topic("a", "nowhere") is False
    assert tracker.forget_group("a") is True
    assert tracker.forget_group("a") is False
    assert tracker.group_names() == ["b"]
    assert tracker.groups_of_topic("orders") == ["b"]
    tracker.add_entries(batch_of([entry("a", ORDERS[2], (0, 99), 9_000, 30, None)]))
    assert tracker.groups_of_topic("orders") == ["a", "b"]
    assert tracker.forget_topic("a", "orders") is True
    assert tracker.group_names() == ["b"]


def test_a_partition_without_an_answer_keeps_its_bounds_and_is_stale() -> None:
    tracker = machine_with({("a", ORDERS[0]): [10], ("a", ORDERS[1]): [10]})
    later = tracker.last_poll_ms + STEP_MS
    tracker.add_bounds(later, {ORDERS[0]: LogBoundsRow(0, 120)}, {ORDERS[1]: "the partition has no leader"})
    assert [row["log_end_offset"] for row in tracker.table(later).to_pylist()] == [120, 100]
    assert tracker.groups(later).stale.tolist() == [1]


def test_codes_keep_their_slots() -> None:
    draw, table, slots = random.Random(1), CodeTable(), {}
    for _ in range(100):
        codes = np.array([draw.randrange(-5_000, 5_000) << draw.choice((0, 32)) for _ in range(40)], np.int64)
        for code, slot in zip(codes.tolist(), table.find_or_add(codes).tolist(), strict=True):
            assert slots.setdefault(code, slot) == slot
        gone = draw.sample(sorted(slots), draw.randrange(min(50, len(slots))))
        table.remove(np.array([slots.pop(code) for code in gone], np.int32))
        assert (table.find(np.array(gone, np.int64)) == -1).all()
        assert sorted(table.used().tolist()) == sorted(slots.values())
    assert table.find(np.array(list(slots), np.int64)).tolist() == list(slots.values())
    assert table.slot_count < 6_000


def test_names_without_users_lose_their_codes() -> None:
    names = NameCodes()
    codes = names.codes(["a", "b", "a"])
    assert codes.tolist() == [0, 1, 0]
    names.add_users(codes, 1)
    names.add_users(codes[:1], -1)
    assert names.drop_unused([0, 1]) == []
    names.add_users(codes[:1], -1)
    assert names.drop_unused([0, 1]) == [0]
    assert names.codes(["c"]).tolist() == [0]
    assert (len(names), "a" in names, names.name(0)) == (2, False, "c")
