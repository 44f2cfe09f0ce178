"""What a state machine hands back to the runtime that drives it.

A machine never waits, writes or sends. Its three entry points are

* ``handle(now_ms, request) -> Result``: a request came in;
* ``replay(offset, record) -> None``: a record of the machine's log, written just now or read at start;
* ``on_timer(now_ms, key) -> Result``: a timer it had set is due.

``Result.records`` are appended to the machine's partition (all or none), then passed to ``replay`` one by one,
and only then, once the high watermark has passed them, is ``reply`` released. So living and restarting share
one path for durable state. Soft state (who is parked, which session runs) changes inside the handlers.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Protocol


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


@dataclass(slots=True, frozen=True)
class Park:
    """The request being handled gets no reply yet; ``Complete`` with the same key answers it later.

    Keys are unique among parked requests; parking under a key already in use is a bug in the machine.
    """

    key: Hashable


@dataclass(slots=True, frozen=True)
class Complete:
    """Answers the request parked under ``key``. Nothing happens when that connection has gone meanwhile."""

    key: Hashable
    reply: Any


@dataclass(slots=True, frozen=True)
class SetTimer:
    """Calls ``on_timer(now, key)`` at ``at_ms``; replaces a timer of the same key."""

    key: Hashable
    at_ms: int


@dataclass(slots=True, frozen=True)
class CancelTimer:
    """Forgets the timer of this key, if there is one."""

    key: Hashable


Effect = Park | Complete | SetTimer | CancelTimer


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
