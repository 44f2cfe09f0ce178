"""The replies of ``/api/v1``: groups, one group, one topic, and the state of the monitor, as JSON values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from odradek.history.records.columns import rows_with_numbers
from odradek.history.verdict_rules import RULE_TEXTS, Status, VerdictRule
from odradek.monitor.choices import MOST_GROUPS, SORTS, RequestRefused
from odradek.monitor.group_sums import GroupColumns
from odradek.monitor.offsets_reader import OffsetsTopicReader
from odradek.text.printable import printable
from odradek.text.similar_names import nearest

Json = dict[str, Any]
_DESCENDING = "-"
_OF_GROUPS = ("OK", "WARN", "ERR", "NOTFOUND")
_MOST_FINDINGS = 1_000
GROUP_PARAMETERS = ("limit", "offset", "position_of", "search", "sort", "state", "status")
INCIDENT_PARAMETERS = ("closed",)


def monitor_state(reader: OffsetsTopicReader) -> Json:
    """Returns what the monitor follows, and what is stale for which reason."""
    tracker, trouble = reader.tracker, reader.trouble
    return {
        "ready": reader.is_ready,
        "source": reader.source,
        "source_reason": reader.source_reason or None,
        "trouble": None if trouble is None else {"since_ms": trouble.since_ms, "text": trouble.text},
        "polled_ms": tracker.last_poll_ms if tracker.last_poll_ms >= 0 else None,
        "groups": 0 if reader.groups is None else len(reader.groups.names),
        "partitions": tracker.key_count,
        "entries": tracker.entry_count,
        "unreadable_entries": tracker.unreadable.count,
        "unreadable": [str(one) for one in tracker.unreadable.first[:10]],
        "stale_logs": {str(tp): reason for tp, reason in sorted(tracker.stale_logs.items())},
        "stale_sources": {str(number): reason for number, reason in sorted(tracker.stale_sources.items())},
    }


def groups_page(reader: OffsetsTopicReader, query: Mapping[str, str]) -> Json:
    """Returns groups: sorted, filtered and searched. Raises RequestRefused.

    ``sort`` is one of ``SORTS``, with ``-`` before it for the highest first; ``search`` a part of the name; ``status``
    OK, WARN, ERR or NOTFOUND; ``state`` a state such as Stable; ``limit`` and ``offset`` choose the rows.
    With ``position_of`` the reply has the ``position`` of the group with this name among the chosen ones, or null.
    """
    groups, states = reader.groups, reader.tracker.group_states
    if groups is None:
        return {"total": 0, "groups": []} | ({"position": None} if "position_of" in query else {})
    chosen = np.ones(len(groups.names), np.bool_)
    if search := query.get("search", "").lower():
        chosen &= np.array([search in name.lower() for name in groups.names], np.bool_)
    if status := query.get("status"):
        if status not in _OF_GROUPS:
            raise RequestRefused("status", f"status: a group's is {', '.join(_OF_GROUPS)}, not {status!r}")
        chosen &= groups.statuses == Status[status]
    if state := query.get("state"):
        chosen &= np.array([name in states and states[name].state == state for name in groups.names], np.bool_)
    rows = np.flatnonzero(chosen)
    order = _order(groups, query.get("sort", "name"))
    rows = order[chosen[order]]
    limit, offset = number_of(query, "limit", 100, MOST_GROUPS), number_of(query, "offset", 0, 1 << 31)
    shown = rows[offset : offset + limit]
    page: Json = {"total": len(rows), "groups": [_group_row(reader, groups, at) for at in shown.tolist()]}
    if "position_of" in query:
        page["position"] = _position(groups, rows, query["position_of"])
    return page


def _position(groups: GroupColumns, rows: Any, name: str) -> int | None:
    at = bisect_left(groups.names, name)
    if at == len(groups.names) or groups.names[at] != name:
        return None
    places = np.flatnonzero(rows == at)
    return int(places[0]) if len(places) else None


def _order(groups: GroupColumns, sort: str) -> Any:
    """Returns the rows in the order of ``sort``. Groups with the same value are in the order of their names."""
    name = sort.removeprefix(_DESCENDING)
    if name not in SORTS:
        raise RequestRefused("sort", f"sort: expected {', '.join(SORTS)}, not {name!r}")
    rows = np.arange(len(groups.names))
    if name == "name":
        return rows[::-1] if sort.startswith(_DESCENDING) else rows
    columns = {
        "lag": groups.lags,
        "max_lag": groups.highest_lags,
        # unknown with a lag: the first unread record is older than all polls, so these are the highest
        "time_lag": np.where((groups.time_lags < 0) & (groups.lags > 0), 1 << 62, groups.time_lags),
        "lost": groups.lost,
        "records_per_second": groups.read_rates,
        "clear": np.where(groups.clear_ms < 0, 1 << 62, groups.clear_ms),
        "status": groups.statuses.astype(np.int64),
        "partitions": groups.partitions,
        "newest_commit": groups.newest_commits,
        "findings": groups.findings,
        "expires": np.where(groups.expires_ms < 0, 1 << 62, groups.expires_ms),
    }
    values = columns[name]
    return np.argsort(-values if sort.startswith(_DESCENDING) else values, kind="stable")


def check_parameters(query: Mapping[str, str], known: Sequence[str]) -> Mapping[str, str]:
    """Returns the query. Raises RequestRefused for a parameter that is not known: it would change nothing."""
    for name in sorted(query.keys() - set(known)):
        meant = nearest(name, known) or f": the parameters are {', '.join(known)}"
        raise RequestRefused(name, f"there is no parameter {printable(name)}{meant}")
    return query


def number_of(query: Mapping[str, str], field: str, default: int, most: int) -> int:
    """Returns the value of a parameter. Raises RequestRefused."""
    text = query.get(field, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > most:
        raise RequestRefused(field, f"{field}: expected a number from 0 to {most}, not {text!r}")
    return int(text)


def _group_row(reader: OffsetsTopicReader, groups: GroupColumns, at: int) -> Json:
    name = groups.names[at]
    state = reader.tracker.group_states.get(name)
    return {
        "group": name,
        "status": Status(int(groups.statuses[at])).name,
        "state": state.state if state else None,
        "type": state.type if state else None,
        "lag": int(groups.lags[at]),
        "max_lag": int(groups.highest_lags[at]),
        "time_lag_ms": _known(groups.time_lags[at]),
        "time_lag_error_ms": _known(groups.time_lag_errors[at]),
        "lost": int(groups.lost[at]),
        "partitions": int(groups.partitions[at]),
        "records_per_second": float(groups.read_rates[at]),
        "arrivals_per_second": float(groups.arrival_rates[at]),
        "clear_ms": _known(groups.clear_ms[at]),
        "stale_partitions": int(groups.stale[at]),
        "newest_commit_ms": _known(groups.newest_commits[at]),
        "findings": int(groups.findings[at]),
        "expires_ms": _known(groups.expires_ms[at]),
    }


def _known(value: Any) -> int | None:
    return None if value < 0 else int(value)


def group_detail(reader: OffsetsTopicReader, group: str) -> Json | None:
    """Returns a group with its partitions and their verdicts; None if there is no such group."""
    groups, tracker = reader.groups, reader.tracker
    if groups is None or group not in tracker.group_names():
        return None
    slots, now_ms = tracker.slots(group), tracker.last_poll_ms
    table = tracker.table(now_ms, group)
    ages: dict[tuple[str, int], tuple[int, int]] = {}
    if len(slots):
        verdicts, bounds = tracker.judge(slots, now_ms)
        lags = tracker.ages(slots, np.maximum(verdicts.offsets, bounds.starts), now_ms)
        ages = dict(zip(tracker.partitions_of(slots), zip(*(one.tolist() for one in lags), strict=True), strict=True))
    expiry = {(row["topic"], row["partition"]): row for row in rows_with_numbers(tracker.expiry(now_ms, group))}
    stale = {tuple(tp): reason for tp, reason in tracker.stale_logs.items()}
    rows = [
        _partition_row(row, ages, expiry) | {"stale": stale.get((row["topic"], row["partition"]))}
        for row in rows_with_numbers(table)
    ]
    at = groups.names.index(group) if group in groups.names else None
    summary = None if at is None else _group_row(reader, groups, at)
    return {"group": group, "summary": summary, "partitions": rows, "findings": findings(reader, group)}


def findings(reader: OffsetsTopicReader, group: str | None = None) -> list[Json]:
    """Returns the findings about a group or about all groups, the most serious kinds first, with times in ms."""
    tracker = reader.tracker
    table = tracker.findings(tracker.last_poll_ms, group).slice(0, _MOST_FINDINGS)
    return [_in_ms(row) | {"proof": [_in_ms(one) for one in row["proof"]]} for row in rows_with_numbers(table)]


def _in_ms(row: Json) -> Json:
    """Returns a row with ``…_ms`` in place of ``…_timestamp``."""
    return {
        name.replace("_timestamp", "_ms"): value // 1000 if name.endswith("_timestamp") and value is not None else value
        for name, value in row.items()
    }


def _partition_row(
    row: Json, ages: Mapping[tuple[str, int], tuple[int, int]], expiry: Mapping[tuple[str, int], Json]
) -> Json:
    partition = row["topic"], row["partition"]
    row = _in_ms(row)
    age, error = ages.get(partition, (-1, -1))
    row["time_lag_ms"], row["time_lag_error_ms"] = _known(age), _known(error)
    row["reason"] = RULE_TEXTS[VerdictRule[row["rule"]]]
    expires = expiry.get(partition, {})
    row["expires_ms"] = None if expires.get("expires_at") is None else expires["expires_at"] // 1000
    row["expiry_counts_from"] = expires.get("counted_from")
    return row


def topic_detail(reader: OffsetsTopicReader, topic: str) -> Json | None:
    """Returns a topic's partitions and the groups that have a committed offset in it; None without one."""
    tracker = reader.tracker
    partitions, bounds = tracker.bounds(tracker.last_poll_ms)
    rows = [
        {"partition": tp.partition, "log_start_offset": _known(start), "log_end_offset": _known(end),
         "stale": tracker.stale_logs.get(tp)}
        for tp, start, end in zip(partitions, bounds.starts, bounds.ends, strict=True)
        if tp.topic == topic
    ]  # fmt: skip
    if not rows:
        return None
    rows.sort(key=lambda row: row["partition"] or 0)
    return {"topic": topic, "partitions": rows, "groups": tracker.groups_of_topic(topic)}
