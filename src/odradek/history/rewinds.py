"""Rewinds and jumps: a committed offset that moved back, or forward over records that the group has not read.

A commit shows the new offset of a group, not the client that moved it. These rules separate resets from reading:
* The commit's metadata has the mark of ``odradek groups reset --mark`` for its own offset: a reset.
* The group had members earlier and has none now: a commit comes from outside of the group, usually from a tool. More
  than ``READER_RUN`` such commits of one partition in a row come from a consumer that joins no group. Then only the
  first of them is a reset.
* The previous commit has the mark of a Spark query with this package's source, the commit has no such mark, and the
  group is not known to have members: a reset.
* The offset was deleted, expired or was set below 0 in between: the next commit is that of a reader that started
  without a committed offset, if a member is known.
* Both commits have marks of Spark queries, but of different queries: each query continues from its own position,
  regardless of the group's offset.
* The topic has another id: its offsets are unrelated to the earlier ones, and there is no finding.
* The group has a member: only its members can commit, so a member moved. It may be a tool that joins, such as kafkajs'
  ``admin.setOffsets``; only a transactional producer can commit beside members. A commit with the mark of a Spark query
  is its reader's, too. In all other cases the records do not show who committed: a tool, or a consumer that joins no
  group. Then the cause is ``unknown``.
* A reader itself can seek. A move back is always a rewind. A move forward is a jump only if the reader cannot have read
  all records that it passed: the move was more than ``jump_factor`` times faster than nearly all steps with a backlog,
  that is, steps whose records all existed when the step began.
Consecutive resets count as one move, from the offset before the first one to the offset of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.counts import are, span, was
from odradek.history.findings import Evidence, Finding, FindingRules, event_proof, format_duration, waiting_since
from odradek.history.log_ends import PartitionOffset
from odradek.history.records.group_events import GroupEvent
from odradek.history.records.journal import Commits, Key

READER_RUN = 5
MOST_LOOKED_UP = 5_000
"""When so many records have been looked up to judge steps, the steps of the remaining keys are not judged."""
_STEPS_NEEDED = 5
_COMPARED = 20
_AT_ONCE_US = 1_000_000


@dataclass(slots=True)
class CommitRows:
    """For each commit: the index of the key's previous commit, and of the group's last event before it (-1: none).

    ``members``: the number of members after that event (-1: unknown). ``is_outside``: the group had members
    earlier, and has none. ``is_reset``: the row is a reset.
    ``is_readers``: a member, or a Spark query, has committed the row.
    ``is_of_another_query``: the row's mark names another Spark query than the mark of the previous commit.
    """

    before: Array
    event: Array
    members: Array
    is_outside: Array
    is_reset: Array
    is_readers: Array
    is_of_another_query: Array


class CandidateMove(NamedTuple):
    """A move that commits prove. ``row``: its last commit.

    ``least_end``: it is no move while the log end offset is lower. Then the topic was created again, and the old offset
    belongs to the log of the deleted topic.
    """

    row: int
    least_end: int
    finding: Finding


def moves(evidence: Evidence) -> Iterator[Finding]:
    """Yields all rewinds and jumps."""
    if not len(evidence.commits):
        return
    rows = classify(evidence)
    yield from _between_commits(evidence, rows)
    yield from _fast_moves(evidence, rows)


def classify(evidence: Evidence) -> CommitRows:
    commits = evidence.commits
    before = _commit_before(commits)
    event, members, had_members = _group_state(commits, evidence.events)
    outside = had_members & (members == 0) & ~commits.is_tombstone & ~commits.is_ours
    is_reset = (outside & _may_be_reset(commits, event, outside)) | (commits.is_marked_reset & ~commits.is_tombstone)
    has_before = before >= 0
    # With members, an ordinary consumer reads what the query has read before.
    foreign = has_before & commits.is_ours[before] & ~commits.is_ours & ~commits.is_tombstone & (members <= 0)
    queries, queries_before = commits.queries, commits.queries[before]
    another = has_before & (queries >= 0) & (queries_before >= 0) & (queries != queries_before)
    return CommitRows(before, event, members, outside, is_reset | foreign, commits.is_ours | (members > 0), another)


def _commit_before(commits: Commits) -> Array:
    """Returns for each row the previous commit of the same key, without tombstones; -1 if there is none."""
    rows = np.arange(len(commits))
    last = np.maximum.accumulate(np.where(commits.is_tombstone, -1, rows))
    before = np.concatenate(([-1], last[:-1]))
    before[before < commits.starts[commits.key]] = -1
    return before


def _group_state(commits: Commits, events: Mapping[str, list[GroupEvent]]) -> tuple[Array, Array, Array]:
    """Returns three columns with one value for each row.

    They are the index of the group's last event before the row (-1: none), the number of members after that event (-1:
    unknown), and whether the group ever had members before the row.
    """
    count = len(commits)
    event, members = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    had = np.zeros(count, bool)
    group_states: dict[str, tuple[Array, Array, Array]] = {}
    for number, key in enumerate(commits.keys):
        of_group = events.get(key.group)
        if not of_group:
            continue
        if key.group not in group_states:
            sizes = np.array([one.members for one in of_group])
            group_states[key.group] = (
                np.array([one.record_offset for one in of_group]), sizes, np.maximum.accumulate(sizes) > 0,
            )  # fmt: skip
        places, sizes, with_members = group_states[key.group]
        rows = commits.rows_of(number)
        at = np.searchsorted(places, commits.record_offsets[rows]) - 1
        event[rows] = at
        members[rows] = np.where(at >= 0, sizes[at], -1)
        had[rows] = (at >= 0) & with_members[at]
    return event, members, had


def _may_be_reset(commits: Commits, event: Array, outside: Array) -> Array:
    """Returns whether each commit from outside the group may be a reset.

    In one period without members, all such commits count if they are few. If they are many, only the first counts."""
    if not outside.any():
        return outside
    begins = np.ones(len(commits), bool)
    begins[1:] = (commits.key[1:] != commits.key[:-1]) | (event[1:] != event[:-1]) | (outside[1:] != outside[:-1])
    run = np.cumsum(begins) - 1
    is_few: Array = begins | (np.bincount(run)[run] <= READER_RUN)
    return is_few


def _between_commits(evidence: Evidence, rows: CommitRows) -> Iterator[Finding]:
    """Yields the findings that two consecutive commits prove."""
    for one in candidate_moves(evidence, rows):
        key = evidence.commits.keys[evidence.commits.key[one.row]]
        log = evidence.logs.by_partition.get(key.topic_partition)
        if log is None or log.end >= one.least_end:
            yield one.finding


def candidate_rows(commits: Commits, rows: CommitRows) -> Array:
    """Returns whether each row is the last one of a possible move, as far as commits are known."""
    is_last = np.ones(len(commits), bool)  # the last of consecutive resets
    is_last[:-1] = (commits.key[1:] != commits.key[:-1]) | ~rows.is_reset[1:]
    deleted = (rows.before >= 0) & (np.arange(len(commits)) - rows.before > 1) & ~commits.is_tombstone
    lower = (rows.before >= 0) & (commits.offsets < commits.offsets[rows.before]) & ~commits.is_tombstone
    chosen: Array = (rows.is_reset & is_last) | (~rows.is_reset & (deleted | lower))
    return chosen


def candidate_moves(evidence: Evidence, rows: CommitRows) -> Iterator[CandidateMove]:
    """Yields the moves between commits, whatever the log end offsets are."""
    commits = evidence.commits
    for row in np.flatnonzero(candidate_rows(commits, rows) & (rows.before >= 0)).tolist():
        first = row
        while rows.is_reset[first] and first > commits.starts[commits.key[row]] and rows.is_reset[first - 1]:
            first -= 1
        move = _judge(evidence, rows, first, row)
        if move is not None:
            yield move


def _judge(evidence: Evidence, rows: CommitRows, first: int, last: int) -> CandidateMove | None:
    """Judges the rows ``first`` to ``last``: consecutive resets, or one commit. Returns None if there is no finding."""
    commits = evidence.commits
    before = int(rows.before[first])
    if before < 0:
        return None
    old, new = int(commits.offsets[before]), int(commits.offsets[last])
    ids = int(commits.topic_ids[before]), int(commits.topic_ids[last])
    was_deleted = bool(commits.is_tombstone[before + 1 : last].any())
    if old == new or (min(ids) >= 0 and ids[0] != ids[1]):
        return None
    cause = "reset" if rows.is_reset[last] else "restarted without an offset" if was_deleted else _mover(rows, last)
    is_reading = cause in ("reader", "unknown")
    is_open = new > old or min(ids) < 0 if was_deleted else is_reading and _may_be_out_of_order(evidence, rows, last)
    finding = _move(evidence, rows, (before, first, last), cause)._replace(certainty="likely" if is_open else "certain")
    return CandidateMove(last, old if was_deleted and min(ids) < 0 else 0, finding)


def _mover(rows: CommitRows, row: int) -> str:
    """Returns who has committed a row that is no reset."""
    if rows.is_of_another_query[row]:
        return "another query"
    return "reader" if rows.is_readers[row] else "unknown"


def _may_be_out_of_order(evidence: Evidence, rows: CommitRows, row: int) -> bool:
    """Returns whether the next commit is again at or above the offset before the move.

    The next commit must be at most a second after the commit before the move, without a group event in between. Then
    the commit in ``row`` may be an asynchronous commit that was stored after a later one.
    """
    commits, before, after = evidence.commits, int(rows.before[row]), row + 1
    if after >= len(commits) or commits.key[after] != commits.key[row] or commits.is_tombstone[after]:
        return False
    is_further = commits.offsets[after] >= commits.offsets[before]
    same_members = rows.event[before] == rows.event[after]
    return bool(is_further and same_members and commits.times[after] - commits.times[before] <= _AT_ONCE_US)


def _move(evidence: Evidence, rows: CommitRows, span: tuple[int, int, int], cause: str) -> Finding:
    """Makes the finding. ``span``: the commit before the move, the first commit of the move, and its last commit."""
    commits, (before, first, last) = evidence.commits, span
    key = commits.keys[commits.key[last]]
    old, new = int(commits.offsets[before]), int(commits.offsets[last])
    proofs = evidence.commit_proofs([before, *range(before + 1, last + 1)])
    event = int(rows.event[last])
    if cause == "restarted without an offset":
        why = _restart_text(old, new, is_readers=bool(rows.is_readers[last]))
    else:
        why = _cause_text(cause, last - first + 1, is_of_query=bool(commits.is_ours[last]))
    if cause == "reset" and event >= 0 and int(rows.members[last]) == 0:
        proofs.insert(1, event_proof(evidence.events[key.group][event]))
    return Finding(
        "rewind" if new < old else "jump",
        key.group,
        f"{key.topic_partition}: {_move_text(old, new)}. {why}",
        proofs,
        topic=key.topic,
        partition=key.partition,
        cause=cause,
        from_offset=min(old, new),
        to_offset=max(old, new),
        from_us=int(commits.times[before]),
        to_us=int(commits.times[last]),
        history_complete=evidence.is_complete(
            int(commits.record_partitions[last]), int(commits.record_offsets[before])
        ),
    )


def _move_text(old: int, new: int) -> str:
    if new < old:
        return f"from {old:,} back to {new:,}: {span(new, old, 'record', ',')} {are(new, old)} read again"
    return f"from {old:,} forward to {new:,}: {span(old, new, 'record', ',')} {was(new - old)} skipped"


def _restart_text(old: int, new: int, *, is_readers: bool) -> str:
    bound = "at least these" if new < old else "at most these"
    missing = "The offset was deleted, had expired or was set below 0"
    if is_readers:
        return f"{missing}, and the reader started without a committed offset: {bound}"
    return f"{missing}. No member of the group is known since then: who committed next is unknown"


def _cause_text(cause: str, commits: int, *, is_of_query: bool) -> str:
    if cause == "reset":
        steps = f" in {commits} steps" if commits > 1 else ""
        return f"A tool has reset the group{steps}"
    if cause == "another query":
        return "Another Spark query with its own checkpoint commits to the same group; a group serves one query only"
    if cause == "reader":
        return "The Spark query itself moved there" if is_of_query else "A member of the group moved there"
    return "No member of the group is known at that time: a tool or a consumer outside of the group moved it"


# --- jumps by the reader itself ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Steps:
    """The steps of one key, from each commit to the next one.

    ``rows``: the row of the second commit. ``advanced``: records passed. ``rates``: records per second.
    """

    key: Key
    rows: Array
    advanced: Array
    rates: Array

    def suspects(self, rules: FindingRules) -> list[int]:
        """Returns the steps over many records that are faster than nearly all others."""
        far = np.flatnonzero(self.advanced >= max(rules.jump_records, 1)).tolist()
        moved = self.advanced > 0
        if moved.sum() <= _STEPS_NEEDED:
            return []
        return [
            i for i in far if self.rates[i] > rules.jump_factor * _high_rate(self.rates[moved & _all_but(moved, i)])
        ]

    def comparison_steps(self, suspects: list[int]) -> list[int]:
        """Returns the steps to compare the suspects with: the fastest others and a sample of the rest."""
        order = [i for i in np.argsort(-self.rates).tolist() if self.advanced[i] > 0 and i not in suspects]
        rest = order[_COMPARED:]
        return order[:_COMPARED] + rest[:: max(1, len(rest) // _COMPARED)]


def _all_but(rows: Array, i: int) -> Array:
    others: Array = np.arange(len(rows)) != i
    return others


def _high_rate(rates: Array) -> float:
    """Returns the 0.9 quantile: the fastest tenth may contain other jumps."""
    return float(np.quantile(rates, 0.9)) if len(rates) else np.inf


def _fast_moves(evidence: Evidence, rows: CommitRows) -> Iterator[Finding]:
    """Yields the steps in which the reader cannot have read all records that it passed."""
    budget = MOST_LOOKED_UP
    for steps in _steps(evidence, rows):
        suspects = steps.suspects(evidence.rules)
        if not suspects or budget <= 0:
            continue
        compared = steps.comparison_steps(suspects)
        records = sorted({record for i in (*suspects, *compared) for record in _ends_of(evidence, steps, i)})
        budget -= len(records)
        waits_since = waiting_since(evidence, records)
        capable = [i for i in compared if _had_backlog(evidence, steps, i, waits_since)]
        if len(capable) < _STEPS_NEEDED:
            continue
        fastest = _high_rate(steps.rates[capable])
        for i in suspects:
            begin, _ = _ends_of(evidence, steps, i)
            waited = waits_since.get(begin, np.inf) <= evidence.commits.times[steps.rows[i] - 1]
            if waited and steps.rates[i] > evidence.rules.jump_factor * fastest:
                yield _fast_move(evidence, rows, int(steps.rows[i]), fastest)


def _steps(evidence: Evidence, rows: CommitRows) -> Iterator[_Steps]:
    """Yields the steps of each key that has a step over enough records to be a jump."""
    commits = evidence.commits
    at = np.arange(len(commits))
    is_step = (rows.before == at - 1) & (rows.before >= 0) & ~commits.is_tombstone & ~rows.is_reset
    advanced = np.where(is_step, commits.offsets - commits.offsets[rows.before], 0)
    far = advanced >= max(evidence.rules.jump_records, 1)
    for number in np.unique(commits.key[far]).tolist():
        key = commits.keys[number]
        chosen = np.flatnonzero(is_step[commits.rows_of(number)]) + commits.starts[number]
        if key.topic_partition not in evidence.logs.by_partition or len(chosen) <= _STEPS_NEEDED:
            continue
        took = (commits.times[chosen] - commits.times[chosen - 1]).astype(np.float64)
        took = np.maximum(took, max(float(np.median(took)), 1000.0))
        yield _Steps(key, chosen, advanced[chosen], advanced[chosen] / took * 1e6)


def _ends_of(evidence: Evidence, steps: _Steps, i: int) -> tuple[PartitionOffset, PartitionOffset]:
    """Returns the records at a step's start and end."""
    row, tp = int(steps.rows[i]), steps.key.topic_partition
    return (tp, int(evidence.commits.offsets[row - 1])), (tp, int(evidence.commits.offsets[row]))


def _had_backlog(evidence: Evidence, steps: _Steps, i: int, waits_since: Mapping[PartitionOffset, int]) -> bool:
    """Returns whether all records of the step, and one more, existed when the step began.

    Then only the reader limited the rate.
    """
    _, end = _ends_of(evidence, steps, i)
    return bool(waits_since.get(end, np.inf) <= evidence.commits.times[steps.rows[i] - 1])


def _fast_move(evidence: Evidence, rows: CommitRows, row: int, fastest: float) -> Finding:
    commits = evidence.commits
    key = commits.keys[commits.key[row]]
    finding = _move(evidence, rows, (row - 1, row, row), _mover(rows, row))
    took_us = int(commits.times[row] - commits.times[row - 1])
    assert finding.from_offset is not None
    assert finding.to_offset is not None
    text = (
        f"{key.topic_partition}: from {finding.from_offset:,} to {finding.to_offset:,} within "
        f"{format_duration(took_us)}; with a backlog, this reader rarely read more than {fastest:,.0f} records/s"
    )
    return finding._replace(text=text, certainty="likely")
