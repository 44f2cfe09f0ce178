"""Reads a history: one JSON object a line, one line for each operation. docs/checker.md describes the fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite
from typing import Any, Final

from odradek.consistency.operations import (
    ClientOperation,
    CommittedOffset,
    ListedEnd,
    MemberIdentity,
    OffsetLookup,
    Outcome,
    PolledRecords,
    RevokedPartition,
    SentRecord,
    SetPosition,
    TransactionEnd,
)
from odradek.core.errors import OdradekError


class HistoryRefused(OdradekError):
    """A line that is no operation, or times that contradict one another. The message names the line."""


@dataclass(slots=True)
class ClientHistory:
    """The operations of all clients, by kind."""

    sends: list[SentRecord] = field(default_factory=list)
    polls: list[PolledRecords] = field(default_factory=list)
    positions: list[SetPosition] = field(default_factory=list)
    revocations: list[RevokedPartition] = field(default_factory=list)
    commits: list[CommittedOffset] = field(default_factory=list)
    fetches: list[OffsetLookup] = field(default_factory=list)
    ends: list[ListedEnd] = field(default_factory=list)
    transaction_ends: list[TransactionEnd] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(1 for _ in self.operations())

    def operations(self) -> Iterator[ClientOperation]:
        for own in (self.sends, self.polls, self.positions, self.revocations, self.commits, self.fetches, self.ends):
            yield from own
        yield from self.transaction_ends


def history_of(lines: Iterable[tuple[str, str]]) -> ClientHistory:
    """Returns the history of lines, each with its place. Raises HistoryRefused."""
    reader = HistoryReader()
    for place, line in lines:
        reader.take(place, line)
    return reader.end()


class HistoryReader:
    """Reads line after line; ``end`` checks that the times of all lines fit together. ``count``: the lines so far."""

    def __init__(self) -> None:
        self.count = 0
        self._history = ClientHistory()

    def take(self, place: str, line: str) -> None:
        """Reads one line; ``place`` is what messages call it. An empty line is no operation. Raises HistoryRefused."""
        if not line.strip():
            return
        self.count += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise HistoryRefused(f"{place}: not a JSON object: write one operation a line") from error
        if not isinstance(row, dict):
            raise HistoryRefused(f"{place}: not a JSON object: write one operation a line")
        try:
            self._add(place, row)
        except _Wrong as error:
            raise HistoryRefused(f"{place}: {error}") from None

    def end(self) -> ClientHistory:
        """Returns all operations. Raises HistoryRefused if their times contradict one another."""
        history = self._history
        if not len(history):
            raise HistoryRefused("no operation: write one line for each call of a client")
        _check_values(history)
        _check_polls(history)
        _check_causes(history)
        _check_transactions(history)
        return history

    def _add(self, place: str, row: Mapping[str, Any]) -> None:
        kind = row.get("op")
        form = _FORMS.get(kind) if isinstance(kind, str) else None
        if form is None:
            raise _Wrong(f"op is {_shown(kind)}: one of {', '.join(_FORMS)}")
        if unknown := next((name for name in row if name not in form.fields and name not in _COMMON), None):
            raise _Wrong(f"{kind} has no field {unknown!r}: it has {', '.join((*_COMMON, *form.fields))}")
        start, end, outcome = _times(row)
        found = {name: _value(row, name, rule) for name, rule in form.fields.items()}
        if found.get("offset") is None and outcome == "done" and kind in ("commit", "list_offsets"):
            raise _Wrong(f"{kind} has no offset")
        if kind == "send" and outcome == "failed" and found["offset"] is not None:
            raise _Wrong("a failed send has no offset: its record was not written")
        if kind in ("list_offsets", "poll") and outcome != "done":
            return  # nothing was seen
        made = form.make(place, _value(row, "client", _TEXT), start, end, outcome, **found)
        getattr(self._history, form.kept_in).append(made)


class _Wrong(Exception):
    """What is wrong with one line."""


_NEEDED: Final = object()
"""The default of a field that a line must have."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """``wanted``: what the field has to be, in words."""

    wanted: str
    accepts: Callable[[Any], bool]
    default: Any = _NEEDED


@dataclass(frozen=True, slots=True)
class _Form:
    """The fields of one kind of operation. ``kept_in``: the list of ``ClientHistory``."""

    make: Callable[..., ClientOperation]
    kept_in: str
    fields: Mapping[str, _Rule]


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 2 and _is_count(one[0]) and (one[1] is None or isinstance(one[1], str))
        for one in value
    )


def _choice(*words: str, default: Any = _NEEDED) -> _Rule:
    return _Rule(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words, default)


_TEXT = _Rule("a text", lambda value: isinstance(value, str))
_COUNT = _Rule("a whole number from 0 on", _is_count)
_MAYBE_TEXT = _Rule("a text or null", lambda value: value is None or isinstance(value, str), None)
_MAYBE_COUNT = _Rule("a whole number from 0 on, or null", lambda value: value is None or _is_count(value), None)
_ATTEMPTS = _Rule("a whole number from 1 to 1000", lambda value: _is_count(value) and 1 <= value <= 1000, 1)
_NO = _Rule("true or false", lambda value: isinstance(value, bool), False)
_TIME = _Rule("a number", lambda value: type(value) in (int, float) and isfinite(value))
_END = _Rule("a number or null", lambda value: value is None or _TIME.accepts(value), None)
_OUTCOME = _choice("done", "failed", "unknown", default="done")
_ISOLATION = _choice("read_uncommitted", "read_committed", default="read_uncommitted")
_ACKS = _Rule('"all", -1, 0 or 1', lambda value: value == "all" or (type(value) is int and value in (-1, 0, 1)), "all")
_RECORDS = _Rule("a list of [offset, value]", _is_records)
_COMMON = ("op", "client", "start", "end", "outcome")


def _sent(*common: Any, acks: str | int, **found: Any) -> SentRecord:
    found["acks_all"] = acks in ("all", -1)
    return SentRecord(*common, **found)


def _polled(*common: Any, records: list[list[Any]], **found: Any) -> PolledRecords:
    found["records"] = tuple((offset, value) for offset, value in records)
    return PolledRecords(*common, **found)


def _assigned(*common: Any, stable: bool, member: Any, generation: Any, epoch: Any, **found: Any) -> SetPosition:
    identity = _identity(member, generation, epoch)
    if identity is not None and found["group"] is None:
        raise _Wrong("assign has a member, but no group: give the group of the member")
    found |= {"is_stable": stable, "identity": identity}
    return SetPosition(*common, **found)


def _committed(*common: Any, member: Any, generation: Any, epoch: Any, **found: Any) -> CommittedOffset:
    found["identity"] = _identity(member, generation, epoch)
    return CommittedOffset(*common, **found)


def _identity(member: str | None, generation: int | None, epoch: int | None) -> MemberIdentity | None:
    if generation is not None and epoch is not None:
        raise _Wrong("a member has a generation or an epoch: give generation for a classic group, epoch for KIP-848")
    number = generation if epoch is None else epoch
    if member is not None and number is not None:
        return MemberIdentity(member, number, epoch is not None)
    if member is not None:
        raise _Wrong("member has no generation: give generation, or epoch for KIP-848")
    if number is not None:
        raise _Wrong(f"{'generation' if epoch is None else 'epoch'} has no member: give the member id")
    return None


def _fetched(*common: Any, stable: bool, stale: bool, **found: Any) -> OffsetLookup:
    found |= {"is_stable": stable, "is_stale": stale}
    return OffsetLookup(*common, **found)


def _listed(*common: Any, stale: bool, **found: Any) -> ListedEnd:
    found["is_stale"] = stale
    return ListedEnd(*common, **found)


_PARTITION = {"topic": _TEXT, "partition": _COUNT}
_MEMBER = {"member": _MAYBE_TEXT, "generation": _MAYBE_COUNT, "epoch": _MAYBE_COUNT}
_FORMS = {
    "send": _Form(_sent, "sends", {
        "topic": _TEXT, "partition": _MAYBE_COUNT, "offset": _MAYBE_COUNT, "value": _TEXT, "number": _MAYBE_COUNT,
        "idempotent": _NO, "acks": _ACKS, "transaction": _MAYBE_TEXT,
    }),
    "poll": _Form(_polled, "polls", _PARTITION | {
        "records": _RECORDS, "position": _MAYBE_COUNT, "isolation": _ISOLATION,
    }),
    "assign": _Form(_assigned, "positions", _PARTITION | {
        "offset": _MAYBE_COUNT, "group": _MAYBE_TEXT, "stable": _NO,
    } | _MEMBER),
    "revoke": _Form(RevokedPartition, "revocations", {"group": _TEXT} | _PARTITION),
    "commit": _Form(_committed, "commits", {"group": _TEXT} | _PARTITION | {
        "offset": _COUNT, "transaction": _MAYBE_TEXT, "attempts": _ATTEMPTS,
    } | _MEMBER),
    "offset_fetch": _Form(_fetched, "fetches", {"group": _TEXT} | _PARTITION | {
        "offset": _MAYBE_COUNT, "stable": _NO, "stale": _NO,
    }),
    "list_offsets": _Form(_listed, "ends", _PARTITION | {
        "of": _choice("earliest", "latest", default="latest"), "offset": _MAYBE_COUNT, "isolation": _ISOLATION,
        "stale": _NO,
    }),
    "end_transaction": _Form(TransactionEnd, "transaction_ends", {
        "transaction": _TEXT, "decision": _choice("commit", "abort"),
    }),
}  # fmt: skip


def _value(row: Mapping[str, Any], name: str, rule: _Rule) -> Any:
    value = row.get(name, rule.default)
    if value is _NEEDED:
        raise _Wrong(f"{row.get('op')} has no {name}: give {rule.wanted}")
    if not rule.accepts(value):
        raise _Wrong(f"{name} is {_shown(value)}: give {rule.wanted}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _times(row: Mapping[str, Any]) -> tuple[float, float, Outcome]:
    start, end, outcome = _value(row, "start", _TIME), _value(row, "end", _END), _value(row, "outcome", _OUTCOME)
    if end is None:
        if row["op"] in ("assign", "revoke"):
            end = start
        elif outcome != "unknown":
            raise _Wrong(f"{row['op']} has no end: only an operation of unknown outcome may have none")
    if end is not None and end < start:
        raise _Wrong(f"the operation ends at {end}, before its start at {start}")
    # An operation of unknown outcome may take effect after its client gave up.
    return start, inf if outcome == "unknown" else end, outcome


# --- times of several lines -----------------------------------------------------------------------------------------


def _check_values(history: ClientHistory) -> None:
    sends: dict[str, SentRecord] = {}
    for send in history.sends:
        other = sends.setdefault(send.value, send)
        if other is not send:
            raise HistoryRefused(
                f"{send.place}: value {send.value!r} was sent before ({other.place}): give each record its own value"
            )


def _check_polls(history: ClientHistory) -> None:
    """A consumer polls a partition once at a time."""
    own: dict[tuple[str, str, int], list[PolledRecords]] = {}
    for poll in history.polls:
        own.setdefault((poll.client, poll.topic, poll.partition), []).append(poll)
    for polls in own.values():
        polls.sort(key=lambda one: (one.start, one.end))
        for before, after in pairwise(polls):
            if after.start < before.end:
                raise HistoryRefused(
                    f"{after.place}: {after.client} began this poll of {after.topic}-{after.partition} at"
                    f" {after.start}, and its poll before ({before.place}) ended at {before.end}: give each consumer"
                    " its own name"
                )


def _check_causes(history: ClientHistory) -> None:
    """A record is polled after its send began."""
    sends = {send.value: send for send in history.sends}
    for poll in history.polls:
        for _, value in poll.records:
            send = sends.get(value) if value is not None else None
            if send is not None and send.start > poll.end:
                raise HistoryRefused(
                    f"{poll.place}: the poll ended at {poll.end} with {value!r}, whose send ({send.place}) began at"
                    f" {send.start}: all times must be of one clock"
                )


def _check_transactions(history: ClientHistory) -> None:
    """What belongs to a transaction begins before the transaction has ended."""
    ended: dict[str, TransactionEnd] = {}
    for call in history.transaction_ends:
        if call.outcome == "done":
            other = ended.setdefault(call.transaction, call)
            if other is not call and other.decision != call.decision:
                raise HistoryRefused(
                    f"{call.place}: transaction {call.transaction!r} ended by {other.decision} before ({other.place}):"
                    " give each transaction its own name"
                )
    parts: list[SentRecord | CommittedOffset] = [*history.sends, *history.commits]
    for one in parts:
        end = ended.get(one.transaction) if one.transaction is not None else None
        if end is not None and one.start > end.end:
            raise HistoryRefused(
                f"{one.place}: this {one.kind} of transaction {one.transaction!r} began at {one.start}, and the"
                f" transaction ({end.place}) ended at {end.end}: give each transaction its own name"
            )
