"""What a table remembers of its runs and queries, for ever and in constant space. Pure.

A query's checkpoint and the table have to agree before a micro-batch is added or skipped. Unknown is not agreement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from odradek.core.errors import StorageError
from odradek.core.ids import NO_TAILS, LogTail, LogTails, TopicPartition
from odradek.pipelines.commit.columns import Columns, RowColumns

REPLAY = "replay-"
ANY_REPLAY = REPLAY + "of-any-options.."
"""The key of the ranges that all replays together have added."""
Piece = tuple[TopicPartition, int, int]  # a range of offsets: partition, start, end
# The last way out of a refusal, as the end of its line.
ANOTHER_TABLE = "begin another table: another --output, and for ingest another --group"
NEVER_NULL = frozenset({"topic", "partition", "offset"})  # a column that each record has
_MASK = (1 << 63) - 1  # of a digest: Delta's ``txn`` has a signed integer of 64 bits


class TableRefused(StorageError):
    """The table and the checkpoint do not agree; the message names the remedy."""


class RunFenced(StorageError):
    """A newer run has published to the table, so this run can publish no more."""


class Counted(Protocol):
    """A file with its counts."""

    @property
    def rows(self) -> int: ...
    @property
    def bad(self) -> int: ...
    @property
    def size(self) -> int: ...


class Added(NamedTuple):
    """The counts of an added micro-batch. ``bad``: rows with an unreadable value. ``size``: the bytes of its files.
    ``files`` and ``size`` are None if they are not known any more.
    """

    rows: int
    bad: int
    files: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, files: Sequence[Counted]) -> Added:
        """Returns the counts of these files."""
        rows, bad = sum(file.rows for file in files), sum(file.bad for file in files)
        return cls(rows, bad, len(files), sum(file.size for file in files))


class RunTag(NamedTuple):
    """A run: its number, which rises from run to run, and the first eight hexadecimal digits of its id."""

    number: int
    id: str

    @property
    def text(self) -> str:
        """The run as a part of file names."""
        return f"{self.number:06d}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> RunTag | None:
        """Reads the form of ``text``; None for another form."""
        number, _, name = text.partition(".")
        is_tag = number.isdecimal() and len(number) >= 6 and len(name) == 8
        return cls(int(number), name) if is_tag else None


NO_RUN = RunTag(0, "")


@dataclass(frozen=True)
class QueryState:
    """The newest micro-batch of a query in a table.

    ``covers``: the digest of its ranges; None if an earlier version of odradek did not note it. ``ends``: the digest of
    the query's offsets after it, and ``offsets``: these offsets, and those of earlier queries in other partitions; None
    if an earlier version has added it. ``topics``: the digest of each topic's id (``topic_of``), as far as it is known:
    a topic that is deleted and created again has another one. ``done``: the ranges that a replay has added; empty if an
    earlier version has added it, which noted only the digest of its ranges. ``tails``: the last batches that were read.
    """

    batch: int
    covers: str | None
    ends: str | None = None
    offsets: Mapping[TopicPartition, int] | None = field(default=None, compare=False)
    added: Added = field(default=Added(0, 0), compare=False)
    topics: Mapping[str, str] = field(default_factory=dict, compare=False)
    done: tuple[Piece, ...] = field(default=(), compare=False)
    tails: LogTails = field(default_factory=dict, compare=False)

    def done_in(self, topics: Mapping[str, str]) -> list[Piece]:
        """Returns the ranges that a replay has added of these topics, without those of earlier topics of the same
        name. ``topics``: as ``topics`` of the state."""
        gone = replaced_topics(self.topics, topics)
        return [piece for piece in self.done if piece[0].topic not in gone]

    def after(self, former: QueryState | None) -> QueryState:
        """Returns the state of a replay after a run of it. ``former``: the state before."""
        if former is None:
            return self
        counts = [None if a is None or b is None else a + b for a, b in zip(former.added, self.added, strict=True)]
        done = merged([*former.done_in(self.topics), *self.done])
        added = Added(counts[0] or 0, counts[1] or 0, *counts[2:])
        return replace(self, added=added, topics={**former.topics, **self.topics}, done=done)


@dataclass(frozen=True)
class TableState:
    """What the newest entry of a table's log says. ``queries``: by ``key_of``, or by the first eight characters of the
    query's id if an earlier version has written it. ``is_whole``: whether the offsets of the newest query have every
    partition that a query of this table has ever read. Earlier versions forgot partitions that were missing once.
    ``restored``: why the state is an earlier one than the newest entry's, for messages; empty if it is the newest.
    ``starts``: the offset at which the table began to read a partition, as far as it is known. ``is_known``: whether it
    is known which entry the rows belong to. ``columns``: those that the rows of our runs have; None if an earlier
    version has not noted them."""

    run: RunTag = NO_RUN
    queries: Mapping[str, QueryState] = field(default_factory=dict)
    is_whole: bool = False
    restored: str = field(default="", compare=False)
    lost: Mapping[TopicPartition, int] | None = field(default=None, compare=False)
    is_known: bool = field(default=True, compare=False)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict, compare=False)
    columns: Columns | None = field(default=None, compare=False)

    def of(self, query: str) -> QueryState | None:
        """Returns the state of a query."""
        return self.queries.get(key_of(query)) or self.queries.get(query[:8])

    @property
    def newest_query(self) -> QueryState | None:
        """The state of the query that is not a replay; None if there is none. Notes of earlier versions may have
        several; then the last one."""
        found = [state for query, state in self.queries.items() if not query.startswith(REPLAY)]
        return found[-1] if found else None

    def with_batch(self, run: RunTag, query: str, batch: QueryState) -> TableState:
        """Returns the state after a micro-batch of this run. Only the newest query and all replays stay: a query that
        another one has followed must not continue, because the other one has the next records. The offsets of
        partitions that it does not read stay, too."""
        if query.startswith(REPLAY):
            keys = (key_of(query), ANY_REPLAY) if batch.done else (key_of(query),)
            return replace(
                self, run=run, queries={**self.queries, **{k: batch.after(self.queries.get(k)) for k in keys}}
            )
        kept = {name: one for name, one in self.queries.items() if name.startswith(REPLAY)}
        newest = batch if self.newest_query is None else _with_former(batch, self.newest_query)
        return replace(self, run=run, queries=kept | {key_of(query): newest})

    def with_run(self, run: RunTag) -> TableState:
        return replace(self, run=run)

    def has_ended(self, run: RunTag) -> bool:
        """Returns whether a run can publish no more: a newer run has published, or another run of its number."""
        return run.number < self.run.number or (run.number == self.run.number and run != self.run)

    def may_publish(self, run: RunTag) -> bool:
        """Returns whether a run may publish the next entry."""
        return not self.has_ended(run)


@dataclass(frozen=True)
class BatchPlan:
    """A micro-batch as the checkpoint plans it. The digests are those of ``covers_of`` and ``ends_of``.

    ``begin``: the digest of the query's offsets before it; None for a query's first micro-batch. ``covers_before``: the
    digest of the micro-batch before it; None if unknown. ``offsets``: the query's offsets after it, also in partitions
    that it does not read now. ``first``: the start offsets of partitions that the query reads for the first time.
    ``ranges``: what a replay adds; ``offsets`` then only names the partitions that are asked for.
    ``topics``: as in ``QueryState``. ``is_whole``: whether ``offsets`` have every partition that has rows in the table.
    ``ours``: partitions of ``first`` with a commit of the group that names the table (in topics that the query has
    read: any table), and its offset. ``at_end``: those without a commit, if the query begins such partitions at their
    end (``--from latest``). ``unlinked``: what an earlier version begins elsewhere than at the end of the one before.
    ``columns``: those of the rows; None: there are no rows.
    """

    query: str
    batch: int
    covers: str
    ends: str
    _: KW_ONLY
    begin: str | None = None
    covers_before: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    first: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    ranges: tuple[Piece, ...] = ()
    ours: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_end: Collection[TopicPartition] = ()
    unlinked: Mapping[TopicPartition, int] = field(default_factory=dict)
    columns: RowColumns | None = None

    @property
    def is_replay(self) -> bool:
        return self.query.startswith(REPLAY)

    def is_in(self, state: QueryState) -> bool:
        """Returns whether this micro-batch is the newest one in the table."""
        return (self.batch, self.covers) == (state.batch, state.covers) and state.ends in (None, self.ends)

    def state(self, added: Added, tails: LogTails = NO_TAILS) -> QueryState:
        """Returns the state of the query after this micro-batch."""
        if self.is_replay:
            return QueryState(self.batch, self.covers, self.ends, None, added, self.topics, merged(self.ranges))
        return QueryState(self.batch, self.covers, self.ends, self.offsets, added, self.topics, tails=tails)


def key_of(query: str) -> str:
    """Returns the key of a query in a table's state. The id of a replay is cut, as in its file names."""
    return query[: len(REPLAY) + 16] if query.startswith(REPLAY) else query


def covers_of(ranges: Iterable[tuple[TopicPartition, int, int]]) -> str:
    """Returns the digest of ranges of offsets, as (partition, start, end); empty ranges do not count."""
    return _digest(f"{tp} {start} {end}" for tp, start, end in ranges if end > start)


def ends_of(offsets: Mapping[TopicPartition, int]) -> str:
    """Returns the digest of a query's offsets."""
    return _digest(f"{tp} {offset}" for tp, offset in offsets.items())


def topic_of(topic_id: str) -> str:
    """Returns the digest of a topic's id."""
    return _digest([topic_id])


def replaced_topics(held: Mapping[str, str], present: Mapping[str, str]) -> list[str]:
    """Returns the topics whose known ids differ: another topic has the same name. The values are of ``topic_of``."""
    return sorted(topic for topic, digest in held.items() if present.get(topic, digest) != digest)


def _with_former(batch: QueryState, former: QueryState) -> QueryState:
    """Returns a micro-batch with the former offsets of partitions that it lacks. Leaves out those of topics that were
    deleted and created again."""
    gone = set(replaced_topics(former.topics, batch.topics))
    kept = {tp: at for tp, at in (former.offsets or {}).items() if tp.topic not in gone}
    topics = {topic: digest for topic, digest in former.topics.items() if topic not in gone}
    tails = {tp: tail for tp, tail in former.tails.items() if tp.topic not in gone} | dict(batch.tails)
    return replace(batch, offsets=kept | dict(batch.offsets or {}), topics=topics | dict(batch.topics), tails=tails)


def new_starts(before: TableState, plan: BatchPlan) -> dict[TopicPartition, int]:
    """Returns the start offsets of the partitions that no query of the table has read before this micro-batch. Where
    that is not known, there is none. An adoption starts a topic over that was deleted and created again."""
    former = before.newest_query
    if plan.is_replay:
        return {}
    if former is None:
        return dict(plan.first)
    gone = set(replaced_topics(former.topics, plan.topics))
    begun = plan.offsets if plan.is_whole else {}
    held = {tp for tp in former.offsets or {} if tp.topic not in gone}
    first = plan.first if before.is_whole else {}
    return {tp: at for tp, at in first.items() if tp not in held} | {
        tp: at for tp, at in begun.items() if tp.topic in gone
    }


def as_number(digest: str) -> int:
    """Returns 63 bits of a digest. Raises ValueError."""
    return int(digest, 16) & _MASK


def of_number(number: int) -> str:
    """Returns the digest of a number of ``as_number``."""
    return f"{number:016x}"


def name_digest(query: str) -> str:
    """Returns the digest of a query's id."""
    return _digest([query])


def of_text(digest: str) -> str:
    """Returns the digest in the notes of an earlier version of odradek, which had 64 bits. Raises ValueError."""
    return of_number(as_number(digest))


def _digest(lines: Iterable[str]) -> str:
    return of_text(hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16])


def held_batch(state: TableState, plan: BatchPlan, table: str) -> QueryState | None:
    """Returns the micro-batch if the table has it; None if it is the next micro-batch of its query.

    ``table``: the table's name for messages. Raises TableRefused if table and checkpoint do not agree.
    """
    try:
        return _held_batch(state, plan, table)
    except TableRefused as error:
        if not state.restored:
            raise
        raise TableRefused(f"{table}: {state.restored}; {error}") from error


def _held_batch(state: TableState, plan: BatchPlan, table: str) -> QueryState | None:
    known = state.of(plan.query)
    if plan.is_replay:
        check_lost(state, plan)
        if state.is_known or not plan.ranges:
            return _held_replay(known, plan, table)
        raise TableRefused(f"it is not known which ranges of replays are left. {REMEDY}")
    if known is None:
        _check_first(state, plan, table)
        return None
    if plan.batch == known.batch:
        _check_equal(known, plan, table)
        return known
    if plan.batch < known.batch:
        raise TableRefused(
            f"the checkpoint is older than the table: it plans micro-batch {plan.batch}, and {table} has micro-batch "
            f"{known.batch} of this query. {REMEDY}"
        )
    if plan.batch > known.batch + 1:
        raise TableRefused(
            f"the table is older than the checkpoint: the checkpoint plans micro-batch {plan.batch}, and the newest "
            f"one in {table} is {known.batch}. {REMEDY}"
        )
    _check_continued(known, plan, table)
    return None


def _held_replay(known: QueryState | None, plan: BatchPlan, table: str) -> QueryState | None:
    """Returns the state of a replay if the table has its ranges; None if it has none of them. Raises TableRefused if it
    has some: another run has added them meanwhile."""
    if known is None or not plan.ranges:  # without ranges, only the state is asked for
        return known
    again = overlap(plan.ranges, known.done_in(plan.topics))
    if not again:
        return None
    if sum(end - start for _, start, end in again) == sum(end - start for _, start, end in plan.ranges):
        return known
    raise TableRefused(
        f"another run of this replay has added records to {table} meanwhile. Nothing was added: run the command again, "
        "which adds what is left"
    )


def merged(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Returns the ranges in order; those that touch or overlap are one."""
    found: list[Piece] = []
    for tp, start, end in sorted(pieces):
        if found and found[-1][0] == tp and start <= found[-1][2]:
            found[-1] = tp, found[-1][1], max(end, found[-1][2])
        elif end > start:
            found.append((tp, start, end))
    return tuple(found)


def overlap(pieces: Iterable[Piece], others: Iterable[Piece]) -> list[Piece]:
    """Returns the parts of the ranges that the others have, too. Both are merged."""
    held = list(others)
    found = [
        (tp, max(start, low), min(end, high)) for tp, start, end in pieces for other, low, high in held if other == tp
    ]
    return [piece for piece in found if piece[1] < piece[2]]


REMEDY = (
    "Nothing was added, and the group was not committed. Restore the checkpoint that belongs to the table, or let a "
    "new one begin at the table's offsets: `odradek pipeline adopt` shows how"
)


def check_follows(
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    moved: Collection[TopicPartition],
    batch: int,
    checkpoint: str,
) -> None:
    """Checks that a micro-batch in a checkpoint follows the one before it. ``before``, ``after``: the query's offsets.
    ``moved``: the partitions that begin elsewhere, for example after a reset. Raises TableRefused.

    A run plans from memory. If the folder was replaced by another copy meanwhile, the plan does not fit to it.
    """
    back = sorted(tp for tp, at in before.items() if tp not in moved and after.get(tp, at) < at)
    if back:
        raise TableRefused(
            f"micro-batch {batch} in {checkpoint} ends at offset {after[back[0]]} of {back[0]}, and the one before it "
            f"at {before[back[0]]}: a copy of the checkpoint was put back while a run used it. {REMEDY}"
        )


def check_link(noted: str, before: str, batch: int, checkpoint: str) -> None:
    """Checks that a micro-batch in a checkpoint was planned after the one before it. ``before``: a digest of the
    offsets after that one. ``noted``: the digest of those after which it was planned; empty in checkpoints of earlier
    versions. Raises TableRefused.

    Without this check, a partition that is not read now could get an offset up to which no run has read it.
    """
    if noted and noted != before:
        raise TableRefused(
            f"micro-batch {batch} in {checkpoint} was planned after another micro-batch than the one before it there: "
            f"a copy of the checkpoint was put back while a run used it. {REMEDY}"
        )


def unfinished(plan: BatchPlan, table: str, restored: str = "") -> TableRefused:
    """Returns the error about a micro-batch that the checkpoint notes as done, and that the table does not have.
    ``restored``: as in ``TableState``."""
    why = f"{table}: {restored}; " if restored else ""
    return TableRefused(
        f"{why}the table is older than the checkpoint: micro-batch {plan.batch} is done in the checkpoint, and {table} "
        f"does not have it. {REMEDY}"
    )


def _check_first(state: TableState, plan: BatchPlan, table: str) -> None:
    """Checks the first micro-batch of a query in this table."""
    if plan.batch != 0:
        raise TableRefused(
            f"the checkpoint plans micro-batch {plan.batch}, and {table} has no note of an earlier one of this query: "
            f"the table was replaced, or its notes were removed. {REMEDY}"
        )
    other = state.newest_query
    if other is None:
        check_lost(state, plan)
        return
    if other.offsets is None:
        raise TableRefused(
            f"{table} has micro-batches of another query, and an earlier version of odradek did not note their offsets."
            f" {REMEDY}"
        )
    read = {tp.topic for tp in plan.offsets}
    replaced = [topic for topic in replaced_topics(other.topics, plan.topics) if topic in read]
    if replaced:
        raise TableRefused(
            f"{table} has records of an earlier topic {replaced[0]}, which was deleted and created again, and the new "
            f"checkpoint starts at an offset of the earlier one. {REMEDY}"
        )
    wrong = {tp: at for tp, at in other.offsets.items() if tp.topic in read and plan.first.get(tp) != at}
    if wrong:
        tp, offset = min(wrong.items())
        at = plan.first.get(tp)
        raise TableRefused(
            f"{table} has micro-batches of another query, up to offset {offset} of {tp}, and the new checkpoint starts "
            f"at {'no offset' if at is None else at} there. {REMEDY}"
        )


def check_lost(state: TableState, plan: BatchPlan) -> None:
    """Checks that a RESTORE has not taken back all micro-batches of the query. Raises TableRefused.

    It is not known where the table began: the group stands at the rows that are gone, or at an older commit. The entry
    of a replay would hide the RESTORE.
    """
    if state.lost is not None and (plan.ranges or not plan.is_replay):
        raise TableRefused(f"no micro-batch of a query is left. {REMEDY}")


def _check_equal(known: QueryState, plan: BatchPlan, table: str) -> None:
    """Checks a micro-batch that the table has."""
    if known.covers is None:
        raise _unknown(known, table)
    if known.covers != plan.covers or known.ends not in (None, plan.ends):
        raise TableRefused(
            f"micro-batch {plan.batch} is in {table} with other offsets than the checkpoint plans for it: the "
            f"checkpoint is older than the table, or a part of it was lost. {REMEDY}"
        )


def _check_continued(known: QueryState, plan: BatchPlan, table: str) -> None:
    """Checks the next micro-batch: it has to begin where the table ends."""
    if known.ends is None and (known.covers is None or plan.covers_before is None):
        raise _unknown(known, table)
    held, planned = (known.covers, plan.covers_before) if known.ends is None else (known.ends, plan.begin)
    if held != planned:
        raise TableRefused(
            f"the checkpoint plans micro-batch {plan.batch} after other offsets than those at which micro-batch "
            f"{known.batch} in {table} ends: the checkpoint is an older copy, or of another table. {REMEDY}"
        )
    _check_read_again(known, plan, table)


def _check_read_again(known: QueryState, plan: BatchPlan, table: str) -> None:
    """Checks the partitions that the query reads for the first time and the table has read before: by an earlier query,
    or by this one before its checkpoint noted partitions that were missing."""
    gone = set(replaced_topics(known.topics, plan.topics))
    held = {tp: at for tp, at in (known.offsets or {}).items() if tp in plan.first and tp.topic not in gone}
    wrong = sorted(tp for tp, at in held.items() if plan.first[tp] != at)
    if wrong:
        raise TableRefused(
            f"{table} has read {wrong[0]} up to offset {held[wrong[0]]}, and the checkpoint, which did not read it "
            f"for a while, continues at {plan.first[wrong[0]]}. {REMEDY}"
        )


def unnoted_partitions(state: TableState, plan: BatchPlan) -> set[TopicPartition]:
    """Returns the partitions that a query reads for the first time, and that the table may have read before: an earlier
    version of odradek forgot partitions that were missing once, and a Delta log without its first commits may have lost
    the notes of a query."""
    if plan.is_replay or state.is_whole:
        return set()
    known = state.of(plan.query) or state.newest_query
    return set(plan.first) - set(known.offsets or {} if known is not None else {})


def check_rows(ends: Mapping[TopicPartition, int], plan: BatchPlan, table: str) -> None:
    """Checks that no row would come again. ``ends``: the offsets after the last rows of ``unnoted_partitions``. Raises
    TableRefused."""
    again = sorted(tp for tp, end in ends.items() if end > plan.first[tp])
    if again:
        raise TableRefused(
            f"{table} has rows of {again[0]} up to offset {ends[again[0]] - 1}, and the checkpoint, which did not read "
            f"it before, starts at {plan.first[again[0]]}. {REMEDY}"
        )


def _unknown(known: QueryState, table: str) -> TableRefused:
    return TableRefused(
        f"it is not known which offsets micro-batch {known.batch} in {table} has: an earlier version of odradek did "
        f"not note them, or its note was removed. {REMEDY}"
    )


def to_json(state: TableState) -> dict[str, object]:
    """Returns the state as a JSON value."""
    queries = {name: _query_json(one) for name, one in state.queries.items()}
    starts = {"starts": _nested(state.starts)} if state.starts else {}
    columns = {} if state.columns is None else {"columns": dict(state.columns)}
    return {"run": list(state.run), "queries": queries, "whole": state.is_whole, **starts, **columns}


def _query_json(one: QueryState) -> dict[str, object]:
    found: dict[str, object] = {"batch": one.batch, "covers": one.covers, "ends": one.ends, "added": list(one.added)}
    if one.offsets is not None:
        found["offsets"] = _nested(one.offsets)
    if one.topics:
        found["topics"] = dict(sorted(one.topics.items()))
    if one.done:
        found["done"] = [[*tp, start, end] for tp, start, end in one.done]
    return found | ({"tails": [[*tp, *tail] for tp, tail in sorted(one.tails.items())]} if one.tails else {})


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        nested.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return nested


def _offsets_of(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): int(offset)
        for topic, partitions in nested.items()
        for number, offset in partitions.items()
    }


def of_json(value: Mapping[str, Any]) -> TableState:
    """Reads the value of ``to_json``. Raises ValueError, KeyError, TypeError."""
    number, name = value["run"]
    found = TableState(RunTag(int(number), str(name)), {str(q): _query_of(one) for q, one in value["queries"].items()})
    starts = _offsets_of(value.get("starts", {}))
    columns = dict(value["columns"]) if "columns" in value else None
    is_whole = value.get("whole") is True or found.newest_query is None
    return replace(found, is_whole=is_whole, starts=starts, columns=columns)


def _query_of(one: Mapping[str, Any]) -> QueryState:
    offsets = _offsets_of(one["offsets"]) if "offsets" in one else None
    topics = {str(topic): str(digest) for topic, digest in one.get("topics", {}).items()}
    done = [(TopicPartition(str(t), int(p)), int(start), int(end)) for t, p, start, end in one.get("done", ())]
    tails = {TopicPartition(str(t), int(p)): LogTail(*map(int, tail)) for t, p, *tail in one.get("tails", ())}
    return QueryState(
        int(one["batch"]), one["covers"], one["ends"], offsets, Added(*one["added"]), topics, tuple(done), tails
    )
