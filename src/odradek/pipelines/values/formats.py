"""The formats of values, and the framings of Avro values."""

from __future__ import annotations

from enum import StrEnum


class ValueFormat(StrEnum):
    """The format in which a topic's values are read."""

    RAW = "raw"
    JSON = "json"
    AVRO = "avro"


class Framing(StrEnum):
    """The header before an Avro value: none, or Confluent's five bytes (0, and the id of the writer's schema)."""

    NONE = "none"
    CONFLUENT = "confluent"
