"""The brokers of a demo that are killed half-way: a leader while events are published, the coordinator while they are
read."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.terminal import EXIT_FAILED, CommandError
from odradek.core.errors import OdradekError
from odradek.core.ids import OFFSETS_TOPIC

if TYPE_CHECKING:
    from odradek.client.admin import Admin

_SYNC_POLL_S = 0.1
_BACK_S = 120.0
"""The longest wait for a killed broker. The cluster starts it again after its session."""


class HalfwayKill:
    """Calls ``advance`` with each count of events, and kills a broker once half of a step's events are done.

    ``done`` and ``total``: the events before the step and after it, for calls that begin with ``done``. ``find``
    returns the number of the broker. ``killed``: its number and the events that were done; None if there was no kill.
    """

    def __init__(
        self, folder: Path, advance: Callable[[int], None], find: Callable[[], int], *, done: int, total: int
    ) -> None:
        self._folder, self._advance, self._find = folder, advance, find
        self._done, self._at = 0, done + (total - done + 1) // 2
        self._is_due = total > done
        self.killed: tuple[int, int] | None = None

    def __call__(self, count: int) -> None:
        self._advance(count)
        self._done += count
        if self._is_due and self._done >= self._at:
            self._is_due = False
            number = self._find()
            kill_broker(self._folder, number)
            self.killed = number, self._done


def kill_broker(folder: Path, number: int) -> None:
    """Ends a broker with kill -9. ``folder``: that of the cluster; the broker's lock file in it has the process id.

    Raises CommandError."""
    file = folder / str(number) / ".lock"
    try:
        os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
    except (OSError, ValueError, IndexError) as error:
        raise CommandError(f"broker {number} cannot be killed, by its id in {file}: {error}", EXIT_FAILED) from error


def wait_until_in_sync(admin: Admin, topic: str) -> None:
    """Waits until all replicas of a topic and of the offsets topic are in sync. Raises CommandError after 2 minutes."""
    deadline, pause = time.monotonic() + _BACK_S, threading.Event()
    while not _are_in_sync(admin, topic):
        if time.monotonic() > deadline:
            raise CommandError(
                f"the replicas were not in sync again after {_BACK_S:.0f} s: run the same command again to go on",
                EXIT_FAILED,
            )
        pause.wait(_SYNC_POLL_S)


def _are_in_sync(admin: Admin, topic: str) -> bool:
    with suppress(OdradekError):  # while a partition has no leader
        found = admin.describe_topics([topic, OFFSETS_TOPIC], missing_ok=True)
        partitions = [one for each in found.values() for one in each.partitions]
        return all(set(one.isr) == set(one.replicas) for one in partitions)
    return False
