"""The runs that write to a table, and their records.

The record of a run, ``_odradek/runs/<id>.json``, has the run's machine, its process and the time at which the run last
renewed the record.

A run first writes its record and then reads the others. If another run is alive, the new run is refused with the name
of the other run. A run of this machine is alive while its process runs. A run of another machine is alive while it
renews its record. This check is a courtesy: it compares clocks, and a paused run looks dead. The log of the table keeps
the rows right (``commit/machine``), by the run's number. The number rises from run to run. The file ``number-<number>``
of the newest run stays.

The record of a dead run stays for a day. During this day each run looks for leftovers of the dead run at its own begin
and end, because a task of the dead run may still be writing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import OdradekError, StorageError
from odradek.pipelines.commit.file_damage import DamagedFile
from odradek.pipelines.files.staging import DAY_S
from odradek.pipelines.filesystems.location import Location
from odradek.text.json_depth import parse_json

RUNS = "runs"
_NUMBER = "number-"
RENEW_S = 20.0
SILENT_S = 90.0
# Two runs that begin at the same time see each other. The later run gives up. The earlier run waits this long for that.
_DECIDED_S = 10.0


class RunRecord(NamedTuple):
    """The record of a run. ``process``: the pid and its start time; empty after the run has ended. ``seen_s``: the time
    at which the run last renewed the record, in seconds since 1970. ``holds``: whether the run may write to the table;
    False while the run begins, and after its end. ``machine``: the machine and namespace of the pid; earlier versions
    did not write it. ``number``: the run's number; 0 before it has one, and in records of earlier versions.
    """

    run: str
    host: str
    process: str
    begun_s: float
    seen_s: float
    holds: bool
    machine: str = ""
    number: int = 0


class Run:
    """This process's run on one table."""

    def __init__(self, runs: Location) -> None:
        self.id = uuid.uuid4().hex
        self._runs = runs
        self._ended = threading.Event()
        self._writing = threading.Lock()  # the thread that ends the process writes, too
        self._record = RunRecord(self.id, socket.gethostname(), _process(os.getpid()), time.time(), 0.0, holds=False)
        self._record = self._record._replace(machine=_machine())
        self._renewing: threading.Thread | None = None
        self.may_have_leftovers = False
        self.dead: frozenset[str] = frozenset()
        """Runs of earlier versions whose leftovers can be removed, because they are surely dead."""
        self.gone: frozenset[str] = frozenset()
        """Runs that have left a record and look dead: there may be leftovers of them."""

    @property
    def description(self) -> str:
        """The process, the machine and the run, for messages."""
        return _names(self._record)

    def begin(self) -> None:
        """Writes this run's record. Raises StorageError if another run of this table is alive."""
        _active_runs.add(self)  # before the record exists: a signal may end the process at any line from now on
        try:
            self._write(holds=False)
            others = self._others()
            until = time.monotonic() + _DECIDED_S
            while rivals := [one for one in others if _is_alive(one)]:
                first = min(rivals, key=_order)
                if first.holds or _order(first) < _order(self._record) or time.monotonic() > until:
                    raise StorageError(
                        f"another pipeline is writing to this table: {_description(first)}. If that run is dead, wait "
                        f"until it was last seen {SILENT_S:.0f} s ago, or remove {self._runs.uri}/{first.run}.json"
                    )
                self._ended.wait(0.2)
                others = self._others()
            self._write(holds=True)
        except BaseException:
            _active_runs.discard(self)
            self._runs.delete(f"{self.id}.json")
            raise
        self.dead = frozenset(one.run for one in others if self._is_over(one))
        self.gone = frozenset(one.run for one in others)
        renewing = threading.Thread(target=self._renew, name="odradek-run", daemon=True)
        renewing.start()
        self._renewing = renewing

    def take_number(self, least: int) -> int:
        """Returns the run's number, which is higher than ``least`` and than the numbers of all earlier runs.

        Where a store has no exclusive create, two runs may get one number; the log distinguishes them by their ids.
        """
        names = [name for name in self._runs.children() if name.startswith(_NUMBER)]
        taken = [int(name.removeprefix(_NUMBER)) for name in names if name.removeprefix(_NUMBER).isdecimal()]
        number = max([least, *taken]) + 1
        while not self._runs.create(f"{_NUMBER}{number:08d}", f"{self.id}\n"):
            number += 1
        for name in names:
            self._runs.delete(name)
        self._record = self._record._replace(number=number)
        return number

    def forget_dead(self) -> None:
        """Removes the records of runs that have been dead for a day. Their leftovers are already removed."""
        for one in self._others():
            if one.run in self.dead and time.time() - one.seen_s > DAY_S:
                self._runs.delete(f"{one.run}.json")

    def end(self) -> None:
        """Removes the record, unless a task of this run may still be writing (``may_have_leftovers``)."""
        if self.may_have_leftovers:
            self.mark_ended()
            return
        self._stop_renewing()
        with contextlib.suppress(OdradekError, OSError):
            self._runs.delete(f"{self.id}.json")

    def mark_ended(self) -> None:
        """Marks the run as ended. Later runs treat its leftovers as those of a dead run."""
        self._stop_renewing()
        self._record = self._record._replace(process="")
        with contextlib.suppress(OdradekError, OSError):
            self._write(holds=False)

    def _stop_renewing(self) -> None:
        _active_runs.discard(self)
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(Exception):  # the next renewal may succeed; Java may be about to end
                self._write(holds=True)

    def _write(self, *, holds: bool) -> None:
        with self._writing:
            self._record = self._record._replace(seen_s=time.time(), holds=holds and not self._ended.is_set())
            self._runs.write_text(f"{self.id}.json", json.dumps(self._record._asdict()) + "\n")

    def _others(self) -> list[RunRecord]:
        return [one for one in _records(self._runs) if one.run != self.id]

    def _is_over(self, other: RunRecord) -> bool:
        return not _is_alive(other) and (_is_here(other) or time.time() - other.seen_s > DAY_S)


_active_runs: set[Run] = set()
"""The runs of this process that have begun and not ended."""


def mark_all_ended() -> None:
    """Marks all runs of this process as ended, for a process that is about to exit. Other machines see this at once."""
    for run in list(_active_runs):
        run.mark_ended()


def _records(runs: Location) -> list[RunRecord]:
    """Returns all records.

    A run writes a renewed record as ``….json.new`` and then renames it to ``….json``. The name may change after the
    list was made, so each record is looked for under ``….json``, ``….json.new`` and ``….json`` again.
    """
    found = []
    for name in dict.fromkeys(name.removesuffix(".new") for name in runs.children()):
        if name.endswith(".json"):
            tries = (_read(runs, one) for one in (name, f"{name}.new", name))
            record = next((one for one in tries if one is not None), None)
            if record is not None and record.seen_s > time.time():  # the clock of its machine is ahead of ours
                record = record._replace(seen_s=time.time() - runs.child(name).age_s())
            if record is not None:
                found.append(record)
    return found


def _is_alive(record: RunRecord) -> bool:
    if not record.process:
        return False
    if _is_here(record) and _pid(record) == os.getpid():
        # A run of this process that could not remove its record, because the disk was full, has ended.
        return any(run.id == record.run for run in _active_runs)
    if _is_here(record):
        return record.process == _process(_pid(record))
    return time.time() - record.seen_s < SILENT_S


def _description(record: RunRecord) -> str:
    return f"{_names(record)}, last seen {max(0.0, time.time() - record.seen_s):.0f} s ago"


def _names(record: RunRecord) -> str:
    return f"process {record.process.partition('@')[0]} on {record.host}, run {record.run[:8]}"


def _order(record: RunRecord) -> tuple[float, str]:
    return record.begun_s, record.run


def _pid(record: RunRecord) -> int:
    number = record.process.partition("@")[0]
    return int(number) if number.isdecimal() else -1


def _is_here(record: RunRecord) -> bool:
    """Returns whether the record's process is in the same pid namespace as this process."""
    return record.host == socket.gethostname() and record.machine == _machine()


def _machine() -> str:
    """Returns the boot id of this machine and its pid namespace, because containers can share a host name. Returns an
    empty text if the system has neither: then only the host name counts."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> str:
    """Returns a process's pid and start time, because pids are reused. Returns only the pid if the start time is
    unknown, and an empty text if there is no such process."""
    if pid <= 0:
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return f"{pid}@{fields[19]}"
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return ""
    except OSError:
        return f"{pid}"
    return f"{pid}"


def _read(runs: Location, name: str) -> RunRecord | None:
    """Returns the record in a file; None if the file was removed, is being written, or is damaged."""
    try:
        return RunRecord(**parse_json(runs.read_text(name) or ""))
    except (ValueError, TypeError, DamagedFile):
        return None
