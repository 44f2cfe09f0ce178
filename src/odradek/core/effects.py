"""What a state machine hands back to the runtime that drives it.

A machine never waits, writes or sends. What it is asked stands in ``coordinator/shard``; the most important are

* ``handle(now_ms, request) -> Result``: a request came in;
* ``replay(offset, record) -> None``: a record of the machine's log, written just now or read at start;
* ``on_timer(now_ms, key) -> Result``: a timer it had set is due.

``Result.records`` are appended to the machine's partition (all or none), then passed to ``replay`` one by one,
and only then, once the high watermark has passed them, is ``reply`` released. So living and restarting share
one path for durable state. Soft state (who is parked, which session runs) changes inside the handlers. Where one of
them raises, or its records are not written, the machine is built from its log again.

What returns a result may return ``Steps`` where there is much to do: a generator that returns the result. Until
it ends, the machine is asked nothing else, but replays what is written. Where no request caused the step, it may yield
records that are to be written before it goes on; what a request causes is written as a whole.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from odradek.core.errors import ErrorCode

MAX_RECORD_OVERHEAD_BYTES = 32
"""Of a record in a batch, beside its key and value: length, attributes, deltas and two lengths, as varints."""


@dataclass(slots=True, frozen=True)
class Record:
    """One record of an internal topic. ``value=None`` is a tombstone. ``timestamp_ms=None`` means "now"."""

    key: bytes
    value: bytes | None
    timestamp_ms: int | None = None


class Block(Protocol):
    """Records made in bulk: what they mean, and how to write them, without an object for each.

    Writing and replaying a block comes to the same as doing so with each of ``records()``.
    """

    @property
    def count(self) -> int:
        """How many records; at least one."""

    @property
    def most_bytes(self) -> int:
        """What ``pack`` returns is no longer, wherever in a batch it stands."""

    def records(self) -> list[Record]: ...

    def pack(self, first: int) -> list[bytes]:
        """The records as they stand in a batch of which they all have the time, from its ``first``-th record on."""


def most_bytes(record: Record | Block) -> int:
    """What it takes in a batch at most."""
    if isinstance(record, Record):
        return len(record.key) + (0 if record.value is None else len(record.value)) + MAX_RECORD_OVERHEAD_BYTES
    return record.most_bytes


class Request(Protocol):
    """What somebody asks of a machine, free of wire versions.

    ``batched`` requests may be handled while records of earlier ones wait to be appended, and their own wait until the
    end of the tick. They change nothing but through their records, so that where these fit into no batch, nothing has
    to be undone. Before any other request, and behind it, what waits is appended and replayed at once: no request sees
    the machine between a handler and the replay of what it wrote.
    """

    batched: ClassVar[bool]

    def failed(self, error: ErrorCode) -> object:
        """The reply when the coordinator is not here, is loading, or could not write."""


class Park(NamedTuple):
    """The request being handled gets no reply yet; ``Complete`` with the same key answers it later.

    Keys are unique among parked requests; parking under a key already in use is a bug in the machine.
    """

    key: Hashable


class Complete(NamedTuple):
    """Answers the request parked under ``key``. Nothing happens when that connection has gone meanwhile."""

    key: Hashable
    reply: Any


class SetTimer(NamedTuple):
    """Calls ``on_timer(now, key)`` at ``at_ms``; replaces a timer of the same key."""

    key: Hashable
    at_ms: int


class CancelTimer(NamedTuple):
    """Forgets the timer of this key, if there is one."""

    key: Hashable


class Work(NamedTuple):
    """Runs ``steps`` aside from the machine, which is asked other things meanwhile, then ``on_work(now, key, value)``.

    ``value`` is what the generator returns. Nothing comes back if the machine is rebuilt from its log meanwhile.
    """

    key: Hashable
    steps: Generator[None, None, Any]


Effect = Park | Complete | SetTimer | CancelTimer | Work


@dataclass(slots=True)
class Result:
    """What one step of a machine wants done.

    ``reply`` answers the request at hand (``None`` when it was parked or when no request caused the step).
    When the append of ``records`` fails, the runtime answers ``reply``, and every ``Complete`` of this result,
    with an error instead, and reloads the machine from its log.
    """

    reply: Any = None
    records: list[Record] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    block: Block | None = None  # behind the records; passed to ``replay_block`` of machines that make any


Steps = Generator[list[Record] | None, None, Result]


def begun(result: Result | Steps) -> Result | Steps:
    """The first step taken; often it is the last one, and there is the result."""
    if isinstance(result, Result):
        return result
    try:
        part = next(result)
    except StopIteration as end:
        return cast(Result, end.value)
    return result if part is None else _behind(part, result)


def _behind(part: list[Record], rest: Steps) -> Steps:
    yield part
    return (yield from rest)


T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Takes all steps at once, where there are few."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
