"""The distribution of test files to processes in ``make test`` with ``--dist loadfile``.

Tests of Spark keep the processors busy. Tests of clients mostly wait for sessions, heartbeats and restarts. So the
first process begins at the front, with Spark's tests. The other processes begin at the end, with tests that wait. They
meet at small files. So one process has nearly all of Spark's tests, with one session for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.workermanage import WorkerController

# Folders in neither list come between them, in the order of their names.
FIRST = ("pipelines", "spark", "demo")
LAST = ("cli", "interop", "client", "broker")

# The files of the first folders that take the most CPU time, longest first: at the end, when the processes meet, only
# small files are left.
LONG = (
    "test_both_writers_agree", "test_two_drivers", "test_ingest_each_record_once", "test_ingest_kill",
    "test_value_decoders", "test_replay_of_ranges", "test_ingest_deleted_records", "test_transactional_writer",
    "test_spark_commits", "test_spark_stream", "test_spark_kill", "test_spark_offsets_topic", "test_spark_sink",
)  # fmt: skip

# The files of other folders that take the most time. They come last, where the other processes begin.
LONG_ELSEWHERE = (
    "test_zookeeper_commands", "test_secrets", "test_offsets_page", "test_kernel_cache", "test_apis_differential",
    "test_idle_year", "test_simulation", "test_groups_differential", "test_transactions_differential",
    "test_hostile_workload",
)  # fmt: skip


def place(path: str) -> int:
    """The position of a test file, such as ``tests/folder/name.py``; a smaller value is earlier."""
    folder = path.removeprefix("tests/").partition("/")[0]
    if _name(path) in LONG_ELSEWHERE:
        return len(LAST) + 1 + LONG_ELSEWHERE.index(_name(path))
    if folder in FIRST:
        return FIRST.index(folder) - len(FIRST)
    return LAST.index(folder) + 1 if folder in LAST else 0


def arrange(items: list[pytest.Item]) -> None:
    """Changes the order of the files; the order within a file does not change.

    In the first folders, files without the shared session come after the others: a process that takes one of them at
    the end starts no session.
    """
    sharing = {_file(item) for item in items if "spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: (place(_file(item)), _rank(_file(item)), _file(item) not in sharing))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _rank(path: str) -> int:
    name = _name(path)
    return LONG.index(name) if name in LONG else len(LONG)


class BothEnds(LoadFileScheduling):
    """The first process takes files from the front, the others take them from the back."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
