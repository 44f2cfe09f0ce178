"""Which thread runs the event loop of the synchronous clients: a pure state machine.

One thread at a time runs the loop. A thread that waits in a call runs it itself, so that a reply needs no switch
between threads. The background thread runs it between calls. ``client/loop`` calls this machine under a lock.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Generic, TypeVar

T = TypeVar("T")

BACKGROUND: Final = "background"


class LoopTurn(Generic[T]):
    """``runner`` is the thread that has the turn: a caller, BACKGROUND, or None if no thread runs the loop.

    ``ended``: how many turns of callers have ended."""

    def __init__(self) -> None:
        self.runner: T | str | None = None
        self.ended = 0
        self._callers: deque[T] = deque()
        self._stop_is_sent = False
        self._background_sleeps = False

    def take(self, caller: T) -> bool:
        """Gives the turn to ``caller`` if it is free. Otherwise the caller waits for it. Returns whether it has it."""
        if self.runner is None:
            self.runner = caller
            return True
        self._callers.append(caller)
        return False

    def must_stop_background(self) -> bool:
        """Returns whether the background thread must end its turn now. True once for each of its turns."""
        if self.runner != BACKGROUND or not self._callers or self._stop_is_sent:
            return False
        self._stop_is_sent = True
        return True

    def give_up(self, caller: T) -> bool:
        """Ends the wait of ``caller`` for the turn. Returns whether it has got the turn meanwhile."""
        if self.runner is caller:
            return True
        self._callers.remove(caller)
        return False

    def end(self) -> T | None:
        """Ends the turn of the runner. Returns the caller that has the turn now, if there is one."""
        if self.runner == BACKGROUND:
            self._stop_is_sent = False
        else:
            self.ended += 1
        following = self._callers.popleft() if self._callers else None
        self.runner = following
        return following

    def take_in_background(self) -> bool:
        """Gives the turn to the background thread if it is free; otherwise this thread sleeps until it is woken."""
        if self.runner is None:
            self.runner = BACKGROUND
            return True
        self._background_sleeps = True
        return False

    def must_wake_background(self) -> bool:
        """Returns whether the background thread sleeps although the turn is free. True once for each sleep."""
        if self.runner is not None or not self._background_sleeps:
            return False
        self._background_sleeps = False
        return True
