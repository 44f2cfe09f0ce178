"""Findings from group records: rebalance storms, offsets that expire soon, groups that never commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from odradek.history.findings import MOST_PROOFS, Evidence, Finding, FindingRules, event_proof, format_duration
from odradek.history.records.columns import TIME
from odradek.history.records.group_events import GroupEvent
from odradek.history.records.journal import Key

_COMMITTING = ("consumer", "streams")


# --- storms -----------------------------------------------------------------------------------------------------------


def storms(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each short time in which a group had many rebalances."""
    for group, events in evidence.events.items():
        bursts = RebalanceBursts(evidence.rules)
        for event in events:
            bursts.add(event)
        for burst in bursts.bursts:
            yield storm(evidence, group, burst)


@dataclass(slots=True)
class Burst:
    """Rebalances in short time. ``last``: the number of the newest one in the group. ``head`` and ``tail`` have its
    first and newest events, as far as a finding shows them."""

    last: int
    count: int
    head: list[GroupEvent]
    tail: deque[GroupEvent]

    @classmethod
    def of(cls, last: int, events: Iterable[GroupEvent]) -> Burst:
        burst = cls(last, 0, [], deque(maxlen=MOST_PROOFS // 2))
        for event in events:
            burst.add(last, event)
        return burst

    def add(self, last: int, event: GroupEvent) -> None:
        self.last, self.count = last, self.count + 1
        (self.head if len(self.head) < MOST_PROOFS // 2 else self.tail).append(event)

    @property
    def events(self) -> list[GroupEvent]:
        return [*self.head, *self.tail]


class RebalanceBursts:
    """The bursts of one group: at least ``storm_rebalances`` within ``storm_window_ms``. Overlapping bursts are one."""

    __slots__ = ("_count", "_newest", "_rules", "bursts")

    def __init__(self, rules: FindingRules) -> None:
        self._rules = rules
        self._count = 0
        self._newest: deque[GroupEvent] = deque(maxlen=max(rules.storm_rebalances, 1))
        self.bursts: list[Burst] = []

    def add(self, event: GroupEvent) -> None:
        """Adds the next event of the group, in log order."""
        if not event.is_rebalance:
            return
        self._newest.append(event)
        last, self._count = self._count, self._count + 1
        first = last - len(self._newest) + 1
        is_full = len(self._newest) == self._newest.maxlen
        if not is_full or event.record_us - self._newest[0].record_us > self._rules.storm_window_ms * 1000:
            return
        if self.bursts and first <= self.bursts[-1].last:
            burst = self.bursts[-1]
            for later in list(self._newest)[burst.last - first + 1 :]:
                burst.add(last, later)
        else:
            self.bursts.append(Burst.of(last, self._newest))


def storm(evidence: Evidence, group: str, burst: Burst) -> Finding:
    """Returns the finding about a burst."""
    events = burst.events
    first, last = events[0], events[-1]
    took = format_duration(last.record_us - first.record_us)
    now_us, window_us = evidence.logs.now_us, evidence.rules.storm_window_ms * 1000
    return Finding(
        "rebalance_storm", group,
        f"{burst.count} rebalances within {took}: generations {first.generation} to {last.generation}",
        [event_proof(event) for event in events], cause="rebalances", from_us=first.record_us, to_us=last.record_us,
        is_ongoing=now_us - last.record_us < window_us // max(evidence.rules.storm_rebalances, 1),
        history_complete=evidence.is_complete(first.record_partition, first.record_offset), proof_count=burst.count,
    )  # fmt: skip


# --- expiry -----------------------------------------------------------------------------------------------------------


class Expiry(NamedTuple):
    """The time at which the newest commit of a key expires. Times are microseconds since 1970.

    ``expires_us`` is None if the commit does not expire in the current state of the group. ``counted_from`` is the
    start of the retention: ``empty`` (the group lost its last member) or ``commit``. It is ``own`` if the commit has
    its own expiry, and ``members`` if the offset does not expire because a member reads the topic.
    """

    key: Key
    row: int
    counted_from: str
    since_us: int | None
    expires_us: int | None


def expiries(evidence: Evidence) -> Iterator[Expiry]:
    """Applies Kafka's expiry rules to every offset that is committed now.

    For a classic group without members, ``offsets.retention.minutes`` counts from the time the group became empty. For
    a group that never had members, a KIP-848 group, and a topic that no member of the group reads, the retention counts
    from the commit. A commit with its own expiry expires at that time. The coordinator deletes an expired offset at its
    next check (``offsets.retention.check.interval.ms``, by default 10 minutes).
    """
    commits, retention_us = evidence.commits, evidence.logs.retention_ms * 1000
    for number, key in enumerate(commits.keys):
        row = commits.rows_of(number).stop - 1
        if commits.is_tombstone[row]:
            continue
        events = evidence.events.get(key.group)
        event = events[-1] if events else None
        if event is not None and event.members and (event.topics is None or key.topic in event.topics):
            yield Expiry(key, row, "members", None, None)
        elif commits.expires[row] >= 0:
            yield Expiry(key, row, "own", None, int(commits.expires[row]))
        else:
            since, counted_from = int(commits.times[row]), "commit"
            if event is not None and (empty_us := empty_since(event)) >= 0:
                since, counted_from = empty_us, "empty"
            yield Expiry(key, row, counted_from, since, since + retention_us)


def empty_since(last: GroupEvent) -> int:
    """Returns the time at which a classic group became empty, from its newest event; -1 if the retention of its offsets
    does not count from there."""
    counts = last.kind == "group_metadata" and not last.members and last.protocol_type
    return last.state_us if counts else -1


EXPIRY_SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("commit_timestamp", TIME),
        ("counted_from", pa.string()),
        ("since_timestamp", TIME),
        ("expires_at", TIME),
        ("record_partition", pa.int32()),
        ("record_offset", pa.int64()),
    ]
)


def expiry_table(evidence: Evidence) -> pa.Table:
    """Returns all committed offsets with their time of expiry, earliest first; offsets without one are last."""
    commits = evidence.commits
    rows = [
        {
            **one.key._asdict(),
            "committed_offset": int(commits.offsets[one.row]),
            "commit_timestamp": int(commits.times[one.row]),
            "counted_from": one.counted_from,
            "since_timestamp": one.since_us,
            "expires_at": one.expires_us,
            "record_partition": int(commits.record_partitions[one.row]),
            "record_offset": int(commits.record_offsets[one.row]),
        }
        for one in expiries(evidence)
    ]
    rows.sort(
        key=lambda row: (row["expires_at"] is None, row["expires_at"], row["group"], row["topic"], row["partition"])
    )
    return pa.Table.from_pylist(rows, schema=EXPIRY_SCHEMA)


_WHY = {
    "empty": "retention counts from the time the group became empty",
    "commit": "retention counts from the commit, because no member of the group reads the topic",
    "own": "the commit has its own expiry",
}


def expiring(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each offset that expires within ``expires_within_ms`` or that the next check deletes."""
    commits, now_us = evidence.commits, evidence.logs.now_us
    horizon = now_us + evidence.rules.expires_within_ms * 1000
    for one in expiries(evidence):
        if one.expires_us is None or one.expires_us > horizon:
            continue
        offset, left = int(commits.offsets[one.row]), one.expires_us - now_us
        when = f"expires in {format_duration(left)}" if left > 0 else "is past retention: the next check deletes it"
        events = evidence.events.get(one.key.group)
        proofs = evidence.commit_proofs([one.row])
        if one.counted_from == "empty" and events:
            proofs.append(event_proof(events[-1]))
        yield Finding(
            "expiring", one.key.group,
            f"{one.key.topic_partition}: committed offset {offset:,} {when}; {_WHY[one.counted_from]}", proofs,
            topic=one.key.topic, partition=one.key.partition, cause=one.counted_from,
            certainty="certain" if evidence.logs.retention_is_known or one.counted_from == "own" else "likely",
            from_offset=offset, from_us=one.since_us, to_us=one.expires_us, is_ongoing=True,
        )  # fmt: skip


# --- no commits -------------------------------------------------------------------------------------------------------


def never_commit(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each consumer or streams group that had members for some time and has no commit.

    A deleted commit counts as a commit.
    """
    committing = {key.group for key in evidence.commits.keys}
    for group, events in evidence.events.items():
        if group not in committing:
            times = MemberTimes()
            for event in events:
                times.add(event)
            yield from without_commits(evidence, group, times)


class MemberTimes:
    """The time in which a group had members, event by event.

    ``first``: the first event after which a consumer or streams group had members. ``last``: the newest event.
    """

    __slots__ = ("_before_us", "first", "last")

    def __init__(self) -> None:
        self.first: GroupEvent | None = None
        self.last: GroupEvent | None = None
        self._before_us = 0

    def add(self, event: GroupEvent) -> None:
        """Adds the next event of the group, in log order."""
        self._before_us = self.total_us(event.record_us)
        if self.first is None and event.members and event.protocol_type in _COMMITTING:
            self.first = event
        self.last = event

    def total_us(self, until_us: int) -> int:
        """Returns the time with members up to ``until_us``."""
        last = self.last
        return self._before_us + (max(0, until_us - last.record_us) if last is not None and last.members else 0)


def without_commits(evidence: Evidence, group: str, times: MemberTimes) -> Iterator[Finding]:
    """Yields the finding about a group without a commit, if it had members for long enough."""
    first, last = times.first, times.last
    if first is None or last is None or last.protocol_type not in (*_COMMITTING, ""):
        return
    total_us = times.total_us(evidence.logs.now_us)
    if total_us < evidence.rules.never_after_ms * 1000:
        return
    shown = sorted({first.record_offset: first, last.record_offset: last}.items())
    partition = first.record_partition
    yield Finding(
        "never_commits", group,
        f"Had members for {format_duration(total_us)} and never committed an offset",
        [event_proof(one) for _, one in shown],
        cause="no commits", from_us=first.record_us, to_us=last.record_us,
        is_ongoing=last.members > 0, history_complete=evidence.is_complete(partition, 0),
        certainty="certain" if evidence.is_complete(partition, 0) else "likely",
    )  # fmt: skip
