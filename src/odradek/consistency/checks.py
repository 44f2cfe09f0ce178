"""All checks of a history."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.consistency.anomalies import Anomaly, merged
from odradek.consistency.client_history import ClientHistory
from odradek.consistency.commits import commit_anomalies
from odradek.consistency.latest_offsets import latest_anomalies
from odradek.consistency.partition_records import RecordTable
from odradek.consistency.polls import poll_anomalies
from odradek.consistency.records import record_anomalies
from odradek.consistency.transactions import Decisions


def find_anomalies(history: ClientHistory) -> list[Anomaly]:
    """Returns what must not be in a history: for each name and subject the anomaly with the shortest proof."""
    return merged(_all(history))


def _all(history: ClientHistory) -> Iterator[Anomaly]:
    table = RecordTable(history.sends, history.polls, history.ends)
    decisions = Decisions(history.transaction_ends, history.polls, table.sends)
    table.index(decisions)
    yield from record_anomalies(table, decisions)
    yield from poll_anomalies(history.polls, history.positions, table, decisions)
    yield from latest_anomalies(history.ends, table)
    yield from commit_anomalies(history.commits, history.fetches, decisions)
