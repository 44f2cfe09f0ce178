"""What a node gets from outside besides its event loop: files, clocks, ids and threads.

The process of a broker has those of the operating system. A simulator passes files in memory, virtual time and ids of
a seed, so that a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from time import perf_counter
from typing import NamedTuple
from uuid import UUID, uuid4

from odradek.broker.loop.clock import Clock
from odradek.storage.files import Files, OsFiles


def new_threads(count: int, name: str) -> Executor:
    """Returns ``count`` threads for work that takes longer than a tick of the loop."""
    return ThreadPoolExecutor(count, thread_name_prefix=name)


class NodeWorld(NamedTuple):
    """``share_clock``: the seconds of the scheduler's shares. ``new_threads`` gets a number of threads and their name.

    The event loop itself, which has timers and the default threads (``run_in_executor``), is passed to
    ``BrokerNode.begin``.
    """

    clock: Clock
    files: Files
    new_uuid: Callable[[], UUID] = uuid4
    new_threads: Callable[[int, str], Executor] = new_threads
    share_clock: Callable[[], float] = perf_counter

    @classmethod
    def of_process(cls, clock: Clock | None = None) -> NodeWorld:
        """Returns those of this process."""
        return cls(clock or Clock(), OsFiles())
