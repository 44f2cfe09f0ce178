"""The interface between the runtime and a state machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Hashable, Iterable, Sequence
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from odradek.core.effects import Block, LogEntry, Request, ResultOrSteps, SimpleRecord
from odradek.core.errors import ErrorCode

R = TypeVar("R")


class CoordinatorShard(Protocol):
    """The state machine of one partition. ``core/effects`` defines its results, and says when the runtime carries them
    out.

    It has no clock, socket, file or randomness. Durable state changes only in ``replay`` and ``replay_block``. Between
    the first and the last of its ``ResultSteps`` the runtime calls only these two.

    If it raises for a request, a timer, work, an event, a notice or a new record, the runtime replaces it by a new
    shard, which loads the log.
    """

    skipped: Counter[str]
    """The number of records that were not replayed, by reason. The loader counts here, too."""
    reads: ClassVar[tuple[type, ...]]
    """The kinds of requests that ``handle`` answers from durable state alone, without effects and records."""

    # --- requests ---------------------------------------------------------------------------------------------

    def handle(self, now_ms: int, request: Request[R]) -> ResultOrSteps[R]:
        """Handles a request. If this raises, the reply is UNKNOWN_SERVER_ERROR.

        If the records do not fit in a batch, the reply is the same, and the runtime calls ``on_refused``.
        """

    def reply_to_dropped(self, request: Request[object], error: ErrorCode) -> object:
        """Returns the reply to a parked request when the shard ends before the request is completed."""

    def changes_of(self, entry: LogEntry) -> Iterable[Hashable]:
        """Returns the names of the things that a record or block changes."""

    def shown_to(self, request: Request[object]) -> Collection[Hashable] | None:
        """Returns the names of the things that a reply without records shows; None: all things.

        Such a reply waits until the high watermark has passed the earlier changes of these things, and for no other
        record.
        """

    def reply_limit_ms(self, request: Request[object]) -> int | None:
        """Returns how long a reply to the request waits for the high watermark, in ms; None: without limit."""

    # --- the log ----------------------------------------------------------------------------------------------

    def on_refused(self, now_ms: int, entries: Sequence[LogEntry], error: ErrorCode) -> ResultOrSteps[None]:
        """Undoes what a call has changed besides its records, because the log has refused these records.

        The replies of the call's result were replaced by errors already. The shard replies to a request that the call
        has parked. The records of a ``batched`` request, and those with a ``producer``, change nothing before their
        replay, so this method is not called for them.
        """

    def replay(self, offset: int, record: SimpleRecord) -> None:
        """Applies a record of the log, new or from a load. ``offset`` -1: unknown, because ``RecordRuns`` held it
        back."""

    def replay_block(self, offset: int, block: Block) -> None:
        """Applies a new block of this shard. ``offset`` is the offset of its first record."""

    def on_loaded(self, now_ms: int) -> ResultOrSteps[None]:
        """Ends a load. If this raises, the shard serves requests without the result of this call."""

    def catch_up(self, now_ms: int) -> ResultOrSteps[None]:
        """Writes the records of outside events that occurred when no shard was there to write them.

        The runtime calls this method after ``on_loaded``; if the shard was rebuilt, ten seconds later, because
        ``catch_up`` may have been the cause of the rebuild.
        """

    # --- timers, events and notices ---------------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> ResultOrSteps[None]:
        """Handles a timer of the shard that is due."""

    def on_work(self, now_ms: int, key: Hashable, value: object) -> ResultOrSteps[None]:
        """Handles the result of ``Work``. ``value`` is None if the work raised."""

    def on_event(self, now_ms: int, event: object) -> ResultOrSteps[None]:
        """Handles an event from outside, perhaps with records. Each kind of shard defines its own events.

        A shard gets no events during its load; ``catch_up`` finds the missed ones.
        """

    def on_notice(self, notice: object) -> None:
        """Handles a change outside that causes no records. A shard gets notices also during its load."""

    def on_clock_jumped(self, by_ms: int) -> None:
        """Moves the times in the shard's state after a clock change or a pause."""


@runtime_checkable
class TransactionalShard(Protocol):
    """The methods of a shard whose results may have a ``producer``, in addition to those of ``CoordinatorShard``.

    The runtime calls them for new records and markers and in a load, in log order. Other shards do not need them.
    """

    def replay_transactional(self, offset: int, record: SimpleRecord, producer_id: int) -> None:
        """Applies a record of a producer's open transaction. The shard decides whether the record takes effect now or
        at the commit."""

    def end_transaction(self, producer_id: int, *, commit: bool) -> Generator[None, None, None]:
        """Applies the marker of a producer's transaction in steps. The producer may have no open transaction here."""


@runtime_checkable
class SnapshotShard(Protocol):
    """The methods of a shard that can answer reads without the writes above the high watermark."""

    def former(self, entries: Sequence[LogEntry]) -> object:
        """Returns what the replay of these records is going to replace. Called before the replay of records that are
        not replicated at once."""

    def handle_committed(self, request: Request[object], former: Sequence[object]) -> object | None:
        """Returns the reply to a read as it was before some writes; None if the reply has to wait for them.

        ``former`` has the results of ``former`` for these writes, the newest first.
        """


def former_of(shard: CoordinatorShard, entries: Sequence[LogEntry]) -> object:
    """Returns what the replay of these records is going to replace; None if the shard does not know that."""
    return shard.former(entries) if isinstance(shard, SnapshotShard) else None


def transactional(shard: CoordinatorShard) -> TransactionalShard:
    """Returns the shard as a shard with transactions. Raises TypeError if it has none."""
    if not isinstance(shard, TransactionalShard):
        raise TypeError(f"{type(shard).__name__} has no transactional records")
    return shard
