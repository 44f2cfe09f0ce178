"""What the templates show: values of the JSON API with links, words and plots. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from odradek.history.verdict_rules import Status
from odradek.monitor.choices import SORTS
from odradek.monitor.http.json_api import Json, group_detail, groups_page, monitor_state, number_of, topic_detail
from odradek.monitor.incidents.service import MOST_CLOSED, Incidents
from odradek.monitor.offsets_reader import OffsetsTopicReader
from odradek.monitor.web.formats import link

ROWS = 100
COLUMNS = (
    ("name", "Group", "name"), ("status", "Status", "-status"), ("state", "State", ""), ("lag", "Lag", "-lag"),
    ("time_lag", "Time lag", "-time_lag"), ("records_per_second", "Read/s", "-records_per_second"),
    ("clear", "Clear in", "-clear"), ("partitions", "Partitions", "-partitions"), ("lost", "Lost", "-lost"),
    ("findings", "Findings", "-findings"), ("expires", "First expiry", "expires"),
    ("newest_commit", "Newest commit", "-newest_commit"),
)  # fmt: skip
"""The columns of the groups: the name of the sort, the title, and the sort of the first click ("": none)."""
_QUERY = ("search", "status", "state", "sort")
MOST_FINDINGS, MOST_READERS = 50, 500


def state_view(reader: OffsetsTopicReader, cluster: str, incidents: Incidents | None = None) -> Json:
    """Returns what the head of every page shows."""
    is_open = None if incidents is None else len(incidents.observer.book.open)
    return {"cluster": cluster, "monitor": monitor_state(reader), "open_incidents": is_open}


def incidents_view(incidents: Incidents, query: Mapping[str, str]) -> Json:
    """Returns the open and the newest closed incidents. Raises RequestRefused, StoreFailed."""
    rows = incidents.rows(closed=number_of(query, "closed", ROWS, MOST_CLOSED))
    for row in rows:
        ended = row["closed_ms"]
        row["lasted_ms"] = None if ended is None else ended - row["opened_ms"]
    return {
        "open": [row for row in rows if row["closed_ms"] is None],
        "closed": [row for row in rows if row["closed_ms"] is not None],
        "pending": incidents.pending(),
        "trouble": incidents.observer.trouble,
    }


def groups_view(reader: OffsetsTopicReader, query: Mapping[str, str]) -> Json:
    """Returns the list of groups. Raises RequestRefused."""
    chosen = {name: query.get(name, "") for name in _QUERY}
    chosen["sort"] = chosen["sort"] or "-status"
    page = groups_page(reader, dict(query) | {"sort": chosen["sort"], "limit": str(ROWS)})
    offset, total = int(query.get("offset", "0")), page["total"]
    states = sorted({one.state for one in reader.tracker.group_states.values() if one.state})
    pages: dict[str, str | None] = {"earlier": None, "later": None}
    if offset > 0:
        pages["earlier"] = link("/", **chosen, offset=max(0, offset - ROWS))
    if offset + ROWS < total:
        pages["later"] = link("/", **chosen, offset=offset + ROWS)
    return {
        "groups": page["groups"], "total": total, "first": offset + 1, "last": offset + len(page["groups"]),
        "chosen": chosen, "states": states, "statuses": [one.name for one in Status if one <= Status.ERR],
        "pages": pages, "columns": [_column(chosen, *one) for one in COLUMNS], "sorts": SORTS,
        "several_link": link("/reset/groups", search=chosen["search"]),
        "is_filtered": any(chosen[name] for name in ("search", "status", "state")),
    }  # fmt: skip


def _column(chosen: Mapping[str, str], name: str, title: str, first: str) -> Json:
    """A column's title and its link, which turns the order if the rows are sorted by it."""
    sort = chosen["sort"]
    is_sorted = sort.removeprefix("-") == name
    turned = name if sort.startswith("-") else f"-{name}"
    target = (turned if is_sorted else first) if first else None
    order = ("descending" if sort.startswith("-") else "ascending") if is_sorted else None
    others = {key: value for key, value in chosen.items() if key != "sort"}
    return {"title": title, "name": name, "order": order, "link": target and link("/", **others, sort=target)}


def group_view(reader: OffsetsTopicReader, group: str, chosen: str) -> Json | None:
    """Returns a group; ``chosen``: the partition whose commits are shown, as TOPIC-NUMBER; "": the worst one."""
    detail = group_detail(reader, group)
    if detail is None:
        return None
    order = {"REWIND": 0, "STALL": 1, "STOP": 2, "WARN": 3, "NOTFOUND": 4, "OK": 5}
    rows = sorted(detail["partitions"], key=lambda row: (order[row["status"]], -(row["lag"] or 0)))
    for row in rows:
        row["id"] = f"{row['topic']}-{row['partition']}"
        row["link"] = link("/group", name=group, partition=row["id"]) + "#partition"
    shown = next((row for row in rows if row["id"] == chosen), rows[0] if rows else None)
    detail |= {
        "partitions": rows, "shown": shown, "plots": _lag_plot(reader, group), "members": _members(reader, group),
        "finding_count": len(detail["findings"]), "findings": detail["findings"][:MOST_FINDINGS],
    }  # fmt: skip
    if shown is not None:
        detail |= _partition_view(reader, group, shown, detail["findings"])
    return detail


def _lag_plot(reader: OffsetsTopicReader, group: str) -> list[Json]:
    points = reader.lags.of(group)
    if len(points) < 2:
        return []
    return [{
        "marks": [], "id": "lag", "title": "Lag", "unit": "records", "times": [ms for ms, _ in points],
        "series": [{"label": "Lag of the group", "values": [lag for _, lag in points]}],
    }]  # fmt: skip


def _partition_view(reader: OffsetsTopicReader, group: str, shown: Json, findings: list[Json]) -> Json:
    """Returns the commits of the window of a partition, and the plot of its offsets."""
    tracker = reader.tracker
    slots = tracker.slots(group)
    at = next(
        slot
        for slot, tp in zip(slots.tolist(), tracker.partitions_of(slots), strict=True)
        if tp == (shown["topic"], shown["partition"])
    )
    window, ends = tracker.window(at), dict(tracker.log_ends(at))
    commits = [{"offset": offset, "ms": ms, "lag": None if lag < 0 else lag} for offset, ms, lag in window]
    committed = {ms: offset for offset, ms, _ in window}
    times = sorted({*committed, *ends})
    plot = {
        "id": "offsets", "title": f"Offsets of {shown['id']}", "unit": "offset", "times": times,
        "marks": _moves_of(findings, shown),
        "series": [
            {"label": "Log end", "values": [ends.get(ms) for ms in times]},
            {"label": "Committed", "values": [committed.get(ms) for ms in times]},
        ],
    }  # fmt: skip
    return {"commits": commits, "plots": [*_lag_plot(reader, group), *([plot] if len(times) > 1 else [])]}


def _moves_of(findings: list[Json], shown: Json) -> list[int]:
    """Returns the times of the moves of a partition."""
    place = shown["topic"], shown["partition"]
    moves = [one for one in findings if one["kind"] in ("rewind", "jump")]
    return [one["to_ms"] for one in moves if (one["topic"], one["partition"]) == place]


def _members(reader: OffsetsTopicReader, group: str) -> Json | None:
    """Returns the number of members and their topics, from the newest record of the group."""
    event = reader.tracker.live.last_event(group)
    if event is None:
        return None
    topics = None if event.topics is None else sorted(event.topics)
    return {"count": event.members, "topics": topics, "since_ms": event.record_us // 1000}


def topic_view(reader: OffsetsTopicReader, topic: str) -> Json | None:
    """Returns a topic: the bounds of its logs, and each group that reads it with its lag there."""
    detail = topic_detail(reader, topic)
    if detail is None:
        return None
    readers = _readers(reader, topic)
    for row in detail["partitions"]:
        bounds = row["log_start_offset"], row["log_end_offset"]
        row["records"] = None if None in bounds else bounds[1] - bounds[0]
    return detail | {"readers": readers}


def _readers(reader: OffsetsTopicReader, topic: str) -> list[Json]:
    """Returns the groups with a committed offset in a topic, those with the highest lag first."""
    tracker = reader.tracker
    slots = tracker.topic_slots(topic)
    if not len(slots):
        return []
    verdicts, _ = tracker.judge(slots, tracker.last_poll_ms)
    codes, rows = np.unique(tracker.group_codes(slots), return_inverse=True)
    lags, lost, known = (np.zeros(len(codes), np.int64) for _ in range(3))
    np.add.at(lags, rows, np.maximum(verdicts.lags, 0))
    np.add.at(lost, rows, verdicts.lost)
    np.add.at(known, rows, verdicts.lags >= 0)
    worst = np.zeros(len(codes), np.uint8)
    np.maximum.at(worst, rows, verdicts.statuses)
    order = np.argsort(-lags, kind="stable")
    return [
        {
            "group": tracker.group_name(int(codes[at])), "partitions": int((rows == at).sum()),
            "lag": int(lags[at]) if known[at] else None, "status": Status(int(worst[at])).name, "lost": int(lost[at]),
        }
        for at in order[:MOST_READERS].tolist()
    ]  # fmt: skip
