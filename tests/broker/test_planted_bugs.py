"""Rounds of faults find bugs that are planted in real brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.brokers import unique
from support.go_programs import go_program
from support.history_rounds import HistoryRounds, our_nodes, report
from support.planted_bugs import BUGS, planted
from support.recorded_clients import (
    ConfluentCommits,
    ConfluentMember,
    ConfluentProducer,
    ConfluentReader,
    OdradekLookups,
    OdradekMember,
    OdradekProducer,
    OdradekReader,
)
from support.recorded_go_clients import SOURCES, FranzMember, FranzProgram
from support.recorded_transactions import ConfluentTransactions, OdradekTransactions

ALONE, COORDINATOR = "the leader is alone and killed", "a coordinator is alone and killed"
KILLED, NO_FOLLOWERS, STALE = "the leader is killed", "the leader has no followers", "a stale broker starts first"
FOUND_BY = {
    "acks before the replicas": ALONE,
    "the watermark is the leader's end": ALONE,
    "commits are answered before the replicas": COORDINATOR,
    "elections are unclean": STALE,
    "sequences do not count": NO_FOLLOWERS,
    "the latest offset lags": KILLED,
    "reads begin late": KILLED,
    "commits are dropped": KILLED,
    "the last stable offset is the watermark": KILLED,
    "markers are wrong": KILLED,
    "former members commit": "a member is paused",
    "partitions are given early": "a member joins",
}
"""Bug → the fault of the rounds."""
NAMES = {
    "acks before the replicas": {"lost write"},
    "the watermark is the leader's end": {"lost write", "different records at one offset"},
    "commits are answered before the replicas": {"lost commit", "fetched offset goes back"},
    "elections are unclean": {"lost write"},
    "sequences do not count": {"duplicate under idempotence"},
    "the latest offset lags": {"latest offset goes back"},
    "reads begin late": {"skipped poll", "lost write"},
    "commits are dropped": {"lost commit", "fetched offset goes back"},
    "the last stable offset is the watermark": {"aborted transaction", "half-visible transaction"},
    "markers are wrong": {"aborted transaction", "half-visible transaction"},
    "former members commit": {"commit of a former member"},
    "partitions are given early": {"two owners"},
}
WITH_TRANSACTIONS = ("the last stable offset is the watermark", "markers are wrong")
WITH_MEMBERS = {"former members commit": "classic", "partitions are given early": "consumer"}
"""Bug → the protocol of the group."""
MOST_ROUNDS = 8


def members_of(rounds: HistoryRounds, protocol: str) -> None:
    """A program of franz-go and a member of ours."""
    FranzProgram.program = go_program(SOURCES)
    rounds.add(OdradekProducer)
    for kind in (FranzMember, OdradekMember):
        rounds.add(kind, group=f"{rounds.topic}.{protocol}", protocol=protocol)


def clients_of(rounds: HistoryRounds, *, idempotent: bool, with_transactions: bool) -> None:
    """An idempotent producer writes no more after a loss: the sequences have a gap."""
    for kind in (ConfluentProducer, OdradekProducer):
        rounds.add(kind, idempotent=idempotent)
    for kind in (ConfluentReader, OdradekReader):
        rounds.add(kind)
    if with_transactions:
        rounds.add(ConfluentTransactions)
        rounds.add(OdradekTransactions)
    group = f"{rounds.topic}.free"
    rounds.add(ConfluentCommits, group=group)
    rounds.add(ConfluentCommits, group=group)
    rounds.add(OdradekLookups, groups=[group])


@pytest.mark.slow
@pytest.mark.usefixtures("plain_broker")
@pytest.mark.parametrize("bug", BUGS)
def test_rounds_find_a_planted_bug(bug: str, tmp_path: Path) -> None:
    """A client may end by the bug, as a reader whose log was truncated. Then the history until there has to show it. A
    leader may change on a busy machine, too, so a client may end before the first fault."""
    with planted(bug, tmp_path), our_nodes() as cluster, HistoryRounds(cluster, unique("h"), 3, 1) as rounds:
        idempotent = bug == "sequences do not count"
        if bug in WITH_MEMBERS:
            members_of(rounds, WITH_MEMBERS[bug])
        else:
            clients_of(rounds, idempotent=idempotent, with_transactions=bug in WITH_TRANSACTIONS)
        for number in range(MOST_ROUNDS + 1):
            failure: Exception | None = None
            try:
                if number == 0:
                    rounds.begin()
                else:
                    rounds.run(FOUND_BY[bug])
            except (AssertionError, RuntimeError) as error:
                failure = error
            found = {one.name for one in rounds.history.check()}
            if found & NAMES[bug]:
                return
            if failure is not None:
                raise AssertionError(f"round {number} could not end, and shows {sorted(found)}") from failure
        raise AssertionError(f"{MOST_ROUNDS} rounds show {sorted(found)}")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_rounds_of_members_without_a_bug_find_nothing(protocol: str, tmp_path: Path) -> None:
    """Members that were paused commit what is no longer theirs, and members join. All of them say which member they
    are, in nearly all of their commits."""
    faults = ["a member joins", *["a member is paused"] * (protocol == "classic")]
    with our_nodes() as cluster, HistoryRounds(cluster, unique("h"), 6, 1) as rounds:
        members_of(rounds, protocol)
        rounds.add(ConfluentMember, group=f"{rounds.topic}.{protocol}", protocol=protocol)
        rounds.begin()
        for name in faults * 3:
            rounds.run(name)
        assert report(rounds.end(), rounds.history, tmp_path) == ""
        rows = [json.loads(line) for line in rounds.history.lines()]
    for kind in (FranzMember, OdradekMember, ConfluentMember):
        own = [one for one in rows if one["op"] == "commit" and one["client"].startswith(kind.__name__)]
        named = sum("member" in one for one in own)
        assert named > len(own) * 0.8 > 0, f"{kind.__name__}: {named} of {len(own)}"


def test_each_bug_fits_the_code_that_it_replaces() -> None:
    """In a process of its own: a bug stays. One with other parameters would end in another failure than by the bug."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
    program += "from support.planted_bugs import BUGS\nfor plant in BUGS.values():\n    plant()\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
