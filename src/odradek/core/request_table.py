"""The handlers of a shard's requests, by the type of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from odradek.core.effects import Result, ResultSteps

R = TypeVar("R")


class RequestTable:
    """Each handler takes the time (ms) and a request of the type under which it was added.

    ``by_type`` is the table itself: ``by_type[type(request)](now_ms, request)``."""

    def __init__(self) -> None:
        self.by_type: dict[type, Callable[[int, Any], Result | ResultSteps]] = {}

    def add(self, kind: type[R], handle: Callable[[int, R], Result | ResultSteps]) -> None:
        self.by_type[kind] = handle
