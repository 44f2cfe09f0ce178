"""Damages of every file of a data directory: what was acknowledged is there, or a line names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.damage_rules import check
from support.damaged_directories import Golden, build, random_damages


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return build(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_damaged_file_loses_nothing_without_a_line(golden: Golden, stop: str, tmp_path: Path) -> None:
    source = getattr(golden, stop)
    problems = list(check(golden, source, random_damages(source, 12, 36), tmp_path))
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_thousands_of_damaged_files_lose_nothing_without_a_line(
    golden: Golden, stop: str, seed: int, tmp_path: Path
) -> None:
    source = getattr(golden, stop)
    problems = list(check(golden, source, random_damages(source, 250, seed), tmp_path))
    assert not problems, "\n".join(problems)
