"""A thread of a test whose failure the test reads."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class WorkerThread(ABC, threading.Thread):
    """``failure``: what has ended ``work``; None if nothing has."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    @abstractmethod
    def work(self) -> None: ...
