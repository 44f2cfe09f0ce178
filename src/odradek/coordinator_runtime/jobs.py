"""Origins of results, two kinds of requests, and work in steps, for the driver of a shard."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from odradek.coordinator_runtime.loader import S
from odradek.coordinator_runtime.replies import PendingReply, Promise
from odradek.core.deferred import Deferred
from odradek.core.effects import Effect, Request, Result, ResultOrSteps, ResultSteps
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker

EFFECTS_AT_ONCE = 200
"""The number of effects that one step carries out."""

Waiting = tuple[Request[object], Promise] | Callable[[S, int], ResultOrSteps[object]]
"""A request or a call of the shard that waits for the current job."""


class Origin(NamedTuple):
    """The origin of a result or of steps: a request, or a timer or event.

    ``skew_ms`` is the runtime's value at the start. ``replies`` are the replies so far: to the request itself, and of
    the effects ``Complete`` and ``Announce``.
    """

    request: Request[object] | None
    promise: Promise
    skew_ms: int
    replies: list[PendingReply]


def no_request(skew_ms: int, replies: list[PendingReply] | None = None) -> Origin:
    """Returns an origin without a request."""
    return Origin(None, Deferred(), skew_ms, [] if replies is None else replies)


@dataclass(slots=True)
class WriteMarker:
    """Ends a producer's transaction in the shard's partition. The reply is an ErrorCode."""

    batched: ClassVar[bool] = False
    marker: EndTransactionMarker

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class CheckedRequest:
    """A request that is checked after all earlier requests. Nothing else runs between the check and the append of its
    records.

    ``check`` returns the error of the request, or NONE.
    """

    batched: ClassVar[bool] = False
    request: Request[object]
    check: Callable[[], ErrorCode]

    def error_reply(self, error: ErrorCode) -> object:
        return self.request.error_reply(error)

    def take(self, handle: Callable[[Request[object], Promise], None], promise: Promise) -> None:
        error = self.check()
        if error is ErrorCode.none:
            handle(self.request, promise)
        else:
            promise.resolve(self.error_reply(error))


class ShardJob(NamedTuple):
    """Work in steps: of the shard, or of the effects or records of its result."""

    steps: ResultSteps[object]
    origin: Origin


def without_records(change: Callable[[S], None]) -> Callable[[S, int], Result[object]]:
    """Returns a call of the shard with an empty result."""

    def make(shard: S, now_ms: int) -> Result[object]:
        change(shard)
        return Result()

    return make


def pending_replies(origin: Origin, parked: Mapping[Hashable, tuple[Request[object], Promise]]) -> list[PendingReply]:
    """Returns the replies of an origin, plus its request unless that is parked or has a reply already."""
    request, promise, _, replies = origin
    known = [*parked.values(), *replies]
    if request is None or any(other is promise for _, other, *_ in known):
        return replies
    return [*replies, (request, promise, None)]


def carry_out_in_steps(
    carry_out: Callable[[list[Effect], Origin], None], result: Result[object], origin: Origin
) -> ResultSteps[object]:
    """Carries out the effects of a result and returns the rest of it."""
    effects = result.effects
    for first in range(0, len(effects), EFFECTS_AT_ONCE):
        carry_out(effects[first : first + EFFECTS_AT_ONCE], origin)
        yield None
    result.effects = []
    return result
