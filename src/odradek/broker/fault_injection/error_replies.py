"""Replies with an error for a whole request, made from the schema of the API.

If the reply has a top-level error code, the error goes there. Otherwise it goes into the row of each item of the
request (topic and partition, group, resource). Fetch and Metadata have both; their top-level code is for other kinds of
errors, so the error goes into the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any

from kio.serial._introspect import classify_field, get_field_tag, is_optional

from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.api_keys import FETCH, METADATA
from odradek.wire.schemas import Kind

_IN_ROWS = frozenset({FETCH, METADATA})
# Fields that identify a row. The request and the reply may have different names for the same field.
_TOPIC = frozenset({"name", "topic", "topic_name"})
_PARTITION = frozenset({"index", "partition", "partition_index"})
_TEXT_KEYS = _TOPIC | {"group_id", "key", "resource_name", "member_id", "transactional_id"}
_CODES = frozenset({"error_code", "partition_error_code"})
_KEYS = _TEXT_KEYS | _PARTITION | {"topic_id", "resource_type"}
_UNKNOWN_VALUES: Mapping[str | None, object] = {
    "string": "", "bytes": b"", "bool": False, "uuid": None, "int8": 0, "float64": 0.0,
    "timedelta_i32": 0, "timedelta_i64": 0,
}  # fmt: skip


def refusal(
    api_key: int, version: int, request: object, code: ErrorCode, text: str | None = ""
) -> dict[str, object] | None:
    """Returns a reply with ``code`` for the request or each of its items; None if the reply has no field for an error.

    ``request`` is a decoded message or any object with its fields.
    """
    response = schemas.message_type(api_key, version, Kind.RESPONSE)
    if not has_code(response):
        return None
    reply = _row(response, request, code, text, takes_code=api_key not in _IN_ROWS)
    if api_key in _IN_ROWS:
        reply["error_code"] = ErrorCode.none
    return reply


@cache
def has_code(entity: Any) -> bool:
    """Returns whether a structure or one inside it has an error code."""
    inner = [_inner(field) for field in fields(entity)]
    return _has_own_code(entity) or any(has_code(each) for each in inner if _is_structure(each))


def _has_own_code(entity: object) -> bool:
    return not _CODES.isdisjoint(schemas.field_names(entity))


def _is_structure(kind: object) -> bool:
    return is_dataclass(kind)


def _inner(field: Field[object]) -> Any:
    return classify_field(field).type_


def _row(
    entity: Any, asked: object, code: ErrorCode, text: str | None, *, takes_code: bool = True
) -> dict[str, object]:
    """Returns one structure of the reply. ``asked`` is the matching structure, name or number of the request."""
    row: dict[str, object] = {}
    takes_code = takes_code and _has_own_code(entity)
    for field in fields(entity):
        inner, is_array = _inner(field), classify_field(field).is_array
        if field.name in _CODES:
            row[field.name] = code
        elif field.name == "error_message":
            row[field.name] = text
        elif is_array and _is_structure(inner) and has_code(inner) and not takes_code:
            row[field.name] = _rows(inner, _request_rows(asked, field.name), code, text)
        elif is_array:
            row[field.name] = ()
        elif (value := _request_value(asked, field)) is not None:
            row[field.name] = value
        elif field.default is MISSING and get_field_tag(field) is None:
            row[field.name] = _unknown_value(field)
    return row


def _rows(entity: object, asked: Iterable[object], code: ErrorCode, text: str | None) -> list[dict[str, object]]:
    return [_row(entity, each, code, text) for each in asked]


def _request_rows(asked: object, name: str) -> Iterable[Any]:
    """Returns the request's array ``name``, or its first array if it has none of this name, or an empty one."""
    same = getattr(asked, name, None)
    if isinstance(same, tuple | list):
        return same
    names = [field.name for field in fields(asked)] if is_dataclass(asked) else list(vars(asked))
    values = (getattr(asked, name) for name in names)
    return next((value for value in values if isinstance(value, tuple | list)), ())


def _request_value(asked: object, field: Field[object]) -> object:
    """Returns the request's value of a field that identifies rows, or None."""
    if field.name not in _KEYS:
        return None
    if isinstance(asked, str):
        return asked if field.name in _TEXT_KEYS else None
    if isinstance(asked, int):
        return asked if field.name in _PARTITION else None
    names = next((same for same in (_TOPIC, _PARTITION) if field.name in same), (field.name,))
    return next((value for name in names if (value := getattr(asked, name, None)) is not None), None)


def _unknown_value(field: Field[object]) -> object:
    """Returns the value for "unknown" in a field of this type, for example Kafka's -1, an empty text or null."""
    kafka_type = field.metadata.get("kafka_type")
    if is_optional(field):
        return None
    if kafka_type is None:
        return {inner.name: _unknown_value(inner) for inner in fields(_inner(field))}
    return _UNKNOWN_VALUES.get(kafka_type, -1)
