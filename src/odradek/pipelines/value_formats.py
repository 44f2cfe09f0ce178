"""The formats of values, and what may stand before a value."""

from __future__ import annotations

from enum import StrEnum


class ValueFormat(StrEnum):
    """How a topic's values are to be read."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


class Framing(StrEnum):
    """What stands before an Avro value: nothing, or Confluent's five bytes (0, and the id of the writer's schema)."""

    NONE = "none"
    CONFLUENT = "confluent"
