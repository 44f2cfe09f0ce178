"""Which process runs which file, where several run the tests: ``make test`` with ``--dist loadfile``.

Tests of Spark keep the processors busy, tests of clients mostly wait for sessions, heartbeats and restarts. So the
first process begins with Spark's, the others begin at the other end with those that wait, and they meet where the files
are small. One process then has nearly all of Spark's tests, and one session for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.workermanage import WorkerController

# Those between are in the order of their names.
FIRST = ("pipelines", "spark", "demo")
LAST = ("cli", "interop", "client", "broker")


def place(path: str) -> int:
    """Where a test's file, as ``tests/folder/name.py``, stands among others; less is earlier."""
    folder = path.removeprefix("tests/").partition("/")[0]
    if folder in FIRST:
        return FIRST.index(folder) - len(FIRST)
    return LAST.index(folder) + 1 if folder in LAST else 0


def arrange(items: list[pytest.Item]) -> None:
    """The order in which files are handed out; within a file nothing changes."""
    items.sort(key=lambda item: place(item.nodeid))


class BothEnds(LoadFileScheduling):
    """The first process takes files from the front, the others take them from the back."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
