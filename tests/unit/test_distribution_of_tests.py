"""The order in which ``make test`` gives test files to its processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.distribution import (
    LONG,
    LONG_ELSEWHERE,
    MOST_SESSIONS,
    WORTH_A_SESSION,
    BothEnds,
    place,
    shared_by,
    uses_session,
)

TESTS = Path(__file__).resolve().parents[1]


def test_each_file_with_a_place_of_its_own_exists() -> None:
    names = {path.stem for path in TESTS.glob("*/test_*.py")}
    assert {*LONG, *LONG_ELSEWHERE} - names == set()


def test_the_longest_files_are_at_the_two_ends() -> None:
    paths = [str(path.relative_to(TESTS.parent)) for path in TESTS.glob("*/test_*.py")]
    in_order = [Path(path).stem for path in sorted(paths, key=place)]
    assert in_order[-len(LONG_ELSEWHERE) :] == list(LONG_ELSEWHERE)
    assert {Path(path).parent.name for path in sorted(paths, key=place)[: len(LONG)]} == {"pipelines"}


class Process:
    """A process of pytest-xdist, which notes the numbers of the tests that it gets."""

    id = "process"

    def __init__(self) -> None:
        self.gateway = self
        self.numbers: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: list[int]) -> None:
        assert not self.shutting_down
        self.numbers += numbers

    def shutdown(self) -> None:
        self.shutting_down = True


class Run:
    """A run of these files, of two tests each, in some processes. Each of them runs one test of a round."""

    def __init__(self, pytestconfig: pytest.Config, files: list[str], processes: int = 3) -> None:
        self.tests = [f"{file}::test_{number}" for file in files for number in range(2)]
        self.scheduler: Any = BothEnds(_Options(pytestconfig, processes))
        self.processes = [Process() for _ in range(processes)]
        self.ran: dict[Process, list[str]] = {process: [] for process in self.processes}
        for process in self.processes:
            self.scheduler.add_node(process)
            self.scheduler.add_node_collection(process, self.tests)
        self.scheduler.schedule()

    def round(self, processes: list[Process]) -> None:
        for process in processes:
            left = process.numbers[len(self.ran[process]) :]
            if len(left) > 1 or (left and process.shutting_down):  # as in xdist, a process keeps one test to the end
                self.ran[process].append(self.tests[left[0]])
                self.scheduler.mark_test_complete(process, left[0])

    def finish(self) -> None:
        for _ in self.tests:
            self.round(self.processes)
        assert not self.scheduler.has_pending
        assert sorted(test for ran in self.ran.values() for test in ran) == sorted(self.tests)

    def files(self, process: Process) -> set[str]:
        return {test.partition("::")[0] for test in self.ran[process]}


class _Options:
    """The configuration of ``pytest -n``."""

    def __init__(self, config: pytest.Config, processes: int) -> None:
        self._config = config
        self._processes = processes
        self.option = self

    loadscopereorder = False

    def getvalue(self, name: str) -> Any:
        return ["popen"] * self._processes if name == "tx" else self._config.getvalue(name)


SHARING = [
    str(path.relative_to(TESTS.parent))
    for folder in ("pipelines", "spark")
    for path in sorted((TESTS / folder).glob("test_*.py"))
    if uses_session(str(path.relative_to(TESTS.parent)))
]
OTHERS = [f"tests/unit/test_{number}.py" for number in range(6)]


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(TESTS.parent)


def test_only_the_first_process_gets_the_files_of_the_shared_session(pytestconfig: pytest.Config) -> None:
    run = Run(pytestconfig, SHARING[: WORTH_A_SESSION - 1] + OTHERS)
    run.finish()
    first, *others = run.processes
    assert run.files(first) >= set(SHARING[: WORTH_A_SESSION - 1])
    assert set.union(*map(run.files, others)) <= set(OTHERS)


def test_another_process_takes_part_if_many_files_of_the_session_are_left(pytestconfig: pytest.Config) -> None:
    run = Run(pytestconfig, SHARING + OTHERS)
    first, second, _ = run.processes
    for _ in run.tests[: 2 * len(OTHERS) + 8]:
        run.round([second])
    assert set(SHARING) & run.files(second)
    run.finish()
    both = [len(run.files(process) & set(SHARING)) for process in (first, second)]
    assert min(both) > WORTH_A_SESSION, "both go on to the end"


def test_two_sessions_are_enough(pytestconfig: pytest.Config) -> None:
    run = Run(pytestconfig, SHARING + OTHERS, processes=4)
    run.finish()
    assert sum(bool(run.files(process) & set(SHARING)) for process in run.processes) == MOST_SESSIONS


def test_one_process_has_zookeeper_as_long_as_there_are_other_files(pytestconfig: pytest.Config) -> None:
    zookeeper = [
        str(path.relative_to(TESTS.parent))
        for path in sorted((TESTS / "zookeeper").glob("test_*.py"))
        if "zookeeper" in shared_by(str(path))
    ]
    assert len(zookeeper) > 4
    run = Run(pytestconfig, [f"tests/unit/test_{number}.py" for number in range(60)] + zookeeper)
    run.finish()
    assert [bool(run.files(process) & set(zookeeper)) for process in run.processes].count(True) == 1
    crowded = Run(pytestconfig, zookeeper)
    crowded.finish()
    assert all(crowded.files(process) for process in crowded.processes), "no process waits for another one"


def test_after_a_crash_of_the_first_process_another_one_runs_its_files(pytestconfig: pytest.Config) -> None:
    run = Run(pytestconfig, SHARING[:4] + OTHERS)
    first = run.processes.pop(0)
    for _ in range(6):
        run.round([first, *run.processes])
    assert all(process.shutting_down for process in run.processes)
    crashed = run.scheduler.remove_node(first)
    assert crashed == run.tests[first.numbers[len(run.ran[first])]]
    replacement = Process()
    run.processes.append(replacement)
    run.ran[replacement] = []
    run.scheduler.add_node(replacement)
    run.scheduler.add_node_collection(replacement, run.tests)
    run.scheduler.schedule()
    run.finish()
    assert run.files(replacement) <= set(SHARING)


def test_files_of_the_session_are_known_by_their_text() -> None:
    known = {Path(path).stem for path in SHARING}
    assert {"test_spark_batch", "test_both_writers_agree", "test_spark_stream", "test_spark_commits"} <= known
    assert not {"test_table_writer", "test_schema_text_of_no_file", "test_java_choice"} & known
    assert not uses_session("tests/unit/spark/test_spark_session.py"), "only files of the first folders"
    assert len(SHARING) > 20
