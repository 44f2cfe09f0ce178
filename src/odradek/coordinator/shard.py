"""What the runtime needs of a state machine: all of its entry points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, Protocol

from odradek.core.effects import Block, Record, Request, Result, Steps
from odradek.core.errors import ErrorCode


class Shard(Protocol):
    """The state machine of one partition; see core/effects for what it hands back and when that is carried out.

    It has no clock, socket, file or randomness of its own. Durable state changes in ``replay`` and ``replay_block``
    alone. Between the first and the last of its ``Steps`` it is asked nothing else, but replays what is written.

    Where it raises for a request, a timer, work, an event, a notice or a record just written, it is not used any more:
    another one reads the log.
    """

    skipped: Counter[str]
    """How many records of the log were not taken in, by reason. The loader counts here, too."""

    # --- requests ---------------------------------------------------------------------------------------------

    def handle(self, now_ms: int, request: Request) -> Result | Steps:
        """A request came in. If this raises, the answer is UNKNOWN_SERVER_ERROR.

        So it is where the records are more than a batch takes. A machine that would rather not be rebuilt then sees to
        it before it changes anything.
        """

    def dropped(self, request: Request, error: ErrorCode) -> Any:
        """The reply to a request that was parked, when the machine comes to its end before it is completed."""

    # --- the log ----------------------------------------------------------------------------------------------

    def replay(self, offset: int, record: Record) -> None:
        """A record of the log, written just now or read at start. ``offset`` -1: not known, it was held back."""

    def replay_block(self, offset: int, block: Block) -> None:
        """A block of this machine's, written just now; ``offset`` is that of its first record."""

    def on_loaded(self, now_ms: int) -> Result | Steps:
        """The log was read to its end. If this raises, the machine serves what it can."""

    def catch_up(self, now_ms: int) -> Result | Steps:
        """Writes what has happened outside while this machine was not there to write it down.

        It is called behind ``on_loaded``, but ten seconds later where the machine was rebuilt: this may be what failed.
        """

    # --- time, and what happens outside -----------------------------------------------------------------------

    def on_timer(self, now_ms: int, key: Hashable) -> Result | Steps:
        """A timer it had set is due."""

    def on_work(self, now_ms: int, key: Hashable, value: Any) -> Result | Steps:
        """``Work`` has been done; ``value`` is what came of it, None if it raised."""

    def on_event(self, now_ms: int, event: object) -> Result | Steps:
        """Something has happened outside that may have to be written down. Which events there are is its own business.

        A machine that is still being loaded gets none; ``catch_up`` finds what it has missed.
        """

    def on_notice(self, notice: object) -> None:
        """Something outside has changed, of which nothing is written. A machine that is being loaded gets it, too."""

    def on_clock_jumped(self, by_ms: int) -> None:
        """The time was set, or nothing ran for a while: the times that the machine holds move along."""
