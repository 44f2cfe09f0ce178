"""Resident memory of a process in a long run: a series of samples, and whether it stays even."""

from __future__ import annotations

import gc
import os
import sys

from limits.target import use_of

EVEN_BYTES = 8 << 20
"""The allowed growth after the first fifth of a run. Python returns memory to the system in arenas of 1 MiB."""


class MemorySeries:
    """Samples every ``every`` steps. ``pid``: this process by default, which collects garbage before each sample."""

    def __init__(self, every: int, pid: int | None = None, name: str = "") -> None:
        self._every = every
        self._pid = pid
        self._name = name
        self.samples: list[int] = []
        """Bytes."""

    def note(self, step: int) -> None:
        """``step``: the number of finished steps."""
        if step % self._every:
            return
        if self._pid is None:
            gc.collect()
        self.samples.append(use_of(self._pid or os.getpid()).resident)
        sys.stderr.write(f"{self._name} {step:,}: {self.samples[-1] / 2**20:.1f} MiB\n")
        sys.stderr.flush()

    @property
    def growth(self) -> int:
        """The most bytes of the later samples more than at the end of the first fifth."""
        begin = max(2, len(self.samples) // 5)
        return max(self.samples[begin:]) - self.samples[begin - 1]

    def check(self) -> None:
        """Raises AssertionError if the memory has grown."""
        assert len(self.samples) >= 5
        assert self.growth <= EVEN_BYTES, self.samples
