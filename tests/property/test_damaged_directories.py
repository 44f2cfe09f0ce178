"""Damages of every file of a data directory: what was acknowledged is there, or a line names what is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.damaged_directories import Damage, Golden, State, build, observe, random_damages


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return build(tmp_path_factory.mktemp("golden"))


def faults(damage: Damage, expected: State, found: State, directories: tuple[set[str], set[str]]) -> Iterator[str]:
    """Yields what is gone without a line, and what is gone although it has nothing to do with the damage."""
    damaged = damage.file.split("/")[0] if "/" in damage.file else ""
    before, after = directories
    if before - after:
        yield f"directories are gone: {before - after}"
    if found.refusal:
        name = damage.file.split("/")[-1]
        if name not in found.refusal and damaged not in found.refusal:
            yield f"the refusal does not name {damage.file}: {found.refusal}"
        return
    named = [line for line in [*found.lines, *found.failed] if damaged and damaged in line]
    for (partition, committed), records in expected.records.items():
        missing = records - found.records.get((partition, committed), set())
        more = found.records.get((partition, committed), set()) - records
        if damage.kind == "older" and partition == damaged and partition.startswith(("table", "__")):
            more.clear()  # an older copy of a compacted segment has records that a cleaning has removed since
        if (missing or more) and partition != damaged:
            yield f"{partition} changed: {len(missing)} missing, {len(more)} more"
        if (missing or more) and not named:
            yield f"{partition}, committed={committed}: {len(missing)} missing, {len(more)} more, and no line"
    for kind in ("commits", "transactional_ids"):
        for partition, there in getattr(expected, kind).items():
            now = getattr(found, kind).get(partition)
            if now != there and (partition != damaged or not named):
                yield f"{kind} of {partition} changed, and no line names it"


def check(golden: Golden, source: Path, damages: list[Damage], tmp_path: Path) -> list[str]:
    expected = observe(Path(shutil.copytree(source, tmp_path / "whole")))
    assert not expected.lines, expected.lines
    assert not expected.failed
    problems = []
    for number, damage in enumerate(damages):
        path = Path(shutil.copytree(source, tmp_path / "damaged"))
        if damage.apply(path, golden.older):
            before = {one.name for one in path.iterdir() if one.is_dir()}
            found = observe(path)
            after = {one.name for one in path.iterdir() if one.is_dir()}
            problems += [
                f"{number} {source.name} {damage}: {fault}"
                for fault in faults(damage, expected, found, (before, after))
            ]
        shutil.rmtree(path)
    return problems


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_a_damaged_file_loses_nothing_without_a_line(golden: Golden, stop: str, tmp_path: Path) -> None:
    source = getattr(golden, stop)
    problems = check(golden, source, random_damages(source, 30, 36), tmp_path)
    assert not problems, "\n".join(problems)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_thousands_of_damaged_files_lose_nothing_without_a_line(
    golden: Golden, stop: str, seed: int, tmp_path: Path
) -> None:
    source = getattr(golden, stop)
    problems = check(golden, source, random_damages(source, 250, seed), tmp_path)
    assert not problems, "\n".join(problems)
