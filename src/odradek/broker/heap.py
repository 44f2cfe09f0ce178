"""Memory that a burst of long requests and replies leaves free in the C library's heap goes back to the system.

The C library keeps freed blocks between blocks that are in use. Without a trim, a broker that once held 100 MB of
requests occupies most of it until it ends.
"""

from __future__ import annotations

from collections.abc import Callable

TRIM_BYTES = 32 << 20
"""So many bytes of long requests and replies are freed before a trim."""
PAUSE_S = 1.0
"""From that moment to the trim, so that a burst may end."""


class Heap:
    """Counts what is freed. ``call_later`` is the event loop's; ``in_thread`` runs a job that takes milliseconds."""

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        in_thread: Callable[[Callable[[], None]], object],
    ) -> None:
        self._call_later = call_later
        self._in_thread = in_thread
        self._freed = 0
        self._is_due = False

    def freed(self, size: int) -> None:
        """Notes ``size`` bytes of a long request or reply that nothing needs any more."""
        self._freed += size
        if self._freed >= TRIM_BYTES and not self._is_due:
            self._is_due = True
            self._call_later(PAUSE_S, self._trim)

    def _trim(self) -> None:
        self._freed = 0
        self._is_due = False
        self._in_thread(trim)


def trim() -> None:
    """Gives whole free pages back. Does nothing where the C library has no such call (musl, macOS)."""
    import ctypes  # most brokers never need it

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
