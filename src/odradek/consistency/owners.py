"""Checks of the members of groups: who owns a partition, and whose commits are accepted.

A member learns late what the coordinator has decided. So an assignment alone does not show that the member still owns
the partition at that moment: a member that stood still may run its callback when another one has the partition. Two
things are certain. One generation of a classic group has one assignment. And a member that commits with success was a
member then, so it has owned all the time what it was assigned before and has not given up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from odradek.consistency.anomalies import FORMER_MEMBER, TWO_OWNERS, Anomaly, proof
from odradek.consistency.client_history import ClientHistory
from odradek.consistency.operations import (
    CommittedOffset,
    MemberIdentity,
    Register,
    RevokedPartition,
    SetPosition,
)

_OwnerStep: TypeAlias = SetPosition | RevokedPartition | CommittedOffset
_Named: TypeAlias = tuple[str, SetPosition | CommittedOffset, MemberIdentity]


def owner_anomalies(history: ClientHistory) -> Iterator[Anomaly]:
    """Yields the partitions with two owners, and the commits of former members."""
    given: list[SetPosition | CommittedOffset] = [*history.positions, *history.commits]
    named: list[_Named] = [
        (one.group, one, one.identity)
        for one in given
        if one.group is not None and one.identity is not None and one.outcome == "done"
    ]
    modern = {group for group, _, identity in named if identity.is_epoch}
    classic = [one for one in named if one[0] not in modern]
    yield from _owners_in_one_generation(classic)
    yield from _owners_at_once(history)
    yield from _former_members(classic)


def _owners_in_one_generation(named: Iterable[_Named]) -> Iterator[Anomaly]:
    owners: dict[tuple[Register, int], tuple[SetPosition, str]] = {}
    for group, one, identity in sorted(named, key=lambda row: row[1].start):
        if isinstance(one, SetPosition):
            key = ((group, one.topic, one.partition), identity.number)
            first, member = owners.setdefault(key, (one, identity.member))
            if member != identity.member:
                text = f"{member} and {identity.member} own it in generation {identity.number}"
                yield Anomaly(TWO_OWNERS, f"{group} {one.where}", text, proof(first, one))


def _former_members(named: Sequence[_Named]) -> Iterator[Anomaly]:
    """A commit is refused if the group has had a later generation before it began. A group under KIP-848 takes commits
    of members with several epochs."""
    shown = sorted(named, key=lambda row: row[1].end)
    newest: dict[str, tuple[int, SetPosition | CommittedOffset]] = {}
    passed = 0
    for group, one, identity in sorted(named, key=lambda row: row[1].start):
        while passed < len(shown) and shown[passed][1].end < one.start:
            other_group, other, of_other = shown[passed]
            if other_group not in newest or of_other.number > newest[other_group][0]:
                newest[other_group] = of_other.number, other
            passed += 1
        if isinstance(one, CommittedOffset) and group in newest and identity.number < newest[group][0]:
            number, witness = newest[group]
            text = f"{identity.member} commits in generation {identity.number}, and generation {number} was there"
            yield Anomaly(FORMER_MEMBER, f"{group} {one.topic}-{one.partition}", text, proof(witness, one))


# --- owners at one time ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Tenure:
    """What one member owns from the end of an assignment to the begin of its last commit with success."""

    assigned: SetPosition
    identity: MemberIdentity
    commits: list[CommittedOffset]

    @property
    def start(self) -> float:
        return self.assigned.end

    @property
    def end(self) -> float:
        return self.commits[-1].start

    def commit_after(self, moment: float) -> CommittedOffset:
        return self.commits[bisect_right(self.commits, moment, key=lambda one: one.start)]

    def has(self, commit: CommittedOffset) -> bool:
        """Whether a commit shows that the member has been in the group since its assignment."""
        own, shown = self.identity, commit.identity
        return (
            commit.outcome == "done"
            and shown is not None
            and (shown.member, shown.is_epoch) == (own.member, own.is_epoch)
            and shown.number >= own.number
            and commit.start > self.start
        )


def _owners_at_once(history: ClientHistory) -> Iterator[Anomaly]:
    tenures: defaultdict[Register, list[_Tenure]] = defaultdict(list)
    for (_, register), steps in _steps(history).items():
        tenures[register] += _tenures(steps)
    for register in sorted(tenures):
        yield from _overlaps(register, sorted(tenures[register], key=lambda one: one.start))


def _steps(history: ClientHistory) -> dict[tuple[str, Register], list[_OwnerStep]]:
    """What each client did in each partition of a group, in order. A seek, which has no group, gives nothing up."""
    found: defaultdict[tuple[str, Register], list[_OwnerStep]] = defaultdict(list)
    given: list[_OwnerStep] = [*history.positions, *history.revocations, *history.commits]
    for one in given:
        if one.group is not None:
            found[one.client, (one.group, one.topic, one.partition)].append(one)
    for steps in found.values():
        steps.sort(key=lambda one: one.start)
    return found


def _tenures(steps: Iterable[_OwnerStep]) -> Iterator[_Tenure]:
    current: _Tenure | None = None
    for one in steps:
        if isinstance(one, CommittedOffset):
            if current is not None and current.has(one):
                current.commits.append(one)
            continue
        if current is not None and current.commits:
            yield current
        current = None
        if isinstance(one, SetPosition) and one.identity is not None and one.outcome == "done":
            current = _Tenure(one, one.identity, [])
    if current is not None and current.commits:
        yield current


def _overlaps(register: Register, tenures: Iterable[_Tenure]) -> Iterator[Anomaly]:
    """``tenures``: in order of start. Each is compared with the one of another member that ends last."""
    group, topic, partition = register
    longest: dict[str, _Tenure] = {}  # of each member
    for one in tenures:
        others = (other for member, other in longest.items() if member != one.identity.member)
        last = max(others, key=lambda other: other.end, default=None)
        if last is not None and one.start < last.end:
            text = f"{last.identity.member} and {one.identity.member} own it at the same time: both commit afterwards"
            evidence = proof(last.assigned, one.assigned, last.commit_after(one.start), one.commit_after(one.start))
            yield Anomaly(TWO_OWNERS, f"{group} {topic}-{partition}", text, evidence)
        own = longest.get(one.identity.member)
        if own is None or one.end > own.end:
            longest[one.identity.member] = one
