"""The state of a Delta table, in the ``txn`` actions of its log. Delta keeps the newest of each ``appId`` for ever.

| appId | version |
|---|---|
| the query's id | its highest micro-batch; earlier versions of odradek wrote only this |
| ``<query>/batch`` | the same number: the other actions of the query belong to it |
| ``<query>/covers``, ``<query>/ends`` | 63 bits of the digests of its ranges and of the offsets after it |
| ``<query>/rows``, ``<query>/bad``, ``<query>/files``, ``<query>/bytes`` | its counts |
| ``<replay>/done/<topic>/<partition>/<id>`` | how many ranges of the partition a replay has added |
| … ``/<i>/start``, … ``/<i>/end`` | these ranges; ``replay-of-any-options..`` has those of all replays together |
| ``odradek-run`` | the number of the newest run, times 2**32, plus the first 32 bits of the run's id |
| ``odradek-query`` | 63 bits of the digest of the id of the newest query that is not a replay |
| ``odradek-topic/<topic>`` | 63 bits of the digest of the topic's id |
| ``odradek-at/<topic>/<partition>/<id>`` | the table's offset, of whatever query; ``<id>``: digest of the topic's id |
| ``odradek-at/<topic>/<partition>`` | the same, if the id is unknown |
| ``odradek-start/<topic>/<partition>`` | the offset at which the table began to read the partition (for audits) |
| ``odradek-tail/<topic>/<partition>`` | the end of the last range that was read there |
| … ``/batch`` | of its last batch: (that end − the base offset) times 2**32, plus the CRC |
| ``odradek-at`` | 63 bits of the digest of the query and micro-batch that wrote the offsets, and of ``is_whole`` |

Earlier versions wrote the offsets as ``<query>/at/<topic>/<partition>``, and the topics as ``<query>/topic/<topic>``.
The action ``odradek-at`` says whether they have written since. Delta's log gives an action only by its name.

A RESTORE does not take back actions. The next entry has the numbers that they had in the restored version, and -1 for
those that did not exist there (``delta/restores``).

The text ``odradek.batch`` in each commit has the micro-batch, too, for people and for tables of earlier versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.notes import OFFSET_ACTION, offset_action, start_action
from odradek.pipelines.commit.operations import TableChange
from odradek.pipelines.commit.state import (
    ANY_REPLAY,
    NO_RUN,
    REPLAY,
    Added,
    BatchPlan,
    QueryState,
    RunTag,
    TableState,
    as_number,
    key_of,
    name_digest,
    new_starts,
    of_number,
    of_text,
)
from odradek.pipelines.files.file_names import batch_in, last_part, prefix_of

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log
    from deltalake.transaction import Transaction

RUN = "odradek-run"
QUERY = "odradek-query"
TOPIC, TAIL = "odradek-topic", "odradek-tail"
TEXT = "odradek.batch"
_RETENTION = "delta.setTransactionRetentionDuration"
"""The property of a table that makes Delta forget actions that were not repeated for this time."""
_RUN_BITS = _CRC_BITS = 32
_LONGEST_BATCH = 1 << 31
_COUNTS = ("rows", "bad", "files", "bytes")


def read(log: Log, plan: BatchPlan | None) -> TableState:
    """Returns the state: the run, and the newest micro-batch of the query of ``plan``.

    If the table has none of that query, returns that of the newest other query. The state has the offsets of the
    partitions of ``plan``, and says whether they are whole, only if the query reads partitions for the first time: each
    action that is looked for costs milliseconds.
    """
    run = run_of(log)
    if plan is None:
        return TableState(run)
    if plan.is_replay:
        return _read_replay(log, plan, run)
    own = None if _is_followed(log, plan) else _query(log, plan.query)
    if own is not None and not plan.first:
        return TableState(run, {key_of(plan.query): own})
    if own is not None:
        is_whole = _has_all_offsets(log, plan.query, own.batch)
        return TableState(run, {key_of(plan.query): _with_offsets(log, plan.query, own, plan)}, is_whole)
    other = _newest_other(log, plan)
    is_new = not other and _is_whole(log.history())
    return TableState(run, other, is_new or any(_has_all_offsets(log, name, one.batch) for name, one in other.items()))


def _read_replay(log: Log, plan: BatchPlan, run: RunTag) -> TableState:
    """Returns the run, and the ranges in the partitions of ``plan`` that its replay and all replays have added."""
    queries = {}
    for query in (plan.query, ANY_REPLAY):
        done = tuple(
            (tp, start, end)
            for tp in sorted(plan.offsets)
            for name in [_done(query, tp, plan.topics.get(tp.topic))]
            for at in range(_number(log, name) or 0)
            if (start := _number(log, f"{name}/{at}/start")) is not None
            and (end := _number(log, f"{name}/{at}/end")) is not None
        )
        found = _query(log, query)
        if found is not None:
            queries[key_of(query)] = replace(found, done=done, topics=plan.topics)
    return TableState(run, queries)


def _done(query: str, tp: TopicPartition, digest: str | None) -> str:
    return f"{query}/done/{tp.topic}/{tp.partition}" + ("" if digest is None else f"/{digest}")


def run_of(log: Log) -> RunTag:
    """Returns the newest run."""
    number = log.transaction_version(RUN)
    return NO_RUN if number is None else RunTag(number >> _RUN_BITS, f"{number & ((1 << _RUN_BITS) - 1):08x}")


def read_unknown(log: Log, plan: BatchPlan, reason: str) -> TableState:
    """Returns the state of a table of which it is not known whether a RESTORE took back rows. If the table has all
    files of the newest micro-batch of the query, it is the state of ``read``. A replay counts as done."""
    state = read(log, plan)
    if plan.is_replay or not state.queries:
        return state
    newest = newest_query(log)
    for name, one in state.queries.items():
        if name in (plan.query, newest) and one.batch >= 0 and one.added.files:
            prefix = f"{prefix_of(one.batch, name)}-"
            if sum(last_part(uri).startswith(prefix) for uri in log.file_uris()) == one.added.files:
                return state
    queries = {name: QueryState(one.batch, None) for name, one in state.queries.items()}
    return replace(state, queries=queries, is_whole=False, restored=reason)


def lost_offsets(log: Log, held: Log, plan: BatchPlan) -> dict[TopicPartition, int] | None:
    """Returns the offsets of the newest query, in the partitions of ``plan``, if a RESTORE has taken back all of its
    micro-batches; None if a query is left, or if there was none. ``held``: the version of the log with the state."""
    if _number(log, QUERY) is None or has_query(held):
        return None
    name = newest_query(log)
    return {} if name is None else offsets_in(log, name, plan)


def _number(log: Log, name: str) -> int | None:
    """Returns the number of an action; None if there is none, or if a RESTORE took it back."""
    found = log.transaction_version(name)
    return None if found is None or found < 0 else int(found)


def _is_followed(log: Log, plan: BatchPlan) -> bool:
    """Returns whether another query has added a micro-batch after this one. Earlier versions noted the newest query
    only in the texts of commits."""
    if plan.is_replay:
        return False
    newest = _number(log, QUERY)
    if newest is not None:
        return bool(newest != as_number(name_digest(plan.query)))
    return newest_query(log) not in (None, plan.query)


def _query(log: Log, query: str) -> QueryState | None:
    batch = _number(log, query)
    if batch is None:
        return None
    noted = _number(log, f"{query}/batch")
    covers, ends = (_number(log, f"{query}/{name}") for name in ("covers", "ends"))
    if covers is None or ends is None or noted != batch:  # an earlier version has added it
        return _batch_in_commits(log, batch, query) or QueryState(batch, None)
    rows, bad, files, size = (_number(log, f"{query}/{name}") for name in _COUNTS)
    return QueryState(batch, of_number(covers), of_number(ends), added=Added(rows or 0, bad or 0, files, size))


def _newest_other(log: Log, plan: BatchPlan) -> dict[str, QueryState]:
    if not has_query(log):
        return {}
    name = newest_query(log)
    found = None if name is None else _query(log, name)
    if name is None or found is None:  # its commits are removed from the log
        return {"": QueryState(-1, None)}
    return {name: _with_offsets(log, name, found, plan)}


def _with_offsets(log: Log, query: str, state: QueryState, plan: BatchPlan) -> QueryState:
    """Returns the state of the newest query with the offsets of the partitions of ``plan`` that the table has noted."""
    is_ours = _number(log, OFFSET_ACTION) in [_writer_of(query, state.batch, is_whole=whole) for whole in (True, False)]
    topics = _topics_in(log, query, {tp.topic for tp in plan.offsets}, is_ours=is_ours)
    found = {tp: _offset_in(log, query, tp, topics.get(tp.topic), is_ours=is_ours) for tp in plan.offsets}
    offsets = {tp: offset for tp, offset in found.items() if offset is not None}
    return replace(state, offsets=offsets if offsets or is_ours else None, topics=topics)


def offsets_in(log: Log, query: str, plan: BatchPlan) -> dict[TopicPartition, int]:
    """Returns the offsets after the newest micro-batch of a query, of those partitions of ``plan`` that the table has
    noted. Without such a micro-batch, returns an empty mapping."""
    state = _query(log, query)
    return {} if state is None else dict(_with_offsets(log, query, state, plan).offsets or {})


def _offset_in(log: Log, query: str, tp: TopicPartition, digest: str | None, *, is_ours: bool) -> int | None:
    """Returns the table's offset in a partition. ``digest``: of the id of its topic. ``is_ours``: whether the query has
    written its newest micro-batch in the present form."""
    forms = [f"{query}/at/{tp.topic}/{tp.partition}"]
    if is_ours:  # the query may have lost the partition while an earlier version wrote
        is_same = digest is None or _number(log, f"{query}/topic/{tp.topic}") in (None, as_number(digest))
        unknown = offset_action(tp, None)
        forms = [*([] if digest is None else [offset_action(tp, digest)]), unknown, *(forms if is_same else [])]
    return next((at for name in forms if (at := _number(log, name)) is not None), None)


def tails_in(log: Log, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogTail]:
    """Returns the last batches that were read in these partitions, as far as they are noted."""
    found: dict[TopicPartition, LogTail] = {}
    for tp in partitions:
        end, batch = (_number(log, f"{TAIL}/{tp.topic}/{tp.partition}{part}") for part in ("", "/batch"))
        if end is not None and batch is not None:
            found[tp] = LogTail(end, end - (batch >> _CRC_BITS), batch & ((1 << _CRC_BITS) - 1))
    return found


def _numbers_of_tails(tails: Mapping[TopicPartition, LogTail]) -> dict[str, int]:
    found: dict[str, int] = {}
    for tp, (end, base, crc) in sorted(tails.items()):
        if end - base < _LONGEST_BATCH:
            name = f"{TAIL}/{tp.topic}/{tp.partition}"
            found |= {name: end, f"{name}/batch": (end - base) << _CRC_BITS | crc}
    return found


def _writer_of(query: str, batch: int, *, is_whole: bool) -> int:
    return as_number(name_digest(f"{query} {batch} {is_whole}"))


def _has_all_offsets(log: Log, query: str, batch: int) -> bool:
    if _number(log, OFFSET_ACTION) != _writer_of(query, batch, is_whole=True):
        return False
    return not may_forget(log)


def _topics_in(log: Log, query: str, topics: Iterable[str], *, is_ours: bool) -> dict[str, str]:
    """Returns the digests of the ids of those topics that the table has noted."""
    found = {topic: _number(log, f"{TOPIC if is_ours else f'{query}/topic'}/{topic}") for topic in topics}
    return {topic: of_number(number) for topic, number in found.items() if number is not None}


def newest_query(log: Log) -> str | None:
    """Returns the id of the query that has added the newest micro-batch in the commits that the log still has."""
    for commit in log.history():
        words = str(commit.get(TEXT, "")).split()
        if len(words) > 1 and not words[1].startswith(REPLAY):
            return words[1]
    return None


def has_query(log: Log, *, is_begun: Callable[[], bool] = lambda: False) -> bool | None:
    """Returns whether a query has added a micro-batch; None if it may have: earlier versions noted it only in commits,
    and Delta removes old commits. ``is_begun``: whether an earlier version of odradek may have begun the table;
    otherwise its files say whether it is ours."""
    if _number(log, QUERY) is not None:
        return True
    commits = log.history()
    texts = [str(one[TEXT]).split() for one in commits if TEXT in one]
    if any(len(words) > 1 and not words[1].startswith(REPLAY) for words in texts):
        return True
    if _number(log, RUN) is not None or _is_whole(commits):
        return False
    if any(batch is not None and batch.number is not None for batch in map(batch_in, log.file_uris())):
        return True
    return None if is_begun() else False


def may_forget(log: Log) -> bool:
    """Returns whether Delta may have forgotten actions of the table."""
    return _RETENTION in log.metadata().configuration


def has_records(log: Log) -> bool:
    """Returns whether a query or a replay has added anything. True if the start of the log was removed: then it is
    unknown."""
    if _number(log, QUERY) is not None:
        return True
    commits = log.history()
    return not _is_whole(commits) or any(TEXT in one for one in commits)


def _is_whole(commits: Sequence[Mapping[str, object]]) -> bool:
    return any(commit["version"] == 0 for commit in commits)


def _batch_in_commits(log: Log, batch: int, query: str) -> QueryState | None:
    """Returns a micro-batch that an earlier version has added; None if its commit is not in the log any more."""
    for commit in log.history():
        words = str(commit.get(TEXT, "")).split()
        if words[:2] == [str(batch), query]:
            files, size = map(int, words[5:7]) if len(words) > 6 else (None, None)
            covers = of_text(words[7]) if len(words) > 7 else None
            return QueryState(batch, covers, added=Added(int(words[2]), int(words[3]), files, size))
    return None


def texts(change: TableChange) -> dict[str, str]:
    """Returns the texts of a commit."""
    plan, files = change.plan, change.files
    if plan is None or files is None:
        return {}
    added = files.added
    words = (plan.batch, plan.query, added.rows, added.bad, change.run.text, added.files, added.size, plan.covers)
    return {TEXT: " ".join(map(str, words))}


def transactions(
    log: Log, base: TableState, change: TableChange, taken_back: Iterable[tuple[str, int]] = ()
) -> list[Transaction]:
    """Returns the ``txn`` actions of a commit. ``log``: the version of the log with the state ``base``. ``taken_back``:
    the numbers of actions that a RESTORE took back."""
    from deltalake.transaction import Transaction

    run = change.run
    found: dict[str, int] = {RUN: (run.number << _RUN_BITS) | int(run.id, 16)}
    if change.plan is not None and change.files is not None:
        plan = change.plan
        is_whole = change.state_after(base).is_whole or _has_all_offsets(log, plan.query, plan.batch - 1)
        found |= {**dict(taken_back), **_numbers_of(change, base, is_whole=is_whole)}
        found |= {start_action(tp): at for tp, at in new_starts(base, plan).items()}
    return [Transaction(name, number) for name, number in found.items()]


def _numbers_of(change: TableChange, base: TableState, *, is_whole: bool) -> Mapping[str, Any]:
    plan, files = change.plan, change.files
    assert plan is not None
    assert files is not None
    query = plan.query
    if plan.ranges:
        return _numbers_of_replay(plan, change.state_after(base))
    counts = {f"{query}/{name}": count for name, count in zip(_COUNTS, files.added, strict=True)}
    digests = {f"{query}/covers": as_number(plan.covers), f"{query}/ends": as_number(plan.ends)}
    found = {query: plan.batch, f"{query}/batch": plan.batch, **digests, **counts}
    if plan.is_replay:
        return found
    offsets = {offset_action(tp, plan.topics.get(tp.topic)): offset for tp, offset in sorted(plan.offsets.items())}
    offsets |= {f"{TOPIC}/{topic}": as_number(digest) for topic, digest in sorted(plan.topics.items())}
    offsets |= _numbers_of_tails(files.tails)
    writer = _writer_of(query, plan.batch, is_whole=is_whole)
    return found | {QUERY: as_number(name_digest(query)), OFFSET_ACTION: writer, **offsets}


def _numbers_of_replay(plan: BatchPlan, after: TableState) -> Mapping[str, object]:
    """Returns the actions of a replay, and of all replays: counts, and the ranges of the partitions of ``plan``."""
    found: dict[str, int | None] = {}
    for query in (plan.query, ANY_REPLAY):
        state = after.queries[key_of(query)]
        digests = {f"{query}/covers": as_number(plan.covers), f"{query}/ends": as_number(plan.ends)}
        counts = {f"{query}/{name}": count or 0 for name, count in zip(_COUNTS, state.added, strict=True)}
        found |= {query: plan.batch, f"{query}/batch": plan.batch, **digests, **counts}
        for tp in sorted(plan.offsets):
            name = _done(query, tp, plan.topics.get(tp.topic))
            pieces = [(start, end) for other, start, end in state.done if other == tp]
            found[name] = len(pieces)
            for at, (start, end) in enumerate(pieces):
                found |= {f"{name}/{at}/start": start, f"{name}/{at}/end": end}
    return found
