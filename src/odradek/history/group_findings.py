"""Findings from group records: rebalance storms, offsets that expire soon, groups that never commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from odradek.history.columns import TIME
from odradek.history.findings import Evidence, Finding, event_proof, format_duration
from odradek.history.journal import GroupEvent, Key

_COMMITTING = ("consumer", "streams")


# --- storms -----------------------------------------------------------------------------------------------------------


def storms(evidence: Evidence) -> Iterator[Finding]:
    """Yields a finding for each short time in which a group had many rebalances."""
    least, window_us = max(evidence.rules.storm_rebalances, 1), evidence.rules.storm_window_ms * 1000
    for group, events in evidence.events.items():
        found = [event for event in events if event.is_rebalance]
        for first, last in _bursts([event.record_us for event in found], least, window_us):
            yield _storm(evidence, group, found[first : last + 1])


def _bursts(times: Sequence[int], least: int, window_us: int) -> list[tuple[int, int]]:
    """Returns the bursts as (first index, last index): at least ``least`` times within a window.

    Overlapping windows are one burst.
    """
    bursts: list[tuple[int, int]] = []
    for last in range(least - 1, len(times)):
        first = last - least + 1
        if times[last] - times[first] > window_us:
            continue
        if bursts and first <= bursts[-1][1]:
            bursts[-1] = bursts[-1][0], last
        else:
            bursts.append((first, last))
    return bursts


def _storm(evidence: Evidence, group: str, found: Sequence[GroupEvent]) -> Finding:
    first, last = found[0], found[-1]
    took = format_duration(last.record_us - first.record_us)
    now_us, window_us = evidence.logs.now_us, evidence.rules.storm_window_ms * 1000
    return Finding(
        "rebalance_storm", group,
        f"{len(found)} rebalances within {took}: generations {first.generation} to {last.generation}",
        [event_proof(event) for event in found], cause="rebalances", from_us=first.record_us, to_us=last.record_us,
        is_ongoing=now_us - last.record_us < window_us // max(evidence.rules.storm_rebalances, 1),
        history_complete=evidence.is_complete(first.record_partition, first.record_offset),
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
            if event is not None and event.kind == "group_metadata" and not event.members:
                was_empty = event.protocol_type and event.state_us >= 0
                since, counted_from = (event.state_us, "empty") if was_empty else (since, counted_from)
            yield Expiry(key, row, counted_from, since, since + retention_us)


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
    rows.sort(key=lambda row: (row["expires_at"] is None, row["expires_at"], row["group"], row["topic"]))
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
        if group in committing or events[-1].protocol_type not in (*_COMMITTING, ""):
            continue
        with_members = [event for event in events if event.members and event.protocol_type in _COMMITTING]
        if not with_members:
            continue
        member_time_us = _member_time_us(events, evidence.logs.now_us)
        if member_time_us < evidence.rules.never_after_ms * 1000:
            continue
        shown = sorted({with_members[0].record_offset: with_members[0], events[-1].record_offset: events[-1]}.items())
        partition = with_members[0].record_partition
        yield Finding(
            "never_commits", group,
            f"Had members for {format_duration(member_time_us)} and never committed an offset",
            [event_proof(one) for _, one in shown],
            cause="no commits", from_us=with_members[0].record_us, to_us=events[-1].record_us,
            is_ongoing=events[-1].members > 0, history_complete=evidence.is_complete(partition, 0),
            certainty="certain" if evidence.is_complete(partition, 0) else "likely",
        )  # fmt: skip


def _member_time_us(events: Sequence[GroupEvent], now_us: int) -> int:
    """Returns the total time in which the group had members."""
    ends = [*(event.record_us for event in events[1:]), max(now_us, events[-1].record_us)]
    member_time_us = [end - event.record_us for event, end in zip(events, ends, strict=True) if event.members]
    return int(np.sum(np.maximum(member_time_us, 0))) if member_time_us else 0
