"""Who writes to a table: a record for each run, ``_odradek/runs/<id>.json``, with its machine, process and last sign.

A run begins by writing its record and looking at the others. One that lives is a reason to refuse, by name. A run of
this machine lives while its process does; one of another machine while its record is renewed. What a dead run has left
beside or in the table goes: at once where this machine knows that it is dead, else after a day. Its record stays for
that day, and each run looks again at its begin and at its end, since a task of the dead one may still be writing.
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
from odradek.core.json_depth import parse_json
from odradek.pipelines.filesystems import Place
from odradek.pipelines.staging import DAY_S

RUNS = "runs"
RENEW_S = 20.0
SILENT_S = 90.0
# Two that begin at once see each other: the one that asked later leaves, the other waits for that.
_DECIDED_S = 10.0


class Record(NamedTuple):
    """``process`` is the pid and when it began, empty once the run has ended; ``seen_s``: the last sign, in seconds
    since 1970. ``machine`` says whose pids these are; earlier versions did not write it.
    """

    run: str
    host: str
    process: str
    begun_s: float
    seen_s: float
    holds: bool
    machine: str = ""


class Run:
    """This process's run of one table."""

    def __init__(self, runs: Place) -> None:
        self.id = uuid.uuid4().hex
        self._runs = runs
        self._ended = threading.Event()
        self._record = Record(self.id, socket.gethostname(), _process(os.getpid()), time.time(), 0.0, holds=False)
        self._record = self._record._replace(machine=_machine())
        self._renewing: threading.Thread | None = None
        self.is_left = False
        self.dead: frozenset[str] = frozenset()
        """Runs whose leftovers may go."""

    def begin(self) -> None:
        """Raises StorageError while another run of this table lives."""
        self._write(holds=False)
        try:
            others = self._others()
            until = time.monotonic() + _DECIDED_S
            while rivals := [one for one in others if _lives(one)]:
                first = min(rivals, key=_order)
                if first.holds or _order(first) < _order(self._record) or time.monotonic() > until:
                    raise StorageError(
                        f"another pipeline is writing to this table: {_named(first)}. Where that run is dead, wait for "
                        f"{SILENT_S:.0f} s of silence, or remove {self._runs.uri}/{first.run}.json"
                    )
                self._ended.wait(0.2)
                others = self._others()
        except BaseException:
            self._runs.delete(f"{self.id}.json")
            raise
        self._write(holds=True)
        _living.add(self)
        self.dead = frozenset(one.run for one in others if self._is_over(one))
        self._renewing = threading.Thread(target=self._renew, name="odradek-run", daemon=True)
        self._renewing.start()

    def forget_dead(self) -> None:
        """Removes the records of runs that are dead for a day; what they left has gone by now."""
        for one in self._others():
            if one.run in self.dead and time.time() - one.seen_s > DAY_S:
                self._runs.delete(f"{one.run}.json")

    def end(self) -> None:
        """Removes the record, unless a task of this run may still be writing (``is_left``)."""
        if self.is_left:
            self.leave()
            return
        self._stop_renewing()
        with contextlib.suppress(OdradekError, OSError):
            self._runs.delete(f"{self.id}.json")

    def leave(self) -> None:
        """Says that the run is over, and that what it has left is a dead run's."""
        self._stop_renewing()
        self._record = self._record._replace(process="")
        with contextlib.suppress(OdradekError, OSError):
            self._write(holds=False)

    def _stop_renewing(self) -> None:
        _living.discard(self)
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with contextlib.suppress(Exception):  # another sign follows; Java may be about to end
                self._write(holds=True)

    def _write(self, *, holds: bool) -> None:
        self._record = self._record._replace(seen_s=time.time(), holds=holds)
        self._runs.write_text(f"{self.id}.json", json.dumps(self._record._asdict()) + "\n")

    def _others(self) -> list[Record]:
        return [one for one in _records(self._runs) if one.run != self.id]

    def _is_over(self, other: Record) -> bool:
        return not _lives(other) and (_is_here(other) or time.time() - other.seen_s > DAY_S)


_living: set[Run] = set()
"""Those of this process that have begun and not ended."""


def leave_all() -> None:
    """For a process that is about to end in the midst of its runs: they are over, as other machines see at once."""
    for run in list(_living):
        run.leave()


def _records(runs: Place) -> list[Record]:
    """A record that is being renewed has its old name, or that of the new one, or for a moment neither of those that
    were listed: it is looked for three times.
    """
    found = []
    for name in dict.fromkeys(name.removesuffix(".new") for name in runs.children()):
        if name.endswith(".json"):
            tries = (_read(runs.read_text(one)) for one in (name, f"{name}.new", name))
            record = next((one for one in tries if one is not None), None)
            if record is not None:
                found.append(record)
    return found


def _lives(record: Record) -> bool:
    if not record.process:
        return False
    if _is_here(record):
        return record.process == _process(_pid(record))
    return time.time() - record.seen_s < SILENT_S


def _named(record: Record) -> str:
    ago_s = max(0.0, time.time() - record.seen_s)
    process = record.process.partition("@")[0]
    return f"process {process} on {record.host}, run {record.run[:8]}, last seen {ago_s:.0f} s ago"


def _order(record: Record) -> tuple[float, str]:
    return record.begun_s, record.run


def _pid(record: Record) -> int:
    number = record.process.partition("@")[0]
    return int(number) if number.isdecimal() else -1


def _is_here(record: Record) -> bool:
    """Whether the record's process is one of those that this process sees."""
    return record.host == socket.gethostname() and record.machine == _machine()


def _machine() -> str:
    """This start of this machine, and the processes that are seen on it: containers may share a name. Empty where the
    system does not say: then the name alone counts."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _process(pid: int) -> str:
    """A process by its number and start, since numbers are used again; the number alone where the start is unknown, and
    nothing where there is no such process."""
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


def _read(text: str | None) -> Record | None:
    """None for a record that is gone, or is being written."""
    try:
        return Record(**parse_json(text or ""))
    except (ValueError, TypeError):
        return None
