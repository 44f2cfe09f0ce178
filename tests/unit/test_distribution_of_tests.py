"""The order in which ``make test`` gives test files to its processes."""

from __future__ import annotations

from pathlib import Path

from support.distribution import LONG, LONG_ELSEWHERE, place

TESTS = Path(__file__).resolve().parents[1]


def test_each_file_with_a_place_of_its_own_exists() -> None:
    names = {path.stem for path in TESTS.glob("*/test_*.py")}
    assert {*LONG, *LONG_ELSEWHERE} - names == set()


def test_the_longest_files_are_at_the_two_ends() -> None:
    paths = [str(path.relative_to(TESTS.parent)) for path in TESTS.glob("*/test_*.py")]
    in_order = [Path(path).stem for path in sorted(paths, key=place)]
    assert in_order[-len(LONG_ELSEWHERE) :] == list(LONG_ELSEWHERE)
    assert {Path(path).parent.name for path in sorted(paths, key=place)[: len(LONG)]} == {"pipelines"}
