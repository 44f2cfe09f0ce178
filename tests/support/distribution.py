"""The distribution of test files to processes in ``make test`` with ``--dist loadfile``.

Tests of Spark keep the processors busy. Tests of clients mostly wait for sessions, heartbeats and restarts. So the
first process begins at the front, with Spark's tests. The other processes begin at the end, with tests that wait. They
meet at small files.

One process has the tests that use the shared Spark session, because each session costs 15 CPU seconds or more. At the
end, a second process starts a session of its own if many of these files are left. The others end.

ZooKeeper and the Java process of Kafka's tools are shared by the tests of a process, too, and cost 3 CPU seconds each.
The process that has taken a file with one of them takes the other such files, as long as there are others.
"""

from __future__ import annotations

import re
from pathlib import Path
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
    "test_both_writers_agree", "test_schema_evolution", "test_resets_after_failed_plans", "test_history_cli",
    "test_times_no_column_holds", "test_damaged_notes", "test_topics_of_logs_put_back", "test_paused_drivers",
    "test_ingest_page", "test_logs_without_batches", "test_logs_put_back", "test_ingest_each_record_once",
    "test_replay_of_ranges", "test_old_checkpoints", "test_transactional_writer", "test_spark_stream",
    "test_spark_commits", "test_spark_page", "test_two_drivers", "test_partition_values", "test_transform",
    "test_joins_in_transactions", "test_spark_sink",
)  # fmt: skip

# The files of other folders that take the most time. They come last, where the other processes begin.
LONG_ELSEWHERE = (
    "test_zookeeper_commands", "test_offsets_page", "test_apis_differential", "test_simulation",
    "test_broker_simulation", "test_log_cleaner", "test_pytest_fixtures", "test_transaction_schedules",
    "test_failovers", "test_secured_nodes", "test_cleaned_dump", "test_mixed_group", "test_groups_differential",
    "test_replication_rounds", "test_table_simulation", "test_served_clusters", "test_embedding",
    "test_replication_simulation", "test_house_style", "test_cluster_simulation", "test_client_histories",
    "test_cluster_page", "test_transactions_differential", "test_hostile_workload", "test_wide_requests",
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


_SESSION = re.compile(r"\bdef \w+\([^)]*\b(?:spark|stream): ")
WORTH_A_SESSION = 10
"""With fewer files left that use the shared session, a second session would take more time than these files."""
MOST_SESSIONS = 2
"""Two sessions keep two processors busy."""


_SHARED = {name: re.compile(rf"\bdef \w+\([^)]*\b{name}: ") for name in ("zookeeper", "kafka_tools")}


def shared_by(path: str) -> frozenset[str]:
    """What a file uses that costs seconds for each process that has it."""
    try:
        text = Path(path).read_text()
    except OSError:
        return frozenset()
    return frozenset(name for name, pattern in _SHARED.items() if pattern.search(text))


def uses_session(path: str) -> bool:
    """Whether a file of the first folders has a test or a fixture that uses the shared session."""
    try:
        return place(path) < 0 and bool(_SESSION.search(Path(path).read_text()))
    except OSError:
        return False


class BothEnds(LoadFileScheduling):
    """The first process takes files from the front, the others take them from the back.

    xdist itself keeps each test that has run, visits all of them at each event, and seeks each test in the list of all
    tests. With 9,000 tests this would keep a processor busy for many seconds.
    """

    def schedule(self) -> None:
        if self.collection is None:
            paths = {self._split_scope(nodeid) for nodeid in next(iter(self.registered_collections.values()))}
            self._kept = {path for path in paths if uses_session(path)}
            self._numbers: dict[WorkerController, dict[str, int]] = {}
            self._with_session: set[WorkerController] = set()
            self._shared = {path: found for path in paths if (found := shared_by(path))}
            self._owners: dict[str, WorkerController] = {}
        super().schedule()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        nodeid = self.registered_collections[node][item_index]
        work, path = self.assigned_work[node], self._split_scope(nodeid)
        del work[path][nodeid]
        if not work[path]:
            del work[path]
        self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self.workqueue and self._next_for(node) is None and not node.shutting_down:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        path = self._next_for(node)
        if path is None:
            node.shutdown()
            return
        if path in self._kept:
            self._with_session.add(node)
        for name in self._shared.get(path, ()):
            self._owners.setdefault(name, node)
        tests = self.workqueue.pop(path)
        self.assigned_work[node].setdefault(path, {}).update(tests)
        if node not in self._numbers:
            collected = self.registered_collections[node]
            self._numbers[node] = {nodeid: number for number, nodeid in enumerate(collected)}
        node.send_runtest_some([self._numbers[node][nodeid] for nodeid in tests])

    def _next_for(self, node: WorkerController) -> str | None:
        """The file that this process takes next, or None if it leaves the rest to the processes with a session."""
        if node is next(each for each in self.nodes if each is node or not each.shutting_down):
            return next(iter(self.workqueue))
        others = [path for path in reversed(self.workqueue) if path not in self._kept]
        last = next((path for path in others if self._may_take(node, path)), next(iter(others), None))
        return next(reversed(self.workqueue)) if last is None and self._may_have_session(node) else last

    def _may_take(self, node: WorkerController, path: str) -> bool:
        owners = [self._owners.get(name, node) for name in self._shared.get(path, ())]
        return all(owner is node or owner.shutting_down for owner in owners)

    def _may_have_session(self, node: WorkerController) -> bool:
        sessions = sum(not each.shutting_down for each in self._with_session)
        is_worth = len(self.workqueue) >= WORTH_A_SESSION and sessions < MOST_SESSIONS
        return node in self._with_session or is_worth
