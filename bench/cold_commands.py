"""The time of whole commands `odradek pipeline ingest` of this revision, in pairs with another revision's.

``python -m bench.cold_commands OTHER [--pairs 5] [--rows 2000000]``

``OTHER`` is a checkout with an environment (``.venv``). One broker of this revision serves both. Each case is a whole
command with a new process: "rows" reads a topic of ``--rows`` records of 100 random bytes into a new table, "one" reads
one record into a new table, "none" runs again on a table that has everything. A pair is one command of each revision,
one after the other, in random order. Before, each revision runs the case "one" three times.

The figures of a case: elapsed seconds and CPU seconds of the command and all of its processes (Java, Spark's Python
workers), as medians, and the ratio of this revision to the other one, pair by pair, as least, median and most.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

from bench.topics import filled, random_values
from odradek.client.admin import Admin
from odradek.testing.process import BrokerProcess

_HERE = Path(__file__).resolve().parent.parent
_CASES = ("rows", "one", "none")
_SET_CHILD_SUBREAPER = 36
_COMMAND_S = 300.0
_VALUE_BYTES = 100
_WARM_UP = 3


@dataclass(frozen=True)
class Cost:
    """Elapsed seconds and CPU seconds of a command."""

    elapsed_s: float
    cpu_s: float


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _reap(kept: set[int]) -> None:
    """Waits for the orphans of a command, such as Java: this process is their subreaper. ``kept``: other children."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while pids := {int(pid) for pid in children.read_text().split()} - kept:
        for pid in pids:
            os.waitpid(pid, 0)


def run(checkout: Path, arguments: list[str], place: Path, kept: set[int]) -> Cost:
    """Runs `odradek` of a checkout to its end. Raises SystemExit with its output if it fails."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / f"cache-{checkout.name}")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, began = _children_s(), time.monotonic()
    with (place / "output").open("w+") as output:
        done = subprocess.run(
            [str(checkout / ".venv/bin/odradek"), *arguments],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, cwd=place,
            timeout=_COMMAND_S, check=False,
        )  # fmt: skip
        elapsed = time.monotonic() - began
        output.seek(0)
        text = output.read()
    _reap(kept)
    if done.returncode:
        raise SystemExit(f"{checkout}: {text[-2000:]}")
    return Cost(elapsed, _children_s() - before)


class Pairs:
    """Pairs of commands against one broker, in the folder ``place``."""

    def __init__(self, broker: BrokerProcess, topics: dict[str, str], revisions: dict[str, Path], place: Path) -> None:
        self._bootstrap, self._revisions, self._place = broker.bootstrap, revisions, place
        self._broker_pids = {pid for pid in (broker.pid,) if pid is not None}
        self._topics = topics
        self._number = 0
        self._groups: dict[str, str] = {}

    def warm_up(self) -> None:
        """Compiles kernels, and makes the archive of Java's classes, which is used from the third command on."""
        for _ in range(_WARM_UP):
            for revision in self._revisions:
                self.command("one", revision)

    def command(self, case: str, revision: str) -> Cost:
        """Runs one command. The cases "rows" and "one" begin a new table and a new group."""
        checkout = self._revisions[revision]
        table = self._place / revision / case
        if case == "none":  # the table of the last command "one"
            table = self._place / revision / "one"
        else:
            shutil.rmtree(table, ignore_errors=True)
            self._number += 1
            self._groups[revision] = f"{revision}-{self._number}"
        topic = self._topics["one" if case == "none" else case]
        arguments = ["pipeline", "ingest", "-b", self._bootstrap, "--topics", topic, "--output", str(table)]
        arguments += ["--group", self._groups[revision], "--progress", "none"]
        return run(checkout, arguments, self._place, self._broker_pids)

    def measure(self, case: str, pairs: int) -> dict[str, list[Cost]]:
        """Returns the costs of each revision, one for each pair."""
        costs: dict[str, list[Cost]] = {revision: [] for revision in self._revisions}
        for _ in range(pairs):
            for revision in random.sample(list(self._revisions), k=len(self._revisions)):
                costs[revision].append(self.command(case, revision))
        return costs


def show(case: str, costs: dict[str, list[Cost]]) -> None:
    """Prints the figures of a case."""
    for figure in ("elapsed_s", "cpu_s"):
        here, other = ([getattr(cost, figure) for cost in costs[revision]] for revision in ("here", "other"))
        ratios = [one / two for one, two in zip(here, other, strict=True)]
        print(
            f"{case:5} {figure:10} here {statistics.median(here):7.2f}  other {statistics.median(other):7.2f}  "
            f"ratio {min(ratios):.3f} {statistics.median(ratios):.3f} {max(ratios):.3f}  (least, median, most)",
            flush=True,
        )


def main() -> None:
    parser = ArgumentParser(prog="python -m bench.cold_commands", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, metavar="OTHER", help="another checkout with its environment")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument(
        "--cases", nargs="+", choices=_CASES, default=list(_CASES), help="in this order; 'none' needs 'one' before it"
    )
    given = parser.parse_args()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    place = Path(tempfile.mkdtemp(prefix="cold-commands-"))
    broker = BrokerProcess(place / "broker")
    broker.start()
    try:
        with Admin(broker.bootstrap) as admin:
            topics = {
                case: filled(broker.bootstrap, admin, case, rows, random_values(_VALUE_BYTES), "none")
                for case, rows in (("rows", given.rows), ("one", 1))
            }
        pairs = Pairs(broker, topics, {"here": _HERE, "other": given.other.resolve()}, place)
        pairs.warm_up()
        for case in given.cases:
            show(case, pairs.measure(case, given.pairs))
    finally:
        broker.stop()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
