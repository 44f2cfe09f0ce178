"""What a table remembers of its runs and queries, for ever and in constant space. Pure.

A query's checkpoint and the table have to agree before a micro-batch is added or skipped. Unknown is not agreement.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition

REPLAY = "replay-"
_BITS = 63
"""The bits of a digest: Delta's ``txn`` has a signed integer of 64 bits."""


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
    the query's offsets after it, and ``offsets``: these offsets; None if an earlier version has added it. ``topics``:
    the digest of each topic's id (``topic_of``), as far as it is known: a topic that is deleted and created again has
    another one.
    """

    batch: int
    covers: str | None
    ends: str | None = None
    offsets: Mapping[TopicPartition, int] | None = field(default=None, compare=False)
    added: Added = field(default=Added(0, 0), compare=False)
    topics: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class TableState:
    """What the newest entry of a table's log says. ``queries``: by ``key_of``, or by the first eight characters of the
    query's id if an earlier version has written it."""

    run: RunTag = NO_RUN
    queries: Mapping[str, QueryState] = field(default_factory=dict)

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
        another one has followed must not continue, because the other one has the next records."""
        is_kept = (lambda name: True) if query.startswith(REPLAY) else (lambda name: name.startswith(REPLAY))
        return TableState(
            run, {name: one for name, one in self.queries.items() if is_kept(name)} | {key_of(query): batch}
        )

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
    digest of the micro-batch before it; None if unknown. ``origins``: the start offsets of partitions that do not start
    at the end of the micro-batch before. ``topics``: as in ``QueryState``.
    """

    query: str
    batch: int
    covers: str
    ends: str
    begin: str | None = None
    covers_before: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    origins: Mapping[TopicPartition, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_replay(self) -> bool:
        return self.query.startswith(REPLAY)

    def is_in(self, state: QueryState) -> bool:
        """Returns whether this micro-batch is the newest one in the table."""
        return (self.batch, self.covers) == (state.batch, state.covers) and state.ends in (None, self.ends)

    def state(self, added: Added) -> QueryState:
        """Returns the state of the query after this micro-batch."""
        return QueryState(self.batch, self.covers, self.ends, self.offsets, added, self.topics)


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


def as_number(digest: str) -> int:
    """Returns 63 bits of a digest. Raises ValueError."""
    return int(digest, 16) & ((1 << _BITS) - 1)


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
    known = state.of(plan.query)
    if plan.is_replay:
        return known
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


REMEDY = (
    "Nothing was added, and the group was not committed. Restore the checkpoint that belongs to the table, or let a "
    "new one begin at the table's offsets: `odradek pipeline adopt` shows how"
)


def unfinished(plan: BatchPlan, table: str) -> TableRefused:
    """Returns the error about a micro-batch that the checkpoint notes as done, and that the table does not have."""
    return TableRefused(
        f"the table is older than the checkpoint: micro-batch {plan.batch} is done in the checkpoint, and {table} does "
        f"not have it. {REMEDY}"
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
        return
    if other.offsets is None:
        raise TableRefused(
            f"{table} has micro-batches of another query, and an earlier version of odradek did not note their offsets."
            f" {REMEDY}"
        )
    replaced = replaced_topics(other.topics, plan.topics)
    if replaced:
        raise TableRefused(
            f"{table} has records of an earlier topic {replaced[0]}, which was deleted and created again, and the new "
            f"checkpoint starts at an offset of the earlier one. {REMEDY}"
        )
    read = {tp.topic for tp in plan.offsets}
    wrong = {tp: at for tp, at in other.offsets.items() if tp.topic in read and plan.origins.get(tp) != at}
    if wrong:
        tp, offset = min(wrong.items())
        at = plan.origins.get(tp)
        raise TableRefused(
            f"{table} has micro-batches of another query, up to offset {offset} of {tp}, and the new checkpoint starts "
            f"at {'no offset' if at is None else at} there. {REMEDY}"
        )


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
    if known.ends is not None:
        if known.ends == plan.begin:
            return
    elif known.covers is None or plan.covers_before is None:
        raise _unknown(known, table)
    elif known.covers == plan.covers_before:
        return
    raise TableRefused(
        f"the checkpoint plans micro-batch {plan.batch} after other offsets than those at which micro-batch "
        f"{known.batch} in {table} ends: the checkpoint is an older copy, or of another table. {REMEDY}"
    )


def _unknown(known: QueryState, table: str) -> TableRefused:
    return TableRefused(
        f"it is not known which offsets micro-batch {known.batch} in {table} has: an earlier version of odradek did "
        f"not note them, or its note was removed. {REMEDY}"
    )


def fenced(run: RunTag, state: TableState, table: str) -> RunFenced:
    """Returns the error of a run that may not publish any more."""
    return RunFenced(
        f"a newer run ({state.run.text}) has published to {table}, so this run ({run.text}) has ended: it has added "
        "nothing since. Run only one pipeline for a table; the next run continues"
    )


def cut_off(run: RunTag, table: str) -> RunFenced:
    """Returns the error of a run that finds the entry on which it builds removed or replaced."""
    return RunFenced(
        f"the notes of {table} have changed while this run ({run.text}) slept or worked: its last entry is not there "
        "any more, or another one is in its place. The run has ended, and has added nothing since. Let only one "
        "pipeline write to a table, and put no copy back while one runs; the next run continues"
    )


# --- the state as JSON ------------------------------------------------------------------------------------------------


def to_json(state: TableState) -> dict[str, Any]:
    """Returns the state as a JSON value."""
    return {"run": list(state.run), "queries": {name: _query_json(one) for name, one in state.queries.items()}}


def _query_json(one: QueryState) -> dict[str, Any]:
    found: dict[str, Any] = {"batch": one.batch, "covers": one.covers, "ends": one.ends, "added": list(one.added)}
    if one.offsets is not None:
        nested: dict[str, dict[str, int]] = {}
        for tp in sorted(one.offsets):
            nested.setdefault(tp.topic, {})[str(tp.partition)] = one.offsets[tp]
        found["offsets"] = nested
    if one.topics:
        found["topics"] = dict(sorted(one.topics.items()))
    return found


def of_json(value: Mapping[str, Any]) -> TableState:
    """Reads the value of ``to_json``. Raises ValueError, KeyError, TypeError."""
    number, name = value["run"]
    return TableState(RunTag(int(number), str(name)), {str(q): _query_of(one) for q, one in value["queries"].items()})


def _query_of(one: Mapping[str, Any]) -> QueryState:
    offsets = None
    if "offsets" in one:
        offsets = {
            TopicPartition(topic, int(number)): int(offset)
            for topic, partitions in one["offsets"].items()
            for number, offset in partitions.items()
        }
    rows, bad, files, size = one["added"]
    topics = {str(topic): str(digest) for topic, digest in one.get("topics", {}).items()}
    return QueryState(int(one["batch"]), one["covers"], one["ends"], offsets, Added(rows, bad, files, size), topics)
