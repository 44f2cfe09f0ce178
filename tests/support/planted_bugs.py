"""Planted bugs of real brokers: each process of a cluster has one, by the variable ``ODRADEK_PLANTED_BUG``.

``planted`` sets the variable, and a file that Python runs at the start of each process. Tests show that rounds of
faults find each bug (``tests/broker/test_planted_bugs.py``).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

VARIABLE = "ODRADEK_PLANTED_BUG"
_TESTS = Path(__file__).resolve().parent.parent
_HOOK = f"""
import os, sys
if "odradek.broker" in " ".join(sys.orig_argv):
    sys.path.append({str(_TESTS)!r})
    from support.planted_bugs import BUGS
    BUGS[os.environ[{VARIABLE!r}]]()
"""
RARE = 10


def _replace(owner: Any, name: str, made: Any) -> None:
    """Replaces a function by one that can be called in the same way: otherwise the brokers fail in another way than by
    the bug. Raises AssertionError."""
    former = getattr(owner, name)
    if callable(former) and callable(made):
        wanted, given = (inspect.signature(one).parameters.values() for one in (former, made))
        kinds = {one.kind for one in given}
        missing = {one.name for one in wanted} - {one.name for one in given}
        takes_all = kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
        assert takes_all or len(wanted) == len(given), f"{name} takes {missing}, and the planted one does not"
    setattr(owner, name, made)


def _acks_before_replicas() -> None:
    """acks=all is answered when the leader has the records."""
    from odradek.broker.partitions.purgatory import ParkedProduce
    from odradek.core.errors import ErrorCode

    begin = ParkedProduce.__init__

    def soon(self: ParkedProduce, purgatory: Any, client: Any, awaited: Any, *others: Any) -> None:
        begin(self, purgatory, client, awaited, *others)
        self._errors = [ErrorCode.none] * len(awaited)
        self._timer.cancel()
        self._timer = purgatory.loop.call_later(0.001, self._end)

    _replace(ParkedProduce, "__init__", soon)


def _watermark_at_the_end() -> None:
    """The high watermark is the leader's log end."""
    from odradek.replication.effects import MoveWatermark
    from odradek.replication.leader import PartitionLeader

    def moved(self: PartitionLeader, now_ms: int) -> Any:
        if self._end <= self.watermark:
            return ()
        self.watermark = self._end
        return (MoveWatermark(self._end),)

    _replace(PartitionLeader, "_moved", moved)


def _commits_before_replicas() -> None:
    """A commit is answered when the coordinator has it."""
    from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites

    _replace(UnreplicatedWrites, "send", lambda self, end, entries, replies, former=None: self._outgoing.send(replies))


def _unclean_elections() -> None:
    """A replica that is not in sync may lead, whatever unclean.leader.election.enable is."""
    from odradek.cluster.partitions import elections
    from odradek.cluster.partitions.elections import Election, ElectionRules

    elect = elections._elect

    def elected(partition: Any, isr: Any, eligible: Any, rules: ElectionRules) -> Any:
        changed = ElectionRules(rules.is_acceptable, rules.min_isr, rules.has_eligible, Election.UNCLEAN, rules.unclean)
        return elect(partition, isr, eligible, changed)

    _replace(elections, "_elect", elected)


def _sequences_do_not_count() -> None:
    """A repeated batch of an idempotent producer is written again."""
    from odradek.storage.producers.producers import Producers

    check = Producers.check
    _replace(Producers, "find_duplicate", lambda self, header: None)
    _replace(Producers, "check", lambda self, header, *, sequences: check(self, header, sequences=False))


def _latest_lags() -> None:
    """ListOffsets shows an older offset now and then."""
    from odradek.broker.handlers import k02_list_offsets as handler

    entry, numbers = handler._entry, count(1)

    def lagging(index: int, code: Any, result: Any = (-1, -1, -1)) -> Any:
        offset, *others = result
        return entry(index, code, (offset // 2 if next(numbers) % RARE == 0 else offset, *others))

    _replace(handler, "_entry", lagging)


def _reads_begin_late() -> None:
    """A read begins one record too late now and then."""
    from odradek.storage.log import Log

    read, numbers = Log.read, count(1)

    def late(self: Log, offset: int, max_bytes: int, **options: Any) -> Any:
        is_late = self.log_start_offset <= offset < self.high_watermark - 2 and next(numbers) % RARE == 0
        return read(self, offset + is_late, max_bytes, **options)

    _replace(Log, "read", late)


def _commits_are_dropped() -> None:
    """A commit is answered, and the committed offset stays, now and then."""
    from odradek.groups.shard import GroupShard

    replay_block, numbers = GroupShard.replay_block, count(1)

    def dropping(self: GroupShard, offset: int, block: Any) -> None:
        if next(numbers) % RARE:
            replay_block(self, offset, block)

    _replace(GroupShard, "replay_block", dropping)


def _last_stable_offset_at_the_watermark() -> None:
    """Readers with read_committed get the records of open transactions."""
    from odradek.storage.log import Log

    _replace(Log, "last_stable_offset", Log.high_watermark)


def _markers_are_wrong() -> None:
    """A partition gets the marker of the other decision now and then."""
    from odradek.broker.coordinators.transaction_markers import MarkerWriter

    write, numbers = MarkerWriter.write_marker, count(1)

    def wrong(self: MarkerWriter, partition: Any, marker: Any) -> Any:
        is_wrong = next(numbers) % RARE == 0
        return write(self, partition, marker._replace(commit=not marker.commit) if is_wrong else marker)

    _replace(MarkerWriter, "write_marker", wrong)


def _former_members_commit() -> None:
    """A classic group accepts a commit of any member and generation."""
    from odradek.core.errors import ErrorCode
    from odradek.groups.offsets import committed_offsets

    _replace(committed_offsets, "check_classic_commit", lambda group, request: ErrorCode.none)


def _partitions_are_given_early() -> None:
    """A member under KIP-848 gets a partition before the former owner has given it up."""
    from odradek.groups.kip848.member import Reconciliation

    advance = Reconciliation.advance

    def early(self: Reconciliation, member: Any) -> Any:
        return advance(self._replace(is_taken=lambda topic_id, partition: False), member)

    _replace(Reconciliation, "advance", early)


BUGS: dict[str, Callable[[], None]] = {
    "acks before the replicas": _acks_before_replicas,
    "the watermark is the leader's end": _watermark_at_the_end,
    "commits are answered before the replicas": _commits_before_replicas,
    "elections are unclean": _unclean_elections,
    "sequences do not count": _sequences_do_not_count,
    "the latest offset lags": _latest_lags,
    "reads begin late": _reads_begin_late,
    "commits are dropped": _commits_are_dropped,
    "the last stable offset is the watermark": _last_stable_offset_at_the_watermark,
    "markers are wrong": _markers_are_wrong,
    "former members commit": _former_members_commit,
    "partitions are given early": _partitions_are_given_early,
}


@contextmanager
def planted(name: str, folder: Path) -> Iterator[None]:
    """Brokers that are started within have this bug. They have to be new Pythons: forks would not run the file."""
    assert name in BUGS
    (folder / "sitecustomize.py").write_text(_HOOK)
    before = {variable: os.environ.get(variable) for variable in (VARIABLE, "PYTHONPATH")}
    os.environ[VARIABLE] = name
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before["PYTHONPATH"]]))
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value
