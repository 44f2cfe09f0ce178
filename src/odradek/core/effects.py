"""The results of a state machine for its runtime.

A shard never waits, writes or sends. Its interface is in ``coordinator_runtime/shard``. The most important methods are

* ``handle(now_ms, request: Request[R]) -> Result[R]``: handles a request;
* ``replay(offset, record) -> None``: applies a record of the shard's log, new or from a load;
* ``on_timer(now_ms, key) -> Result[None]``: handles a timer that the shard has set.

The runtime appends ``Result.records`` to the shard's partition (all or none) and passes each to ``replay``. It sends
``reply`` when the high watermark has passed these records. So operation and load change durable state in the same way.
Other state (parked requests, sessions) changes inside the handlers. If a handler raises, or the disk fails, the shard
is rebuilt from its log. If the log refuses the records, the shard undoes the other changes (``on_refused``), unless
only the records could have changed its state (``Request.batched``, ``Result.producer``).

For long work these methods may return ``ResultSteps``: a generator that returns the result. Until it ends, the runtime
calls only ``replay`` and ``replay_block`` of the shard. Steps without a request may yield records that are written
before the next step. The records of a request are written together.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from odradek.core.errors import ErrorCode
    from odradek.core.ids import ProducerIdentity


class IllegalTransition(RuntimeError):
    """A transition that a table of states does not allow: a bug of the state machine or of its caller."""


MAX_RECORD_OVERHEAD_BYTES = 32
"""The largest size of a record in a batch besides its key and value: length, attributes, deltas and two lengths as
varints."""


@dataclass(slots=True, frozen=True)
class SimpleRecord:
    """One record. ``value=None`` is a tombstone. ``timestamp_ms=None`` means "now".

    ``key=None`` occurs in other topics, and in an internal topic only if another program wrote the record.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None


class Block(Protocol):
    """Many records without an object for each of them.

    The write and the replay of a block have the same effect as the writes and replays of its ``records()``.
    """

    @property
    def count(self) -> int:
        """The number of records, at least one."""

    @property
    def most_bytes(self) -> int:
        """The largest size of ``pack``'s result at any place in a batch."""

    def records(self) -> list[SimpleRecord]: ...

    def pack(self, first: int) -> list[bytes]:
        """Returns the packed records for a batch, in which the first of them has the number ``first``.

        All of them have the batch's timestamp.
        """


LogEntry = SimpleRecord | Block
"""A unit of appends and replays."""


def most_bytes(record: LogEntry) -> int:
    """Returns the largest size of a record or block in a batch."""
    if isinstance(record, SimpleRecord):
        return len(record.key or b"") + len(record.value or b"") + MAX_RECORD_OVERHEAD_BYTES
    return record.most_bytes


Reply_co = TypeVar("Reply_co", covariant=True)
"""The type of the replies to a request."""
R = TypeVar("R")


class Request(Protocol[Reply_co]):
    """A request to a shard, independent of API versions. Its replies, with or without an error, have one type.

    A ``batched`` request may be handled while records of earlier requests wait for the append; its own records wait
    until the end of the tick. It changes state only through its records, so nothing has to be undone if they do not
    fit in a batch. Before and after any other request the waiting records are appended and replayed. So a request that
    is not ``batched`` is handled only when the records of all earlier requests are replayed.
    """

    batched: ClassVar[bool]

    def error_reply(self, error: ErrorCode) -> Reply_co:
        """Returns the reply with this error: the coordinator is not available, is loading, or could not write."""


class ParkKey(NamedTuple, Generic[R]):
    """The key of a parked request whose reply has the type ``R``. ``name`` is unique among the shard's parked
    requests; a second request with the same name is a bug of the shard."""

    name: Hashable


class Park(NamedTuple):
    """Parks the current request without a reply. ``Complete`` with the same key replies to it later.

    ``is_limited``: the request waits for the high watermark to pass the records of its result, no longer than
    ``CoordinatorShard.reply_limit_ms``. After that it gets an error.
    """

    key: ParkKey[Any]
    is_limited: bool = False


class Complete(NamedTuple, Generic[R]):
    """Replies to the request parked under ``key``. It has no effect if the connection was closed."""

    key: ParkKey[R]
    reply: R


class SetTimer(NamedTuple):
    """Calls ``on_timer(now, key)`` at ``at_ms``; replaces a timer of the same key."""

    key: Hashable
    at_ms: int


class CancelTimer(NamedTuple):
    """Cancels the timer of this key, if there is one."""

    key: Hashable


class Work(NamedTuple):
    """Runs ``steps`` in the background while the shard handles requests, then calls ``on_work(now, key, value)``.

    ``value`` is the generator's return value. There is no call if the shard was rebuilt from its log meanwhile.
    """

    key: Hashable
    steps: Generator[None, None, object]


class Announce(NamedTuple):
    """Passes ``value`` to the coordinator's ``on_announced`` when the records of this result and of all earlier ones
    are below the high watermark.

    The value is lost if the records are not written, or if the shard is unloaded or rebuilt. Then ``on_loaded``
    announces it again.
    """

    value: object


class Warn(NamedTuple):
    """Logs a warning for the operator, in one line. The runtime puts the name of the shard's log before it."""

    text: str


Effect = Park | Complete[Any] | SetTimer | CancelTimer | Work | Announce | Warn


class ResultParts(Protocol):
    """A result without its reply, for functions that add records and effects to the result of any request."""

    records: list[SimpleRecord]
    effects: list[Effect]
    block: Block | None


@dataclass(slots=True)
class Result(Generic[Reply_co]):
    """The result of a call of a shard: of ``handle`` with a ``Request[R]`` a ``Result[R]``, else a ``Result[None]``.

    ``reply`` is the reply to the current request (``None`` if it was parked or there is no request). If the append of
    ``records`` fails, the runtime replaces ``reply`` and every ``Complete`` of this result by an error.

    With a ``producer`` the records, at least one, are a transactional batch of that producer. Such a result has no
    block, and it changes state only through its records: an error of the append is the reply, and the shard stays.
    """

    reply: Reply_co | None = None
    records: list[SimpleRecord] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    block: Block | None = None  # is appended after the records and passed to ``replay_block``
    producer: ProducerIdentity | None = None


ResultSteps = Generator[list[SimpleRecord] | None, None, Result[Reply_co]]
ResultOrSteps = Result[Reply_co] | ResultSteps[Reply_co]
"""A result, or the steps that return it."""


def run_first_step(result: ResultOrSteps[R]) -> ResultOrSteps[R]:
    """Runs the first step. Returns the result if there are no further steps, otherwise the rest of the steps."""
    if isinstance(result, Result):
        return result
    try:
        part = next(result)
    except StopIteration as end:
        return cast("Result[R]", end.value)
    return result if part is None else _with_first(part, result)


def _with_first(part: list[SimpleRecord], rest: ResultSteps[R]) -> ResultSteps[R]:
    yield part
    return (yield from rest)


T = TypeVar("T")


def result_of(steps: Generator[None, None, T]) -> T:
    """Runs all steps at once, for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(T, end.value)
