"""The CPU time of each test file, for ``make test-times``: a plugin of pytest.

Other work on the machine changes how long a test takes, but hardly its CPU time. The time of a file is what this
process and all processes below it have used: brokers, Java, forks, and the processes that have ended. On Linux only.
A process whose parent has ended leaves this tree and takes its time along, so a file may have a few tenths less than
nothing.
Each process that runs tests appends lines ``seconds<TAB>file`` to the file that ODRADEK_CPU_TIMES names.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_AFTER_NAME = slice(11, 15)
"""utime, stime, cutime and cstime, counted from the field that follows the name of the program (proc(5))."""
_PARENT = 1
FILE = "ODRADEK_CPU_TIMES"
_COLLECTION = "collection"


def cpu_seconds(root: int) -> float:
    """Returns the CPU time of this process and of all processes below it, with those that have ended."""
    parents, ticks = {}, {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            fields = Path(entry.path, "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(entry.name)
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = sum(map(int, fields[_AFTER_NAME]))
    below, total = [root], 0
    while below:
        parent = below.pop()
        total += ticks.get(parent, 0)
        below += [pid for pid, its_parent in parents.items() if its_parent == parent]
    return total / _TICKS


class FileTimes:
    """Notes the time at the end of each file."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._file = _COLLECTION
        self._before = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._note(file)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        self._note("")

    def _note(self, following: str) -> None:
        now = cpu_seconds(os.getpid())
        with self._output.open("a") as output:
            output.write(f"{now - self._before:.2f}\t{self._file}\n")
        self._before, self._file = now, following


def pytest_configure(config: pytest.Config) -> None:
    running = os.environ.get("PYTEST_XDIST_WORKER") or not config.getoption("numprocesses", None)
    if running and FILE in os.environ:
        config.pluginmanager.register(FileTimes(Path(os.environ[FILE])))


def print_table(lines: list[str]) -> None:
    """Prints the sum, and the files that take the most time."""
    times: defaultdict[str, float] = defaultdict(float)
    for line in lines:
        seconds, _, file = line.partition("\t")
        times[file] += float(seconds)
    print(f"{sum(times.values()):8.1f} CPU seconds in all")
    for file in sorted(times, key=times.__getitem__, reverse=True)[:60]:
        print(f"{times[file]:8.1f} {file}")


if __name__ == "__main__":
    print_table(Path(sys.argv[1]).read_text().splitlines())
