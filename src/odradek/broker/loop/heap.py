"""Trims of the C library's heap: they return free memory to the system after a burst of long requests and replies.

The C library keeps freed blocks that are between used blocks. Without a trim, a broker that once held 100 MB of
requests occupies most of this memory until it ends.
"""

from __future__ import annotations

from collections.abc import Callable

TRIM_BYTES = 32 << 20
"""A trim is due after this number of freed bytes of long requests and replies."""
PAUSE_S = 1.0
"""Seconds after which a due trim runs, so that a burst can end. Also the time between two checks."""
PATIENCE = 24
"""A due trim waits for the end of a long request, for at most this number of checks.

A trim that runs during a long request is repeated later."""

_MALLINFO2 = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class Heap:
    """Counts freed bytes and trims.

    ``call_later`` is a method of the event loop. ``in_thread`` runs a job of some milliseconds. ``is_busy`` says
    whether a long request is in progress. The memory of a request becomes free only at its end, so the trim waits.
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

    def count_freed(self, size: int) -> None:
        """Counts ``size`` bytes of a received long request or of a sent long reply.

        A handler may still use the bytes of its request."""
        self._freed += size
        if self._freed >= TRIM_BYTES:
            self.trim_soon()

    def trim_soon(self) -> None:
        """Makes a trim due, however few bytes were counted: for use after a full garbage collection."""
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
    """Returns whole free pages to the system. Does nothing without ``malloc_trim`` (musl, macOS)."""
    import ctypes  # imported here, because most brokers never need it

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def bytes_in_use() -> int | None:
    """Returns the allocated bytes of the C library's heap, or None where it does not report them (musl, macOS)."""
    import ctypes

    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None

    class Information(ctypes.Structure):
        """``struct mallinfo2`` of the C library."""

        _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO2]

    mallinfo.restype = Information
    information = mallinfo()
    return int(information.uordblks + information.hblkhd)
