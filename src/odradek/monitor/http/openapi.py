"""The description of ``/api/v1`` in OpenAPI 3.1: each path with its parameters, bodies and replies. Pure."""

from __future__ import annotations

from typing import Any

from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.choices import MOST_BULK_GROUPS, MOST_GROUPS, SORTS

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "integer"}
RATE: Schema = {"type": "number"}
YES_NO: Schema = {"type": "boolean"}
MS: Schema = {"type": "integer", "description": "milliseconds since 1970"}


def _nullable(schema: Schema) -> Schema:
    return schema | {"type": [schema["type"], "null"]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**properties: Schema) -> Schema:
    """Returns an object that has all these properties."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


_COMMITS = {
    f"{side}{suffix}": _nullable(kind)
    for side in ("before", "after")
    for suffix, kind in (("", NUMBER), ("_leader_epoch", NUMBER), ("_metadata", TEXT))
}
_OF_RESET: Schema = {
    "target": {"enum": list(map(str, ResetTarget))},
    "value": TEXT | {"description": "of to-offset, shift-by, to-datetime and by-duration"},
    "topics": _list(TEXT) | {"description": "orders or orders:0,1; none: all partitions with an offset"},
    "csv": TEXT | {"description": "of from-file: rows topic,partition,offset"},
    "mark": YES_NO | {"description": "a Spark query of the group follows the reset"},
}  # fmt: skip
_SCHEMAS: dict[str, Schema] = {
    "Error": {"type": "object", "properties": {"error": TEXT, "field": TEXT}, "required": ["error"]},
    "State": _object(
        ready=YES_NO, source=TEXT, source_reason=_nullable(TEXT), polled_ms=_nullable(MS), groups=NUMBER,
        partitions=NUMBER, entries=NUMBER, unreadable_entries=NUMBER, unreadable=_list(TEXT),
        trouble={"type": ["object", "null"], "properties": {"since_ms": MS, "text": TEXT}},
        stale_logs={"type": "object", "additionalProperties": TEXT},
        stale_sources={"type": "object", "additionalProperties": TEXT},
    ),
    "Group": _object(
        group=TEXT, status=TEXT, state=_nullable(TEXT), type=_nullable(TEXT), lag=NUMBER, max_lag=NUMBER,
        time_lag_ms=_nullable(NUMBER), time_lag_error_ms=_nullable(NUMBER), lost=NUMBER, partitions=NUMBER,
        records_per_second=RATE, arrivals_per_second=RATE, clear_ms=_nullable(NUMBER), stale_partitions=NUMBER,
        newest_commit_ms=_nullable(MS), findings=NUMBER, expires_ms=_nullable(MS),
    ),
    "Groups": {
        "type": "object", "required": ["groups", "total"],
        "properties": {"total": NUMBER, "groups": _list(_ref("Group")), "position": _nullable(NUMBER)},
    },
    "GroupPartition": {
        "type": "object", "required": ["topic", "partition", "status", "rule", "reason", "lag", "committed_offset"],
        "properties": {
            "topic": TEXT, "partition": NUMBER, "status": TEXT, "rule": TEXT, "reason": TEXT, "lag": _nullable(NUMBER),
            "committed_offset": NUMBER, "time_lag_ms": _nullable(NUMBER), "time_lag_error_ms": _nullable(NUMBER),
            "expires_ms": _nullable(MS), "expiry_counts_from": _nullable(TEXT), "stale": _nullable(TEXT),
        },
    },
    "Finding": {
        "type": "object", "required": ["kind", "group", "text", "certainty", "proof"],
        "properties": {
            "kind": TEXT, "group": TEXT, "topic": _nullable(TEXT), "partition": _nullable(NUMBER), "text": TEXT,
            "certainty": TEXT, "from_ms": _nullable(MS), "to_ms": _nullable(MS), "proof": _list({"type": "object"}),
        },
    },
    "GroupDetail": _object(
        group=TEXT, summary={"anyOf": [_ref("Group"), {"type": "null"}]}, partitions=_list(_ref("GroupPartition")),
        findings=_list(_ref("Finding")),
    ),
    "Findings": _object(findings=_list(_ref("Finding"))),
    "Topic": _object(
        topic=TEXT, groups=_list(TEXT),
        partitions=_list(
            _object(
                partition=_nullable(NUMBER), log_start_offset=_nullable(NUMBER), log_end_offset=_nullable(NUMBER),
                stale=_nullable(TEXT),
            )
        ),
    ),
    "Incident": {
        "type": "object", "required": ["id", "kind", "group", "severity", "text", "opened_ms"],
        "properties": {
            "id": TEXT, "kind": TEXT, "group": TEXT, "severity": TEXT, "text": TEXT, "opened_ms": MS,
            "closed_ms": _nullable(MS),
        },
    },
    "Incidents": _object(
        incidents=_list(_ref("Incident")), trouble=_nullable(TEXT),
        pending={"type": "object", "additionalProperties": NUMBER},
    ),
    "ChangedPartition": _object(
        topic=TEXT, partition=NUMBER, **_COMMITS, distance=_nullable(NUMBER), clamped_from=_nullable(NUMBER)
    ),
    "Plan": _object(
        id=TEXT, kind=TEXT, group=TEXT, state=TEXT, target=TEXT, made_ms=MS, obstacle=_nullable(TEXT),
        records_read_again=NUMBER, records_skipped=NUMBER, restores=_nullable(TEXT), notes=_list(TEXT), confirm=TEXT,
        partitions=_list(_ref("ChangedPartition")),
    ),
    "BulkPlan": _object(
        id=TEXT, kind=TEXT, target=TEXT, made_ms=MS, obstacle=_nullable(TEXT), records_read_again=NUMBER,
        records_skipped=NUMBER, restores=_nullable(TEXT), notes=_list(TEXT), confirm=TEXT, groups=_list(_ref("Plan")),
    ),
    "AnyPlan": {"anyOf": [_ref("Plan"), _ref("BulkPlan")]},
    "StalePlan": _object(error=TEXT, plan={"anyOf": [_ref("AnyPlan"), {"type": "null"}]}),
    "Change": _object(
        id=TEXT, kind=TEXT, group=TEXT, who=TEXT, target=TEXT, begun_ms=MS, ended_ms=_nullable(MS),
        outcome={"enum": ["begun", "done", "failed", "unknown"]}, text=TEXT, restores=_nullable(TEXT),
        bulk=_nullable(TEXT) | {"description": "the id of the change of several groups that it is a part of"},
        partitions=_list(_ref("ChangedPartition")),
    ),
    "BulkChange": _object(
        id=TEXT, kind=TEXT, outcome={"enum": ["begun", "done", "partial", "failed", "unknown"]}, text=TEXT,
        groups=_list(_ref("Change")),
    ),
    "AnyChange": {"anyOf": [_ref("Change"), _ref("BulkChange")]},
    "Changes": _object(changes=_list(_ref("Change"))),
    "ResetRequest": {
        "type": "object", "required": ["target"], "additionalProperties": False, "properties": _OF_RESET,
    },
    "BulkResetRequest": {
        "type": "object", "required": ["target"], "additionalProperties": False,
        "properties": _OF_RESET
        | {
            "groups": _list(TEXT)
            | {"maxItems": MOST_BULK_GROUPS, "description": "names of groups; none with from-file: those of the CSV"}
        },
    },
    "TopicsRequest": {
        "type": "object", "required": ["topics"], "additionalProperties": False, "properties": {"topics": _list(TEXT)},
    },
    "Confirmation": {
        "type": "object", "required": ["confirm"], "additionalProperties": False,
        "properties": {"confirm": TEXT | {"description": "the text that the plan has as confirm"}},
    },
    "Nothing": {"type": "object", "additionalProperties": False},
}  # fmt: skip


def _reply(text: str, schema: Schema, media_type: str = "application/json") -> Schema:
    return {"description": text, "content": {media_type: {"schema": schema}}}


def _query(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": text}


_ERRORS = {
    "400": "a wrong parameter, which the field names", "401": "no token, or a wrong one",
    "403": "a token that may only read, a monitor without --allow, a foreign Host or Origin",
    "404": "no such thing", "502": "Kafka has refused it", "503": "the cluster or the disk does not answer",
}  # fmt: skip


def _call(text: str, reply: str, path: str, *more: Schema, **others: Schema) -> Schema:
    """Returns an operation. ``more``: parameters of the query. ``others``: further replies by code, as ``c409``."""
    names = [part.strip("{}") for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in names]
    errors = {code: _reply(what, _ref("Error")) for code, what in _ERRORS.items()}
    replies = {"200": _reply(text, _ref(reply))} | errors | {code[1:]: one for code, one in others.items()}
    return {"summary": text, "parameters": [*parameters, *more], "responses": replies}


def _post(text: str, body: str, reply: str, path: str, **others: Schema) -> Schema:
    content = {"application/json": {"schema": _ref(body)}}
    return _call(text, reply, path, **others) | {"requestBody": {"required": True, "content": content}}


def _csv(text: str, path: str) -> Schema:
    found = _call(text, "Error", path)
    found["responses"]["200"] = _reply(text, TEXT, "text/csv")
    return found


def _reads() -> dict[str, Schema]:
    limits = {"type": "integer", "minimum": 0}
    of_groups = (
        _query("sort", {"enum": [*SORTS, *(f"-{name}" for name in SORTS)]}, "- before a name: the highest first"),
        _query("search", TEXT, "a part of the name"), _query("state", TEXT, "such as Stable"),
        _query("status", {"enum": ["OK", "WARN", "ERR", "NOTFOUND"]}, "the status of the group"),
        _query("limit", limits | {"maximum": MOST_GROUPS}, "how many"), _query("offset", limits, "how many before"),
        _query("position_of", TEXT, "also the place of this group among the chosen ones"),
    )  # fmt: skip
    group, topic, incident = "/api/v1/groups/{group}", "/api/v1/topics/{topic}", "/api/v1/incidents/{incident}"
    return {
        "/api/v1/status": _call("what is followed, and what is stale", "State", "/"),
        "/api/v1/groups": _call("groups", "Groups", "/", *of_groups),
        group: _call("a group", "GroupDetail", group),
        "/api/v1/findings": _call("the findings about all groups", "Findings", "/"),
        topic: _call("a topic", "Topic", topic),
        "/api/v1/incidents": _call(
            "open and closed incidents", "Incidents", "/", _query("closed", limits, "how many closed ones")
        ),
        incident: _call("an incident", "Incident", incident),
        "/api/v1/openapi.json": {
            "summary": "this description",
            "responses": {"200": _reply("OpenAPI 3.1", {"type": "object"})},
        },
    }


def _changes() -> dict[str, dict[str, Schema]]:
    group, plan, change = "/api/v1/groups/{group}", "/api/v1/plans/{plan}", "/api/v1/changes/{change}"
    ends: dict[str, Schema] = {
        "c409": _reply("offsets have moved or the group has members: nothing is changed", _ref("StalePlan")),
        "c502": _reply("Kafka has refused it: nothing is changed in the groups that have failed", _ref("AnyChange")),
        "c504": _reply("it is not known whether the offsets are changed", _ref("AnyChange")),
    }
    by_group = _query("group", TEXT, "only the changes of this group")
    limit = _query("limit", {"type": "integer", "minimum": 0}, "how many")
    return {
        f"{group}/reset": {"post": _post("plans a reset", "ResetRequest", "Plan", group)},
        f"{group}/delete-offsets": {
            "post": _post("plans the deletion of offsets", "TopicsRequest", "Plan", group)
        },
        f"{group}/delete-group": {"post": _post("plans the deletion of the group", "Nothing", "Plan", group)},
        "/api/v1/resets": {
            "post": _post("plans a reset of several groups", "BulkResetRequest", "BulkPlan", "/")
        },
        plan: {"get": _call("a plan that is not carried out yet", "AnyPlan", plan)},
        f"{plan}/csv": {"get": _csv("the new offsets in the form of Kafka's tool", plan)},
        f"{plan}/apply": {"post": _post("carries a plan out", "Confirmation", "AnyChange", plan, **ends)},
        "/api/v1/changes": {"get": _call("the newest changes, the newest first", "Changes", "/", by_group, limit)},
        change: {"get": _call("a change with its snapshot", "AnyChange", change)},
        f"{change}/csv": {"get": _csv("the offsets before a change", change)},
        f"{change}/undo": {"post": _post("plans to undo a change", "Nothing", "AnyPlan", change)},
    }  # fmt: skip


def openapi() -> Schema:
    """Returns the description."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "odradek monitor", "version": "1"},
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
        "paths": {path: {"get": one} for path, one in _reads().items()} | _changes(),
    }
