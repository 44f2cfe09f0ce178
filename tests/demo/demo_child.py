"""Runs the demo, and kills it with all its children (broker, Java, Python workers) at a named step.

Usage: ``demo_child.py STEP[:N] DEMO-OPTIONS…``. The process dies at the Nth occurrence of the step. Before this, it
prints the processes that it kills to stderr. The step ``interrupted`` only sends SIGINT.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from demo_runs import log_bytes
from support.processes import kill_tree

from odradek.cli import main
from odradek.demo import flight_lake as lake
from odradek.demo import publisher, single_reset
from odradek.demo.flights import Event, Flights


def die() -> None:
    kill_tree(os.getpid(), sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def before(place: Any, name: str, count: int) -> None:
    work, times = getattr(place, name), itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        if next(times) == count:
            die()
        return work(*arguments)

    setattr(place, name, wrapped)


def after(place: Any, name: str, count: int) -> None:
    work, times = getattr(place, name), itertools.count(1)

    def wrapped(*arguments: Any) -> Any:
        result = work(*arguments)
        if next(times) == count:
            die()
        return result

    setattr(place, name, wrapped)


def before_file(count: int) -> None:
    """Dies before the file with this number is moved into the table."""
    replace, times = Path.replace, itertools.count(1)

    def wrapped(path: Path, target: Path) -> Path:
        if path.suffix == ".parquet" and next(times) == count:
            die()
        return replace(path, target)

    Path.replace = wrapped


def while_publishing(act: Callable[[], None]) -> None:
    """Calls ``act`` when the producer has got half of the events and some are in the broker's log."""
    events = Flights.events
    data_dir = Path(sys.argv[sys.argv.index("--data-dir") + 1])

    def wrapped(flights: Flights, start: int, stop: int) -> Iterator[Event]:
        at = (start + stop) // 2
        held = log_bytes(data_dir)
        for event in events(flights, start, stop):
            if event.number == at:
                while log_bytes(data_dir) <= held:
                    time.sleep(0.01)
                act()
            yield event

    Flights.events = wrapped


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    threading.Event().wait(60)


STEPS: dict[str, Callable[[int], None]] = {
    "interrupted": lambda n: while_publishing(interrupt),
    "publishing": lambda n: while_publishing(die),
    "table-written": lambda n: after(lake.Lake, "add", n),  # Spark has not marked the micro-batch as complete
    "staged": lambda n: before(lake.ParquetTable, "_finish", n),  # no file of the micro-batch is in the table
    "moving-in": before_file,  # the micro-batch has its manifest, and some of its files are in the table
    "rewind-noted": lambda n: before(single_reset, "execute_rewind", n),
    "rewound": lambda n: after(single_reset, "execute_rewind", n),
    "target-saved": lambda n: before(publisher, "prepare_topic", n),
    "batch-planned": lambda n: before(lake.Lake, "add", n),
}

if __name__ == "__main__":
    # Python keeps SIGINT ignored if it was ignored before, and shells start background commands that way.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    step, _, number = sys.argv[1].partition(":")
    STEPS[step](int(number or 1))
    main.main(["demo", *sys.argv[2:]])
