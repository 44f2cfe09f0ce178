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
PATIENCE = 24
"""So many looks may find a long request at work; then the heap is trimmed all the same, and again later."""

_MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Heap:
    """Counts what is freed. ``call_later`` is the event loop's; ``in_thread`` runs a job that takes milliseconds.

    ``is_busy`` says whether a long request is at work. Its bytes are free only when it ends: the trim waits.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        in_thread: Callable[[Callable[[], None]], object],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._call_later = call_later
        self._in_thread = in_thread
        self._is_busy = is_busy
        self._freed = 0
        self._is_due = False
        self._waited = 0

    def freed(self, size: int) -> None:
        """Notes ``size`` bytes of a long request or reply that nothing needs any more, or only the request at work."""
        self._freed += size
        if self._freed >= TRIM_BYTES:
            self.trim_soon()

    def trim_soon(self) -> None:
        """Trims a second later, however little was freed: after a full collection of garbage."""
        if not self._is_due:
            self._is_due = True
            self._call_later(PAUSE_S, self._trim)

    def _trim(self) -> None:
        is_busy = self._is_busy()
        if is_busy and self._waited < PATIENCE:
            self._waited += 1
        else:
            self._waited = 0
            self._freed = 0
            self._is_due = is_busy
            self._in_thread(trim)
        if self._is_due:
            self._call_later(PAUSE_S, self._trim)


def trim() -> None:
    """Gives whole free pages back. Does nothing where the C library has no such call (musl, macOS)."""
    import ctypes  # most brokers never need it

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def bytes_in_use() -> int | None:
    """Bytes that the C library has handed out and not got back; None where it does not say (musl, macOS)."""
    import ctypes

    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None

    class Information(ctypes.Structure):
        """``struct mallinfo2`` of the C library."""

        _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2]

    mallinfo.restype = Information
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)
