"""The part of the runtime that the drivers of its shards use."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

from odradek.coordinator_runtime.loader import LoadSteps, LongWork, NewRecordRuns, S
from odradek.coordinator_runtime.timers import Timers
from odradek.core.deferred import Deferred
from odradek.core.effects import Request
from odradek.core.errors import ErrorCode


class Loadable(Protocol):
    """The load of a shard. ``awaited`` is the promise that the load waits for."""

    awaited: Deferred[object] | None

    @property
    def has_little_to_load(self) -> bool: ...

    def load_step(self) -> bool:
        """Runs one step of the load and returns whether it continues."""


class Services(Protocol[S]):
    """The part of the runtime that a driver uses."""

    topic: str
    new_shard: Callable[[Callable[[], int]], S]
    new_runs: NewRecordRuns[S] | None
    long_work: LongWork
    load_steps: LoadSteps
    timers: Timers
    steady: Callable[[], int]
    skew_ms: int
    """``clock`` minus ``steady``."""
    skipped_records: int
    call_soon: Callable[[Callable[[], None]], object]
    start: Callable[[Generator[None, None, None]], object]

    def clock(self) -> int: ...
    def error_reply(self, request: Request[object], error: ErrorCode) -> object: ...
    def on_announced(self, index: int, value: object) -> None: ...
    def drive(self, driver: Loadable) -> None: ...
