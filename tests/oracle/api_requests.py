"""Requests of each API made from its schema: empty requests, and requests with a plausible value in every field."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kio.serial._introspect import classify_field, get_field_tag
from recording import Run

from odradek.wire import schemas
from odradek.wire.schemas import Kind

QUIET = {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
NEWEST_KEY = 92
KEYS = tuple(key for key in range(NEWEST_KEY + 1) if schemas.api_name(key) != f"api_{key}")
"""Every API that has a schema."""

_NUMBERS = ("int8", "int16", "int32", "int64", "uint16", "timedelta_i32", "timedelta_i64", "datetime_i64", "error_code")
_EMPTY: dict[str, Any] = dict.fromkeys(_NUMBERS, 0)
_EMPTY |= {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None, "float64": 0.0}
_FILLED = {"timeout": 10_000}


def versions(api_key: int) -> range:
    """Every version with a schema, advertised or not."""
    oldest, newest = schemas.known_versions(api_key)
    return range(oldest, newest + 1)


def empty(api_key: int, version: int) -> dict[str, Any]:
    """A request with empty arrays and texts, and zeros."""
    return _empty(schemas.message_type(api_key, version, Kind.REQUEST))


def _empty(entity: Any) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for field in fields(entity):
        kind, kafka_type = classify_field(field), field.metadata.get("kafka_type")
        if get_field_tag(field) is not None:
            continue
        if kind.is_array:
            message[field.name] = []
        elif kafka_type is None:
            message[field.name] = _empty(kind.type_)
        else:
            message[field.name] = _EMPTY[kafka_type]
    return message


def filled(run: Run, api_key: int, version: int) -> dict[str, Any]:
    """A request with one element in every array, and well-formed names that do not exist."""
    return _filled(run, schemas.message_type(api_key, version, Kind.REQUEST))


def _filled(run: Run, entity: Any) -> dict[str, Any]:
    message: dict[str, Any] = {}
    for field in fields(entity):
        kind, kafka_type = classify_field(field), field.metadata.get("kafka_type")
        if get_field_tag(field) is not None:
            continue
        value: Any
        if kafka_type is None:
            value = _filled(run, kind.type_)
        elif kafka_type == "string":
            value = run.fresh(field.name.replace("_", "-"))
        else:
            value = _FILLED.get(field.name, _EMPTY[kafka_type])
        message[field.name] = [value] if kind.is_array else value
    return message


_UNORDERED = ("api_keys", "supported_features", "finalized_features", "config_resources")
_SILENT = {(24, 4), (24, 5)}
"""The pairs of API and version in which Apache Kafka does not reply to an empty request."""


def send_empty(run: Run, api_key: int, version: int) -> None:
    message = empty(api_key, version)
    if api_key == 0:  # a request with acks=0 has no reply: the next reply on the connection belongs to the next request
        run.send_without_reply(api_key, version, message)
    elif (api_key, version) in _SILENT:
        run.send(api_key, version, message, client="silent").receive_if_answered()
        run.disconnect("silent")
    else:
        run.call(api_key, version, message, unordered=_UNORDERED)


def wait_for_deletions(run: Run) -> None:
    """Waits until the topics of earlier scenarios are deleted."""
    asked = {"topics": None, "allow_auto_topic_creation": False, **QUIET}
    run.until(3, 12, asked, lambda reply: all(row.is_internal for row in reply.topics))
