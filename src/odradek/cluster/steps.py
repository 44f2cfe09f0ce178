"""The steps of an operation of the controller, with their result: records and a response."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from odradek.catalog.records import MetadataRecord

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Moment(NamedTuple):
    """When an operation begins. ``next_offset``: the offset of its first record."""

    now_ms: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class ControlResult(Generic[R_co]):
    """The records of an operation, and its response, which is valid when the records are committed.

    ``on_committed``: called then, with the offset of the newest record."""

    records: list[MetadataRecord]
    response: R_co
    on_committed: Callable[[int], None] | None = None


ControlSteps: TypeAlias = Generator[None, None, ControlResult[R]]
"""The steps of an operation. They raise KafkaError for a refused request."""
