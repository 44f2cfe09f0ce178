"""A request to stop a query, from another thread."""

from __future__ import annotations

import threading


class StopRequest(threading.Event):
    """An event with the time that the current micro-batch has after it is set. A plain event gives the same default."""

    def __init__(self, patience_s: float = 20.0) -> None:
        super().__init__()
        self.patience_s = patience_s
