"""Stalls and commit gaps: times in which records waited and a group made no progress.

A group without new records also commits one offset again and again, or nothing. So there is a finding only if a record
waited: the record at the committed offset waits from its own timestamp on. In a stall, the group commits one offset
again and again. In a commit gap it does not commit at all, although it has a reader: a member that reads the topic or,
in a group without members, a client that commits again later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.counts import counted
from odradek.core.ids import TopicPartition
from odradek.history.findings import Evidence, Finding, Proof, event_proof, format_duration, waiting_since
from odradek.history.log_ends import PartitionOffset
from odradek.history.records.journal import Key


@dataclass(frozen=True, slots=True)
class _Pause:
    """A time without progress, ``from_us`` to ``to_us``. Rows ``first`` to ``last`` commit the same offset.

    A possible commit gap has ``from_us`` 0: it begins at the commit in row ``last``. ``number``: the index of ``key``.
    ``ends_with``: the record that ended the time. ``is_alive``: False if the log does not show whether a reader was
    running.
    """

    key: Key
    number: int
    first: int
    last: int
    from_us: int
    to_us: int
    is_ongoing: bool
    ends_with: Proof | None = None
    is_alive: bool = True


def pauses(evidence: Evidence) -> Iterator[Finding]:
    """Yields all stalls and commit gaps. One look-up finds the timestamps of all records that may have waited."""
    stalls, gaps = list(_repeated_commits(evidence)), list(_long_intervals(evidence))
    records = sorted({record for pause in (*stalls, *gaps) if (record := _next_record(evidence, pause)) is not None})
    waits_since = waiting_since(evidence, records)
    for pause in stalls:
        yield from _stall(evidence, pause, waits_since)
    for pause in gaps:
        yield from _gap(evidence, pause, waits_since)


def _next_record(evidence: Evidence, pause: _Pause) -> PartitionOffset | None:
    """Returns the record at the committed offset; None if the log has no such record."""
    tp, offset = pause.key.topic_partition, int(evidence.commits.offsets[pause.first])
    log = evidence.logs.by_partition.get(tp)
    return None if log is None or not log.start <= offset < log.end else (tp, offset)


def _waiting_record(
    evidence: Evidence, pause: _Pause, waits_since: Mapping[PartitionOffset, int]
) -> tuple[TopicPartition, int, int] | None:
    """Returns the partition and offset of the waiting record and its timestamp; None if it is unknown."""
    record = _next_record(evidence, pause)
    since = None if record is None else waits_since.get(record)
    return None if record is None or since is None else (*record, since)


def _repeated_commits(evidence: Evidence) -> Iterator[_Pause]:
    """Yields the runs of commits of the same offset that are long enough for a stall."""
    commits, rules = evidence.commits, evidence.rules
    if not len(commits):
        return
    begins = np.ones(len(commits), bool)
    begins[1:] = (
        (commits.key[1:] != commits.key[:-1])
        | (commits.offsets[1:] != commits.offsets[:-1])
        | commits.is_tombstone[1:]
        | commits.is_tombstone[:-1]
    )
    firsts = np.flatnonzero(begins)
    lasts = np.concatenate((firsts[1:], [len(commits)])) - 1
    spans = commits.times[lasts] - commits.times[firsts]
    chosen = (lasts - firsts + 1 >= rules.stall_commits) & (spans >= rules.stall_after_ms * 1000)
    for first, last in zip(firsts[chosen].tolist(), lasts[chosen].tolist(), strict=True):
        key = int(commits.key[first])
        is_newest = last + 1 == commits.starts[key + 1]
        yield _Pause(
            commits.keys[key], key, first, last, int(commits.times[first]), int(commits.times[last]), bool(is_newest)
        )


def _stall(evidence: Evidence, pause: _Pause, waits_since: Mapping[PartitionOffset, int]) -> Iterator[Finding]:
    commits, rules = evidence.commits, evidence.rules
    waiting_record = _waiting_record(evidence, pause, waits_since)
    if waiting_record is None:
        return
    tp, offset, since = waiting_record
    from_us = max(pause.from_us, since)
    rows = range(pause.first, pause.last + 1)
    inside = [row for row in rows if commits.times[row] >= from_us]
    if pause.to_us - from_us < rules.stall_after_ms * 1000 or len(inside) < rules.stall_commits:
        return
    end = _end_at(evidence, pause, pause.to_us)
    waiting = "" if end is None else f", while {counted(end - offset, 'record')} waited"
    yield Finding(
        "stall", pause.key.group,
        f"{tp}: {len(inside):,} commits of {offset:,} over {format_duration(pause.to_us - from_us)}{waiting}",
        evidence.commit_proofs(inside), topic=tp.topic, partition=tp.partition,
        cause="no progress", from_offset=offset, to_offset=end, from_us=from_us, to_us=pause.to_us,
        is_ongoing=pause.is_ongoing,
        history_complete=evidence.is_complete(
            int(commits.record_partitions[inside[0]]), int(commits.record_offsets[inside[0]])
        ),
    )  # fmt: skip


def _end_at(evidence: Evidence, pause: _Pause, us: int) -> int | None:
    """Returns the log end offset at about the time ``us``, at least the committed offset + 1; None if unknown."""
    log = evidence.logs.by_partition[pause.key.topic_partition]
    at = int(np.searchsorted(evidence.logs.moments, us, side="left"))
    end = int(log.ends[at]) if at < len(log.ends) else log.end
    return None if end < 0 else max(end, int(evidence.commits.offsets[pause.first]) + 1)


# --- no commits at all ----------------------------------------------------------------------------------------------


def _long_intervals(evidence: Evidence) -> Iterator[_Pause]:
    """Yields the long times in which a reader may have run: from a commit to the next commit, or to the present."""
    commits, rules, now_us = evidence.commits, evidence.rules, evidence.logs.now_us
    least = rules.gap_after_ms * 1000
    for number in range(len(commits.keys)):
        rows = commits.rows_of(number)
        times, deleted = commits.times[rows], commits.is_tombstone[rows]
        steps = np.diff(np.append(times, max(now_us, int(times[-1]))))
        if not (steps >= least).any():
            continue
        for at in np.flatnonzero((steps >= least) & ~deleted).tolist():
            if steps[at] < rules.gap_factor * _median_interval_us(times, at):
                continue
            pause = _interval(evidence, number, rows.start + at, at + 1 == len(times))
            if pause is not None:
                yield pause


def _median_interval_us(times: Array, at: int) -> float:
    """Returns the median time between commits, without the interval that begins at index ``at``; 0 if none is left."""
    others = np.delete(np.diff(times), at) if at + 1 < len(times) else np.diff(times)
    return float(np.median(others)) if len(others) else 0.0


def _interval(evidence: Evidence, number: int, row: int, is_newest: bool) -> _Pause | None:
    """Returns the time after the commit in ``row`` in which a reader may have run; None if it cannot be a gap."""
    commits, now_us = evidence.commits, evidence.logs.now_us
    key = commits.keys[number]
    until, is_ongoing = (now_us, True) if is_newest else (int(commits.times[row + 1]), False)
    if not is_newest and commits.is_tombstone[row + 1]:
        return None
    proof = None if is_newest else evidence.commit_proofs([row + 1])[0]
    events = evidence.events.get(key.group, [])
    at = int(np.searchsorted([one.record_offset for one in events], commits.record_offsets[row])) - 1
    if at < 0:
        # The log does not show whether the reader was running. A reader without a later commit may have stopped.
        is_simple = not any(one.members for one in events)
        return (
            None
            if is_newest or not is_simple
            else _Pause(key, number, row, row, 0, until, False, proof, is_alive=False)
        )
    if not _reads(events[at].members, events[at].topics, key.topic):
        return None
    for event in events[at + 1 :]:
        if event.record_us >= until:
            break
        if not _reads(event.members, event.topics, key.topic):
            until, is_ongoing, proof = event.record_us, False, event_proof(event)
            break
    return _Pause(key, number, row, row, 0, until, is_ongoing, proof)


def _reads(members: int, topics: frozenset[str] | None, topic: str) -> bool:
    return members > 0 and (topics is None or topic in topics)


def _gap(evidence: Evidence, pause: _Pause, waits_since: Mapping[PartitionOffset, int]) -> Iterator[Finding]:
    commits, rules = evidence.commits, evidence.rules
    waiting_record = _waiting_record(evidence, pause, waits_since)
    if waiting_record is None:
        return
    tp, offset, since = waiting_record
    rows = commits.rows_of(pause.number)
    usual = _median_interval_us(commits.times[rows], pause.last - rows.start)
    from_us = max(int(commits.times[pause.last]), since)
    if pause.to_us - from_us < max(rules.gap_after_ms * 1000, rules.gap_factor * usual):
        return
    end = _end_at(evidence, pause, pause.to_us)
    waiting = "records" if end is None else counted(end - offset, "record")
    remark = "" if pause.is_alive else ". The log does not show whether the reader was running"
    yield Finding(
        "commit_gap", pause.key.group,
        f"{tp}: no commit for {format_duration(pause.to_us - from_us)}, while {waiting} waited{remark}",
        evidence.commit_proofs([pause.last]) + ([pause.ends_with] if pause.ends_with else []),
        topic=tp.topic, partition=tp.partition, certainty="certain" if pause.is_alive else "likely",
        cause="members silent" if pause.is_alive else "reader silent", from_offset=offset, to_offset=end,
        from_us=from_us, to_us=pause.to_us, is_ongoing=pause.is_ongoing,
        history_complete=evidence.is_complete(
            int(commits.record_partitions[pause.last]), int(commits.record_offsets[pause.last])
        ),
    )  # fmt: skip
