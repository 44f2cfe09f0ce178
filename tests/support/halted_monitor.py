"""``odradek monitor`` that halts at a step: ``python -m support.halted_monitor STEP OPTIONS…``. A test kills it there.

STEP is a name of ``STEPS``, ``before`` or ``after``, and the number of the call, such as ``begin,after,0``. At the step
the process prints ``halted``, and the thread that came there does nothing more. The other threads go on.

So a test kills a process of the monitor between two steps that a clock would hardly ever hit. The history goes to its
files and the files are joined after parts of a second, in place of minutes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from typing import Any

STEPS = {
    "plan": ("odradek.monitor.changes.store", "ChangeStore", "save_plan"),
    "begin": ("odradek.monitor.changes.store", "ChangeStore", "begin"),
    "request": ("odradek.client.admin", "Admin", "alter_group_offsets"),
    "end": ("odradek.monitor.changes.store", "ChangeStore", "end"),
    "incidents": ("odradek.monitor.incidents.store", "IncidentStore", "record"),
    "transaction": ("odradek.monitor.disk.database", "StoreTransaction", "_end"),
    "file": ("odradek.history.kept.history_files", "HistoryFolder", "write"),
    "rename": ("pathlib", "Path", "replace"),
    "removal": ("odradek.history.kept.history_files", "HistoryFolder", "remove"),
}
"""What a monitor writes, by where it does so. ``transaction``: SQLite's COMMIT of anything. ``rename``: a complete file
of the history gets its name. ``removal``: the files that another one has replaced go."""
MOMENTS = ("before", "after")


def halt_at(step: str) -> None:
    """Halts this process at a step, from now on."""
    name, moment, number = step.split(",")
    module, owner_name, method = STEPS[name]
    owner: Any = getattr(import_module(module), owner_name)
    original = getattr(owner, method)
    calls: Iterator[int] = count()

    def halted(self: Any, *given: Any, **named: Any) -> Any:
        is_now = next(calls) == int(number)
        if is_now and moment == "before":
            _halt()
        reply = original(self, *given, **named)
        if is_now:
            _halt()
        return reply

    setattr(owner, method, halted)


def _halt() -> None:
    print("halted", flush=True)
    time.sleep(600)


def write_often() -> None:
    """Makes the history write and join its files within parts of a second."""
    from odradek.history.kept import age_levels
    from odradek.monitor.disk import recorder, upkeep

    recorder._LONGEST_WAIT_MS = 200
    upkeep._EVERY_S = 0.3
    upkeep._LEAST_FILES = 3
    joined = age_levels.ThinningLevel(200, 0)
    upkeep.LEVELS = (age_levels.LEVELS[0], joined, *age_levels.LEVELS[2:])


if __name__ == "__main__":
    from odradek.cli.main import run

    write_often()
    halt_at(sys.argv[1])
    sys.exit(run(["monitor", *sys.argv[2:]]))
