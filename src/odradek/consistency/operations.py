"""The operations of a history: what one client asked for, when, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from odradek.core.ids import TopicPartition

Outcome: TypeAlias = Literal["done", "failed", "unknown"]
"""``failed``: it certainly has no effect. ``unknown``: it may have one, now or later."""
Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
Register: TypeAlias = tuple[str, str, int]
"""Group, topic, partition."""


@dataclass(frozen=True, slots=True)
class ClientOperation:
    """``place``: where the history has it. ``end``: infinite if the client never got an answer."""

    kind: ClassVar[str]
    place: str
    client: str
    start: float
    end: float
    outcome: Outcome

    def describe(self) -> str:
        """Returns what was asked for and what came of it, in one line."""
        raise AssertionError(self)


@dataclass(frozen=True, slots=True)
class MemberIdentity:
    """How a client names itself in a group. ``number``: its generation, or its epoch under KIP-848 (``is_epoch``)."""

    member: str
    number: int
    is_epoch: bool

    def __str__(self) -> str:
        return f"{self.member} in {'epoch' if self.is_epoch else 'generation'} {self.number}"


@dataclass(frozen=True, slots=True)
class SentRecord(ClientOperation):
    """``value``: unique in the history. ``number``: its place among the sends of its client. ``acks_all``: all in-sync
    replicas had to have it. ``partition`` and ``offset``: None if the client does not know."""

    kind = "send"
    topic: str
    partition: int | None
    offset: int | None
    value: str
    number: int | None
    idempotent: bool
    acks_all: bool
    transaction: str | None

    @property
    def where(self) -> TopicPartition | None:
        return None if self.partition is None else TopicPartition(self.topic, self.partition)

    @property
    def is_acknowledged(self) -> bool:
        return self.outcome == "done" and self.acks_all and self.partition is not None and self.offset is not None

    def describe(self) -> str:
        name = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        within = f" in {self.transaction}" if self.transaction else ""
        at = f" at {self.offset}" if self.offset is not None else ""
        return f"send {self.value!r} to {name}{within}: {self.outcome}{at}"


@dataclass(frozen=True, slots=True)
class PartitionOperation(ClientOperation):
    """An operation on one partition."""

    topic: str
    partition: int

    @property
    def where(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class GroupOperation(ClientOperation):
    """An operation on the offset of a group in one partition."""

    group: str
    topic: str
    partition: int

    @property
    def register(self) -> Register:
        return self.group, self.topic, self.partition


@dataclass(frozen=True, slots=True)
class PolledRecords(PartitionOperation):
    """``records``: offsets and values, in the order of the poll. ``position``: the consumer's next offset, if known.
    A value is None if the recorder does not see it."""

    kind = "poll"
    records: tuple[tuple[int, str | None], ...]
    position: int | None
    isolation: Isolation

    def describe(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if not self.records:
            return f"poll {name}: nothing, position {self.position}"
        first, last = self.records[0], self.records[-1]
        after = "" if self.position in (None, last[0] + 1) else f", position {self.position}"
        if len(self.records) == 1:
            return f"poll {name}: offset {first[0]} {first[1]!r}{after}"
        return (
            f"poll {name}: {len(self.records)} records, offset {first[0]} {first[1]!r} to {last[0]} {last[1]!r}{after}"
        )


@dataclass(frozen=True, slots=True)
class SetPosition(PartitionOperation):
    """An assignment, a seek or a reset. ``offset``: the position afterwards; None if it is not known. ``group``: the
    position is the committed offset of this group. ``is_stable``: its lookup waited for open transactions.
    ``identity``: the member that the partition is assigned to, if known."""

    kind = "assign"
    offset: int | None
    group: str | None = None
    is_stable: bool = False
    identity: MemberIdentity | None = None

    def describe(self) -> str:
        at = "an unknown position" if self.offset is None else f"position {self.offset}"
        of = f" of {self.group}" if self.group else ""
        return f"assign {self.topic}-{self.partition}{of}{_to(self.identity)}: {at}"


@dataclass(frozen=True, slots=True)
class RevokedPartition(PartitionOperation):
    """A member begins to give a partition up, or learns that it has lost it."""

    kind = "revoke"
    group: str

    def describe(self) -> str:
        return f"revoke {self.topic}-{self.partition} of {self.group}"


@dataclass(frozen=True, slots=True)
class CommittedOffset(GroupOperation):
    """``transaction``: the commit takes effect with it. ``attempts``: the most requests that the client sent for it.
    ``identity``: the member that commits, if known."""

    kind = "commit"
    offset: int
    transaction: str | None
    attempts: int = 1
    identity: MemberIdentity | None = None

    def describe(self) -> str:
        within = f" in {self.transaction}" if self.transaction else ""
        often = f", {self.attempts} attempts" if self.attempts > 1 else ""
        what = f"commit {self.group} {self.topic}-{self.partition} offset {self.offset}"
        return f"{what}{within}{_by(self.identity)}: {self.outcome}{often}"


@dataclass(frozen=True, slots=True)
class OffsetLookup(GroupOperation):
    """``offset``: None if the group has no commit there. ``is_stable``: the read waits for open transactions.
    ``is_stale``: a former coordinator may have answered."""

    kind = "offset_fetch"
    offset: int | None
    is_stable: bool
    is_stale: bool = False

    def describe(self) -> str:
        found = self.outcome if self.outcome != "done" else "none" if self.offset is None else f"offset {self.offset}"
        stale = ", may be stale" if self.is_stale else ""
        return f"offset fetch {self.group} {self.topic}-{self.partition}: {found}{stale}"


@dataclass(frozen=True, slots=True)
class ListedEnd(PartitionOperation):
    """The earliest or the latest offset of a partition. ``is_stale``: a former leader may have answered."""

    kind = "list_offsets"
    of: Literal["earliest", "latest"]
    offset: int
    isolation: Isolation
    is_stale: bool = False

    def describe(self) -> str:
        kind = f"{self.of} ({self.isolation})" if self.isolation == "read_committed" else self.of
        stale = ", may be stale" if self.is_stale else ""
        return f"list offsets {self.topic}-{self.partition}: {kind} {self.offset}{stale}"


@dataclass(frozen=True, slots=True)
class TransactionEnd(ClientOperation):
    """A call that ends a transaction."""

    kind = "end_transaction"
    transaction: str
    decision: Literal["commit", "abort"]

    def describe(self) -> str:
        return f"{self.decision} {self.transaction}: {self.outcome}"


def _to(identity: MemberIdentity | None) -> str:
    return "" if identity is None else f" to {identity}"


def _by(identity: MemberIdentity | None) -> str:
    return "" if identity is None else f" by {identity}"
