"""Tools that read the view of a monitor: lags, verdicts, findings with their proofs, expiry, topics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from odradek.monitor.agents.tools import Parameter, Tool, ToolRefused
from odradek.monitor.choices import MOST_GROUPS, SORTS
from odradek.monitor.view_sources import Json, ViewSource
from odradek.text.similar_names import nearest

_STATUSES = ("any", "OK", "WARN", "ERR", "NOTFOUND")
_SORTS = tuple(sign + name for name in SORTS for sign in ("", "-"))
_SPANS = ("clear_ms", "time_lag_ms", "time_lag_error_ms")
"""Names of numbers of milliseconds that are no moments."""
_LIMIT = Parameter("limit", "integer", "the highest number of rows", 20, least=1, most=500)
_GROUP = Parameter("group", "string", "the name of the group")


def view_tools(source: ViewSource) -> tuple[Tool, ...]:
    """Returns the tools over a view."""
    view = _View(source)
    return (
        Tool(
            "cluster_status", "State of the view",
            "How many groups and partitions are followed, when the last poll was, and which numbers are stale for "
            "which reason. Ask this first.",
            view.cluster_status,
        ),
        Tool(
            "list_groups", "Consumer groups",
            "Groups with status (Burrow's rules: OK, WARN, ERR), state, lag in records, lag in time, rates, time until "
            "the lag clears, number of findings, and expiry of their offsets.",
            view.list_groups,
            (
                Parameter("search", "string", "a part of the name", ""),
                Parameter("status", "string", "only groups with this status", "any", _STATUSES),
                Parameter("sort", "string", "the order; - before a name: the highest first", "-status", _SORTS),
                _LIMIT,
                Parameter("offset", "integer", "how many rows to leave out at the start", 0, most=1 << 31),
            ),
        ),
        Tool(
            "describe_group", "One consumer group",
            "A group: for each partition its committed offset, lag, time lag, the rule of its verdict with the reason, "
            "and the time at which the offset expires. The partitions with the highest lag come first.",
            view.describe_group,
            (_GROUP, _LIMIT),
        ),
        Tool(
            "list_findings", "Findings with proofs",
            "When and by whom offsets moved: rewinds and jumps with their cause (a reset, a tool, a member, an expired "
            "offset), rebalance storms, groups that never commit, offsets that expire soon. Each finding says how "
            "certain it is and names the records of __consumer_offsets that prove it.",
            view.list_findings,
            (
                Parameter("group", "string", "only findings about this group; empty: all groups", ""),
                Parameter("kind", "string", "only findings of this kind; empty: all kinds", ""),
                _LIMIT,
                Parameter("proofs", "integer", "the highest number of proofs of a finding", 5, most=100),
            ),
        ),
        Tool(
            "list_expiring_offsets", "Offsets that expire",
            "Groups whose committed offsets expire, the next one first. A consumer of such a group then begins where "
            "auto.offset.reset says.",
            view.list_expiring_offsets,
            (_LIMIT,),
        ),
        Tool(
            "describe_topic", "One topic",
            "A topic: the start and the end of each log, and the groups that have a committed offset in it.",
            view.describe_topic,
            (Parameter("topic", "string", "the name of the topic"),),
        ),
    )  # fmt: skip


class _View:
    def __init__(self, source: ViewSource) -> None:
        self._source = source

    def cluster_status(self) -> Json:
        state = self._source.state()
        return _with_times(state) | {"read_from": self._source.name}

    def list_groups(self, search: str, status: str, sort: str, limit: int, offset: int) -> Json:
        self._check_ready()
        query = {"sort": sort, "limit": str(limit), "offset": str(offset)}
        query |= {"search": search} if search else {}
        query |= {"status": status} if status != "any" else {}
        page = self._source.groups(query)
        return {"total": page["total"], "groups": [_with_times(row) for row in page["groups"]]}

    def describe_group(self, group: str, limit: int) -> Json:
        found = self._group(group)
        rows = sorted(found["partitions"], key=lambda row: (-(row.get("lag") or 0), row["topic"], row["partition"]))
        return {
            "group": group,
            "summary": None if found["summary"] is None else _with_times(found["summary"]),
            "partition_count": len(rows),
            "partitions": [_with_times(row) for row in rows[:limit]],
            "findings": len(found["findings"]),
        }

    def list_findings(self, group: str, kind: str, limit: int, proofs: int) -> Json:
        if group:
            rows = self._group(group)["findings"]
        else:
            self._check_ready()
            rows = self._source.findings()
        kinds = sorted({row["kind"] for row in rows})
        if kind and kind not in kinds:
            if not rows:
                return {"total": 0, "findings": []}
            raise ToolRefused(f"kind: there is no finding {kind!r}{nearest(kind, kinds)}: there are {', '.join(kinds)}")
        chosen = [row for row in rows if not kind or row["kind"] == kind]
        return {
            "total": len(chosen),
            "findings": [
                _with_times(row) | {"proof": [_with_times(one) for one in row["proof"][:proofs]]}
                for row in chosen[:limit]
            ],
        }

    def list_expiring_offsets(self, limit: int) -> Json:
        self._check_ready()
        page = self._source.groups({"sort": "expires", "limit": str(limit)})
        rows = [row for row in page["groups"] if row["expires_ms"] is not None]
        chosen = ("group", "state", "expires_ms", "newest_commit_ms", "partitions", "lag")
        return {"groups": [_with_times({name: row[name] for name in chosen}) for row in rows]}

    def describe_topic(self, topic: str) -> Json:
        self._check_ready()
        found = self._source.topic(topic)
        if found is None:
            raise ToolRefused(
                f"topic: no group has a committed offset in {topic!r}, or there is no such topic: describe_group names "
                "the topics of a group"
            )
        return found

    def _group(self, name: str) -> Json:
        self._check_ready()
        found = self._source.group(name)
        if found is None:
            names = [row["group"] for row in self._source.groups({"limit": str(MOST_GROUPS)})["groups"]]
            raise ToolRefused(f"group: there is no group {name!r}{nearest(name, names)}: list_groups has the names")
        return found

    def _check_ready(self) -> None:
        state = self._source.state()
        trouble = state["trouble"]
        if state["polled_ms"] is None:
            why = "the offsets topic is being read" if trouble is None else trouble["text"]
            raise ToolRefused(f"there is no view yet: {why}: ask again in some seconds")


def _with_times(row: Mapping[str, Any]) -> Json:
    """Returns a row with each time since 1970 also as text: an agent reads no milliseconds. A time that no calendar
    shows stays a number."""
    made: Json = {}
    for name, value in row.items():
        made[name] = value
        if name.endswith("_ms") and name not in _SPANS and isinstance(value, int):
            with suppress(ValueError, OverflowError, OSError):
                made[name.removesuffix("_ms")] = datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="seconds")
    return made
