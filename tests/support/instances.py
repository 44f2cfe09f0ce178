"""Messages built from kio's schemas: extreme values in every field, from a seed."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from kio.serial._introspect import classify_field, get_field_tag, is_optional

from odradek.core.errors import ErrorCode
from odradek.wire import schemas

BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ["", "t", "topic-ü-💧", "x" * 130]
BLOBS = [b"", b"\0", b"\xff" * 3, b"x" * 20_000]
CODES = list(ErrorCode)


class Instances:
    """Builds instances of kio's dataclasses: over many instances every field has its extreme values, and arrays have 0,
    1 or 3 elements."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def of(self, entity: Any) -> Any:
        return entity(**{field.name: self.value(field) for field in fields(entity)})

    def value(self, field: Any) -> Any:
        kind = classify_field(field)
        kafka_type = field.metadata.get("kafka_type")
        tagged = get_field_tag(field) is not None
        nullable = is_optional(field) and not (kafka_type == "uuid" and kind.is_array)
        if nullable and self.random.random() < 0.3:
            return None
        if tagged and self.random.random() < 0.3 and field.default is not field.default_factory:
            return field.default
        if kind.is_array:
            return tuple(self.one(kafka_type, kind.type_) for _ in range(self.random.choice([0, 1, 3])))
        return self.one(kafka_type, kind.type_)

    def one(self, kafka_type: str | None, of: Any) -> Any:
        pick = self.random.choice
        if kafka_type is None:
            return self.of(of)
        if kafka_type in BITS:
            high = 1 << BITS[kafka_type] - 1
            return pick([0, 1, -1, high - 1, -high, self.random.randrange(-high, high)])
        if kafka_type == "uint16":
            return pick([0, 1, 65_535, self.random.randrange(65_536)])
        if kafka_type == "timedelta_i32":
            return timedelta(milliseconds=pick([0, 1, 30_000, (1 << 31) - 1, -1]))
        if kafka_type == "timedelta_i64":
            return timedelta(milliseconds=pick([0, 1, 86_400_000 * 7, 10**14, -1]))
        if kafka_type == "datetime_i64":
            return datetime.fromtimestamp(pick([0, 1, 1_795_218_683_210]) / 1000, UTC)
        simple = {
            "bool": [True, False],
            "error_code": CODES,
            "float64": [0.0, -1.5, 1e300],
            "string": TEXTS,
            "bytes": BLOBS,
            "records": BLOBS,
            "uuid": [None, UUID(int=1), UUID(int=(1 << 128) - 1)],
        }
        return pick(simple[kafka_type])


def plain(value: Any) -> Any:
    """Returns an instance as the mapping that a handler would write. Durations and times are in milliseconds."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, timedelta):
        return schemas.milliseconds(value)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value
