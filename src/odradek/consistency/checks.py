"""All checks of a history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from odradek.consistency.anomalies import Anomaly, merged
from odradek.consistency.client_history import ClientHistory
from odradek.consistency.commits import commit_anomalies
from odradek.consistency.latest_offsets import latest_anomalies, open_transaction_anomalies
from odradek.consistency.operations import CommittedOffset, SetPosition
from odradek.consistency.owners import owner_anomalies
from odradek.consistency.partition_records import RecordTable
from odradek.consistency.polls import poll_anomalies
from odradek.consistency.records import record_anomalies
from odradek.consistency.resumptions import resumption_anomalies
from odradek.consistency.transactions import Decisions
from odradek.core.counts import counted


def find_anomalies(history: ClientHistory, step: Callable[[str], None] = lambda label: None) -> list[Anomaly]:
    """Returns what must not be in a history: for each name and subject the anomaly with the shortest proof.

    ``step`` is called with what is checked next."""
    return merged(_all(history, step))


def unchecked(history: ClientHistory) -> list[str]:
    """Returns what the checks leave open, one line for each reason."""
    found = []
    registers = {one.register for one in history.commits if one.transaction is not None and one.outcome != "failed"}
    at_once = Counter(one.register for one in history.fetches if one.outcome == "done" and not one.is_stable)
    for group, topic, partition in sorted(registers & at_once.keys()):
        count = counted(at_once[group, topic, partition], "fetched offset")
        found.append(f'{count} of {group} {topic}-{partition} without "stable": how soon they show a transaction')
    done = [one for one in history.sends if one.outcome == "done"]
    if weak := sum(not one.acks_all for one in done):
        found.append(f'{counted(weak, "send")} without acks "all": whether the records are lost')
    if nowhere := sum(one.acks_all and not one.is_acknowledged for one in done):
        found.append(f"{counted(nowhere, 'send')} without a partition and an offset: whether the records are lost")
    if unseen := sum(value is None for poll in history.polls for _, value in poll.records):
        found.append(f"{counted(unseen, 'polled record')} without a value: of which send they are")
    found += _without_a_send(history)
    return [*found, *_without_a_member(history)]


def _without_a_member(history: ClientHistory) -> list[str]:
    """The clients of groups with members that do not say which member they are."""
    steps: list[SetPosition | CommittedOffset] = [*history.positions, *history.commits]
    groups = {one.group for one in history.positions}
    groups |= {one.group for one in history.commits if one.identity is not None}
    unnamed = Counter((one.group, one.client) for one in steps if one.group in groups and one.identity is None)
    return [
        f"{counted(count, 'operation')} of {client} in {group} without a member: whether a partition has two owners,"
        " and whether a former member commits"
        for (group, client), count in sorted((key, count) for key, count in unnamed.items() if key[0] is not None)
    ]


def _without_a_send(history: ClientHistory) -> list[str]:
    """The records that no recorded producer has sent: of topics to which one sends, others may be missing."""
    topics = {one.topic for one in history.sends}
    values = {one.value for one in history.sends}
    unsent = {
        (poll.where, offset)
        for poll in history.polls
        if poll.topic in topics
        for offset, value in poll.records
        if value is not None and value not in values
    }
    return [f"{counted(len(unsent), 'polled record')} with a value of no send: who wrote them"] if unsent else []


def _all(history: ClientHistory, step: Callable[[str], None]) -> Iterator[Anomaly]:
    step(f"{len(history.sends):,} sends and {len(history.polls):,} polls")
    table = RecordTable(history.sends, history.polls, history.ends)
    decisions = Decisions(history.transaction_ends, history.polls, table.sends, history.commits, history.fetches)
    table.index(decisions)
    yield from record_anomalies(table, decisions)
    yield from poll_anomalies(history.polls, history.positions, table, decisions)
    yield from resumption_anomalies(history, decisions, table)
    yield from owner_anomalies(history)
    yield from latest_anomalies(history.ends, table)
    yield from open_transaction_anomalies(history.ends, table, decisions)
    yield from commit_anomalies(history.commits, history.fetches, decisions, step)
